//! The programs in `examples/writers`: what other languages write is delivered, what they roll back is not, and a key that
//! comes again enqueues nothing. On PostgreSQL as a role that may insert and nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_schema::idempotent_id;
use outbox_sinks::scripted::{Controller, Reply};
use uuid::Uuid;

use crate::rollbacks::ORDERS;
use crate::stage::{Engine, Stage};

/// A program, how it names nothing, and how it wants its database named.
struct Writer {
    engine: Engine,
    command: Vec<PathBuf>,
    nothing: &'static str,
    url: fn(&str) -> String,
}

/// Where the programs were made ready, by `scripts/test`.
fn home(language: &str) -> Option<PathBuf> {
    let home = std::env::var_os("OUTBOX_TEST_WRITERS").map(|writers| Path::new(&writers).join(language));
    let home = home.filter(|home| home.exists());
    if home.is_none() {
        outbox_tests::skip(&format!(
            "the {language} programs are not ready: scripts/test prepares them in OUTBOX_TEST_WRITERS"
        ));
    }
    home
}

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/writers").join(file)
}

fn as_it_is(url: &str) -> String {
    url.to_owned()
}

fn file_of(url: &str) -> String {
    url.trim_start_matches("sqlite://").to_owned()
}

/// `postgres://role@host/database`, as JDBC writes it.
fn jdbc(url: &str) -> String {
    let (role, place) = url.trim_start_matches("postgres://").split_once('@').unwrap_or(("", url));
    format!("jdbc:postgresql://{place}?user={role}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_psycopg() -> Result<()> {
    let Some(home) = home("python") else { return Ok(()) };
    let command = vec![home.join("bin/python"), example("python/postgres.py")];
    Writer { engine: Engine::Postgres, command, nothing: "None", url: as_it_is }.run().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_sqlite3() -> Result<()> {
    let Some(home) = home("python") else { return Ok(()) };
    let command = vec![home.join("bin/python"), example("python/sqlite.py")];
    Writer { engine: Engine::Sqlite, command, nothing: "None", url: file_of }.run().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_pg() -> Result<()> {
    let Some(home) = home("node") else { return Ok(()) };
    let command = vec!["node".into(), home.join("postgres.mjs")];
    Writer { engine: Engine::Postgres, command, nothing: "null", url: as_it_is }.run().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_better_sqlite3() -> Result<()> {
    let Some(home) = home("node") else { return Ok(()) };
    if !home.join("node_modules/better-sqlite3/build").exists() {
        outbox_tests::skip("better-sqlite3 could not be compiled");
        return Ok(());
    }
    let command = vec!["node".into(), home.join("sqlite.mjs")];
    Writer { engine: Engine::Sqlite, command, nothing: "null", url: file_of }.run().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_pgx() -> Result<()> {
    let Some(home) = home("go") else { return Ok(()) };
    let command = vec![home.join("writer")];
    Writer { engine: Engine::Postgres, command, nothing: "nil", url: as_it_is }.run().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_jdbc() -> Result<()> {
    let Some(home) = home("java") else { return Ok(()) };
    let path = format!("{0}/classes:{0}/libs/*", home.display());
    let command = vec!["java".into(), "-cp".into(), path.into(), "Writer".into()];
    Writer { engine: Engine::Postgres, command, nothing: "null", url: jdbc }.run().await
}

impl Writer {
    /// One order that is placed, one that is rolled back, and a relay.
    async fn run(self) -> Result<()> {
        let sink = Controller::bind(|_| Reply::Ack).await?;
        let play = format!(
            "[queues.default]\nsink = \"scripted\"\n[sinks.scripted]\ntype = \"scripted\"\naddress = \"{}\"\nrelay = \"RELAY\"\n",
            sink.address()
        );
        let mut stage = Stage::set(self.engine, play).await?;
        stage.execute(ORDERS).await?;
        let url = match self.engine {
            Engine::Postgres => producer(&mut stage).await?,
            Engine::Sqlite => stage.url.clone(),
        };
        let kept = idempotent_id("default", "order:kept 'ü':created");
        let again = format!("again {}", self.nothing);
        let enqueued = format!("enqueued {kept}");
        ensure!(self.place(&url, &["kept 'ü'"])? == [enqueued, again.clone()], "what it prints");
        let printed = self.place(&url, &["gone", "--rollback"])?;
        ensure!(printed[1..] == [again, "rolled back".to_owned()], "{printed:?}");

        let rows =
            "SELECT count(*) FROM outbox_tasks WHERE aggregate_type = 'Order' AND aggregate_id = 'kept ''ü'''
            AND event_type = 'OrderCreated' AND queue = 'default' AND status = 'PENDING'";
        ensure!(stage.number(rows).await? == 1, "the event is there");
        ensure!(stage.number("SELECT count(*) FROM outbox_tasks").await? == 1, "and no other");
        let orders = "SELECT count(*) FROM orders WHERE id = 'kept ''ü''' AND total_cents = 4200";
        ensure!(stage.number(orders).await? == 1, "the order is there");
        ensure!(stage.number("SELECT count(*) FROM orders").await? == 1, "and no other");

        let relay = stage.relay("relay")?;
        let published = "SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'";
        stage.until(published, 1, Duration::from_secs(30)).await.with_context(|| relay.log())?;
        let deliveries = sink.delivered();
        let ids: Vec<Uuid> = deliveries.iter().map(|delivery| delivery.id).collect();
        ensure!(ids == [kept], "delivered {ids:?}");
        let body: serde_json::Value = serde_json::from_slice(&deliveries[0].body().context("a payload")?)?;
        ensure!(body == serde_json::json!({"total_cents": 4200}), "delivered {body}");
        Ok(())
    }

    /// Runs the program and returns the lines it prints.
    fn place(&self, url: &str, arguments: &[&str]) -> Result<Vec<String>> {
        let program = &self.command[0];
        let output = Command::new(program)
            .args(&self.command[1..])
            .arg((self.url)(url))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{:?}: {errors}", self.command);
        Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
    }
}

/// The database's URL as a role that may insert into both tables and nothing else.
async fn producer(stage: &mut Stage) -> Result<String> {
    let role = format!("writer_of_{}", stage.url.rsplit('/').next().unwrap_or_default());
    stage.execute(&format!("CREATE ROLE {role} LOGIN")).await?;
    stage.execute(&format!("GRANT INSERT ON outbox_tasks, orders TO {role}")).await?;
    Ok(stage.url.replace("//postgres@", &format!("//{role}@")))
}
