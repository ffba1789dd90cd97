//! Private Kafka servers: KRaft, one node or several, each broker and controller in one process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Directory, free_port, kill, wait_for_port};
use crate::process::{bound, spawn, wait_until};

/// Any 16 bytes, as Kafka writes them.
const CLUSTER_ID: &str = "b3V0Ym94LXRlc3RzLTAwMQ";

/// What a node writes when it serves requests.
const READY: &str = "Kafka Server started";

/// A cold JVM on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// A cluster of private nodes that ends with it.
#[derive(Debug)]
pub struct Kafka {
    nodes: Vec<Node>,
    // Last: the nodes end before their data goes.
    _directory: Directory,
}

#[derive(Debug)]
struct Node {
    id: usize,
    port: u16,
    directory: PathBuf,
    child: Mutex<Option<Child>>,
}

/// The directory with Kafka's jars: `OUTBOX_TEST_KAFKA_LIBS`, which `scripts/test` sets.
fn libs() -> Result<PathBuf> {
    let libs = std::env::var_os("OUTBOX_TEST_KAFKA_LIBS").map(PathBuf::from).context(
        "OUTBOX_TEST_KAFKA_LIBS does not name the directory with Kafka's jars: \
         mvn -f tests/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory=DIR",
    )?;
    ensure!(libs.is_dir(), "OUTBOX_TEST_KAFKA_LIBS names {}, which is no directory", libs.display());
    Ok(libs)
}

fn java(heap_mib: u32) -> Result<Command> {
    let mut command = bound("java");
    command.arg(format!("-Xmx{heap_mib}m")).args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    // Log4j's own default configuration writes to the standard output, errors only.
    command.arg("-Dorg.apache.logging.log4j.level=INFO");
    command.arg("-cp").arg(libs()?.join("*"));
    command.stdin(Stdio::null());
    Ok(command)
}

impl Kafka {
    /// Starts `nodes` nodes. With three, internal topics have three replicas, two of which must be in sync.
    ///
    /// # Errors
    /// When Java or the jars are missing, or a node does not start.
    pub fn start(nodes: usize) -> Result<Self> {
        let directory = Directory::new("outbox-kafka")?;
        let ports: Vec<(u16, u16)> =
            (0..nodes).map(|_| Ok((free_port()?, free_port()?))).collect::<Result<_>>()?;
        let mut cluster = Vec::with_capacity(nodes);
        for id in 1..=nodes {
            let home = directory.path().join(format!("node{id}"));
            fs::create_dir(&home)?;
            fs::write(home.join("server.properties"), properties(id, &ports, &home))?;
            cluster.push(Node { id, port: ports[id - 1].0, directory: home, child: Mutex::new(None) });
        }
        for node in &cluster {
            node.format()?;
        }
        for node in &cluster {
            node.spawn()?;
        }
        for node in &cluster {
            node.wait_until_ready()?;
        }
        Ok(Self { nodes: cluster, _directory: directory })
    }

    /// `host:port` of every node, separated by commas.
    #[must_use]
    pub fn brokers(&self) -> String {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect::<Vec<_>>().join(",")
    }

    /// How many nodes there are.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// SIGKILL for the node with this index.
    ///
    /// # Errors
    /// When its process cannot be waited for.
    pub fn kill(&self, node: usize) -> Result<()> {
        match self.nodes[node].child().take() {
            Some(mut child) => kill(&mut child),
            None => Ok(()),
        }
    }

    /// Starts a killed node again on its data and its port; it is ready afterwards.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_again(&self, node: usize) -> Result<()> {
        self.nodes[node].spawn()?;
        self.nodes[node].wait_until_ready()
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        for node in &self.nodes {
            if let Some(mut child) = node.child().take() {
                // Nothing can be done about one that does not end.
                let _ = kill(&mut child);
            }
        }
    }
}

impl Node {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn format(&self) -> Result<()> {
        let mut command = java(128)?;
        command.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]);
        command.arg(self.directory.join("server.properties"));
        let output = command.output().context("cannot start java: install default-jre-headless")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "format: {text}{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn spawn(&self) -> Result<()> {
        let log = File::create(self.log())?;
        let mut command = java(384)?;
        command.arg("kafka.Kafka").arg(self.directory.join("server.properties"));
        command.stdout(log.try_clone()?).stderr(log);
        *self.child() = Some(spawn(command)?);
        Ok(())
    }

    fn wait_until_ready(&self) -> Result<()> {
        let is_ready = || fs::read_to_string(self.log()).is_ok_and(|log| log.contains(READY));
        let started = wait_until(&format!("Kafka node {}", self.id), START_TIMEOUT, is_ready);
        started.with_context(|| fs::read_to_string(self.log()).unwrap_or_default())?;
        wait_for_port(self.port, START_TIMEOUT)
    }
}

fn properties(id: usize, ports: &[(u16, u16)], home: &Path) -> String {
    let (port, controller) = ports[id - 1];
    let nodes = ports.len();
    let voters: Vec<String> =
        ports.iter().enumerate().map(|(at, (_, port))| format!("{}@127.0.0.1:{port}", at + 1)).collect();
    let in_sync = if nodes > 2 { 2 } else { 1 };
    let lines = [
        "process.roles=broker,controller".to_owned(),
        format!("node.id={id}"),
        format!("listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"),
        format!("advertised.listeners=PLAINTEXT://127.0.0.1:{port}"),
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
        "controller.listener.names=CONTROLLER".to_owned(),
        format!("controller.quorum.voters={}", voters.join(",")),
        format!("log.dirs={}", home.join("data").display()),
        format!("offsets.topic.replication.factor={nodes}"),
        format!("transaction.state.log.replication.factor={nodes}"),
        format!("transaction.state.log.min.isr={in_sync}"),
        format!("default.replication.factor={nodes}"),
        format!("min.insync.replicas={in_sync}"),
        "group.initial.rebalance.delay.ms=0".to_owned(),
        "auto.create.topics.enable=false".to_owned(),
        "num.partitions=4".to_owned(),
        // A killed node is to be missed soon, or a short test would not see its partitions move.
        "broker.session.timeout.ms=3000".to_owned(),
        "broker.heartbeat.interval.ms=500".to_owned(),
    ];
    lines.join("\n") + "\n"
}
