//! A webhook that the relay's HTTP sink posts to. The answer is the acknowledgement: 204 once the transaction has
//! committed; anything else, a lost connection too, and the relay posts the event again.

use anyhow::{Context, Result};
use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use processed_events::EventMeta;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::Source;
use crate::event::Event;

/// An event, and whom to tell that it is processed.
type Request = (Event, oneshot::Sender<()>);

pub(super) struct Webhook {
    requests: mpsc::Receiver<Request>,
    waiting: Option<oneshot::Sender<()>>,
}

impl Webhook {
    pub(super) async fn listen(address: &str) -> Result<Self> {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let (requests, queue) = mpsc::channel(1);
        let router = Router::new().route("/", post(receive)).with_state(requests);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { requests: queue, waiting: None })
    }
}

async fn receive(
    State(requests): State<mpsc::Sender<Request>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let Ok(meta) = EventMeta::from_http(pairs) else { return StatusCode::BAD_REQUEST };
    let event = Event { meta, payload: body.to_vec() };
    let (done, processed) = oneshot::channel();
    if requests.send((event, done)).await.is_err() || processed.await.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    StatusCode::NO_CONTENT
}

#[async_trait]
impl Source for Webhook {
    async fn next(&mut self) -> Result<Event> {
        let (event, done) = self.requests.recv().await.context("the webhook's listener has ended")?;
        self.waiting = Some(done);
        Ok(event)
    }

    async fn acknowledge(&mut self) -> Result<()> {
        // A relay that is gone asks again.
        let _ = self.waiting.take().map(|done| done.send(()));
        Ok(())
    }
}
