//! Both stores against their contract, a random model, and the protocol itself searched exhaustively.

mod contract;
mod enqueue;
mod postgres;
mod protocol;
