//! The connections of a sink: each is in the hands of one batch at a time, so that cutting one off concerns no other.

use std::sync::Mutex;

use tokio::time::Instant;

use super::link::{Endpoint, Link, lock};
use crate::reconnect::Backoff;

/// Connections, and when new ones may be made.
pub(super) struct Pool {
    pub(super) endpoint: Endpoint,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<Link>,
    backoff: Backoff,
    last_error: String,
}

impl Pool {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, state: Mutex::default() }
    }

    /// An idle connection, or else a new one.
    ///
    /// # Errors
    /// One line: it cannot connect, or it could not a moment ago.
    pub(super) async fn take(&self, deadline: Instant) -> Result<Link, String> {
        if let Some(link) = self.idle()? {
            return Ok(link);
        }
        let connected = self.endpoint.connect(deadline).await;
        let mut state = lock(&self.state);
        match &connected {
            Ok(_) => state.backoff.succeeded(),
            Err(error) => {
                state.backoff.failed();
                state.last_error.clone_from(error);
            }
        }
        connected
    }

    fn idle(&self) -> Result<Option<Link>, String> {
        let mut state = lock(&self.state);
        while let Some(link) = state.idle.pop() {
            if link.is_open() {
                return Ok(Some(link));
            }
        }
        match state.backoff.not_before() {
            Some(_) => Err(state.last_error.clone()),
            None => Ok(None),
        }
    }

    /// Takes a connection back. One that broke is dropped.
    pub(super) fn give_back(&self, link: Link) {
        if link.is_open() {
            lock(&self.state).idle.push(link);
        }
    }

    /// Ends all idle connections.
    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut lock(&self.state).idle);
        futures_util::future::join_all(idle.into_iter().map(Link::close)).await;
    }
}
