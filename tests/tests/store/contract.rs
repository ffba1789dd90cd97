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
