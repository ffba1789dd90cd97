//! Every case of the store contract on every engine and server version.

use outbox_store::contract;
use outbox_store::for_each_case;

mod sqlite {
    use super::*;
    use outbox_tests::harness::SqliteHarness;

    macro_rules! case {
        ($module:ident, $case:ident) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let harness = SqliteHarness::new().await;
                contract::$module::$case(&harness).await;
            }
        };
    }

    for_each_case!(case);
}

mod postgres {
    use super::*;
    use outbox_tests::harness::PostgresHarness;

    macro_rules! case {
        ($module:ident, $case:ident) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                for server in outbox_tests::postgres::shared() {
                    let harness = PostgresHarness::new(server).await;
                    contract::$module::$case(&harness).await;
                }
            }
        };
    }

    for_each_case!(case);
}

/// A case that the list forgets would be written and never run.
#[test]
fn every_case_is_listed() {
    let list = include_str!("../../../crates/outbox-store/src/contract/mod.rs");
    macro_rules! sources {
        ($($module:literal)*) => {
            [$(($module, include_str!(concat!("../../../crates/outbox-store/src/contract/", $module, ".rs")))),*]
        };
    }
    let sources =
        sources!("blocked" "bytes" "claims" "concurrent" "late" "lease" "operator" "unordered" "verdicts");
    for (module, source) in sources {
        for line in source.lines() {
            let Some(case) = line.strip_prefix("pub async fn ").and_then(|rest| rest.split('(').next())
            else {
                continue;
            };
            assert!(list.contains(&format!("$each!({module}, {case});")), "{module}::{case} is not listed");
        }
    }
}
