//! Transactions that meet on one event.

use processed_events::{Outcome, ProcessedError};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::client::{Base, Client, LIBRARIES};

/// Begins and marks the event in a task of its own; the channel tells when it is about to.
fn second(base: &Base, mut client: Client, id: String) -> (oneshot::Receiver<()>, Second) {
    let (about_to, told) = oneshot::channel();
    let begin = base.begin();
    let task = tokio::spawn(async move {
        let _ = about_to.send(());
        client.execute(begin).await?;
        let outcome = client.once(&id).await?;
        client.execute("COMMIT").await?;
        Ok(outcome)
    });
    (told, task)
}

type Second = tokio::task::JoinHandle<Result<Outcome, ProcessedError>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_transactions_the_second_waits_for_the_firsts_end() {
    for base in Base::all().await {
        let mut observer = base.connect(super::client::Library::Sqlx).await;
        for (round, (one, other)) in pairs().into_iter().enumerate() {
            for (end, expected) in [("COMMIT", Outcome::Duplicate), ("ROLLBACK", Outcome::First)] {
                let id = format!("{round}-{end}");
                let (mut a, b) = (base.connect(one).await, base.connect(other).await);
                a.execute(base.begin()).await.unwrap();
                assert_eq!(a.once(&id).await.unwrap(), Outcome::First);
                let (told, waiting) = second(&base, b, id.clone());
                told.await.unwrap();
                if base.is_postgres() {
                    observer.until_waiting(1).await;
                }
                assert!(!waiting.is_finished(), "{one:?}, {other:?}: it did not wait");
                a.execute(end).await.unwrap();
                let outcome = waiting.await.unwrap().unwrap();
                assert_eq!(outcome, expected, "{one:?}, {other:?}, {end}");
                assert_eq!(a.once(&id).await.unwrap(), Outcome::Duplicate);
            }
        }
    }
}

fn pairs() -> Vec<(super::client::Library, super::client::Library)> {
    LIBRARIES.into_iter().flat_map(|one| LIBRARIES.map(|other| (one, other))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_older_than_the_mark_says_try_again() {
    for base in Base::all().await {
        let begins: &[&str] = if base.is_postgres() {
            &["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"]
        } else {
            &["BEGIN"]
        };
        for (round, (one, other)) in pairs().into_iter().enumerate() {
            for begin in begins {
                let id = format!("{round}-{begin}");
                let (mut a, mut b) = (base.connect(one).await, base.connect(other).await);
                b.execute(begin).await.unwrap();
                b.number("SELECT count(*) FROM effects").await;
                assert_eq!(a.once(&id).await.unwrap(), Outcome::First);
                try_again(b.once(&id).await);
                b.execute("ROLLBACK").await.unwrap();
                b.execute(begin).await.unwrap();
                assert_eq!(b.once(&id).await.unwrap(), Outcome::Duplicate);
                b.execute("ROLLBACK").await.unwrap();
            }
        }
    }
}

fn try_again<T: std::fmt::Debug>(result: Result<T, ProcessedError>) {
    let error = result.unwrap_err();
    assert!(error.is_try_again() && error.to_string().starts_with("try the transaction again: "), "{error}");
}

/// Waiting that is cut short, by the helper's statement and by the consumer's own, whose errors convert.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lock_that_is_not_to_be_had_says_try_again() {
    for base in Base::all().await {
        let impatient = base.dialect("SET lock_timeout = '20ms'", "PRAGMA busy_timeout = 20");
        for (round, (one, other)) in pairs().into_iter().enumerate() {
            let id = round.to_string();
            let (mut a, mut b) = (base.connect(one).await, base.connect(other).await);
            a.execute(base.begin()).await.unwrap();
            assert_eq!(a.once(&id).await.unwrap(), Outcome::First);
            b.execute(impatient).await.unwrap();
            b.execute("BEGIN").await.unwrap();
            try_again(b.once(&id).await);
            b.execute("ROLLBACK").await.unwrap();
            try_again(b.execute(base.dialect("DROP TABLE processed_events", "BEGIN IMMEDIATE")).await);
            a.execute("ROLLBACK").await.unwrap();
        }
    }
}

/// Two single marks in opposite orders: what the batch form avoids.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_deadlock_says_try_again() {
    for base in Base::all().await.into_iter().filter(Base::is_postgres) {
        for (round, (one, other)) in pairs().into_iter().enumerate() {
            let (x, y) = (format!("x{round}"), format!("y{round}"));
            let (mut a, mut b) = (base.connect(one).await, base.connect(other).await);
            for (client, first) in [(&mut a, &x), (&mut b, &y)] {
                client.execute("SET deadlock_timeout = '20ms'; BEGIN").await.unwrap();
                assert_eq!(client.once(first).await.unwrap(), Outcome::First);
            }
            let crossing = tokio::spawn(async move {
                let outcome = a.once(&y).await;
                a.execute("ROLLBACK").await.unwrap();
                outcome
            });
            let outcome = b.once(&x).await;
            b.execute("ROLLBACK").await.unwrap();
            let (won, lost) = match (crossing.await.unwrap(), outcome) {
                (Ok(won), lost) | (lost, Ok(won)) => (won, lost),
                (one, other) => panic!("both lost: {one:?}, {other:?}"),
            };
            assert_eq!(won, Outcome::First);
            try_again(lost);
        }
    }
}

