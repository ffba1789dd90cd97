use outbox_store::SchemaState;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Error;

/// One forward-only step of the schema.
struct Migration {
    version: i64,
    name: &'static str,
    /// A binary that does not know it cannot work with the tables any more.
    breaking: bool,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "outbox",
    breaking: true,
    sql: include_str!("../../../migrations/sqlite/0001_outbox.sql"),
}];

const TABLE: &str = include_str!("sql/migrations_table.sql");

/// All migrations as one script, for teams that use a migration tool of their own. A database that has run it, with
/// the `sqlite3` tool for example, is exactly as after `outbox migrate up`.
#[must_use]
pub fn migrations_sql() -> String {
    let mut script = String::from("-- Cannot be inside the transaction, and stays with the file.\n");
    script.push_str("PRAGMA journal_mode = WAL;\n\nBEGIN IMMEDIATE;\n\n");
    script.push_str(TABLE);
    for migration in MIGRATIONS {
        let Migration { version, name, breaking, sql } = migration;
        let breaking = i32::from(*breaking);
        script.push_str(&format!(
            "\n{sql}\nINSERT INTO _outbox_migrations (version, name, breaking) VALUES ({version}, '{name}', {breaking});\n"
        ));
    }
    script.push_str("\nCOMMIT;\n");
    script
}

/// Makes the database a WAL one; it stays one.
pub(crate) fn set_wal(conn: &Connection) -> rusqlite::Result<String> {
    conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
}

pub(crate) fn check_wal(mode: &str) -> Result<(), Error> {
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    Err(Error::unfit(format!(
        "the SQLite file's journal mode is {mode:?} and must be WAL: run `outbox migrate up` while nothing else has the \
         file open, on a local disk"
    )))
}

/// Applies what is missing, in the caller's transaction.
pub(crate) fn migrate(conn: &Connection) -> Result<Vec<i64>, Error> {
    conn.execute_batch(TABLE)?;
    let mut applied = Vec::new();
    for migration in MIGRATIONS {
        let done: bool = conn.query_row(
            "SELECT EXISTS (SELECT 1 FROM _outbox_migrations WHERE version = ?1)",
            [migration.version],
            |row| row.get(0),
        )?;
        if done {
            continue;
        }
        conn.execute_batch(migration.sql)?;
        conn.execute(
            "INSERT INTO _outbox_migrations (version, name, breaking) VALUES (?1, ?2, ?3)",
            params![migration.version, migration.name, migration.breaking],
        )?;
        applied.push(migration.version);
    }
    Ok(applied)
}

pub(crate) fn state(conn: &Connection) -> Result<SchemaState, Error> {
    let known = MIGRATIONS.last().map_or(0, |migration| migration.version);
    let exists: bool = conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_outbox_migrations')",
        [],
        |row| row.get(0),
    )?;
    if !exists {
        return Ok(SchemaState::Missing);
    }
    let newest: Option<i64> = conn
        .query_row("SELECT max(version) FROM _outbox_migrations", [], |row| row.get(0))
        .optional()?
        .flatten();
    let Some(applied) = newest else { return Ok(SchemaState::Missing) };
    let breaking: bool = conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM _outbox_migrations WHERE version > ?1 AND breaking = 1)",
        [known],
        |row| row.get(0),
    )?;
    if breaking {
        return Ok(SchemaState::Newer { applied, known });
    }
    if applied < known {
        return Ok(SchemaState::Behind { applied, needed: known });
    }
    check_wal(&conn.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0))?)?;
    Ok(SchemaState::Current { applied })
}
