use super::*;

fn config(json: &str) -> Config {
    serde_json::from_str(json).unwrap()
}

fn refused(json: &str) -> String {
    let error = config(json).build("orders").err().unwrap_or_else(|| panic!("accepted: {json}"));
    assert!(error.starts_with("sinks.orders: ") && !error.contains('\n'), "{error}");
    error
}

#[test]
fn brokers_are_enough_and_lose_nothing() {
    let client = config(r#"{"brokers":"a:9092,b:9092"}"#).client_config().unwrap();
    for (property, value) in [
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("allow.auto.create.topics", "false"),
        ("partitioner", "murmur2_random"),
        ("security.protocol", "plaintext"),
    ] {
        assert_eq!(client.get(property), Some(value));
    }
    assert!(config(r#"{"brokers":"a:9092"}"#).build("orders").is_ok());
}

#[test]
fn options_come_as_text_too() {
    let config =
        config(r#"{"brokers":"a","linger":"5ms","batch_size":"1000","create":"true","partitions":"6"}"#);
    let client = config.client_config().unwrap();
    assert_eq!((client.get("linger.ms"), client.get("batch.size")), (Some("5"), Some("1000")));
    assert_eq!((config.create, config.partitions), (true, Some(6)));
}

#[test]
fn properties_that_lose_messages_are_refused_by_name() {
    for property in [
        r#""acks":1"#,
        r#""request.required.acks":"0""#,
        r#""enable.idempotence":false"#,
        r#""max.in.flight":6"#,
        r#""max.in.flight.requests.per.connection":"many""#,
        r#""retries":0"#,
        r#""enable.gapless.guarantee":true"#,
        r#""transactional.id":"x""#,
        r#""queuing.strategy":"lifo""#,
        r#""delivery.report.only.error":true"#,
    ] {
        let error = refused(&format!(r#"{{"brokers":"a","properties":{{{property}}}}}"#));
        let name = property.split('"').nth(1).unwrap();
        assert!(error.contains(&format!("`{name}`")) && error.contains("allow_unsafe"), "{error}");
    }
    let allowed = r#"{"brokers":"a","allow_unsafe":true,"properties":{"acks":1,"enable.idempotence":false,"retries":0}}"#;
    let client = config(allowed).client_config().unwrap();
    assert_eq!((client.get("acks"), client.get("retries")), (Some("1"), Some("0")));
    let harmless = r#"{"brokers":"a","properties":{"max.in.flight":1,"socket.keepalive.enable":false}}"#;
    assert_eq!(config(harmless).client_config().unwrap().get("max.in.flight"), Some("1"));
}

#[test]
fn properties_with_an_option_of_their_own_name_it() {
    let error = refused(r#"{"brokers":"a","allow_unsafe":true,"properties":{"batch.size":1}}"#);
    assert!(error.contains("`batch_size`"), "{error}");
    let error = refused(r#"{"brokers":"a","allow_unsafe":true,"properties":{"delivery.timeout.ms":1}}"#);
    assert!(error.contains("`publish_timeout`"), "{error}");
    let error = refused(r#"{"brokers":"a","properties":{"no.such.thing":1}}"#);
    assert!(error.contains("`no.such.thing`"), "{error}");
}

#[test]
fn what_cannot_be_used_says_what_is_allowed() {
    for (json, expected) in [
        (r#"{"brokers":""}"#, "`brokers`"),
        (r#"{"brokers":"a,,b"}"#, "`brokers`"),
        (r#"{"brokers":"a","partitions":3}"#, "`create = true`"),
        (r#"{"brokers":"a","create":true,"replication_factor":0}"#, "between 1 and"),
        (r#"{"brokers":"a","linger":"2s"}"#, "1s or less"),
        (r#"{"brokers":"a","max_message_bytes":10}"#, "between 1000 and"),
        (r#"{"brokers":"a","ca_file":"/x"}"#, "`tls = true`"),
        (r#"{"brokers":"a","sasl_mechanism":"PLAIN"}"#, "`sasl_password`"),
    ] {
        let error = refused(json);
        assert!(error.contains(expected), "{error}");
    }
    let unknown = serde_json::from_str::<Config>(r#"{"brokers":"a","broker":"b"}"#).unwrap_err().to_string();
    assert!(unknown.contains("`broker`") && unknown.contains("`brokers`"), "{unknown}");
}

#[test]
#[cfg(not(feature = "kafka-tls"))]
fn without_its_feature_tls_names_it() {
    for json in [
        r#"{"brokers":"a","tls":true}"#,
        r#"{"brokers":"a","sasl_mechanism":"SCRAM-SHA-512","sasl_username":"u","sasl_password":"p"}"#,
    ] {
        assert!(refused(json).contains("cargo feature `kafka-tls`"));
    }
}

#[test]
fn passwords_are_never_shown() {
    let json = r#"{"brokers":"a","sasl_mechanism":"PLAIN","sasl_username":"u","sasl_password":"hunter2",
        "properties":{"sasl.oauthbearer.client.secret":"hunter2","socket.keepalive.enable":true}}"#;
    let config = config(json);
    let shown = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
    assert!(!shown.contains("hunter2") && shown.contains("socket.keepalive.enable"), "{shown}");
}
