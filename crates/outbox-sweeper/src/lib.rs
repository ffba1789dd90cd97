//! Lease recovery, dead-lettering, retention and WAL checkpoints of the outbox relay.
