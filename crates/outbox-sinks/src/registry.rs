//! Which sinks there are, and how a configuration becomes one.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Sink;

/// Stands for the options of a sink whose cargo feature is off: any are accepted, so that the error can say what is
/// missing instead of which field is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NotInThisBuild {}

impl<'de> Deserialize<'de> for NotInThisBuild {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

/// Each line: the variant, its module (with a `Config` and its `build`), its cargo feature, which is also its `type`.
macro_rules! registry {
    ($($variant:ident, $module:ident, $feature:literal;)*) => {
        /// A table under `[sinks]`, told apart by its `type`.
        #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
        #[serde(tag = "type")]
        #[allow(clippy::large_enum_variant, reason = "a handful, made once")]
        pub enum SinkConfig {
            $(
                #[doc = concat!("`type = \"", $feature, "\"`")]
                #[cfg(feature = $feature)]
                #[serde(rename = $feature)]
                $variant(crate::$module::Config),
                #[doc = concat!("`type = \"", $feature, "\"`, which this build cannot make")]
                #[cfg(not(feature = $feature))]
                #[serde(rename = $feature)]
                $variant(NotInThisBuild),
            )*
        }

        impl SinkConfig {
            /// The types that this build can make.
            pub const TYPES: &[&str] = &[$(#[cfg(feature = $feature)] $feature,)*];

            /// The sink's type as in `type = "…"`.
            #[must_use]
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $feature,)*
                }
            }
        }

        /// Makes the sink called `name`. Connects to nothing: a sink that is down never stops the start.
        ///
        /// # Errors
        /// One line that names the sink and says what to do: the type is not part of this build, an option cannot be
        /// used.
        pub fn build(name: &str, config: &SinkConfig) -> Result<Arc<dyn Sink>, String> {
            match config {
                $(
                    #[cfg(feature = $feature)]
                    SinkConfig::$variant(config) => config.build(name),
                    #[cfg(not(feature = $feature))]
                    SinkConfig::$variant(_) => Err(not_in_this_build(name, $feature)),
                )*
            }
        }
    };
}

registry! {
    Null, null, "null";
    Stdout, stdout, "stdout";
    File, file, "file";
    Kafka, kafka, "kafka";
    RabbitMq, rabbitmq, "rabbitmq";
    Redis, redis, "redis";
    Nats, nats, "nats";
    Http, http, "http";
    Scripted, scripted, "scripted";
}

#[allow(dead_code, reason = "unused when every feature is on")]
fn not_in_this_build(name: &str, kind: &str) -> String {
    let has = SinkConfig::TYPES.join(", ");
    format!(
        "sinks.{name}: type \"{kind}\" is not part of this build, which has: {has}; \
         build it with the cargo feature `{kind}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<SinkConfig, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn types_are_told_apart_by_their_tag() {
        assert_eq!(parse(r#"{"type":"null"}"#).unwrap().kind(), "null");
        assert_eq!(parse(r#"{"type":"file","path":"/tmp/x"}"#).unwrap().kind(), "file");
        let error = parse(r#"{"type":"kafak"}"#).unwrap_err();
        assert!(error.contains("kafak") && error.contains("stdout"), "{error}");
    }

    #[test]
    #[cfg(feature = "file")]
    fn an_unknown_option_names_the_known_ones() {
        let error = parse(r#"{"type":"file","pth":"/tmp/x"}"#).unwrap_err();
        assert!(error.contains("`pth`") && error.contains("`path`"), "{error}");
    }

    #[test]
    #[cfg(not(feature = "scripted"))]
    fn a_type_without_its_feature_says_so() {
        let config = parse(r#"{"type":"scripted","address":"127.0.0.1:1"}"#).unwrap();
        let error = build("orders", &config).err().unwrap();
        assert!(error.contains("sinks.orders") && error.contains("cargo feature `scripted`"), "{error}");
    }
}
