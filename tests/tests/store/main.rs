//! Both stores against their contract, a random model, and the protocol itself searched exhaustively.

mod contract;
mod enqueue;
mod enqueue_function;
mod enqueue_rusqlite;
mod enqueue_tokio_postgres;
mod guide;
mod model;
mod pinned;
mod plain_sql;
mod postgres;
mod processed;
mod protocol;
mod wake_up;
