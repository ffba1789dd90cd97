//! Customers: they place orders over HTTP and remember what was confirmed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const CUSTOMERS: usize = 4;

/// What a customer orders at least, so that there is load after the last kill too.
const ORDERS: i64 = 50;

const ACCOUNTS: u32 = 8;

/// Between two orders of a customer: what is offered, a debug build on two cores can take.
const PAUSE: Duration = Duration::from_millis(30);

/// What was confirmed: orders and cents by account.
pub(super) type Ordered = BTreeMap<String, (i64, i64)>;

/// Places orders until `stop`, and not fewer than [`ORDERS`] a customer; all of them order for all accounts.
///
/// # Errors
/// When an order is not confirmed.
pub(super) async fn place_orders(service: String, stop: CancellationToken) -> Result<Ordered> {
    let mut customers = JoinSet::new();
    for _ in 0..CUSTOMERS {
        customers.spawn(customer(service.clone(), stop.clone()));
    }
    let mut ordered = Ordered::new();
    while let Some(theirs) = customers.join_next().await {
        for (account, (orders, cents)) in theirs?? {
            let sum = ordered.entry(account).or_default();
            *sum = (sum.0 + orders, sum.1 + cents);
        }
    }
    Ok(ordered)
}

async fn customer(service: String, stop: CancellationToken) -> Result<Ordered> {
    let mut ordered = Ordered::new();
    let mut placed = 0;
    while placed < ORDERS || !stop.is_cancelled() {
        let account = format!("a{}", rand::random_range(0..ACCOUNTS));
        let cents = rand::random_range(1..=10_000);
        let body = format!("{{\"amount_cents\": {cents}}}");
        let (status, answer) =
            request(&service, "POST", &format!("/accounts/{account}/orders"), &body).await?;
        ensure!(status == 201 && answer["amount_cents"] == cents, "{status}: {answer}");
        let sum = ordered.entry(account).or_default();
        *sum = (sum.0 + 1, sum.1 + cents);
        placed += 1;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(ordered)
}

/// One request and its answer: status and JSON.
pub(super) async fn request(service: &str, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    let mut stream = TcpStream::connect(service).await?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {service}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).context("no answer")?.parse()?;
    let body = answer.split_once("\r\n\r\n").context("no end of the headers")?.1;
    Ok((status, serde_json::from_str(body).with_context(|| answer.clone())?))
}
