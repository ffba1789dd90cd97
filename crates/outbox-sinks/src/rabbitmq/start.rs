//! What the server says of itself before anybody logs in. lapin keeps it to itself.

use lapin::uri::{AMQPScheme, AMQPUri};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// AMQP 0.9.1's greeting.
const GREETING: &[u8] = b"AMQP\x00\x00\x09\x01";

/// Larger than any server's introduction.
const MOST: usize = 64 * 1024;

/// The server's version; `None` over TLS, where it would take another handshake, and where it does not say.
pub(super) async fn version(uri: &AMQPUri, deadline: Instant) -> Option<String> {
    if uri.scheme == AMQPScheme::AMQPS {
        return None;
    }
    let frame = timeout_at(deadline, introduction(uri)).await.ok()?.ok()?;
    find(&frame, b"\x07versionS")
}

/// The payload of the first frame: `connection.start`.
async fn introduction(uri: &AMQPUri) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((uri.authority.host.as_str(), uri.authority.port)).await?;
    stream.write_all(GREETING).await?;
    let mut head = [0; 7];
    stream.read_exact(&mut head).await?;
    let [_, _, _, size @ ..] = head;
    let size = usize::try_from(u32::from_be_bytes(size)).unwrap_or(MOST).min(MOST);
    let mut payload = vec![0; size];
    stream.read_exact(&mut payload).await?;
    Ok(payload)
}

/// The long string that follows a table's key.
fn find(table: &[u8], key: &[u8]) -> Option<String> {
    let at = table.windows(key.len()).position(|window| window == key)? + key.len();
    let (length, rest) = table.get(at..)?.split_first_chunk::<4>()?;
    let text = rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    String::from_utf8(text.to_vec()).ok()
}

#[test]
fn the_version_is_found_in_the_introduction() {
    let table = b"\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00\x063.10.8\x08platform";
    assert_eq!(find(table, b"\x07versionS").as_deref(), Some("3.10.8"));
    assert_eq!(find(&table[..30], b"\x07versionS"), None);
}
