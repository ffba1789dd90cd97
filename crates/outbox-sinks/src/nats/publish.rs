//! One message, and what becomes of it.

use std::pin::pin;
use std::time::Duration;

use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream;
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::connection::{Connection, Silent};
use super::{message, refusal};
use crate::{Answer, Cause, Message};

/// How long a question about streams may take: it is asked when something is wrong already.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// A stream to make where a subject has none.
#[derive(Clone, Debug)]
pub(super) struct NewStream {
    pub(super) name: String,
    pub(super) subjects: Vec<String>,
    pub(super) replicas: usize,
    /// 0: for ever.
    pub(super) max_age: Duration,
}

/// How the messages of a batch are published.
pub(super) struct Publishing<'a> {
    pub(super) connection: &'a Connection,
    pub(super) ack_timeout: Duration,
    pub(super) create: Option<&'a NewStream>,
}

/// The streams that take a subject.
#[derive(Debug, Deserialize)]
struct Names {
    #[serde(default)]
    streams: Option<Vec<String>>,
}

/// What is behind a subject.
enum Lookup {
    Stream(String),
    Nothing,
    NoJetStream(String),
    Unknown(String),
}

impl Publishing<'_> {
    /// Sends one message and waits for its answer.
    pub(super) async fn send(&self, message: &Message<'_>) -> Answer {
        let checked = message::subject(message).and_then(|subject| Ok((subject, message::headers(message)?)));
        let (subject, headers) = match checked {
            Ok(checked) => checked,
            Err(error) => return Answer::refused(Cause::Message, error),
        };
        let body = message.body.clone().unwrap_or_default();
        let request = || self.connection.request(subject, headers.clone(), body.clone());
        let silent = match self.ask(subject, request()).await {
            Ok(answer) => return answer,
            Err(silent) => silent,
        };
        if !matches!(silent, Silent::NobodyThere) {
            return unanswered(subject, silent);
        }
        let stream = match (self.look_up(subject).await, self.create) {
            // Made since, by another message of the batch or by an operator.
            (Lookup::Stream(stream), _) => stream,
            (Lookup::Nothing, Some(new)) => match self.create_stream(subject, new).await {
                Ok(()) => new.name.clone(),
                Err(answer) => return answer,
            },
            (found, _) => return nobody(subject, found),
        };
        match request().await {
            Ok(payload) => refusal::answer(subject, &payload),
            Err(Silent::NobodyThere) => nobody(subject, Lookup::Stream(stream)),
            Err(silent) => unanswered(subject, silent),
        }
    }

    /// Waits for the answer. When it is late and no stream would give one, nobody waits for it any longer.
    async fn ask(
        &self,
        subject: &str,
        request: impl Future<Output = Result<bytes::Bytes, Silent>>,
    ) -> Result<Answer, Silent> {
        let mut request = pin!(request);
        let answered = match timeout(self.ack_timeout, &mut request).await {
            Ok(answered) => answered,
            Err(_) => match self.look_up(subject).await {
                found @ Lookup::Nothing => return Ok(nobody(subject, found)),
                _ => request.await,
            },
        };
        answered.map(|payload| refusal::answer(subject, &payload))
    }

    async fn look_up(&self, subject: &str) -> Lookup {
        let question = json!({ "subject": subject });
        let asked = self.connection.jetstream.request("STREAM.NAMES", &question);
        match timeout(LOOKUP_TIMEOUT, asked).await {
            Ok(Ok(Response::Ok(Names { streams }))) => {
                streams.and_then(|names| names.into_iter().next()).map_or(Lookup::Nothing, Lookup::Stream)
            }
            Ok(Ok(Response::Err { error })) => Lookup::NoJetStream(error.to_string()),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
                Lookup::NoJetStream("JetStream does not answer; is it enabled?".to_owned())
            }
            Ok(Err(error)) => Lookup::Unknown(error.to_string()),
            Err(_) => Lookup::Unknown("the question for its stream was not answered".to_owned()),
        }
    }

    async fn create_stream(&self, subject: &str, new: &NewStream) -> Result<(), Answer> {
        let config = stream::Config {
            name: new.name.clone(),
            subjects: new.subjects.clone(),
            num_replicas: new.replicas,
            max_age: new.max_age,
            ..stream::Config::default()
        };
        let refused = |error: String| {
            Answer::refused(
                Cause::Destination,
                format!(
                    "no stream takes subject `{subject}`, and stream `{}` cannot be made: {error}",
                    new.name
                ),
            )
        };
        match timeout(LOOKUP_TIMEOUT, self.connection.jetstream.create_stream(config)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(refused(error.to_string())),
            Err(_) => Err(refused("no answer".to_owned())),
        }
    }
}

fn nobody(subject: &str, found: Lookup) -> Answer {
    let (cause, error) = match found {
        Lookup::Stream(stream) => (
            Cause::Destination,
            format!("stream `{stream}` takes subject `{subject}`, but does not answer; has it a leader?"),
        ),
        Lookup::Nothing => (
            Cause::Destination,
            format!(
                "no stream takes subject `{subject}`; make one (nats stream add), or set `create = true`"
            ),
        ),
        Lookup::NoJetStream(error) => (Cause::Sink, error),
        Lookup::Unknown(error) => {
            (Cause::Destination, format!("nobody listens to subject `{subject}`; has it a stream? ({error})"))
        }
    };
    Answer::refused(cause, error)
}

fn unanswered(subject: &str, silent: Silent) -> Answer {
    match silent {
        Silent::NobodyThere => nobody(subject, Lookup::Unknown("not looked up".to_owned())),
        Silent::Denied => {
            Answer::refused(Cause::Destination, format!("this user may not publish to subject `{subject}`"))
        }
        Silent::TooLarge(error) => Answer::refused(Cause::Message, format!("too large: {error}")),
        Silent::Lost(error) => Answer::refused(Cause::Sink, format!("the connection was lost: {error}")),
    }
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
