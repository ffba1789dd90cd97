use std::sync::Arc;

use outbox_store::StoreError;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// Tag of the dollar quotes in the SQL files; a schema name must not end them.
const DOLLAR_QUOTE: &str = "$outbox$";

/// A schema name as it stands in SQL.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    name: String,
    quoted: String,
}

impl Schema {
    /// Takes any name that PostgreSQL takes.
    pub(crate) fn new(name: &str) -> Result<Self, StoreError> {
        if name.is_empty() || name.len() > 63 || name.contains('\0') || name.contains(DOLLAR_QUOTE) {
            return Err(StoreError::Unfit(format!(
                "schema name {name:?} is not usable; take 1 to 63 bytes, for example \"outbox\""
            )));
        }
        Ok(Self { name: name.to_owned(), quoted: format!("\"{}\"", name.replace('"', "\"\"")) })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The text of an SQL file with its placeholders filled in.
    pub(crate) fn render(&self, sql: &str) -> String {
        let literal = format!("'{}'", self.name.replace('\'', "''"));
        sql.replace("{schema}", &self.quoted).replace("{schema_literal}", &literal)
    }

    fn statement(&self, sql: &'static str) -> SqlStr {
        // Safe: the only thing put in is the name, quoted.
        AssertSqlSafe(Arc::<str>::from(self.render(sql))).into_sql_str()
    }
}

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// Every statement, with the schema's name filled in once.
        #[derive(Debug)]
        pub(crate) struct Statements { $(pub(crate) $name: SqlStr),* }

        impl Statements {
            pub(crate) fn new(schema: &Schema) -> Self {
                Self { $($name: schema.statement(include_str!(concat!("sql/", stringify!($name), ".sql")))),* }
            }
        }
    };
}

statements!(
    claim,
    claim_unordered,
    discard_failed,
    failed,
    migrations_applied,
    purge,
    recover_orphans,
    register_queues,
    relocate,
    retry_failed,
    set_paused,
    settle,
    stats,
    sweep,
    wake_up_lock,
    wake_up_unlock,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        let schema = Schema::new("we\"ird 'x'").unwrap();
        assert_eq!(schema.render("{schema}.t {schema_literal}"), "\"we\"\"ird 'x'\".t 'we\"ird ''x'''");
    }

    #[test]
    fn unusable_names_are_refused() {
        for name in ["", "a\0b", "x$outbox$y", &"x".repeat(64)] {
            assert!(matches!(Schema::new(name), Err(StoreError::Unfit(_))), "{name:?}");
        }
    }
}
