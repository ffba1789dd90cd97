//! The http sink beside a loop around reqwest, to a receiver in this process that answers at once.

use anyhow::{Result, ensure};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use outbox_store::Event;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::{Batches, Runs, events, sink, through_the_sink};
use crate::report::Report;
use crate::workload::Workload;

/// Requests on their way at once: the sink's default, over all batches.
const CONCURRENCY: usize = 16;

/// Measures.
pub(crate) async fn run(work: Workload) -> Result<Report> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/hook", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A connection ends with the client's.
            tokio::spawn(async move { serve(stream).await.ok() });
        }
    });
    let events = events(&work);
    let sink = sink(
        json!({ "type": "http", "url": url, "allow_private_addresses": true, "concurrency": CONCURRENCY }),
    )?;
    let client = reqwest::Client::builder().http1_only().no_proxy().build()?;
    let mut runs = Runs::default();
    for _ in 0..work.runs {
        let bare = Batches::new(&events, &work).send(async |batches: Batches| {
            while let Some(batch) = batches.next() {
                post_all(&client, &url, batch).await?;
            }
            Ok(())
        });
        let bare = bare.await?;
        runs.add(&work, bare, through_the_sink(&sink, &events, &work, "orders").await?);
    }
    sink.close().await;
    Ok(runs.report("HTTP", &work))
}

/// Each answer awaited; several events of a key may be on their way at once.
async fn post_all(client: &reqwest::Client, url: &str, batch: &[Event]) -> Result<()> {
    let post = |event: &Event| {
        let body = event.payload.bytes().cloned().unwrap_or_default();
        let request = client.post(url).header("webhook-id", event.id.to_string()).body(body);
        async move {
            let response = request.send().await?;
            ensure!(response.status().is_success(), "not accepted");
            response.bytes().await?;
            Ok(())
        }
    };
    let mut waiting = batch.iter();
    let mut running: FuturesUnordered<_> =
        waiting.by_ref().take(CONCURRENCY / super::IN_FLIGHT).map(post).collect();
    while let Some(done) = running.next().await {
        done?;
        running.extend(waiting.next().map(post));
    }
    Ok(())
}

async fn serve(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let (mut line, mut body) = (String::new(), Vec::new());
    loop {
        let mut length = 0;
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let text = line.trim_end().to_ascii_lowercase();
            if text.is_empty() {
                break;
            }
            if let Some(value) = text.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        body.resize(length, 0);
        stream.read_exact(&mut body).await?;
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}
