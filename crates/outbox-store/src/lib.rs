//! What the relay knows of a database: domain types and the [`Store`] contract.
//!
//! A store abstracts at the level of operations (claim, settle, sweep …), never of SQL. What each operation promises
//! is said on the trait; the `contract` feature holds the cases that every store is tested with.

mod claim;
#[cfg(feature = "contract")]
pub mod contract;
mod event;
mod operator;
mod policy;
mod store;

pub use claim::{Claim, Claimed, Settled, Verdict};
pub use event::{Event, Payload, RowRef};
pub use operator::{FailedEvent, QueueStats, SchemaState, Selection, Swept, SweptRow, WalCheckpoint};
pub use policy::{OnFailed, Ordering, Published, QueuePolicy};
pub use store::{Claimer, Store, StoreError};

/// What `last_error` says of a row whose relays died often enough to give it up.
pub const MAX_RETRIES_EXCEEDED: &str = "Max retries exceeded without ACK";

/// The receipt of a FAILED row that an operator gave up.
pub const DISCARDED: &str = "discarded";
