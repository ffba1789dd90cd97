//! A TCP proxy between a relay and a server, whose links a test cuts, silences and slows down.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What the links do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weather {
    /// Everything passes.
    #[default]
    Clear,
    /// Each chunk, of at most 4 KiB, is that late.
    Slow(Duration),
    /// Requests pass, answers are swallowed, and the link is dead for good.
    Deaf,
    /// Nothing passes and nothing is closed, and the link is dead for good: a half-open connection.
    Silent,
    /// Links are reset, and new ones at once.
    Reset,
}

/// Listens on a free port of 127.0.0.1 until it is dropped; its links end with it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    listener: JoinHandle<()>,
}

impl Proxy {
    /// Listens for links to `127.0.0.1:port`. Needs a tokio runtime.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn to(port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (weather, sight) = watch::channel(Weather::Clear);
        let listener = tokio::spawn(accept(listener, port, sight));
        Ok(Self { address, weather, listener })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// What its links do from now on, new ones too.
    pub fn turn(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn accept(listener: TcpListener, port: u16, sight: watch::Receiver<Weather>) {
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            Ok((client, _)) = listener.accept() => {
                links.spawn(link(client, port, sight.clone()));
            }
            Some(_) = links.join_next() => {}
        }
    }
}

/// Ends when either side closes, by a reset to both: nothing waits for a link that is gone.
async fn link(client: TcpStream, port: u16, sight: watch::Receiver<Weather>) {
    // A server that is down refuses: so does the link.
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_zero_linger();
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = carry(from_client, to_server, sight.clone(), false) => {}
        () = carry(from_server, to_client, sight.clone(), true) => {}
        () = reset(sight) => {}
    }
}

async fn reset(mut sight: watch::Receiver<Weather>) {
    // The proxy is gone, and the link with it, when the sender is.
    let _ = sight.wait_for(|weather| *weather == Weather::Reset).await;
}

/// Carries one direction until its source is closed.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut sight: watch::Receiver<Weather>,
    answers: bool,
) {
    let (mut chunk, mut dead) = (vec![0; 4096], false);
    loop {
        let length = tokio::select! {
            read = from.read(&mut chunk) => match read {
                Ok(length) if length > 0 => length,
                _ => return,
            },
            // A link that carries nothing in bad weather is dead all the same.
            Ok(()) = sight.changed() => 0,
        };
        let weather = *sight.borrow_and_update();
        dead |= weather == Weather::Silent || (answers && weather == Weather::Deaf);
        if let Weather::Slow(late) = weather {
            tokio::time::sleep(late).await;
        }
        if !dead && to.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        port
    }

    async fn said(stream: &mut TcpStream) -> std::io::Result<u8> {
        stream.write_u8(7).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn links_break_as_they_are_told_and_new_ones_work() {
        let proxy = Proxy::to(echo().await).await.expect("a proxy");
        let connect = || TcpStream::connect(("127.0.0.1", proxy.port()));
        let mut link = connect().await.expect("a link");
        assert_eq!(said(&mut link).await.expect("an answer"), 7);
        proxy.turn(Weather::Slow(Duration::from_millis(20)));
        let begun = tokio::time::Instant::now();
        assert_eq!(said(&mut link).await.expect("an answer"), 7);
        assert!(begun.elapsed() >= Duration::from_millis(40), "late both ways");
        proxy.turn(Weather::Reset);
        assert!(said(&mut link).await.is_err(), "the link is reset");
        for weather in [Weather::Silent, Weather::Deaf] {
            proxy.turn(Weather::Clear);
            let mut link = connect().await.expect("a link");
            assert_eq!(said(&mut link).await.expect("an answer"), 7);
            proxy.turn(weather);
            let silence = Duration::from_millis(100);
            assert!(tokio::time::timeout(silence, said(&mut link)).await.is_err(), "nothing comes back");
            proxy.turn(Weather::Clear);
            assert!(tokio::time::timeout(silence, said(&mut link)).await.is_err(), "nor later");
            assert_eq!(said(&mut connect().await.expect("a link")).await.expect("an answer"), 7);
        }
    }
}
