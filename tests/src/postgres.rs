//! Private PostgreSQL servers: own data directory, free port, gone with the tests.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;

use crate::process::{cpu_time, spawn, wait_until};

/// How a private server is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of `initdb` and `postgres`.
    pub bin: PathBuf,
    /// Off is faster and enough where no crash of the machine is tested.
    pub fsync: bool,
    /// Further settings, `name=value`.
    pub settings: Vec<String>,
}

impl Options {
    /// The newest installed server (or `OUTBOX_TEST_POSTGRES_BIN`), with fsync on.
    ///
    /// # Errors
    /// When none is installed.
    pub fn installed() -> anyhow::Result<Self> {
        Ok(Self { bin: installed_bin()?, fsync: true, settings: Vec::new() })
    }
}

fn installed_bin() -> anyhow::Result<PathBuf> {
    if let Some(bin) = std::env::var_os("OUTBOX_TEST_POSTGRES_BIN") {
        return Ok(bin.into());
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("postgres").exists())
        .max()
        .map(|(_, bin)| bin)
        .context("no PostgreSQL in /usr/lib/postgresql: install it (Debian: apt-get install postgresql) or set OUTBOX_TEST_POSTGRES_BIN")
}

/// The servers that the contract runs on: the installed one, and another version when `OUTBOX_TEST_POSTGRES18_BIN`
/// names its programs. Each is started once per test binary, with fsync off.
///
/// # Panics
/// When one cannot be started.
pub fn shared() -> &'static [Postgres] {
    static SERVERS: LazyLock<Vec<Postgres>> = LazyLock::new(|| {
        let mut bins = vec![installed_bin().expect("PostgreSQL")];
        bins.extend(std::env::var_os("OUTBOX_TEST_POSTGRES18_BIN").map(PathBuf::from));
        let start = |bin| {
            Postgres::start(Options { bin, fsync: false, settings: Vec::new() }).expect("private server")
        };
        bins.into_iter().map(start).collect()
    });
    &SERVERS
}

/// Starts the server whenever a line arrives and tidies up when the pipe closes, which it does however this process
/// ends. $1 is the directory, the rest the server's command line.
const KEEPER: &str = r#"
trap '' INT TERM HUP
dir=$1; shift
while read -r _; do "$@" >>"$dir/log" 2>&1 & done
kill -QUIT "$(head -n 1 "$dir/data/postmaster.pid")" 2>/dev/null
wait
rm -rf "$dir"
"#;

/// A private PostgreSQL server on 127.0.0.1 and a unix socket, superuser `postgres`, no password.
#[derive(Debug)]
pub struct Postgres {
    dir: PathBuf,
    port: u16,
    keeper: Mutex<Child>,
    databases: AtomicU32,
    template: OnceCell<String>,
}

