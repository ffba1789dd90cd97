use std::fmt::Write as _;

use outbox_store::{SchemaState, StoreError};
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};

use crate::sql::{Schema, Statements};

struct Migration {
    version: i64,
    name: &'static str,
    /// A binary that does not know this version must refuse the database.
    breaking: bool,
    sql: &'static str,
}

macro_rules! migration {
    ($version:literal, $name:literal, breaking: $breaking:literal) => {
        Migration {
            version: $version,
            name: $name,
            breaking: $breaking,
            sql: include_str!(concat!("../../../migrations/postgres/", $name, ".sql")),
        }
    };
}

/// Forward only, in order. The first is what everything stands on, and so breaking.
const MIGRATIONS: [Migration; 8] = [
    migration!(1, "0001_outbox", breaking: true),
    migration!(2, "0002_claim", breaking: false),
    migration!(3, "0003_claim_unordered", breaking: false),
    migration!(4, "0004_settle", breaking: false),
    migration!(5, "0005_sweep", breaking: false),
    migration!(6, "0006_operate", breaking: false),
    migration!(7, "0007_enqueue", breaking: false),
    migration!(8, "0008_wake_up", breaking: false),
];

/// All migrations as one SQL script for other migration tools. It records their versions, so that afterwards the relay
/// finds the schema current. Run it once, on a database without outbox tables.
///
/// # Errors
/// [`StoreError::Unfit`] for a schema name that cannot be used.
pub fn migrations_sql(schema: &str) -> Result<String, StoreError> {
    let schema = Schema::new(schema)?;
    let mut script = String::from("begin;\n\n");
    script.push_str(&schema.render(include_str!("sql/migrations_table.sql")));
    for migration in &MIGRATIONS {
        let _ = write!(
            script,
            "\n-- {}\n{}\n{}",
            migration.name,
            schema.render(migration.sql),
            schema.render(&record(migration))
        );
    }
    script.push_str("\ncommit;\n");
    Ok(script)
}

fn record(migration: &Migration) -> String {
    format!(
        "insert into {{schema}}.outbox_migrations (version, name, breaking) values ({}, '{}', {});\n",
        migration.version, migration.name, migration.breaking
    )
}

/// Applies what is missing, in one transaction; returns the versions applied.
pub(crate) async fn migrate(
    connection: &mut PgConnection,
    schema: &Schema,
    statements: &Statements,
) -> Result<Vec<i64>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query(include_str!("sql/migrations_lock.sql"))
        .bind(schema.name())
        .execute(&mut *transaction)
        .await?;
    raw_sql(AssertSqlSafe(schema.render(include_str!("sql/migrations_table.sql"))))
        .execute(&mut *transaction)
        .await?;
    let applied = applied(&mut transaction, statements).await?;
    let mut done = Vec::new();
    for migration in MIGRATIONS.iter().filter(|m| !applied.iter().any(|(version, _)| *version == m.version)) {
        let sql = schema.render(&format!("{}\n{}", migration.sql, record(migration)));
        raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await?;
        done.push(migration.version);
    }
    transaction.commit().await?;
    Ok(done)
}

/// How the schema stands to this binary.
pub(crate) async fn state(
    connection: &mut PgConnection,
    schema: &Schema,
    statements: &Statements,
) -> Result<SchemaState, sqlx::Error> {
    let exists: bool = sqlx::query_scalar(include_str!("sql/migrations_exist.sql"))
        .bind(schema.name())
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(SchemaState::Missing);
    }
    Ok(judge(&applied(connection, statements).await?))
}

async fn applied(
    connection: &mut PgConnection,
    statements: &Statements,
) -> Result<Vec<(i64, bool)>, sqlx::Error> {
    sqlx::query_as(statements.migrations_applied.clone()).fetch_all(connection).await
}

fn judge(applied: &[(i64, bool)]) -> SchemaState {
    let known = MIGRATIONS.last().map_or(0, |m| m.version);
    let Some(newest) = applied.iter().map(|(version, _)| *version).max() else {
        return SchemaState::Missing;
    };
    if applied.iter().any(|(version, breaking)| *breaking && *version > known) {
        return SchemaState::Newer { applied: newest, known };
    }
    let missing = MIGRATIONS.iter().any(|m| !applied.iter().any(|(version, _)| *version == m.version));
    if missing {
        return SchemaState::Behind { applied: newest, needed: known };
    }
    SchemaState::Current { applied: newest }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<(i64, bool)> {
        MIGRATIONS.iter().map(|m| (m.version, m.breaking)).collect()
    }

    #[test]
    fn versions_are_consecutive() {
        assert!(MIGRATIONS.iter().zip(1..).all(|(m, version)| m.version == version));
        assert!(MIGRATIONS.iter().all(|m| m.name.starts_with(&format!("{:04}_", m.version))));
    }

    #[test]
    fn only_a_breaking_newer_version_is_refused() {
        let newest = MIGRATIONS.len() as i64;
        assert_eq!(judge(&[]), SchemaState::Missing);
        assert_eq!(judge(&known()), SchemaState::Current { applied: newest });
        assert_eq!(judge(&known()[..2]), SchemaState::Behind { applied: 2, needed: newest });
        let added = [known(), vec![(newest + 1, false)]].concat();
        assert_eq!(judge(&added), SchemaState::Current { applied: newest + 1 });
        let broken = [added, vec![(newest + 2, true)]].concat();
        assert_eq!(judge(&broken), SchemaState::Newer { applied: newest + 2, known: newest });
    }
}
