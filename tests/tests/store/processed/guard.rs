//! The guard against arrival out of order.

use processed_events::Arrival::{InOrder, OutOfOrder};

use super::client::{Base, Client, LIBRARIES, Library};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_behind_a_later_event_of_its_aggregate_is_told() {
    for base in Base::all().await {
        for library in LIBRARIES {
            let mut client = base.connect(library).await;
            client.migrate_guard().await.unwrap();
            client.migrate_guard().await.unwrap();
            client.execute("DELETE FROM processed_seqs").await.unwrap();
            let mut arrivals = Vec::new();
            for (id, seq) in [("a", 3), ("a", 7), ("b", 5), ("a", 5), ("a", 7), ("a", 8), ("b", 6)] {
                client.execute(base.begin()).await.unwrap();
                arrivals.push(client.advance(id, seq).await.unwrap());
                client.execute("COMMIT").await.unwrap();
            }
            let late = OutOfOrder { last: 7 };
            assert_eq!(arrivals, [InOrder, InOrder, InOrder, late, late, InOrder, InOrder]);
            client.execute(base.begin()).await.unwrap();
            assert_eq!(client.advance("a", 100).await.unwrap(), InOrder);
            client.execute("ROLLBACK").await.unwrap();
            assert_eq!(client.advance("a", 9).await.unwrap(), InOrder);
            let nul = client.advance("a\0", 1).await.unwrap_err().to_string();
            assert_eq!(nul, "aggregate_id: must not contain NUL");
            let long = client.advance(&"x".repeat(1275), 1).await.unwrap_err().to_string();
            assert!(long.contains("1280 bytes, at most 1279 are allowed"), "{long}");
        }
    }
}

/// The later event's transaction is open when the earlier one comes, or the other way round.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn events_of_an_aggregate_wait_for_each_other() {
    for base in Base::all().await {
        let mut observer = base.connect(Library::Sqlx).await;
        observer.migrate_guard().await.unwrap();
        for (round, library) in LIBRARIES.into_iter().enumerate() {
            // Whether the aggregate is known already, what is open, how that ends, what waits, and its answer.
            for (case, (known, open, end, waits, expected)) in [
                (false, 5, "COMMIT", 4, OutOfOrder { last: 5 }),
                (true, 5, "COMMIT", 4, OutOfOrder { last: 5 }),
                (true, 5, "ROLLBACK", 4, InOrder),
                (false, 5, "ROLLBACK", 4, InOrder),
                (true, 4, "COMMIT", 5, InOrder),
                // Nothing was written, and still the row is locked.
                (true, 1, "COMMIT", 4, InOrder),
            ]
            .into_iter()
            .enumerate()
            {
                let id = format!("{round}-{case}");
                if known {
                    assert_eq!(observer.advance(&id, 2).await.unwrap(), InOrder);
                }
                let (mut a, b) = (base.connect(library).await, base.connect(library).await);
                a.execute(base.begin()).await.unwrap();
                let _ = a.advance(&id, open).await.unwrap();
                let waiting = tokio::spawn(advance(b, base.begin(), id.clone(), waits));
                if base.is_postgres() {
                    observer.until_waiting(1).await;
                }
                a.execute(end).await.unwrap();
                assert_eq!(waiting.await.unwrap(), expected, "{id}");
            }
        }
    }
}

async fn advance(mut client: Client, begin: &str, id: String, seq: i64) -> processed_events::Arrival {
    client.execute(begin).await.unwrap();
    let arrival = client.advance(&id, seq).await.unwrap();
    client.execute("COMMIT").await.unwrap();
    arrival
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_older_than_the_last_seq_says_try_again() {
    for base in Base::all().await {
        for (round, library) in LIBRARIES.into_iter().enumerate() {
            let id = round.to_string();
            let (mut a, mut b) = (base.connect(library).await, base.connect(library).await);
            a.migrate_guard().await.unwrap();
            b.execute(base.dialect("BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN")).await.unwrap();
            b.number("SELECT count(*) FROM effects").await;
            assert_eq!(a.advance(&id, 5).await.unwrap(), InOrder);
            let error = b.advance(&id, 6).await.unwrap_err();
            assert!(error.is_try_again(), "{error}");
            b.execute("ROLLBACK").await.unwrap();
        }
    }
}
