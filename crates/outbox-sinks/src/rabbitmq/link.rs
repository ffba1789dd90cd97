//! One connection: how it is made, cut, and used for one message at a time on each of its channels.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lapin::message::BasicReturnMessage;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::tcp::{AsyncTcpStream, OwnedTLSConfig};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind, PublisherConfirm};
use tokio::time::timeout;

use super::failure::describe;
use super::outgoing::Outgoing;
use crate::pool::Connector;

/// How long a polite goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// What it takes to connect.
pub(super) struct Endpoint {
    pub(super) uri: AMQPUri,
    pub(super) tls: OwnedTLSConfig,
    pub(super) timeout: Duration,
    /// What the server shows as the connection's name.
    pub(super) name: String,
}

#[async_trait]
impl Connector for Endpoint {
    type Connection = Link;

    /// Host, port and virtual host.
    fn address(&self) -> String {
        let AMQPUri { authority, vhost, .. } = &self.uri;
        format!("RabbitMQ at {}:{}, virtual host {vhost}", authority.host, authority.port)
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Connects and logs in.
    async fn connect(&self) -> Result<Link, String> {
        let cut = CutWhenDropped::default();
        let tls = self.uri.scheme == AMQPScheme::AMQPS;
        let connection = self.open(cut.0.clone()).await.map_err(|error| describe_connect(&error, tls))?;
        Ok(Link { connection, _cut: cut, channels: Mutex::default() })
    }

    async fn is_alive(&self, link: &mut Link, _idle: Duration) -> bool {
        link.is_open()
    }
}

impl Endpoint {
    async fn open(&self, socket: Socket) -> lapin::Result<Connection> {
        let runtime = lapin::runtime::default_runtime()?;
        let (tls, patience) = (self.tls.clone(), self.timeout);
        let properties =
            ConnectionProperties::default().with_connection_name(LongString::from(self.name.as_str()));
        Connection::connector(
            self.uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                let connect = async {
                    let host = uri.authority.host.as_str();
                    let addresses: Vec<SocketAddr> =
                        tokio::net::lookup_host((host, uri.authority.port)).await?.collect();
                    let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                    if let AsyncTcpStream::Plain(plain) = &stream {
                        // Whoever closes it throws away what was not sent yet.
                        plain.get_ref().set_zero_linger()?;
                        socket.put(plain.get_ref().as_fd().try_clone_to_owned()?.into())?;
                    }
                    match uri.scheme {
                        AMQPScheme::AMQP => Ok(stream),
                        AMQPScheme::AMQPS => stream.into_tls(host, tls.as_ref()).await,
                    }
                };
                let connected = timeout(patience, connect).await;
                Ok(connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?)
            },
            properties,
        )
        .await
    }
}

/// Over TLS a server that misses the client's certificate says so and closes; its word may be lost with the connection.
fn describe_connect(error: &lapin::Error, tls: bool) -> String {
    match error.kind() {
        lapin::ErrorKind::IOError(error) if tls && error.kind() == io::ErrorKind::ConnectionReset => format!(
            "cannot connect: {error}; if the server wants a client's certificate, see `cert_file` and `key_file`"
        ),
        lapin::ErrorKind::IOError(error) => format!("cannot connect: {error}"),
        _ => describe(error),
    }
}

/// The TCP connection under a connection, to end it at once and for certain: what lies in a buffer, the client's or
/// the kernel's, is never sent. A polite close would send it first.
#[derive(Clone, Default)]
struct Socket(Arc<Mutex<Cut>>);

#[derive(Default)]
enum Cut {
    #[default]
    NotYet,
    Open(TcpStream),
    Done,
}

impl Socket {
    fn put(&self, stream: TcpStream) -> io::Result<()> {
        let mut state = lock(&self.0);
        if matches!(*state, Cut::Done) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        *state = Cut::Open(stream);
        Ok(())
    }

