//! What the brokers say about themselves and their topics.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, OwnedResourceSpecifier, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataTopic};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::time::{Instant, sleep, timeout_at};

use super::Creation;
use super::blame::{bad_name, cause};
use super::producer::{Event, Lent, Pool};
use crate::{Answer, Cause};

/// How long a broker may take to create a topic.
const CREATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two looks for a topic that was just created.
const CREATED_PAUSE: Duration = Duration::from_millis(50);

/// Topics whose settings a check looks at, and that it names.
const CHECKED_TOPICS: usize = 100;
const NAMED_TOPICS: usize = 3;

/// Whether the topic is there; makes it when asked to. The answer otherwise is that of each message for it.
pub(super) async fn find(
    producer: &mut Lent<'_>,
    config: &ClientConfig,
    creation: Option<Creation>,
    topic: &str,
    end: Instant,
) -> Result<(), Answer> {
    if let Some(error) = bad_name(topic) {
        return Err(Answer::refused(Cause::Message, error));
    }
    let mut created = false;
    loop {
        let metadata =
            ask(producer, Some(topic), end).await.map_err(|error| Answer::refused(Cause::Sink, error))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let error = match found {
            Some(found) => found.error().map(Code::from),
            None => Some(Code::UnknownTopicOrPartition),
        };
        match (error, creation) {
            (None, _) => return Ok(()),
            (Some(Code::UnknownTopicOrPartition | Code::UnknownTopic), Some(creation)) => {
                if !created {
                    create(config, creation, topic, end).await?;
                    created = true;
                }
                sleep(CREATED_PAUSE).await;
            }
            // It exists: whether it can be written to will show.
            (Some(Code::LeaderNotAvailable | Code::ReplicaNotAvailable), _) => return Ok(()),
            (Some(code), _) => return Err(not_there(topic, code)),
        }
    }
}

fn not_there(topic: &str, code: Code) -> Answer {
    let error = match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => {
            format!(
                "the topic {topic} does not exist; create it, or let the relay do so with `create = true`"
            )
        }
        Code::TopicAuthorizationFailed => {
            format!("no permission on the topic {topic}; allow DESCRIBE and WRITE ({code})")
        }
        code => format!("topic {topic}: {code}"),
    };
    Answer::refused(cause(code), error)
}

/// Metadata of one topic, or of all.
async fn ask(producer: &mut Lent<'_>, topic: Option<&str>, end: Instant) -> Result<Metadata, String> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err("no broker answered before the deadline".to_owned());
    }
    let answer = producer.metadata(topic, left);
    let denied = async {
        loop {
            if let Event::Denied(error) | Event::Fatal(error) = producer.event().await {
                return error;
            }
        }
    };
    let answer = tokio::select! {
        answer = answer => answer,
        error = denied => return Err(error),
        () = tokio::time::sleep_until(end) => return Err(no_broker(producer, "no answer before the deadline")),
    };
    match answer {
        Ok(Ok(metadata)) => Ok(metadata),
        Ok(Err(KafkaError::MetadataFetch(code))) => Err(no_broker(producer, &code.to_string())),
        Ok(Err(error)) => Err(no_broker(producer, &error.to_string())),
        Err(_) => Err("the machine has no thread left to ask a broker".to_owned()),
    }
}

fn no_broker(producer: &Lent<'_>, error: &str) -> String {
    match producer.trouble() {
        Some(trouble) => format!("no broker can be reached ({error}): {trouble}"),
        None => format!("no broker can be reached ({error})"),
    }
}

/// Says nothing: what goes wrong is in the answers.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _message: &str) {}

    fn error(&self, _error: KafkaError, _reason: &str) {}
}

/// An admin client that is ended on a thread of its own: it joins another.
struct Admin(Option<AdminClient<Quiet>>);

impl Admin {
    fn new(config: &ClientConfig) -> Result<Self, String> {
        let client =
            AdminClient::from_config_and_context(config, Quiet).map_err(|error| error.to_string())?;
        Ok(Self(Some(client)))
    }

    fn client(&self) -> &AdminClient<Quiet> {
        self.0.as_ref().expect("held until dropped")
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let client = self.0.take();
        let _ = thread::Builder::new().name("kafka-end".to_owned()).spawn(move || drop(client));
    }
}

async fn create(config: &ClientConfig, creation: Creation, topic: &str, end: Instant) -> Result<(), Answer> {
    let sink_is_down =
        |error: String| Answer::refused(Cause::Sink, format!("topic {topic} cannot be created: {error}"));
    let admin = Admin::new(config).map_err(sink_is_down)?;
    let left = end.saturating_duration_since(Instant::now());
    let options =
        AdminOptions::new().request_timeout(Some(left)).operation_timeout(Some(left.min(CREATE_TIMEOUT)));
    let replication = TopicReplication::Fixed(creation.replication_factor);
    let new = NewTopic::new(topic, creation.partitions, replication);
    let created = timeout_at(end, admin.client().create_topics([&new], &options)).await;
    let results = match created {
        Err(_) => return Err(sink_is_down("no answer before the deadline".to_owned())),
        Ok(Err(error)) => return Err(sink_is_down(error.to_string())),
        Ok(Ok(results)) => results,
    };
    for result in results {
        match result {
            Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
            Err((_, code)) => {
                let blame = match cause(code) {
                    // Whatever it is, waiting for it is all that helps.
                    Cause::Sink if code != Code::ClusterAuthorizationFailed => Cause::Sink,
                    _ => Cause::Destination,
                };
                let error =
                    format!("the topic {topic} does not exist and cannot be created: {code}; create it");
                return Err(Answer::refused(blame, error));
            }
        }
    }
    Ok(())
}

