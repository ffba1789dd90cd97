//! Consumers process each event once: effect and mark commit together.
