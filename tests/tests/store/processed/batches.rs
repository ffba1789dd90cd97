//! Many events at once.

use processed_events::Outcome::{self, Duplicate, First};

use super::client::{Base, LIBRARIES};

fn owned(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|&id| id.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_in_the_order_of_the_ids() {
    for base in Base::all().await {
        for library in LIBRARIES {
            let mut client = base.connect(library).await;
            client.execute("DELETE FROM processed_events").await.unwrap();
            client.execute(base.begin()).await.unwrap();
            assert_eq!(client.once("old").await.unwrap(), First);
            let ids = owned(&["z", "old", "a", "z", "ü", "a", "new"]);
            let outcomes = client.first_of(&ids).await.unwrap();
            assert_eq!(outcomes, [First, Duplicate, First, Duplicate, First, Duplicate, First]);
            assert_eq!(client.first_of(&[]).await.unwrap(), []);
            client.execute("COMMIT").await.unwrap();
            assert_eq!(client.first_of(&ids).await.unwrap(), [Duplicate; 7]);
            assert_eq!(client.number("SELECT count(*) FROM processed_events").await, 5);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_may_be_more_ids_than_go_into_a_statement() {
    for base in Base::all().await {
        for library in LIBRARIES {
            let mut client = base.connect(library).await;
            client.execute("DELETE FROM processed_events").await.unwrap();
            let half: Vec<String> = (0..2500).step_by(2).map(|n| n.to_string()).collect();
            assert!(client.first_of(&half).await.unwrap().into_iter().all(Outcome::is_first));
            let all: Vec<String> = (0..2500).map(|n| n.to_string()).collect();
            let outcomes = client.first_of(&all).await.unwrap();
            let expected = (0..2500).map(|n| if n % 2 == 0 { Duplicate } else { First });
            assert!(outcomes.into_iter().eq(expected));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_cannot_be_one_costs_nothing() {
    for base in Base::all().await {
        for library in LIBRARIES {
            let mut client = base.connect(library).await;
            client.execute(base.begin()).await.unwrap();
            for bad in ["", "a\0b", &"x".repeat(1025)] {
                let error = client.first_of(&owned(&["good", bad])).await.unwrap_err();
                assert!(error.to_string().starts_with("event id: "), "{error}");
                assert!(!client.once(bad).await.unwrap_err().is_try_again());
            }
            // The transaction is still good.
            assert_eq!(client.once("good").await.unwrap(), First);
            assert_eq!(client.once(&"x".repeat(1024)).await.unwrap(), First);
            client.execute("ROLLBACK").await.unwrap();
        }
    }
}
