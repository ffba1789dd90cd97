//! What is in `deploy/` is looked at by the tools it is made for, and works with the relay as it is.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_tests::brokers::free_port;
use outbox_tests::process::{Relay, outbox_bin, wait_until};
use tempfile::TempDir;

use crate::stage::{Engine, Stage};

const SOON: Duration = Duration::from_secs(30);

fn deploy(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// Runs a program; `None` where it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    Command::new(program).args(arguments).output().ok()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn compose_accepts_its_file() -> Result<()> {
    let path = deploy("compose/compose.yaml").display().to_string();
    let plugin = run("docker", &["compose", "version"]).is_some_and(|output| output.status.success());
    let output = if plugin {
        run("docker", &["compose", "--file", &path, "config"])
    } else {
        run("docker-compose", &["--file", &path, "config"])
    };
    let Some(output) = output else {
        outbox_tests::skip("docker compose is not installed");
        return Ok(());
    };
    ensure!(
        output.status.success() && text(&output).contains("service_completed_successfully"),
        "{}",
        text(&output)
    );
    Ok(())
}

#[test]
fn systemd_accepts_the_unit_and_finds_it_little_exposed() -> Result<()> {
    if run("systemd-analyze", &["--version"]).is_none() {
        outbox_tests::skip("systemd-analyze is not installed");
        return Ok(());
    }
    // The program is looked for where the unit says.
    let directory = TempDir::new()?;
    let unit = directory.path().join("outbox.service");
    let here = outbox_bin()?.display().to_string();
    fs::write(
        &unit,
        fs::read_to_string(deploy("systemd/outbox.service"))?.replace("/usr/local/bin/outbox", &here),
    )?;
    let path = unit.display().to_string();
    let verify =
        run("systemd-analyze", &["verify", "--recursive-errors=no", &path]).context("systemd-analyze")?;
    ensure!(verify.status.success() && !text(&verify).contains("outbox.service"), "{}", text(&verify));
    let exposure = run("systemd-analyze", &["security", "--offline=true", "--threshold=20", &path]);
    let exposure = exposure.context("systemd-analyze")?;
    ensure!(exposure.status.success(), "more than 2.0 of 10: {}", text(&exposure));
    Ok(())
}

#[test]
fn the_relay_accepts_the_configuration_that_compose_mounts() -> Result<()> {
    let directory = TempDir::new()?;
    let config = deploy("compose/outbox.toml");
    // The second command looks at what the first only prints.
    for (number, arguments) in [["config", "show"], ["migrate", "sql"]].iter().enumerate() {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--set", "store.url=postgres://outbox:outbox@postgres/outbox"]);
        let mut outbox = Relay::start(&config, &arguments, &directory.path().join(number.to_string()))?;
        ensure!(outbox.wait(SOON)?.success(), "{arguments:?}: {}", outbox.log());
        ensure!(!outbox.log().contains("warning"), "{}", outbox.log());
        ensure!(number > 0 || outbox.log().contains("kafka:9092"), "{}", outbox.log());
    }
    Ok(())
}

#[test]
fn the_image_is_built_with_the_toolchain_of_the_workspace() -> Result<()> {
    let toolchain = fs::read_to_string(deploy("../rust-toolchain.toml"))?;
    let channel = toolchain.split('"').nth(1).context("a channel")?;
    let dockerfile = fs::read_to_string(deploy("docker/Dockerfile"))?;
    ensure!(
        dockerfile.contains(&format!("ARG RUST={channel}\n")),
        "the image has another Rust than {channel}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_image_s_healthcheck_tells_a_relay_that_lives() -> Result<()> {
    let stage = Stage::set(
        Engine::Sqlite,
        "[queues.default]\nsink = \"null\"\n[sinks.null]\ntype = \"null\"\n".into(),
    );
    let stage = stage.await?;
    let port = free_port()?;
    let healthy = || -> Result<bool> {
        let mut check = Command::new(deploy("docker/healthcheck"));
        Ok(check.env("OUTBOX_HTTP__LISTEN", format!("0.0.0.0:{port}")).output()?.status.success())
    };
    ensure!(!healthy()?, "healthy, though nothing runs");
    let mut relay = stage.relay_listening("relay", &format!("127.0.0.1:{port}"))?;
    wait_until("a healthy relay", SOON, || healthy().unwrap_or(false))?;
    relay.kill();
    ensure!(!healthy()?, "healthy, though it was killed");
    Ok(())
}
