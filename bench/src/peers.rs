//! Libraries that drain such a backlog too, each a small program of `peers/` that is built here.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cost::{Cost, Meter};
use crate::engine::Server;
use crate::workload::Workload;

/// A peer's program, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    name: String,
    /// The program and its first arguments.
    command: Vec<PathBuf>,
}

impl Peer {
    /// Builds the peer of that name.
    pub(crate) fn build(name: &str) -> Result<Self> {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let source = home.join(name);
        ensure!(source.is_dir(), "{name} is none of the peers in {}", home.display());
        let target = target()?.join(name);
        std::fs::create_dir_all(&target)?;
        eprintln!("building {name}");
        let command = if source.join("go.mod").exists() {
            build_go(name, &source, &target)?
        } else {
            build_node(name, &source, &target)?
        };
        Ok(Self { name: name.to_owned(), command })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A drain; the rate is the peer's own, from its first look to the last acknowledgement, its start left out.
    pub(crate) async fn round(&self, server: &Server, work: &Workload) -> Result<Cost> {
        let database = server.fresh_database().await?;
        self.run(&database.url, work, "fill")?;
        let meter = Meter::start(server).await?;
        let printed = self.run(&database.url, work, "drain")?;
        let mut cost = meter.stop(server, work.rows.into()).await?;
        cost.rate = printed.trim().parse().with_context(|| format!("{} printed {printed:?}", self.name))?;
        Ok(cost)
    }

    /// Fills or drains a database; returns what it prints.
    fn run(&self, url: &str, work: &Workload, what: &str) -> Result<String> {
        let (program, arguments) = self.command.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments).arg(what).env("DATABASE_URL", url).stderr(Stdio::inherit());
        let numbers =
            [("ROWS", work.rows), ("PAYLOAD", work.payload), ("KEYS", work.keys), ("BATCH", work.batch)];
        command.envs(numbers.map(|(variable, number)| (variable, number.to_string())));
        let output = command.output().with_context(|| format!("starting {}", self.name))?;
        ensure!(output.status.success(), "{} {what} ended with {}", self.name, output.status);
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// Where peers are built: `bench/peers` in the target directory that holds this program.
fn target() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let target = exe.ancestors().nth(2).context("this program lies in no target directory")?;
    Ok(target.join("bench/peers"))
}

fn build_go(name: &str, source: &Path, target: &Path) -> Result<Vec<PathBuf>> {
    let program = target.join(name);
    let mut go = Command::new("go");
    go.arg("build").arg("-o").arg(&program).arg(".").current_dir(source);
    finish(&mut go, name, "Go")?;
    Ok(vec![program])
}

fn build_node(name: &str, source: &Path, target: &Path) -> Result<Vec<PathBuf>> {
    for file in ["package.json", "main.mjs"] {
        std::fs::copy(source.join(file), target.join(file)).with_context(|| format!("copying {file}"))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]);
    finish(npm.current_dir(target), name, "Node.js")?;
    Ok(vec!["node".into(), target.join("main.mjs")])
}

fn finish(build: &mut Command, name: &str, language: &str) -> Result<()> {
    let program = build.get_program().display().to_string();
    match build.stdout(Stdio::null()).status() {
        Ok(status) => ensure!(status.success(), "building {name} ended with {status}"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{name} is written for {language}: there is no {program} here")
        }
        Err(error) => return Err(error).with_context(|| format!("starting {program}")),
    }
    Ok(())
}
