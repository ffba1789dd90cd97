//! The kafka sink against librdkafka's mock cluster, which fails on request. The mock knows no sequence numbers, so
//! that a message that was sent again is seen again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use outbox_sinks::{Answer, Cause, Message, Refusal, Sink, build};
use outbox_store::Event;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use tokio::time::Instant;

use crate::common::{event, messages, soon};

const TOPIC: &str = "orders";

/// A cluster in memory with one topic, and the sink under test.
struct Mock {
    cluster: MockCluster<'static, DefaultProducerContext>,
    sink: Arc<dyn Sink>,
}

impl Mock {
    fn new(partitions: i32) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, partitions, 1).unwrap();
        let sink = sink(&cluster.bootstrap_servers());
        Self { cluster, sink }
    }

    /// Sends one message, so that the topic is known and the producer connected.
    async fn warm_up(&self) {
        let events = [event(1000, "warm", "0")];
        assert!(self.publish(&events, soon()).await[0].is_acked());
    }

    async fn publish(&self, events: &[Event], deadline: Instant) -> Vec<Answer> {
        self.sink.publish(&to(TOPIC, events), deadline).await
    }

    fn fail(&self, api: RDKafkaApiKey, errors: &[RDKafkaRespErr]) {
        self.cluster.request_errors(api, errors);
    }

    /// The bodies in the topic's only partition, up to the end of its log.
    fn log(&self) -> Vec<String> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.cluster.bootstrap_servers())
            .set("group.id", "reader")
            .create()
            .unwrap();
        let (_, end) = consumer.fetch_watermarks(TOPIC, 0, Duration::from_secs(30)).unwrap();
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition_offset(TOPIC, 0, Offset::Offset(0)).unwrap();
        consumer.assign(&partitions).unwrap();
        let mut bodies = Vec::new();
        while (bodies.len() as i64) < end {
            let message = consumer.poll(Duration::from_secs(30)).expect("the log goes on").unwrap();
            bodies.push(String::from_utf8(message.payload().unwrap().to_vec()).unwrap());
        }
        bodies
    }
}

