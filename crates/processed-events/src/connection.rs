//! What sqlx has that an event can be marked on.

/// What events can be marked on: sqlx transactions, connections and pooled connections of the engines whose feature is
/// on. Sealed.
///
/// Use the transaction in which the event has its effect. On a connection without one the mark commits alone, and a
/// crash before the effect's commit loses the event.
pub trait Connection: sealed::Sealed {}

pub(crate) mod sealed {
    pub trait Sealed: Send {
        fn handle(&mut self) -> Handle<'_>;
    }

    #[derive(Debug)]
    pub enum Handle<'a> {
        #[cfg(feature = "postgres")]
        Postgres(&'a mut sqlx::PgConnection),
        #[cfg(feature = "sqlite")]
        Sqlite(&'a mut sqlx::SqliteConnection),
    }
}

use sealed::{Handle, Sealed};

macro_rules! connections {
    ($feature:literal, $engine:ident, $database:ty, $connection:ty) => {
        #[cfg(feature = $feature)]
        const _: () = {
            impl Connection for $connection {}
            impl Sealed for $connection {
                fn handle(&mut self) -> Handle<'_> {
                    Handle::$engine(self)
                }
            }
            impl Connection for sqlx::Transaction<'_, $database> {}
            impl Sealed for sqlx::Transaction<'_, $database> {
                fn handle(&mut self) -> Handle<'_> {
                    Handle::$engine(self)
                }
            }
            impl Connection for sqlx::pool::PoolConnection<$database> {}
            impl Sealed for sqlx::pool::PoolConnection<$database> {
                fn handle(&mut self) -> Handle<'_> {
                    Handle::$engine(self)
                }
            }
        };
    };
}

connections!("postgres", Postgres, sqlx::Postgres, sqlx::PgConnection);
connections!("sqlite", Sqlite, sqlx::Sqlite, sqlx::SqliteConnection);
