//! TLS with an authority of one's own, to a server that wants to see a certificate of the client too.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Broker;
use crate::stage::{Engine, Stage};

const SOON: Duration = Duration::from_secs(60);
const PUBLISHED: &str = "SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'";
const TOUCHED: &str = "SELECT count(*) FROM outbox_tasks WHERE status = 'FAILED' OR retry_count > 0";

/// `sink` are the lines of `[sinks.broker]` that lead to `broker` by TLS, at the name localhost; `files` is where
/// `make_certificates` has put the server's and the client's.
pub(crate) async fn run(broker: &dyn Broker, sink: &str, files: &Path) -> Result<()> {
    let file = |name: &str| files.join(name).display().to_string();
    let authority = |name: &str| format!("ca_file = \"{}\"", file(name));
    let client = format!("cert_file = \"{}\"\nkey_file = \"{}\"", file("client.crt"), file("client.key"));
    let configuration = |sink: &str, options: &[&str]| {
        let options = options.join("\n");
        format!(
            "[queues.default]\nsink = \"broker\"\ndestination = \"orders\"\n[sinks.broker]\n{sink}\n{options}\n"
        )
    };
    broker.create("orders").await?;
    let (known, stranger) = (authority("ca.crt"), authority("stranger.crt"));
    let mut stage = Stage::set(Engine::Sqlite, configuration(sink, &[&known, &client])).await?;
    stage.insert("a", 10).await?;
    stage.insert("b", 10).await?;

    let elsewhere = sink.replace("localhost", "127.0.0.1");
    for (configuration, words) in [
        (configuration(sink, &[&stranger, &client]), "`ca_file`"),
        (configuration(sink, &[&known]), "`cert_file`"),
        (configuration(&elsewhere, &[&known, &client]), "not valid for name"),
    ] {
        is_down(&Stage::on(Engine::Sqlite, stage.url.clone(), configuration).await?, words).await?;
        ensure!(stage.number(TOUCHED).await? == 0, "{words}: a row pays for it");
        ensure!(stage.number(PUBLISHED).await? == 0, "{words}: delivered all the same");
    }

    let check = stage.outbox(&["check"])?;
    ensure!(!check.contains("WRONG"), "{check}");
    let mut relay = stage.relay("relay")?;
    stage.until(PUBLISHED, 20, SOON).await.with_context(|| relay.log())?;
    ensure!(broker.consume("orders").await?.len() == 20, "not each event came once");
    relay.terminate();
    ensure!(relay.wait(SOON)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

/// `outbox check` says so in one line with these words, and so does a relay, for which it is an outage.
async fn is_down(stage: &Stage, words: &str) -> Result<()> {
    let said = stage.outbox(&["check"]).err().context("the check finds nothing wrong")?.to_string();
    let named = |line: &str| {
        line.trim_start().starts_with("WRONG") && line.contains("sink broker") && line.contains(words)
    };
    ensure!(said.lines().any(named), "no line says {words}: {said}");
    let mut relay = stage.relay("stranger")?;
    let end = tokio::time::Instant::now() + SOON;
    let down = |line: &str| line.contains("the sink is down") && line.contains(words);
    while !relay.log().lines().any(down) {
        ensure!(tokio::time::Instant::now() < end, "no outage by {words}: {}", relay.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.terminate();
    ensure!(relay.wait(SOON)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}