impl Postgres {
    /// Initialises a data directory and starts a server on it.
    ///
    /// # Errors
    /// When the programs are missing or the server does not come up; its log is in the text.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("outbox-pg").tempdir()?.keep();
        let user = server_user()?;
        if let Some((uid, gid)) = user {
            chown(&dir, Some(uid), Some(gid))?;
        }
        initdb(&options.bin, &dir, user)?;
        let port = free_port()?;
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(KEEPER).arg("sh").arg(&dir);
        keeper.args(as_user(user)).arg(options.bin.join("postgres"));
        keeper.arg("-D").arg(dir.join("data"));
        for setting in settings(&options, &dir, port) {
            keeper.arg("-c").arg(setting);
        }
        keeper.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = Mutex::new(spawn(keeper)?);
        let server = Self { dir, port, keeper, databases: AtomicU32::new(0), template: OnceCell::new() };
        server.launch()?;
        Ok(server)
    }

    /// Starts the server again after [`Postgres::kill`] or [`Postgres::stop`], on the same port and data.
    ///
    /// # Errors
    /// When it does not come up; its log is in the text.
    pub fn launch(&self) -> anyhow::Result<()> {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        keeper.stdin.as_mut().context("no pipe")?.write_all(b"start\n")?;
        // The last line of the file says how far the start has come; pg_ctl waits for the same.
        let ready = || {
            let pid_file = fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap_or_default();
            pid_file.lines().nth(7).is_some_and(|status| status.trim() == "ready")
        };
        wait_until("PostgreSQL's start", Duration::from_secs(60), ready)
            .with_context(|| fs::read_to_string(self.dir.join("log")).unwrap_or_default())
    }

    /// SIGKILL to the whole server, as a power cut would end it; returns when it is gone.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.end(Signal::KILL)?;
        // A killed server leaves its pid file, which would look like a ready one.
        Ok(fs::remove_file(self.dir.join("data/postmaster.pid"))?)
    }

    /// Fast shutdown: connections are cut, nothing is lost.
    ///
    /// # Errors
    /// When it does not run or does not end.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.end(Signal::INT)
    }

    /// Immediate shutdown: nothing is written any more, the next start recovers.
    ///
    /// # Errors
    /// When it does not run or does not end.
    pub fn stop_immediately(&self) -> anyhow::Result<()> {
        self.end(Signal::QUIT)
    }

    /// SIGSTOP or SIGCONT to the postmaster and its children: nothing answers, no connection is closed.
    ///
    /// # Errors
    /// When it does not run.
    pub fn freeze(&self, frozen: bool) -> anyhow::Result<()> {
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        for pid in self.processes()? {
            let _ = kill_process(pid, signal);
        }
        Ok(())
    }

    fn end(&self, signal: Signal) -> anyhow::Result<()> {
        let pids = self.processes()?;
        let targets = if signal == Signal::KILL { &pids[..] } else { &pids[..1] };
        for &pid in targets {
            let _ = kill_process(pid, signal);
        }
        wait_until("PostgreSQL's end", Duration::from_secs(60), || pids.iter().all(|&pid| gone(pid)))
    }

    /// The postmaster first, then its children.
    fn processes(&self) -> anyhow::Result<Vec<Pid>> {
        let pid_file =
            fs::read_to_string(self.dir.join("data/postmaster.pid")).context("PostgreSQL does not run")?;
        let postmaster: i32 = pid_file.lines().next().context("empty pid file")?.parse()?;
        let children = fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"))?;
        let pids =
            std::iter::once(postmaster).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok()));
        Ok(pids.filter_map(Pid::from_raw).collect())
    }

    /// CPU time that all processes of the server have used, those that have ended included.
    ///
    /// # Errors
    /// When it does not run.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        cpu_time(&self.processes()?)
    }

    /// Port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connection URL of one of its databases over TCP.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The same over its unix socket.
    #[must_use]
    pub fn socket_url(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&port={}&user=postgres", self.dir.display(), self.port)
    }

    /// Creates a database and returns its URL; a copy of `template` when one is named.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn create_database(&self, template: Option<&str>) -> anyhow::Result<String> {
        let name = format!("t{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let template = template.unwrap_or("template0");
        let mut admin = PgConnection::connect(&self.url("postgres")).await?;
        let create = format!("CREATE DATABASE {name} TEMPLATE {template}");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut admin).await?;
        admin.close().await?;
        Ok(self.url(&name))
    }

    /// Name of a database that `prepare` has filled, given its URL; made once, to be copied many times.
    pub async fn template<F: Future<Output = ()>>(&self, prepare: impl FnOnce(String) -> F) -> &str {
        let make = async || {
            let url = self.create_database(None).await.expect("template");
            prepare(url.clone()).await;
            url.rsplit('/').next().unwrap_or_default().to_owned()
        };
        self.template.get_or_init(make).await
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(keeper.stdin.take());
        let _ = keeper.wait();
    }
}

fn gone(pid: Pid) -> bool {
    // A zombie is as good as gone: its parent just has not looked yet.
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    test_kill_process(pid).is_err()
        || stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// PostgreSQL refuses to run as root: then it runs as the user that its package has made.
fn server_user() -> anyhow::Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")?;
    let fields =
        passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == "postgres");
    let Some(fields) = fields.filter(|fields| fields.len() > 3) else {
        bail!("running as root needs a user postgres to run the server as (useradd --system postgres)");
    };
    Ok(Some((fields[2].parse()?, fields[3].parse()?)))
}

fn as_user(user: Option<(u32, u32)>) -> Vec<String> {
    user.map_or_else(Vec::new, |(uid, gid)| {
        let ids = [format!("--reuid={uid}"), format!("--regid={gid}")];
        ["setpriv".to_owned()]
            .into_iter()
            .chain(ids)
            .chain(["--clear-groups".to_owned(), "--".to_owned()])
            .collect()
    })
}

fn initdb(bin: &Path, dir: &Path, user: Option<(u32, u32)>) -> anyhow::Result<()> {
    let mut args = as_user(user);
    args.push(bin.join("initdb").to_string_lossy().into_owned());
    let mut initdb = Command::new(&args[0]);
    initdb.args(&args[1..]).arg("-D").arg(dir.join("data"));
    initdb.args(["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]);
    let output = initdb.current_dir("/").stdin(Stdio::null()).output().context("cannot run initdb")?;
    ensure!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn settings(options: &Options, dir: &Path, port: u16) -> Vec<String> {
    let mut settings = vec![
        format!("port={port}"),
        "listen_addresses=127.0.0.1".to_owned(),
        format!("unix_socket_directories={}", dir.display()),
        "wal_level=logical".to_owned(),
        "max_connections=300".to_owned(),
    ];
    if !options.fsync {
        settings.extend(["fsync=off".to_owned(), "full_page_writes=off".to_owned()]);
    }
    settings.extend(options.settings.iter().cloned());
    settings
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
