//! Whose fault an error of Kafka is.

use rdkafka::types::RDKafkaErrorCode as Code;

use crate::Cause;

/// What an error code means for the message that got it.
pub(super) fn cause(code: Code) -> Cause {
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::InvalidTopic
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType => Cause::Message,
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopicId
        | Code::UnknownPartition
        | Code::TopicAuthorizationFailed
        | Code::PolicyViolation => Cause::Destination,
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::SecurityDisabled
        | Code::SSL
        | Code::Resolve
        | Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::CriticalSystemResource
        | Code::QueueFull
        | Code::OperationTimedOut
        | Code::TimedOutQueue
        | Code::RequestTimedOut
        | Code::NetworkException
        | Code::BrokerNotAvailable
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::KafkaStorageError
        | Code::ThrottlingQuotaExceeded
        | Code::Fatal
        | Code::Fenced
        | Code::ProducerFenced
        | Code::InvalidProducerEpoch
        | Code::OutOfOrderSequenceNumber
        | Code::UnknownProducerId
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature => Cause::Sink,
        _ => Cause::Unclear,
    }
}

/// Whether the code says that nothing was heard of a message: it was purged, or librdkafka gave it up.
pub(super) fn is_silence(code: Code) -> bool {
    matches!(code, Code::PurgeQueue | Code::PurgeInflight | Code::MessageTimedOut)
}

/// Whether the code says that the brokers do not let us in.
pub(super) fn is_denial(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication | Code::SaslAuthenticationFailed | Code::UnsupportedSASLMechanism | Code::SSL
    )
}

/// What is wrong with a topic's name, which brokers would refuse.
pub(super) fn bad_name(topic: &str) -> Option<String> {
    let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let good =
        (1..=249).contains(&topic.len()) && topic != "." && topic != ".." && topic.bytes().all(may_stand);
    (!good).then(|| {
        let shown: String = topic.chars().take(100).map(|c| if c.is_control() { '?' } else { c }).collect();
        format!(
            "`{shown}` cannot be the name of a topic: up to 249 letters, digits, dots, underscores and hyphens; \
             correct the destination"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_put_where_they_belong() {
        for (code, expected) in [
            (Code::MessageSizeTooLarge, Cause::Message),
            (Code::InvalidRecord, Cause::Message),
            (Code::TopicAuthorizationFailed, Cause::Destination),
            (Code::UnknownTopicOrPartition, Cause::Destination),
            (Code::UnknownTopic, Cause::Destination),
            (Code::ClusterAuthorizationFailed, Cause::Sink),
            (Code::SaslAuthenticationFailed, Cause::Sink),
            (Code::AllBrokersDown, Cause::Sink),
            (Code::Fatal, Cause::Sink),
            (Code::InvalidMessage, Cause::Unclear),
            (Code::Unknown, Cause::Unclear),
        ] {
            assert_eq!(cause(code), expected, "{code:?}");
        }
    }

    #[test]
    fn names_that_no_topic_can_have() {
        assert_eq!(bad_name("orders.events_v2-eu"), None);
        for name in ["", ".", "..", "a b", "ä", "a/b", "a\0b", &"x".repeat(250)] {
            let error = bad_name(name).unwrap();
            assert!(error.contains("249") && !error.contains('\0'), "{error}");
        }
    }
}