const EVENTS: usize = 120;
const CONSUMERS: u64 = 6;

/// Every consumer gets every event, in an order of its own, gives up a third of its transactions, and gets what it gave
/// up again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn consumers_that_race_on_all_events_leave_one_effect_each() {
    for base in Base::all().await {
        let mut consumers = JoinSet::new();
        for consumer in 0..CONSUMERS {
            let client = base.connect(LIBRARIES[consumer as usize % 2]).await;
            consumers.spawn(consume(client, base.begin(), consumer));
        }
        let firsts: usize = consumers.join_all().await.into_iter().sum();
        assert_eq!(firsts, EVENTS);
        let mut client = base.connect(super::client::Library::Sqlx).await;
        assert_eq!(client.number("SELECT count(*) FROM effects").await, EVENTS as i64);
        assert_eq!(client.number("SELECT count(DISTINCT event_id) FROM effects").await, EVENTS as i64);
    }
}

/// How many events it was the first to process.
async fn consume(mut client: Client, begin: &str, seed: u64) -> usize {
    let mut draws = StdRng::seed_from_u64(seed);
    let mut pending: Vec<usize> = (0..EVENTS).collect();
    pending.shuffle(&mut draws);
    let mut firsts = 0;
    while let Some(event) = pending.pop() {
        client.execute(begin).await.unwrap();
        let outcome = client.once(&event.to_string()).await.unwrap();
        if outcome.is_first() {
            client.execute(&format!("INSERT INTO effects VALUES ('{event}')")).await.unwrap();
        }
        if draws.random_bool(0.33) {
            client.execute("ROLLBACK").await.unwrap();
            pending.insert(0, event);
            continue;
        }
        client.execute("COMMIT").await.unwrap();
        firsts += usize::from(outcome.is_first());
    }
    firsts
}

/// Batches over the same ids in opposite orders, long enough to be several statements.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_in_opposite_orders_never_deadlock() {
    const ROUNDS: usize = 12;
    for base in Base::all().await {
        for round in 0..ROUNDS {
            let (one, other) = pairs()[round % 4];
            let (a, b) = (base.connect(one).await, base.connect(other).await);
            let mut ids: Vec<String> = (0..1500).map(|n| format!("{round}-{n:04}")).collect();
            ids.shuffle(&mut StdRng::seed_from_u64(round as u64));
            let reversed: Vec<String> = ids.iter().rev().cloned().collect();
            let begin = base.begin();
            let batch = |mut client: Client, ids: Vec<String>| async move {
                client.execute(begin).await?;
                let outcomes = client.first_of(&ids).await?;
                client.execute("COMMIT").await?;
                Ok::<_, ProcessedError>(outcomes)
            };
            let (one, other) = (tokio::spawn(batch(a, ids)), tokio::spawn(batch(b, reversed)));
            let (one, other) = (one.await.unwrap(), other.await.unwrap());
            let firsts = |outcomes: Vec<Outcome>| outcomes.iter().filter(|one| one.is_first()).count();
            let split = [firsts(one.unwrap()), firsts(other.unwrap())];
            assert!(split == [1500, 0] || split == [0, 1500], "{split:?}");
        }
    }
}
