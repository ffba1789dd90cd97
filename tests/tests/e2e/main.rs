//! Whole relays, as processes, between a real database and a sink that the test steers.

mod chaos;
mod checker;
mod deploy;
mod faults;
mod languages;
mod memory;
mod operate;
mod orders;
mod rollbacks;
mod sinks;
mod stage;
mod writers;
mod zombie;
