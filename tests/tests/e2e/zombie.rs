//! A relay that sleeps past its lease settles nothing when it wakes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_sinks::scripted::{Controller, Reply};
use outbox_tests::process::wait_until;

use crate::stage::{Engine, Stage};

const ROWS: i64 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_stopped_past_its_lease_settles_nothing_on_postgres() -> Result<()> {
    sleeper(Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_stopped_past_its_lease_settles_nothing_on_sqlite() -> Result<()> {
    sleeper(Engine::Sqlite).await
}

async fn sleeper(engine: Engine) -> Result<()> {
    // The first relay gets no answer until the test lets go; the second gets one at once.
    let sink =
        Controller::bind(|delivery| if delivery.relay == "sleeper" { Reply::Hold } else { Reply::Ack })
            .await?;
    let play = format!(
        "[queues.default]\nsink = \"scripted\"\nlease = \"2s\"\npublish_timeout = \"1500ms\"\n\
         [sinks.scripted]\ntype = \"scripted\"\naddress = \"{}\"\nrelay = \"RELAY\"\n[sweeper]\ninterval = \"200ms\"\n",
        sink.address()
    );
    let mut stage = Stage::set(engine, play).await?;
    for key in 0..ROWS {
        stage.insert(&format!("k{key}"), 1).await?;
    }
    let metrics = free_address()?;
    let sleeper = stage.relay_listening("sleeper", &metrics)?;
    wait_until("the first relay holds all rows", Duration::from_secs(20), || sink.held() == ROWS as usize)
        .with_context(|| sleeper.log())?;
    sleeper.pause();
    // The answers wait in its socket until it wakes.
    sink.answer_held(|_| Some(Reply::Ack));

    let second = stage.relay("second")?;
    let all_published = "SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'";
    stage.until(all_published, ROWS, Duration::from_secs(30)).await.with_context(|| second.log())?;
    ensure!(
        stage.number("SELECT sum(lost_count) FROM outbox_tasks").await? == ROWS,
        "every row was lost once"
    );
    let changes = match engine {
        Engine::Postgres => "SELECT sum(extract(epoch FROM updated_at) * 1000000)::bigint FROM outbox_tasks",
        Engine::Sqlite => "SELECT sum(updated_at) FROM outbox_tasks",
    };
    let before = stage.number(changes).await?;

    sleeper.resume();
    wait_until("the first relay counts its lost lease", Duration::from_secs(20), || {
        scrape(&metrics).is_ok_and(|text| text.lines().any(lost_one))
    })
    .with_context(|| sleeper.log())?;
    ensure!(
        stage.number(changes).await? == before,
        "the first relay has changed a row that it no longer owns"
    );
    ensure!(stage.count("PUBLISHED").await? == ROWS, "every row is PUBLISHED once and for all");
    Ok(())
}

fn lost_one(line: &str) -> bool {
    line.starts_with("outbox_lease_lost_total") && line.ends_with(" 1")
}

fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn scrape(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: relay\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