/// Is the cluster there, and do its settings keep what it acknowledges?
pub(super) async fn check(
    pool: &Pool,
    findings: &Mutex<Option<String>>,
    deadline: Instant,
) -> Result<String, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut producer = pool.lend("", left)?;
    let metadata = ask(&mut producer, None, deadline).await?;
    let cluster = Cluster::new(&metadata);
    let line = format!("{} brokers, {} topics", cluster.brokers.len(), cluster.topics.len());
    let known = findings.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let found = match known {
        Some(found) => found,
        None => {
            let found = weaknesses(pool.config(), &cluster, deadline).await;
            findings.lock().unwrap_or_else(PoisonError::into_inner).insert(found).clone()
        }
    };
    Ok(if found.is_empty() { line } else { format!("{line}; {found}") })
}

/// What a check needs of the metadata.
struct Cluster {
    brokers: Vec<i32>,
    /// Topics of applications by name, each with the fewest replicas that a partition has.
    topics: Vec<(String, usize)>,
}

impl Cluster {
    fn new(metadata: &Metadata) -> Self {
        let replicas = |topic: &MetadataTopic| {
            topic.partitions().iter().map(|partition| partition.replicas().len()).min().unwrap_or_default()
        };
        let own = metadata.topics().iter().filter(|topic| !topic.name().starts_with("__"));
        let mut topics: Vec<_> = own.map(|topic| (topic.name().to_owned(), replicas(topic))).collect();
        topics.sort();
        Self { brokers: metadata.brokers().iter().map(MetadataBroker::id).collect(), topics }
    }
}

/// Settings under which a message that was acknowledged can still be lost; empty when there are none.
async fn weaknesses(config: &ClientConfig, cluster: &Cluster, deadline: Instant) -> String {
    let mut found = Vec::new();
    let single: Vec<&str> =
        cluster.topics.iter().filter(|(_, replicas)| *replicas == 1).map(|(name, _)| name.as_str()).collect();
    if !single.is_empty() {
        found.push(format!("replication factor 1: {}", listed(&single)));
    }
    let checked = cluster.topics.iter().take(CHECKED_TOPICS);
    let mut resources: Vec<_> = checked.map(|(name, _)| ResourceSpecifier::Topic(name)).collect();
    resources.extend(cluster.brokers.first().copied().map(ResourceSpecifier::Broker));
    let described = match describe(config, &resources, deadline).await {
        Ok(described) => described,
        Err(error) => {
            found.push(format!("topic settings cannot be read ({error})"));
            Vec::new()
        }
    };
    found.extend(weak_settings(&described));
    let durability =
        if found.is_empty() { None } else { Some(format!("weak durability: {}", found.join("; "))) };
    let order = config
        .get("batch.size")
        .and_then(|bytes| bytes.parse().ok())
        .and_then(|batch| weak_order(&described, batch));
    durability.into_iter().chain(order).collect::<Vec<_>>().join("; ")
}

async fn describe(
    config: &ClientConfig,
    resources: &[ResourceSpecifier<'_>],
    deadline: Instant,
) -> Result<Vec<ConfigResource>, String> {
    let admin = Admin::new(config)?;
    let left = deadline.saturating_duration_since(Instant::now()) / 2;
    let options = AdminOptions::new().request_timeout(Some(left));
    let described = timeout_at(deadline, admin.client().describe_configs(resources, &options)).await;
    let results = described.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
    results.into_iter().collect::<Result<_, Code>>().map_err(|code| code.to_string())
}

fn weak_settings(described: &[ConfigResource]) -> Vec<String> {
    let mut lonely = Vec::new();
    let mut unclean = Vec::new();
    for resource in described {
        let name = match &resource.specifier {
            OwnedResourceSpecifier::Topic(topic) => topic.as_str(),
            _ => "the brokers' default",
        };
        let value = |setting: &str| resource.get(setting).and_then(|entry| entry.value.as_deref());
        if value("min.insync.replicas") == Some("1") {
            lonely.push(name);
        }
        if value("unclean.leader.election.enable") == Some("true") {
            unclean.push(name);
        }
    }
    let mut found = Vec::new();
    for (setting, names) in
        [("min.insync.replicas is 1", lonely), ("unclean.leader.election.enable", unclean)]
    {
        if !names.is_empty() {
            found.push(format!("{setting}: {}", listed(&names)));
        }
    }
    found
}

/// Topics that refuse what the producer puts together: what is refused is sent again one by one, and a later batch that
/// was smaller is there before it.
fn weak_order(described: &[ConfigResource], batch_size: usize) -> Option<String> {
    let limit = |resource: &ConfigResource| -> Option<usize> {
        resource.get("max.message.bytes")?.value.as_deref()?.parse().ok()
    };
    let small: Vec<&str> = described
        .iter()
        .filter_map(|resource| match &resource.specifier {
            OwnedResourceSpecifier::Topic(topic) if limit(resource)? < batch_size => Some(topic.as_str()),
            _ => None,
        })
        .collect();
    (!small.is_empty()).then(|| {
        format!("order at risk: max.message.bytes is below `batch_size` = {batch_size}: {}", listed(&small))
    })
}

/// The first few names, and how many more there are.
fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMED_TOPICS)].join(", ");
    match names.len().saturating_sub(NAMED_TOPICS) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
