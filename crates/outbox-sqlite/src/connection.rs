use std::io::ErrorKind;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::Error;
use crate::options::SqliteOptions;

/// Before it, a reset of the WAL could lose committed transactions.
const OLDEST_SQLITE: i32 = 3_051_003;

/// Each connection keeps this many statements prepared; there are fewer.
const STATEMENTS: usize = 100;

pub(crate) fn check_library() -> Result<(), Error> {
    if rusqlite::version_number() >= OLDEST_SQLITE {
        return Ok(());
    }
    Err(Error::unfit(format!(
        "this binary was built with SQLite {}, which can corrupt a WAL database: build it with 3.51.3 or newer",
        rusqlite::version()
    )))
}

/// Opens a connection that may write.
pub(crate) fn open(options: &SqliteOptions) -> Result<Connection, Error> {
    check_path(&options.path, options.create)?;
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if options.create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let conn = Connection::open_with_flags(&options.path, flags)
        .map_err(|error| named(&options.path, error.into()))?;
    prepare(&conn, options).map_err(|error| named(&options.path, error))?;
    if conn.is_readonly("main")? {
        return Err(Error::unfit(format!(
            "{} cannot be written: give the relay's user write access to the file and its directory",
            options.path.display()
        )));
    }
    Ok(conn)
}

/// Opens a connection that only reads.
pub(crate) fn open_reader(options: &SqliteOptions) -> Result<Connection, Error> {
    let conn = open(&SqliteOptions { create: false, ..options.clone() })?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

fn prepare(conn: &Connection, options: &SqliteOptions) -> Result<(), Error> {
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.busy_timeout(options.busy_timeout)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "temp_store", "memory")?;
    if !options.auto_checkpoint {
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    }
    // The first look into the file: what is not a database shows here.
    conn.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
    Ok(())
}

/// SQLite says of all of these that it is "unable to open database file".
fn check_path(path: &Path, create: bool) -> Result<(), Error> {
    let file = path.display();
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            Err(Error::unfit(format!("{file} is a directory: store.url must name a file in it")))
        }
        Ok(_) => std::fs::File::open(path).map(drop).map_err(|error| {
            Error::unfit(format!(
                "{file} cannot be read ({error}): give the relay's user read and write access"
            ))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => check_missing(path, create),
        Err(error) => {
            Err(Error::unfit(format!("{file} cannot be reached ({error}): check the path in store.url")))
        }
    }
}

fn check_missing(path: &Path, create: bool) -> Result<(), Error> {
    let file = path.display();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if parent.is_some_and(|parent| !parent.is_dir()) {
        return Err(Error::unfit(format!(
            "{file} does not exist, nor does its directory: create the directory or check the path in store.url"
        )));
    }
    if create {
        return Ok(());
    }
    Err(Error::unfit(format!(
        "{file} does not exist: check the path in store.url, or create the database with `outbox migrate up`"
    )))
}

/// Says which file an error is about.
fn named(path: &Path, error: Error) -> Error {
    match error.0 {
        outbox_store::StoreError::Unfit(text) => Error::unfit(format!("{}: {text}", path.display())),
        other => Error(other),
    }
}
