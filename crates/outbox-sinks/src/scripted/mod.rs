//! `type = "scripted"`: asks a test what to do with each message. For tests of relay processes; no release has it.
//!
//! A relay connects to the test's [`Controller`] and sends one line of JSON a message ([`Delivery`]); the controller
//! records it, outside any relay, and answers with one line ([`Reply`]) or not at all.

mod controller;
mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub use controller::{Controller, Recorded, Script};
pub use wire::{Delivery, Reply};

use crate::batch::publish_keyed;
use crate::{Answer, Cause, Message, Sink};
use wire::WireAnswer;

/// Options of the scripted sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `host:port` of the controller.
    pub address: String,
    /// What the relay calls itself in what it sends; its process id when missing.
    #[serde(default)]
    pub relay: Option<String>,
    /// Sends all of a batch at once instead of one message of a key at a time.
    #[serde(default)]
    pub pipelined: bool,
}

impl Config {
    /// Makes the sink; it connects with the first batch.
    ///
    /// # Errors
    /// One line that names the sink when the address is not `host:port`.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        if !self.address.contains(':') {
            return Err(format!("sinks.{name}: `address` must be host:port, not \"{}\"", self.address));
        }
        Ok(Arc::new(Scripted {
            address: self.address.clone(),
            relay: self.relay.clone().unwrap_or_else(|| std::process::id().to_string()),
            pipelined: self.pipelined,
            link: AsyncMutex::new(None),
        }))
    }
}

/// Sends what it gets to a controller and does as it is told.
pub struct Scripted {
    address: String,
    relay: String,
    pipelined: bool,
    link: AsyncMutex<Option<Arc<Link>>>,
}

/// One connection, shared by all batches.
struct Link {
    requests: mpsc::UnboundedSender<Request>,
    tasks: [JoinHandle<()>; 2],
}

/// A message on its way to the socket. When nobody waits for the answer any more, it is not sent.
struct Request {
    delivery: Delivery,
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

#[async_trait]
impl Sink for Scripted {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let link = match timeout_at(deadline, self.link()).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return refused_all(batch, &error),
            Err(_) => return vec![Answer::silence(Cause::Sink); batch.len()],
        };
        let send = |message: &Message<'_>| {
            let delivery = wire::delivery(&self.relay, message);
            let link = Arc::clone(&link);
            async move { link.send(delivery, deadline).await }
        };
        if self.pipelined {
            return send_all(batch, deadline, send).await;
        }
        publish_keyed(batch, deadline, batch.len(), send).await
    }

    async fn check(&self, deadline: Instant) -> Result<String, String> {
        match timeout_at(deadline, self.link()).await {
            Ok(Ok(_)) => Ok(format!("connected to {}", self.address)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(format!("{} does not answer", self.address)),
        }
    }

    async fn close(&self) {
        self.link.lock().await.take();
    }
}

fn refused_all(batch: &[Message<'_>], error: &str) -> Vec<Answer> {
    batch.iter().map(|_| Answer::refused(Cause::Sink, error)).collect()
}

/// Sends every message at once, in the batch's order.
async fn send_all<'m, F, Fut>(batch: &'m [Message<'m>], deadline: Instant, send: F) -> Vec<Answer>
where
    F: Fn(&'m Message<'m>) -> Fut,
    Fut: Future<Output = Answer>,
{
    let answer = async |message| timeout_at(deadline, send(message)).await;
    let answers = futures_util::future::join_all(batch.iter().map(answer)).await;
    let last_acked = answers.iter().rposition(|answer| matches!(answer, Ok(Answer::Acked { .. })));
    let blame =
        |index: usize| if last_acked.is_some_and(|last| last > index) { Cause::Unclear } else { Cause::Sink };
    answers
        .into_iter()
        .enumerate()
        .map(|(index, answer)| answer.unwrap_or_else(|_| Answer::silence(blame(index))))
        .collect()
}

impl Scripted {
    async fn link(&self) -> Result<Arc<Link>, String> {
        let mut slot = self.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| link.is_alive()) {
            return Ok(Arc::clone(link));
        }
        let stream = TcpStream::connect(&self.address)
            .await
            .map_err(|error| format!("{} cannot be reached: {error}", self.address))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let link = Arc::new(Link::over(stream));
        *slot = Some(Arc::clone(&link));
        Ok(link)
    }
}

impl Link {
    fn over(stream: TcpStream) -> Self {
        let (read, write) = stream.into_split();
        let (requests, queue) = mpsc::unbounded_channel();
        let waiting = Waiting::default();
        let reader = tokio::spawn(read_answers(read, Arc::clone(&waiting)));
        let writer = tokio::spawn(write_requests(write, queue, waiting));
        Self { requests, tasks: [reader, writer] }
    }

    fn is_alive(&self) -> bool {
        self.tasks.iter().all(|task| !task.is_finished())
    }

    async fn send(&self, delivery: Delivery, deadline: Instant) -> Answer {
        let (answer, answered) = oneshot::channel();
        let lost = || Answer::refused(Cause::Sink, "the connection was lost with the message unanswered");
        if self.requests.send(Request { delivery, deadline, answer }).is_err() {
            return lost();
        }
        answered.await.unwrap_or_else(|_| lost())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn write_requests(
    write: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<Request>,
    waiting: Waiting,
) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut socket = BufWriter::new(write);
    while let Some(mut request) = queue.recv().await {
        if request.answer.is_closed() || Instant::now() >= request.deadline {
            let _ = request.answer.send(Answer::Unsent);
            continue;
        }
        request.delivery.number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let Ok(mut line) = serde_json::to_vec(&request.delivery) else { continue };
        line.push(b'\n');
        lock(&waiting).insert(request.delivery.number, request.answer);
        if socket.write_all(&line).await.is_err() || (queue.is_empty() && socket.flush().await.is_err()) {
            break;
        }
    }
    lock(&waiting).clear();
}

/// Ends with the connection, and with it every wait for an answer.
async fn read_answers(read: OwnedReadHalf, waiting: Waiting) {
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(WireAnswer { number, reply }) = serde_json::from_str(&line) else { break };
        let (Some(waiter), Some(answer)) = (lock(&waiting).remove(&number), reply.answer()) else { continue };
        let _ = waiter.send(answer);
    }
    lock(&waiting).clear();
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
