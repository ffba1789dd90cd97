//! A private RabbitMQ node, with its own Erlang port mapper and cookie.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Directory, free_port, kill, wait_for_port};
use crate::certificates::make_certificates;
use crate::process::{bound, spawn};

/// The package's own script; the one in PATH changes the user.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// The tool that talks to a running node.
const CONTROL: &str = "/usr/lib/rabbitmq/bin/rabbitmqctl";

/// Virtual hosts that a node has from the start.
const VHOSTS: usize = 40;

/// Largest message that a node takes, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1_000_000;

/// How long a node may take to start.
const START: Duration = Duration::from_secs(90);

/// A private node on 127.0.0.1. User `guest` may do everything; `limited` may write only to what is called `open…`.
#[derive(Debug)]
pub struct RabbitMq {
    directory: Directory,
    port: u16,
    /// Where it speaks TLS and asks clients for a certificate; not where there is no openssl.
    tls_port: Option<u16>,
    dist_port: u16,
    mapper_port: u16,
    server: Mutex<Child>,
    mapper: Mutex<Child>,
    next_vhost: AtomicUsize,
}

/// The node that all tests of a binary share. No test stops it; each takes virtual hosts of its own.
///
/// # Panics
/// When it cannot be started.
pub fn shared() -> &'static RabbitMq {
    static NODE: LazyLock<RabbitMq> = LazyLock::new(|| RabbitMq::start().expect("a private RabbitMQ node"));
    &NODE
}

impl RabbitMq {
    /// Starts a node and waits until it takes connections.
    ///
    /// # Errors
    /// When the programs are missing or it does not come up; its log is in the text.
    pub fn start() -> Result<Self> {
        ensure!(
            Path::new(SERVER).exists(),
            "no RabbitMQ at {SERVER}: install it (Debian: apt-get install rabbitmq-server)"
        );
        let directory = Directory::new("outbox-rabbitmq")?;
        let (port, dist_port, mapper_port) = (free_port()?, free_port()?, free_port()?);
        let tls_port = if make_certificates(directory.path())? { Some(free_port()?) } else { None };
        write_files(directory.path(), port, tls_port)?;
        // A port mapper that the node started by itself would outlive it, and be shared with strangers.
        let mut mapper = bound("epmd");
        mapper.args(["-port", &mapper_port.to_string()]).env("ERL_EPMD_ADDRESS", "127.0.0.1");
        let mapper = spawn(quiet(mapper, &directory.path().join("out"))?).context("epmd")?;
        wait_for_port(mapper_port, Duration::from_secs(10))?;
        let server = spawn(server(directory.path(), port, dist_port, mapper_port)?)?;
        let node = Self {
            directory,
            port,
            tls_port,
            dist_port,
            mapper_port,
            server: Mutex::new(server),
            mapper: Mutex::new(mapper),
            next_vhost: AtomicUsize::new(0),
        };
        node.wait_until_ready()?;
        Ok(node)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let log = || fs::read_to_string(self.directory.path().join("out")).unwrap_or_default();
        wait_for_port(self.port, START).with_context(log)
    }

