//! Both stores against their contract, a random model, and the protocol itself searched exhaustively.

mod contract;
mod enqueue;
mod model;
mod plain_sql;
mod postgres;
mod processed;
mod protocol;
