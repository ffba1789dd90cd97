//! The commands of the binary `outbox`.

mod alarms;
mod args;
mod check;
mod database;
mod dev;
mod enqueue;
mod failed;
mod migrate;
mod out;
mod queues;
mod run;
mod show;
mod signals;
mod sweep;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use outbox_store::StoreError;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{self, ConfigError, Loaded, Settings};
use crate::logging::{self, LogFormat};
use args::{Cli, Command};

/// Exit code of a wrong configuration: EX_CONFIG of sysexits.
const EXIT_CONFIG: u8 = 78;
/// Exit code of everything else that went wrong while running; wrong usage is clap's 2.
const EXIT_RUNTIME: u8 = 1;

/// Why a command did not do what it was asked for.
enum Failure {
    /// The configuration cannot be used.
    Config(ConfigError),
    /// Anything else.
    Runtime(anyhow::Error),
    /// What is wrong has been printed as the command's own answer.
    Answered,
    /// Nobody reads what is printed any more: `outbox status | head -1`.
    BrokenPipe,
}

impl Failure {
    fn from_write(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::Runtime(error.into()),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Runtime(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Runtime(error.into())
    }
}

/// Parses the command line, does what it says, and says how it ended.
#[must_use]
pub fn main() -> ExitCode {
    outbox_sinks::install_crypto_provider();
    let cli = Cli::parse();
    logging::init(cli.log, level(&cli.command));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(cli.log, &Failure::Runtime(error.into())),
    };
    let log = cli.log;
    match runtime.block_on(execute(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(log, &failure),
    }
}

/// Commands that end at once say what they have to say themselves.
fn level(command: &Command) -> LevelFilter {
    match command {
        Command::Run(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    }
}

fn report(log: LogFormat, failure: &Failure) -> ExitCode {
    let (lines, code) = match failure {
        Failure::Config(error) => (error.problems.clone(), EXIT_CONFIG),
        Failure::Runtime(error) => (vec![one_line(error)], EXIT_RUNTIME),
        Failure::Answered => (Vec::new(), EXIT_RUNTIME),
        Failure::BrokenPipe => return ExitCode::SUCCESS,
    };
    for line in lines {
        match log {
            LogFormat::Human => out::note(format_args!("error: {line}")),
            LogFormat::Json => tracing::error!("{line}"),
        }
    }
    ExitCode::from(code)
}

/// An error and its causes in one line. A cause whose text is part of its effect's is not repeated.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

async fn execute(cli: Cli) -> Result<(), Failure> {
    // `dev` has a configuration of its own: it must not touch what an outbox.toml in this directory names.
    if let Command::Dev(args) = cli.command {
        return dev::dev(args).await;
    }
    let mut loaded = config::load(cli.config.as_deref(), environment(), &cli.set)?;
    if let Command::Config(args::ConfigCommand::Show { format }) = cli.command {
        return show::config(&loaded, format);
    }
    let settings = validate(&mut loaded, cli.log)?;
    match cli.command {
        Command::Run(args) => run::run(settings, args).await,
        Command::Migrate(command) => migrate::migrate(&settings, command).await,
        Command::Enqueue(args) => enqueue::enqueue(&settings, args).await,
        Command::Check { format } => check::check(&settings, format).await,
        Command::Status { format } => queues::status(&settings, format).await,
        Command::Sweep { format } => sweep::sweep(&settings, format).await,
        Command::Failed(command) => failed::failed(&settings, command).await,
        Command::Pause { queue } => queues::set_paused(&settings, &queue, true).await,
        Command::Resume { queue } => queues::set_paused(&settings, &queue, false).await,
        Command::Dev(_) | Command::Config(_) => Ok(()),
    }
}

/// The environment; a variable that is not UTF-8 is none of ours.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
}

fn validate(loaded: &mut Loaded, log: LogFormat) -> Result<Settings, ConfigError> {
    let settings = loaded.validate()?;
    for warning in &loaded.warnings {
        match log {
            LogFormat::Human => out::note(format_args!("warning: {warning}")),
            LogFormat::Json => tracing::warn!("{warning}"),
        }
    }
    Ok(settings)
}