fn sink(brokers: &str) -> Arc<dyn Sink> {
    sink_with(&format!(r#"{{"type":"kafka","brokers":"{brokers}"}}"#))
}

fn sink_with(json: &str) -> Arc<dyn Sink> {
    build("orders", &serde_json::from_str(json).unwrap()).unwrap()
}

fn to<'a>(topic: &'a str, events: &'a [Event]) -> Vec<Message<'a>> {
    let mut messages = messages(events);
    for message in &mut messages {
        message.destination = Some(Cow::Borrowed(topic));
    }
    messages
}

/// Events of one key whose bodies are their numbers.
fn run_of(key: &str, numbers: std::ops::Range<i64>) -> Vec<Event> {
    numbers.map(|number| event(number, key, String::leak(number.to_string()))).collect()
}

fn after(millis: u64) -> Instant {
    Instant::now() + Duration::from_millis(millis)
}

fn refusal(answer: &Answer) -> &Refusal {
    match answer {
        Answer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

fn causes(answers: &[Answer]) -> Vec<Option<Cause>> {
    let cause = |answer: &Answer| match answer {
        Answer::Refused(refusal) => Some(refusal.cause),
        _ => None,
    };
    answers.iter().map(cause).collect()
}

/// The numbers in the order in which they came first.
fn first_deliveries(log: &[String]) -> Vec<i64> {
    let mut seen = HashMap::new();
    let numbers = log.iter().filter_map(|body| body.parse::<i64>().ok()).filter(|number| *number > 0);
    numbers.filter(|number| seen.insert(*number, ()).is_none()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_name_topic_partition_and_offset() {
    let mock = Mock::new(1);
    let answers = mock.publish(&run_of("a", 1..4), soon()).await;
    let receipt = |offset| Answer::Acked { receipt: Some(format!("orders/0@{offset}")) };
    assert_eq!(answers, [receipt(0), receipt(1), receipt(2)]);
    assert_eq!(mock.log(), ["1", "2", "3"]);
    mock.sink.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_enough_replicas_heals_within_the_publish() {
    let mock = Mock::new(1);
    mock.warm_up().await;
    mock.fail(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 3]);
    let answers = mock.publish(&run_of("a", 1..21), soon()).await;
    assert!(answers.iter().all(Answer::is_acked), "{answers:?}");
    assert_eq!(first_deliveries(&mock.log()), (1..21).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_large_even_alone_is_to_blame_itself() {
    let mock = Mock::new(1);
    mock.warm_up().await;
    // The batch, then the first message alone; the second message alone is taken.
    mock.fail(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE; 2]);
    let events = [event(1, "a", "1"), event(2, "b", "2")];
    let answers = mock.publish(&events, soon()).await;
    assert_eq!(causes(&answers), [Some(Cause::Message), None], "{answers:?}");
    assert!(refusal(&answers[0]).error.contains("max.message.bytes"), "{answers:?}");
    assert!(answers[1].is_acked());
    assert_eq!(first_deliveries(&mock.log()), [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_beyond_the_own_limit_stops_its_key_and_nobody_else() {
    let mock = Mock::new(1);
    let sink = sink_with(&format!(
        r#"{{"type":"kafka","brokers":"{}","max_message_bytes":1000}}"#,
        mock.cluster.bootstrap_servers()
    ));
    let large: &str = String::leak("9".repeat(1000));
    let events = [event(1, "a", "1"), event(2, "a", large), event(3, "a", "3"), event(4, "b", "4")];
    let answers = sink.publish(&to(TOPIC, &events), soon()).await;
    assert_eq!(causes(&answers), [None, Some(Cause::Message), None, None]);
    assert!(refusal(&answers[1]).error.contains("`max_message_bytes` = 1000"), "{answers:?}");
    assert_eq!(answers[2], Answer::Unsent);
    assert!(answers[0].is_acked() && answers[3].is_acked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_may_not_be_written_to_is_a_matter_of_the_destination() {
    let mock = Mock::new(1);
    mock.warm_up().await;
    mock.fail(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]);
    let answers = mock.publish(&run_of("a", 1..2), soon()).await;
    assert_eq!(causes(&answers), [Some(Cause::Destination)]);
    assert!(refusal(&answers[0]).error.contains("permission"), "{answers:?}");

    mock.cluster.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).unwrap();
    let answers = mock.publish(&run_of("a", 1..2), soon()).await;
    assert_eq!(causes(&answers), [Some(Cause::Destination)], "seen when the topic is looked up: {answers:?}");
    mock.cluster.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    assert!(mock.publish(&run_of("a", 1..2), soon()).await[0].is_acked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_topic_is_noticed_at_once_and_costs_only_its_own() {
    let mock = Mock::new(1);
    mock.cluster.topic_error("missing", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
    let events = [event(1, "a", "1"), event(2, "b", "2"), event(3, "c", "3")];
    let mut batch = to(TOPIC, &events);
    batch[0].destination = Some("missing".into());
    batch[1].destination = Some("not a topic".into());
    let began = Instant::now();
    let answers = mock.sink.publish(&batch, soon()).await;
    assert_eq!(causes(&answers), [Some(Cause::Destination), Some(Cause::Message), None]);
    assert!(refusal(&answers[0]).error.contains("missing does not exist"), "{answers:?}");
    assert!(answers[2].is_acked());
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for the deadline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_lets_nobody_produce_is_down() {
    let mock = Mock::new(1);
    mock.fail(
        RDKafkaApiKey::InitProducerId,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED],
    );
    let began = Instant::now();
    // Of two keys: what follows a refused message of its own key is not even sent.
    let events = [event(1, "a", "1"), event(2, "b", "2")];
    let answers = mock.publish(&events, soon()).await;
    assert_eq!(causes(&answers), [Some(Cause::Sink); 2], "{answers:?}");
    assert!(refusal(&answers[0]).error.contains("authorization"), "{answers:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for the deadline");
    assert!(mock.publish(&events, soon()).await.iter().all(Answer::is_acked), "it went on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_refused_is_a_matter_of_the_sink() {
    let broker = unwelcoming_broker();
    let sink = sink_with(&format!(
        r#"{{"type":"kafka","brokers":"{broker}","sasl_mechanism":"PLAIN","sasl_username":"u","sasl_password":"hunter2"}}"#
    ));
    let events = run_of("a", 1..3);
    let began = Instant::now();
    let answers = sink.publish(&to(TOPIC, &events), soon()).await;
    assert_eq!(causes(&answers), [Some(Cause::Sink); 2], "{answers:?}");
    let error = &refusal(&answers[0]).error;
    assert!(
        error.contains("SASL") && error.contains("wrong password") && !error.contains("hunter2"),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for the deadline");
    let error = sink.check(soon()).await.unwrap_err();
    assert!(error.contains("wrong password"), "{error}");
}

/// A broker that knows SASL PLAIN and no password. Speaks the three requests that come first.
fn unwelcoming_broker() -> String {
    const API_VERSIONS: u16 = 18;
    const SASL_HANDSHAKE: u16 = 17;
    const SASL_AUTHENTICATE: u16 = 36;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = |mut stream: std::net::TcpStream| -> std::io::Result<()> {
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let mut request = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut request)?;
            let mut body = request[4..8].to_vec();
            match (u16::from_be_bytes([request[0], request[1]]), request[3]) {
                (API_VERSIONS, version) => {
                    // A newer version is answered in the oldest: unsupported, with what there is.
                    body.extend(if version == 0 { 0u16 } else { 35 }.to_be_bytes());
                    let apis = [
                        (3, 4u16),
                        (0, 7),
                        (22, 1),
                        (API_VERSIONS, 0),
                        (SASL_HANDSHAKE, 1),
                        (SASL_AUTHENTICATE, 0),
                    ];
                    body.extend((apis.len() as u32).to_be_bytes());
                    for (api, newest) in apis {
                        body.extend([api, 0, newest].iter().flat_map(|number: &u16| number.to_be_bytes()));
                    }
                }
                (SASL_HANDSHAKE, _) => body.extend(b"\0\0\0\0\0\x01\0\x05PLAIN"),
                (SASL_AUTHENTICATE, _) => body.extend(b"\0\x3a\0\x0ewrong password\0\0\0\0"),
                (other, _) => panic!("request {other} before a login"),
            }
            stream.write_all(&(body.len() as u32).to_be_bytes())?;
            stream.write_all(&body)?;
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The client hangs up when it has its answer.
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fatal_error_makes_a_new_producer_and_the_sink_goes_on() {
    let mock = Mock::new(1);
    mock.warm_up().await;
    mock.fail(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]);
    let events = run_of("a", 1..11);
    let began = Instant::now();
    let answers = mock.publish(&events, soon()).await;
    assert_eq!(causes(&answers)[0], Some(Cause::Sink), "{answers:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for the deadline");
    for _ in 0..3 {
        let answers = mock.publish(&events, soon()).await;
        assert!(answers.iter().all(Answer::is_acked), "{answers:?}");
    }
    assert_eq!(first_deliveries(&mock.log()), (1..11).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_down_is_a_matter_of_the_sink_and_comes_back() {
    let mock = Mock::new(1);
    mock.warm_up().await;
    mock.cluster.broker_down(-1).unwrap();
    let answers = mock.publish(&run_of("a", 1..4), after(700)).await;
    assert_eq!(causes(&answers), [Some(Cause::Sink); 3], "{answers:?}");
    assert!(refusal(&answers[0]).silent && refusal(&answers[0]).error.contains("last error"), "{answers:?}");
    // The topic was silent: it is looked up, which nobody answers.
    let answers = mock.publish(&run_of("a", 1..4), after(700)).await;
    assert_eq!(causes(&answers), [Some(Cause::Sink); 3], "{answers:?}");
    mock.cluster.broker_up(-1).unwrap();
    assert!(mock.publish(&run_of("a", 1..4), soon()).await.iter().all(Answer::is_acked));
    assert_eq!(first_deliveries(&mock.log()), [1, 2, 3]);
}

/// The broker answers long after each deadline, again and again, and writes what it was sent all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_broker_past_the_deadline_keeps_the_order_of_a_key() {
    let mock = Mock::new(1);
    mock.warm_up().await;
    let mut next = 1;
    for round in 0..6 {
        let slow = round % 2 == 0;
        let delay = if slow { Duration::from_millis(600) } else { Duration::ZERO };
        mock.cluster.broker_round_trip_time(-1, delay).unwrap();
        let deadline = if slow { after(250) } else { soon() };
        let began = Instant::now();
        let answers = mock.publish(&run_of("a", next..31), deadline).await;
        if slow {
            assert!(
                began.elapsed() < Duration::from_millis(2000),
                "past its deadline: {:?}",
                began.elapsed()
            );
        }
        // As the relay does: what was acknowledged up to the first that was not is settled.
        let acked = answers.iter().take_while(|answer| answer.is_acked()).count() as i64;
        assert!(
            !answers[acked as usize..].iter().any(Answer::is_acked),
            "acknowledged behind a gap: {answers:?}"
        );
        assert!(slow || next + acked == 31, "{answers:?}");
        next = if slow { next + acked } else { 1 };
    }
    assert_eq!(first_deliveries(&mock.log()), (1..31).collect::<Vec<_>>());
}

/// What a dropped publish has not sent is never sent; what comes after it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_publish_leaves_nothing_queued() {
    let mock = Mock::new(1);
    mock.warm_up().await;
    mock.cluster.broker_down(-1).unwrap();
    let abandoned = run_of("a", 1..51);
    let publish = mock.publish(&abandoned, soon());
    assert!(tokio::time::timeout(Duration::from_millis(300), publish).await.is_err());
    mock.cluster.broker_up(-1).unwrap();
    assert!(mock.publish(&run_of("a", 100..103), soon()).await.iter().all(Answer::is_acked));
    assert_eq!(first_deliveries(&mock.log()), [100, 101, 102]);
}

/// Batches at once: one that runs out of time takes nothing away from the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_hits_only_its_own_batch() {
    let mock = Mock::new(1);
    let (hasty, patient) = (run_of("a", 1..11), run_of("b", 11..21));
    // Both producers are there and connected.
    tokio::join!(mock.publish(&hasty, soon()), mock.publish(&patient, soon()));
    mock.cluster.broker_round_trip_time(-1, Duration::from_millis(800)).unwrap();
    let (hasty, patient) = tokio::join!(mock.publish(&hasty, after(200)), mock.publish(&patient, soon()));
    assert!(causes(&hasty).iter().all(|cause| *cause == Some(Cause::Sink)), "{hasty:?}");
    assert!(patient.iter().all(Answer::is_acked), "{patient:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_at_or_after_the_deadline() {
    let mock = Mock::new(1);
    mock.warm_up().await;
    let answers = mock.publish(&run_of("a", 1..4), Instant::now()).await;
    assert_eq!(answers, [Answer::Unsent, Answer::Unsent, Answer::Unsent]);
    assert_eq!(first_deliveries(&mock.log()), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_counts_brokers_and_says_what_it_cannot_read() {
    let mock = Mock::new(1);
    let found = mock.sink.check(after(10_000)).await.unwrap();
    assert!(
        found.contains("1 brokers, 1 topics") && found.contains("replication factor 1: orders"),
        "{found}"
    );
}
