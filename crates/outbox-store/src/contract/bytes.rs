//! Bytes in are bytes out, and a claim carries no more of them than it may.

use bytes::Bytes;

use super::{Harness, NewRow, Relay, insert, row};
use crate::{Claimed, Payload};

/// Payloads from 1 byte to 5 MB under a byte budget: no claim exceeds it unless a single row does.
pub async fn byte_budget_bounds_a_claim(h: &dyn Harness) {
    let sizes = [1, 5_000_000, 10, 700_000, 700_000, 1_200_000, 1, 3_000_000, 1, 999_999, 1, 64, 2_000_001];
    let rows: Vec<NewRow> = sizes
        .iter()
        .enumerate()
        .map(|(n, &size)| {
            let body = Bytes::from(vec![n as u8; size]);
            row(&format!("K{}", n % 3), &size.to_string()).payload(Payload::Binary(body))
        })
        .collect();
    insert(h, &rows).await;
    let budget = 2_000_000;
    let mut relay = Relay::with(h, |policy| policy.batch_bytes = budget).await;
    let mut seen = 0;
    let mut claims = 0;
    while let Claimed::Rows(claim) = relay.claim().await {
        let bytes: usize = claim.events.iter().map(|event| event.payload.len()).sum();
        assert!(
            bytes as u64 <= budget || claim.events.len() == 1,
            "{bytes} bytes in {} rows",
            claim.events.len()
        );
        for event in &claim.events {
            assert_eq!(Some(event.payload.len().to_string()), event.event_type);
        }
        seen += claim.events.len();
        claims += 1;
        relay.publish(&claim).await;
    }
    assert_eq!(seen, sizes.len());
    assert!(claims < sizes.len(), "small rows should share claims");
}

fn json(text: &'static str) -> Payload {
    Payload::Json(Bytes::from_static(text.as_bytes()))
}

/// Every column that goes out comes out as it went in: white space, key order, duplicate keys, any unicode, any byte.
pub async fn every_byte_comes_out_as_it_went_in(h: &dyn Harness) {
    let payloads = [
        json("{\"b\":1,\"a\":2}"),
        json(" {\t\"a\" :  1 ,\r\n \"a\":2}\n "),
        json("{\"n\":1.10,\"big\":123456789012345678901234567890,\"e\":1E+2}"),
        json("{\"text\":\"Gr\u{fc}\u{df}e \u{1f980} \\u0041 \\/ \u{2028}\"}"),
        json("\"just text\""),
        json("null"),
        json("[]"),
        Payload::Binary(Bytes::from((0..=255).collect::<Vec<u8>>())),
        Payload::Binary(Bytes::new()),
        Payload::Binary(Bytes::from_static(b"{\"looks\":\"like json\"}")),
        Payload::Tombstone,
    ];
    let mut rows: Vec<NewRow> =
        payloads.iter().map(|payload| row("A", "x").payload(payload.clone())).collect();
    rows[0].headers = Some(
        "{ \"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\",  \"x\":\"\u{e4}\" }"
            .to_owned(),
    );
    rows[0].content_type = Some("application/vnd.order+json; v=2".to_owned());
    rows[0].destination = Some("elsewhere".to_owned());
    rows[1].aggregate_id = "\u{1f980} ' \" \\ %".to_owned();
    rows[1].aggregate_type = "Sm\u{f8}rrebr\u{f8}d".to_owned();
    rows[2].event_type = None;
    insert(h, &rows).await;
    let mut relay = Relay::new(h, 100).await;
    let claim = relay.rows().await;
    assert_eq!(claim.events.len(), rows.len());
    for (event, row) in claim.events.iter().zip(&rows) {
        assert_eq!(event.payload, row.payload);
        assert_eq!(
            (event.id, &event.aggregate_type, &event.aggregate_id),
            (row.id, &row.aggregate_type, &row.aggregate_id)
        );
        assert_eq!(
            (&event.event_type, &event.content_type, &event.headers, &event.destination),
            (&row.event_type, &row.content_type, &row.headers, &row.destination)
        );
        assert_eq!((event.retry_count, event.lost_count, event.max_retries), (0, 0, None));
    }
    relay.publish(&claim).await;
}

/// Settling and claiming again does not change the bytes either.
pub async fn retried_row_keeps_its_bytes(h: &dyn Harness) {
    let body = json(" { \"z\" : [ 1,2 ] , \"z\":0 }");
    insert(h, &[row("A", "A1").payload(body.clone())]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, super::retry()).await;
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1"]).await;
    assert_eq!(claim.events[0].payload, body);
    relay.settle_all(&claim, super::release()).await;
    let claim = relay.expect(&["A1"]).await;
    assert_eq!(claim.events[0].payload, body);
}
