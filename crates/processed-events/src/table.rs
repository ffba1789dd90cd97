//! A table's name, and SQL with it filled in.

use crate::ProcessedError;

/// Longest name of a schema in bytes; PostgreSQL would cut off the rest.
pub const MAX_SCHEMA_BYTES: usize = 63;

/// Longest name of a table in bytes: PostgreSQL's 63, less what the index's name adds to it.
pub const MAX_TABLE_BYTES: usize = 63 - INDEX_SUFFIX.len();

const INDEX_SUFFIX: &str = "_processed_at";

/// Whose SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
}

/// The SQL that makes a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Migrations {
    postgres: &'static str,
    sqlite: &'static str,
}

pub(crate) static PROCESSED_EVENTS: Migrations = Migrations {
    postgres: include_str!("../migrations/postgres/0001_processed_events.sql"),
    sqlite: include_str!("../migrations/sqlite/0001_processed_events.sql"),
};

pub(crate) static PROCESSED_SEQS: Migrations = Migrations {
    postgres: include_str!("../migrations/postgres/0001_processed_seqs.sql"),
    sqlite: include_str!("../migrations/sqlite/0001_processed_seqs.sql"),
};

/// A table by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    schema: Option<String>,
    name: String,
    migrations: &'static Migrations,
}

/// How a type that stands for a table is made: the same for every library.
macro_rules! named_table {
    ($type:ident, $default:literal, $migrations:ident) => {
        impl Default for $type {
            fn default() -> Self {
                Self { table: $crate::table::Table::known($default, &$crate::table::$migrations) }
            }
        }

        impl $type {
            /// A table of this name, where the connection finds it: on PostgreSQL by its search_path. The name is
            /// taken literally and quoted, dots and upper case included.
            ///
            /// # Errors
            /// [`ProcessedError::Invalid`](crate::ProcessedError::Invalid) for an empty name and one with NUL or braces
            /// in it, [`ProcessedError::TooLarge`](crate::ProcessedError::TooLarge) above
            /// [`MAX_TABLE_BYTES`](crate::MAX_TABLE_BYTES).
            pub fn in_table(table: &str) -> Result<Self, $crate::ProcessedError> {
                Ok(Self { table: $crate::table::Table::new(None, table, &$crate::table::$migrations)? })
            }

            /// A table of this name in a schema, which must be there: on SQLite the name of an attached database.
            ///
            /// # Errors
            /// As [`Self::in_table`], for either name; a schema's may have
            /// [`MAX_SCHEMA_BYTES`](crate::MAX_SCHEMA_BYTES).
            pub fn in_schema(schema: &str, table: &str) -> Result<Self, $crate::ProcessedError> {
                Ok(Self {
                    table: $crate::table::Table::new(Some(schema), table, &$crate::table::$migrations)?,
                })
            }

            /// The migration that makes the table, for a migration tool. It may run any number of times.
            #[must_use]
            pub fn sql(&self, engine: $crate::Engine) -> String {
                self.table.migration(engine)
            }
        }
    };
}

pub(crate) use named_table;

impl Table {
    /// One whose name is known to be good.
    pub(crate) fn known(name: &str, migrations: &'static Migrations) -> Self {
        Self { schema: None, name: name.to_owned(), migrations }
    }

    pub(crate) fn new(
        schema: Option<&str>,
        name: &str,
        migrations: &'static Migrations,
    ) -> Result<Self, ProcessedError> {
        check("table", name, MAX_TABLE_BYTES)?;
        schema.map_or(Ok(()), |schema| check("schema", schema, MAX_SCHEMA_BYTES))?;
        Ok(Self { schema: schema.map(str::to_owned), name: name.to_owned(), migrations })
    }

    /// The statement on this table.
    pub(crate) fn fill(&self, sql: &str) -> String {
        sql.replace("{table}", &self.qualified(&self.name))
    }

    /// What makes it. PostgreSQL puts an index where its table is, SQLite where the index's name says.
    pub(crate) fn migration(&self, engine: Engine) -> String {
        let index = format!("{}{INDEX_SUFFIX}", self.name);
        let (sql, index) = match engine {
            Engine::Postgres => (self.migrations.postgres, quoted(&index)),
            Engine::Sqlite => (self.migrations.sqlite, self.qualified(&index)),
        };
        self.fill(sql).replace("{index}", &index).replace("{name}", &quoted(&self.name))
    }

    fn qualified(&self, name: &str) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(name)),
            None => quoted(name),
        }
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn check(field: &'static str, name: &str, limit: usize) -> Result<(), ProcessedError> {
    if name.is_empty() || name.contains(['\0', '{', '}']) {
        let reason = "must not be empty or contain NUL, `{` or `}`".to_owned();
        return Err(ProcessedError::Invalid { field, reason });
    }
    if name.len() > limit {
        let (actual, limit) = (name.len() as u64, limit as u64);
        return Err(ProcessedError::TooLarge { field, actual, limit, unit: "bytes" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(schema: Option<&str>, name: &str) -> Result<Table, ProcessedError> {
        Table::new(schema, name, &PROCESSED_EVENTS)
    }

    #[test]
    fn names_are_taken_literally() {
        let plain = table(None, "billing.processed").unwrap();
        assert_eq!(plain.fill("DELETE FROM {table}"), "DELETE FROM \"billing.processed\"");
        let odd = table(Some("my \"schema"), "a\"b").unwrap();
        assert_eq!(odd.fill("{table}"), "\"my \"\"schema\".\"a\"\"b\"");
        for (engine, index) in [
            (Engine::Postgres, "\"a\"\"b_processed_at\" ON \"my \"\"schema\".\"a\"\"b\""),
            (Engine::Sqlite, "\"my \"\"schema\".\"a\"\"b_processed_at\" ON \"a\"\"b\""),
        ] {
            let sql = odd.migration(engine);
            assert!(sql.contains(&format!("CREATE INDEX IF NOT EXISTS {index} (processed_at);")), "{sql}");
            assert!(!sql.contains(['{', '}']), "{sql}");
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for (schema, name, expected) in [
            (None, String::new(), "table: must not be empty"),
            (None, "a\0b".to_owned(), "table: must not be empty or contain NUL"),
            (None, "{name}".to_owned(), "table: must not be empty or contain NUL, `{`"),
            (None, "x".repeat(51), "table: 51 bytes, at most 50 are allowed"),
            (Some(""), "a".to_owned(), "schema: must not be empty"),
        ] {
            let error = table(schema, &name).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(table(Some(&"s".repeat(63)), &"x".repeat(50)).is_ok());
    }
}
