use outbox_store::SchemaState;

use super::args::MigrateCommand;
use super::out::{self, Format};
use super::{Failure, database};
use crate::config::Settings;

/// `outbox migrate …`
pub(super) async fn migrate(settings: &Settings, command: MigrateCommand) -> Result<(), Failure> {
    match command {
        MigrateCommand::Up => up(settings).await,
        MigrateCommand::Status { format } => status(settings, format).await,
        MigrateCommand::Sql => out::line(database::migrations(&settings.store)?.trim_end()),
    }
}

async fn up(settings: &Settings) -> Result<(), Failure> {
    let store = database::create(settings).await?;
    if let SchemaState::Newer { applied, known } = store.schema_state().await? {
        return Err(database::newer(applied, known).into());
    }
    let applied = store.migrate().await?;
    store.close().await;
    if applied.is_empty() {
        return out::line("nothing to do");
    }
    applied.iter().try_for_each(|version| out::line(format_args!("applied {version}")))
}

async fn status(settings: &Settings, format: Format) -> Result<(), Failure> {
    let store = database::open(settings).await?;
    let state = store.schema_state().await?;
    store.close().await;
    let (word, applied, known, hint) = match state {
        SchemaState::Missing => ("missing", None, None, "run: outbox migrate up"),
        SchemaState::Behind { applied, needed } => {
            ("behind", Some(applied), Some(needed), "run: outbox migrate up")
        }
        SchemaState::Current { applied } => ("current", Some(applied), Some(applied), ""),
        SchemaState::Newer { applied, known } => ("newer", Some(applied), Some(known), "use a newer outbox"),
    };
    match format {
        Format::Json => out::json(&serde_json::json!({ "state": word, "applied": applied, "known": known })),
        Format::Table => {
            let version = |version: Option<i64>| version.map_or_else(|| "-".to_owned(), |v| v.to_string());
            let row = [word.to_owned(), version(applied), version(known), hint.to_owned()];
            out::table(["SCHEMA", "APPLIED", "KNOWN", "TO DO"], &[row])
        }
    }
}
