//! The test's side: records every message and decides what becomes of it.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::wire::{Delivery, Reply, WireAnswer};

/// Decides what becomes of a message. Called in the order of arrival, one message at a time.
pub type Script = Box<dyn FnMut(&Delivery) -> Reply + Send>;

/// A message that arrived, and what the script said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The message.
    pub delivery: Delivery,
    /// What became of it.
    pub reply: Reply,
}

/// Listens for relays; keeps what they send, in the order of arrival, until it is dropped.
pub struct Controller {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

struct Shared {
    script: Mutex<Script>,
    log: Mutex<Log>,
    /// How many messages have arrived.
    arrived: watch::Sender<usize>,
    /// Connections are cut when this changes.
    cuts: watch::Sender<u64>,
}

#[derive(Default)]
struct Log {
    recorded: Vec<Recorded>,
    held: Vec<(Delivery, mpsc::UnboundedSender<Outgoing>)>,
}

enum Outgoing {
    Answer(WireAnswer),
    Cut,
}

impl Controller {
    /// Listens on a free port of the loopback interface. Needs a tokio runtime.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn bind(script: impl FnMut(&Delivery) -> Reply + Send + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: Mutex::new(Box::new(script)),
            log: Mutex::new(Log::default()),
            arrived: watch::Sender::new(0),
            cuts: watch::Sender::new(0),
        });
        let listener = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, listener })
    }

    /// For the sink's `address`.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Replaces the script; messages that arrive from now on are decided by the new one.
    pub fn set_script(&self, script: impl FnMut(&Delivery) -> Reply + Send + 'static) {
        *lock(&self.shared.script) = Box::new(script);
    }

    /// Everything that arrived so far, in order.
    #[must_use]
    pub fn recorded(&self) -> Vec<Recorded> {
        lock(&self.shared.log).recorded.clone()
    }

    /// What counts as delivered so far, in order.
    #[must_use]
    pub fn delivered(&self) -> Vec<Delivery> {
        let log = lock(&self.shared.log);
        log.recorded.iter().filter(|one| one.reply.delivers()).map(|one| one.delivery.clone()).collect()
    }

    /// How many messages have arrived.
    #[must_use]
    pub fn arrived(&self) -> usize {
        *self.shared.arrived.borrow()
    }

    /// Waits until what has been recorded is as wanted; false when it is not within `at_most`.
    pub async fn wait_for(&self, at_most: Duration, mut wanted: impl FnMut(&[Recorded]) -> bool) -> bool {
        let mut arrived = self.shared.arrived.subscribe();
        let wait = async {
            loop {
                arrived.borrow_and_update();
                if wanted(&lock(&self.shared.log).recorded) {
                    return;
                }
                // The sender is `self.shared`: it cannot be gone.
                let _ = arrived.changed().await;
            }
        };
        tokio::time::timeout(at_most, wait).await.is_ok()
    }

    /// Answers held messages as `decide` says; those it says `None` for stay held. Says how many were answered.
    pub fn answer_held(&self, mut decide: impl FnMut(&Delivery) -> Option<Reply>) -> usize {
        let mut log = lock(&self.shared.log);
        let before = log.held.len();
        log.held.retain(|(delivery, outgoing)| {
            let Some(reply) = decide(delivery) else { return true };
            let _ = outgoing.send(Outgoing::Answer(WireAnswer { number: delivery.number, reply }));
            false
        });
        before - log.held.len()
    }

    /// How many messages are held.
    #[must_use]
    pub fn held(&self) -> usize {
        lock(&self.shared.log).held.len()
    }

    /// Cuts every connection; relays may connect again.
    pub fn cut_all(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Its connections end with it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                connections.spawn(serve(stream, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let mut cuts = shared.cuts.subscribe();
    let (read, write) = stream.into_split();
    let (outgoing, answers) = mpsc::unbounded_channel();
    tokio::select! {
        () = receive(read, &shared, outgoing) => {}
        () = send(write, answers) => {}
        _ = cuts.changed() => {}
    }
}

async fn receive(read: OwnedReadHalf, shared: &Shared, outgoing: mpsc::UnboundedSender<Outgoing>) {
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(delivery) = serde_json::from_str::<Delivery>(&line) else { return };
        take(delivery, shared, &outgoing);
    }
}

fn take(delivery: Delivery, shared: &Shared, outgoing: &mpsc::UnboundedSender<Outgoing>) {
    let number = delivery.number;
    let reply = {
        // Held over both, so that the record has the order in which the script saw the messages.
        let mut script = lock(&shared.script);
        let reply = script(&delivery);
        let mut log = lock(&shared.log);
        if reply == Reply::Hold {
            log.held.push((delivery.clone(), outgoing.clone()));
        }
        log.recorded.push(Recorded { delivery, reply: reply.clone() });
        shared.arrived.send_replace(log.recorded.len());
        reply
    };
    match reply {
        Reply::Hold | Reply::Lose | Reply::Ignore => {}
        Reply::Cut => {
            let _ = outgoing.send(Outgoing::Cut);
        }
        Reply::AckAfter(delay) => {
            let outgoing = outgoing.clone();
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = outgoing.send(Outgoing::Answer(WireAnswer { number, reply: Reply::Ack }));
            });
        }
        reply => {
            let _ = outgoing.send(Outgoing::Answer(WireAnswer { number, reply }));
        }
    }
}

async fn send(write: OwnedWriteHalf, mut answers: mpsc::UnboundedReceiver<Outgoing>) {
    let mut socket = BufWriter::new(write);
    while let Some(next) = answers.recv().await {
        let Outgoing::Answer(answer) = next else { return };
        let Ok(mut line) = serde_json::to_vec(&answer) else { return };
        line.push(b'\n');
        if socket.write_all(&line).await.is_err() || (answers.is_empty() && socket.flush().await.is_err()) {
            return;
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
