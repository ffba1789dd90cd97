use super::*;

fn config(json: &str) -> Config {
    serde_json::from_str(json).unwrap()
}

#[test]
fn little_is_needed_and_nothing_is_shown_that_is_secret() {
    let config = config(r#"{"url":"amqp://app:hunter2@broker/orders","max_in_flight":"64","create":"true"}"#);
    assert!(config.create && config.max_in_flight == 64 && config.exchange.is_empty());
    let sink = config.connected("orders").unwrap();
    let uri = &sink.pool.connector.uri;
    assert_eq!(
        (uri.authority.host.as_str(), uri.authority.port, uri.vhost.as_str()),
        ("broker", 5672, "orders")
    );
    assert_eq!(uri.query.heartbeat, Some(10));
    assert!(!format!("{config:?}{}", serde_json::to_string(&config).unwrap()).contains("hunter2"));
    assert!(!sink.pool.address().contains("hunter2"));
}

#[test]
fn user_and_password_may_stand_apart() {
    let config = config(r#"{"url":"amqps://[::1]:5671","username":"app","password":"a@b/c"}"#);
    let uri = config.uri().unwrap();
    assert_eq!(uri.authority.userinfo.username, "app");
    assert_eq!(uri.authority.userinfo.password, "a@b/c");
    assert_eq!((uri.authority.host.as_str(), uri.vhost.as_str()), ("::1", "/"));
}

#[test]
fn what_cannot_work_is_refused_before_it_starts() {
    for (json, expected) in [
        (r#"{"url":"http://broker"}"#, "`url` is no AMQP URL"),
        (r#"{"url":"broker:hunter2"}"#, "`url` is no AMQP URL"),
        (r#"{"url":"amqp://broker/"}"#, "`/%2F`"),
        (r#"{"url":"amqp://broker","max_in_flight":0}"#, "`max_in_flight`"),
        (r#"{"url":"amqp://broker","queue_type":"lazy"}"#, "classic, quorum or stream"),
        (r#"{"url":"amqp://broker","heartbeat":"100ms"}"#, "`heartbeat`"),
        (r#"{"url":"amqp://broker","ca_file":"/x"}"#, "amqps://"),
        (r#"{"url":"amqps://broker","cert_file":"/x"}"#, "`key_file`"),
    ] {
        let error = config(json).build("orders").err().unwrap();
        assert!(error.starts_with("sinks.orders: ") && error.contains(expected), "{json}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let error =
        serde_json::from_str::<Config>(r#"{"url":"amqp://b","exchnge":"x"}"#).unwrap_err().to_string();
    assert!(error.contains("`exchnge`") && error.contains("`exchange`"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_down() {
    // Nothing listens on port 1.
    let sink = config(r#"{"url":"amqp://127.0.0.1:1"}"#).connected("orders").unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let error = sink.pool.lease(deadline).await.err().unwrap();
    assert!(error.contains("127.0.0.1:1") && error.contains("cannot connect"), "{error}");
    assert!(sink.check(deadline).await.is_err());
}