    fn cut(&self) {
        if let Cut::Open(stream) = std::mem::replace(&mut *lock(&self.0), Cut::Done) {
            // Fails when it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Also of a connection that was not made in time.
#[derive(Default)]
struct CutWhenDropped(Socket);

impl Drop for CutWhenDropped {
    fn drop(&mut self) {
        self.0.cut();
    }
}

/// What became of one publish.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Routed and stored.
    Acked,
    /// Routed, and refused by a queue.
    Nacked,
    /// No queue wanted it.
    Returned {
        /// The server's words.
        reason: String,
    },
    /// A return of another message than the one that was sent on this channel.
    Mixed,
    /// The channel or the connection is gone.
    Failed(lapin::Error),
}

/// A connection in use by one batch at a time. Dropped, it is cut: nothing that it was given is sent afterwards.
pub(super) struct Link {
    connection: Connection,
    _cut: CutWhenDropped,
    /// Channels with nothing in flight.
    channels: Mutex<Vec<Channel>>,
}

impl Link {
    /// Whether it can be used.
    pub(super) fn is_open(&self) -> bool {
        self.connection.status().connected()
    }

    /// Whether the server takes nothing from publishers, out of memory or disk.
    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// The largest frame.
    pub(super) fn frame_max(&self) -> usize {
        usize::try_from(self.connection.configuration().frame_max()).unwrap_or(usize::MAX)
    }

    /// How many channels there may be, one of them set aside for declarations; 0 from the server means any number.
    pub(super) fn channel_limit(&self) -> usize {
        match self.connection.configuration().channel_max() {
            0 => usize::MAX,
            limit => usize::from(limit).saturating_sub(1).max(1),
        }
    }

    /// Publishes on a channel that has nothing else in flight, and waits for the verdict.
    ///
    /// lapin hands a returned message to whichever confirm is resolved next; with several in flight on a channel that
    /// is often another one's. With one there is no other, and the message's id is looked at all the same.
    pub(super) async fn publish(&self, message: &Outgoing) -> Outcome {
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(error) => return Outcome::Failed(error),
        };
        let verdict = match send(&channel, message).await {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        let outcome = match verdict {
            Ok(Confirmation::Ack(None)) => Outcome::Acked,
            Ok(Confirmation::Nack(None)) => Outcome::Nacked,
            Ok(Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back))) => returned(message, &back),
            Ok(Confirmation::NotRequested) => Outcome::Mixed,
            Err(error) => return Outcome::Failed(error),
        };
        lock(&self.channels).push(channel);
        outcome
    }

    async fn channel(&self) -> lapin::Result<Channel> {
        loop {
            let idle = lock(&self.channels).pop();
            match idle {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => break,
            }
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Makes a durable exchange, if it is not there.
    pub(super) async fn declare_exchange(&self, name: &str, kind: ExchangeKind) -> lapin::Result<()> {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let channel = self.connection.create_channel().await?;
        channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await
    }

    /// Makes a durable queue, if it is not there.
    pub(super) async fn declare_queue(&self, name: &str, kind: &str) -> lapin::Result<()> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(LongString::from(kind)));
        let channel = self.connection.create_channel().await?;
        channel.queue_declare(name.into(), options, arguments).await.map(|_| ())
    }

    /// Whether there is an exchange of this name.
    pub(super) async fn exchange_exists(&self, name: &str) -> lapin::Result<()> {
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let channel = self.connection.create_channel().await?;
        channel.exchange_declare(name.into(), ExchangeKind::Direct, options, FieldTable::default()).await
    }

    /// Says goodbye; nothing is in flight.
    pub(super) async fn close(self) {
        // A server that does not answer is left without.
        let _ = timeout(GOODBYE, self.connection.close(200, "OK".into())).await;
    }
}

async fn send(channel: &Channel, message: &Outgoing) -> lapin::Result<PublisherConfirm> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    channel
        .basic_publish(
            message.address.exchange.as_str().into(),
            message.address.routing_key.as_str().into(),
            options,
            &message.body,
            message.properties.clone(),
        )
        .await
}

fn returned(message: &Outgoing, back: &BasicReturnMessage) -> Outcome {
    if back.properties.message_id().as_ref() != Some(&message.message_id) {
        return Outcome::Mixed;
    }
    Outcome::Returned { reason: format!("{} {}", back.reply_code, back.reply_text) }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