    /// SIGKILL to the whole node; returns when it is gone.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&self) -> Result<()> {
        kill(&mut self.server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts it again on the same port and data, and waits until it takes connections.
    ///
    /// # Errors
    /// When it does not come up; its log is in the text.
    pub fn start_again(&self) -> Result<()> {
        let command = server(self.directory.path(), self.port, self.dist_port, self.mapper_port)?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = spawn(command)?;
        self.wait_until_ready()
    }

    /// A virtual host that no other test has, by its URL for this user; the password is the user's name.
    ///
    /// # Panics
    /// When there is none left.
    #[must_use]
    pub fn vhost(&self) -> Vhost {
        let number = self.next_vhost.fetch_add(1, Ordering::Relaxed);
        assert!(number < VHOSTS, "no virtual host is left: raise VHOSTS");
        Vhost { port: self.port, name: format!("v{number}") }
    }

    /// The port of AMQP.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a virtual host by TLS, and the directory with `ca.crt`, `client.crt` and `client.key`.
    #[must_use]
    pub fn tls(&self, vhost: &Vhost) -> Option<(String, &Path)> {
        let url = format!("amqps://guest:guest@localhost:{}/{}", self.tls_port?, vhost.name);
        Some((url, self.directory.path()))
    }

    /// Runs `rabbitmqctl ARGUMENTS…` on this node.
    ///
    /// # Errors
    /// When it does not succeed; what it printed is in the text.
    pub fn control(&self, arguments: &[&str]) -> Result<()> {
        let mut command = bound(CONTROL);
        environment(&mut command, self.directory.path(), self.port, self.dist_port, self.mapper_port);
        let out = self.directory.path().join("control");
        command.args(arguments);
        let mut child = spawn(quiet(command, &out)?)?;
        let status = child.wait()?;
        ensure!(status.success(), "rabbitmqctl {arguments:?}: {}", fs::read_to_string(out)?);
        Ok(())
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        for child in [&self.server, &self.mapper] {
            // Whether it was still there is of no interest.
            let _ = kill(&mut child.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// A virtual host.
#[derive(Clone, Debug)]
pub struct Vhost {
    port: u16,
    name: String,
}

impl Vhost {
    /// Its URL for the user who may do everything.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at("guest", self.port)
    }

    /// Its URL for a user at another port, such as a proxy's.
    #[must_use]
    pub fn url_at(&self, user: &str, port: u16) -> String {
        format!("amqp://{user}:{user}@127.0.0.1:{port}/{}", self.name)
    }
}

fn write_files(directory: &Path, port: u16, tls_port: Option<u16>) -> Result<()> {
    let definitions = directory.join("definitions.json");
    fs::write(
        directory.join("rabbitmq.conf"),
        format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\nload_definitions = {}\nmax_message_size = {MAX_MESSAGE_BYTES}\n\
             disk_free_limit.absolute = 10MB\n{}",
            definitions.display(),
            tls_port.map(|port| tls_settings(directory, port)).unwrap_or_default()
        ),
    )?;
    fs::write(directory.join("enabled_plugins"), "[].\n")?;
    fs::write(directory.join("env"), "")?;
    let names = || (0..VHOSTS).map(|number| format!("v{number}"));
    let vhosts: Vec<_> = names().map(|name| serde_json::json!({ "name": name })).collect();
    let permissions: Vec<_> = names()
        .flat_map(|vhost| {
            let all = |user, write| {
                serde_json::json!({ "user": user, "vhost": &vhost, "configure": ".*", "write": write, "read": ".*" })
            };
            [all("guest", ".*"), all("limited", "^open.*")]
        })
        .collect();
    let user = |name, tags| serde_json::json!({ "name": name, "password": name, "tags": tags });
    let content = serde_json::json!({
        "users": [user("guest", "administrator"), user("limited", "")],
        "vhosts": vhosts,
        "permissions": permissions,
    });
    Ok(fs::write(definitions, content.to_string())?)
}

fn tls_settings(directory: &Path, port: u16) -> String {
    let file = |name: &str| directory.join(name).display().to_string();
    format!(
        "listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\nssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n",
        file("ca.crt"),
        file("server.crt"),
        file("server.key")
    )
}

fn server(directory: &Path, port: u16, dist_port: u16, mapper_port: u16) -> Result<Command> {
    let mut command = bound(SERVER);
    environment(&mut command, directory, port, dist_port, mapper_port);
    // The script then becomes the server instead of waiting for it: a signal reaches the right process.
    command.env("RUNNING_UNDER_SYSTEMD", "true");
    quiet(command, &directory.join("out"))
}

fn environment(command: &mut Command, directory: &Path, port: u16, dist_port: u16, mapper_port: u16) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RABBITMQ_") {
            command.env_remove(name);
        }
    }
    let path = |name: &str| directory.join(name);
    let files: [(&str, PathBuf); 8] = [
        ("HOME", directory.to_owned()),
        ("RABBITMQ_PID_FILE", path("pid")),
        ("RABBITMQ_MNESIA_BASE", path("mnesia")),
        ("RABBITMQ_LOG_BASE", path("log")),
        ("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf")),
        ("RABBITMQ_CONF_ENV_FILE", path("env")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins")),
        ("RABBITMQ_GENERATED_CONFIG_DIR", path("generated")),
    ];
    command.envs(files);
    command.envs([
        ("RABBITMQ_NODENAME", format!("outbox{port}@localhost")),
        ("RABBITMQ_DIST_PORT", dist_port.to_string()),
        ("ERL_EPMD_PORT", mapper_port.to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        // Idle schedulers sleep instead of spinning.
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+sbwt none +sbwtdcpu none +sbwtdio none".to_owned()),
    ]);
}

fn quiet(mut command: Command, out: &Path) -> Result<Command> {
    let file = fs::File::options().create(true).append(true).open(out)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    Ok(command)
}
