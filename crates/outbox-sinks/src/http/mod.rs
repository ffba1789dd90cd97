//! `type = "http"`: each event is a POST to one URL, signed as Standard Webhooks asks for.
//!
//! At most one event of a key is on its way at a time, so a key's order needs nothing from the receiver. Only a 2xx
//! counts; what else comes, or does not come, is blamed in `answer`. Redirects are not followed, and addresses that
//! are not public are refused where the connection is made, so that a name cannot lead to one later.

mod address;
mod answer;
mod client;
mod config;
mod request;
mod sign;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Response;
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

pub use config::Config;

use crate::batch::publish_keyed_to;
use crate::{Answer, Cause, Message, Refusal, Sink};
use client::Endpoint;
use request::Template;

/// A response's body says nothing that counts, but a connection can only be used again once it is read: as far as
/// this many bytes …
const DRAIN_BYTES: usize = 64 * 1024;
/// … and this much time go.
const DRAIN_TIME: Duration = Duration::from_millis(250);

/// Posts events to a URL.
struct Http {
    endpoint: Endpoint,
    template: Template,
    request_timeout: Duration,
    concurrency: usize,
    /// One for each request on its way, whichever batch it belongs to.
    slots: Semaphore,
}

impl Config {
    /// Makes the sink. Reads the certificates that are named, connects to nothing.
    ///
    /// # Errors
    /// One line that names the sink and the option that cannot be used.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        let wrong = |problem: String| format!("sinks.{name}: {problem}");
        self.check_limits().map_err(wrong)?;
        let url = self.target().map_err(wrong)?;
        let template = Template::new(self, &url).map_err(wrong)?;
        let endpoint = Endpoint::new(name, self, &url)?;
        Ok(Arc::new(Http {
            endpoint,
            template,
            request_timeout: self.request_timeout,
            concurrency: self.concurrency as usize,
            slots: Semaphore::new(self.concurrency as usize),
        }))
    }
}

#[async_trait]
impl Sink for Http {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let given_up = AtomicBool::new(false);
        // Wherever the receiver sends an event on to, the place that answers is the URL.
        let place = |_: &Message<'_>| ();
        let send = |message| self.send(message, deadline, &given_up);
        publish_keyed_to(batch, deadline, self.concurrency, place, send).await
    }

    async fn check(&self, deadline: Instant) -> Result<String, String> {
        let request = self.template.probe();
        let origin = &self.endpoint.origin;
        match timeout_at(deadline, self.endpoint.client.execute(request)).await {
            Err(_) => Err(format!("{origin} did not answer in time")),
            Ok(Err(error)) => Err(answer::describe(origin, &error)),
            Ok(Ok(response)) => {
                answer::check(origin, response.status()).map(|found| format!("{found}{}", self.weaknesses()))
            }
        }
    }

    async fn close(&self) {}
}

impl Http {
    /// `given_up` is set once the receiver cannot be reached or asks to be left alone: what is left of the batch need
    /// not find that out again.
    async fn send(&self, message: &Message<'_>, deadline: Instant, given_up: &AtomicBool) -> Answer {
        let Ok(Ok(_slot)) = timeout_at(deadline, self.slots.acquire()).await else {
            return Answer::Unsent;
        };
        if Instant::now() >= deadline || given_up.load(Ordering::Relaxed) {
            return Answer::Unsent;
        }
        let request = match self.template.request(message, OffsetDateTime::now_utc()) {
            Ok(request) => request,
            Err(error) => return Answer::refused(Cause::Message, error),
        };
        let answer = match timeout(self.request_timeout, self.endpoint.client.execute(request)).await {
            Err(_) => answer::no_answer_within(self.request_timeout),
            Ok(Err(error)) => answer::without_response(&self.endpoint.origin, &error),
            Ok(Ok(response)) => {
                let (status, headers) = (response.status(), response.headers());
                let destination = message.destination.as_deref();
                let answer = answer::to_response(status, headers, destination, OffsetDateTime::now_utc());
                drain(response, deadline).await;
                answer
            }
        };
        if matches!(&answer, Answer::Refused(Refusal { cause: Cause::Sink, silent: false, .. })) {
            given_up.store(true, Ordering::Relaxed);
        }
        answer
    }

    fn weaknesses(&self) -> String {
        let mut found = String::new();
        if self.endpoint.is_plain {
            found.push_str("; not encrypted");
        }
        if !self.template.is_signed() {
            found.push_str("; not signed: set `signing_secret`");
        }
        found
    }
}

/// Never takes until the deadline, which would make silence of an answer that is there.
async fn drain(mut response: Response, deadline: Instant) {
    let until = Instant::now() + DRAIN_TIME;
    if until >= deadline {
        return;
    }
    let mut left = DRAIN_BYTES;
    while let Ok(Ok(Some(chunk))) = timeout_at(until, response.chunk()).await {
        match left.checked_sub(chunk.len()) {
            Some(less) => left = less,
            None => return,
        }
    }
}
