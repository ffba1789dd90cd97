//! The SQL of each engine, one file a statement; `{table}` stands for the table.

#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
pub(crate) mod postgres {
    pub(crate) const LOCK: &str = include_str!("sql/postgres_lock.sql");
    pub(crate) const ONCE: &str = include_str!("sql/postgres_once.sql");
    pub(crate) const FIRST_OF: &str = include_str!("sql/postgres_first_of.sql");
    pub(crate) const PURGE: &str = include_str!("sql/postgres_purge.sql");
    pub(crate) const ADVANCE: &str = include_str!("sql/postgres_advance.sql");
    pub(crate) const LAST_SEEN: &str = include_str!("sql/postgres_last_seen.sql");
}

#[cfg(any(feature = "sqlite", feature = "rusqlite"))]
pub(crate) mod sqlite {
    pub(crate) const ONCE: &str = include_str!("sql/sqlite_once.sql");
    pub(crate) const PURGE: &str = include_str!("sql/sqlite_purge.sql");
    pub(crate) const ADVANCE: &str = include_str!("sql/sqlite_advance.sql");
    pub(crate) const LAST_SEEN: &str = include_str!("sql/sqlite_last_seen.sql");

    const FIRST_OF: &str = include_str!("sql/sqlite_first_of.sql");
    const ROW: &str = include_str!("sql/sqlite_row.sql");

    pub(crate) fn first_of(rows: usize) -> String {
        FIRST_OF.replace("{rows}", &vec![ROW.trim_end(); rows].join(",\n"))
    }
}
