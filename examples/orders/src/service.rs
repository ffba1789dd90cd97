//! The order service: an order and the event that tells of it are written in one transaction.

use anyhow::Result;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use outbox_schema::{EnqueueError, NewEvent, enqueue};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::database::{Database, Tx, on_engine};
use crate::event::{ORDER_PLACED, OrderPlaced};

/// Most cents of one order.
const MAX_AMOUNT_CENTS: i64 = 100_000_000;

#[derive(Debug, Deserialize)]
struct NewOrder {
    amount_cents: i64,
}

#[derive(Debug, Serialize)]
struct Order {
    id: Uuid,
    account_id: String,
    amount_cents: i64,
}

#[derive(Debug, Serialize)]
struct Account {
    id: String,
    orders: i64,
    total_cents: i64,
}

/// The service on this database.
pub(crate) async fn open(url: &str) -> Result<Router> {
    let database = Database::open(url, include_str!("sql/service_tables.sql")).await?;
    Ok(Router::new()
        .route("/accounts/{id}/orders", post(place_order))
        .route("/accounts/{id}", get(show_account))
        .route("/orders/{id}", get(show_order))
        .with_state(database))
}

async fn place_order(
    State(database): State<Database>,
    Path(account_id): Path<String>,
    body: Result<Json<NewOrder>, JsonRejection>,
) -> Result<Response, Failure> {
    let Json(NewOrder { amount_cents }) = body?;
    if account_id.is_empty() || account_id.len() > 64 || !account_id.bytes().all(is_plain) {
        return Err(Failure::Request("an account's id is 1 to 64 letters, digits, - and _".to_owned()));
    }
    if !(1..=MAX_AMOUNT_CENTS).contains(&amount_cents) {
        return Err(Failure::Request(format!("amount_cents must be 1 to {MAX_AMOUNT_CENTS}")));
    }
    let order = Order { id: Uuid::now_v7(), account_id, amount_cents };
    let mut tx = database.begin().await?;
    write_order(&mut tx, &order).await?;
    tx.commit().await?;
    let location = format!("/orders/{}", order.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(order)).into_response())
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// The order and its event: both or neither, by the caller's commit.
async fn write_order(tx: &mut Tx, order: &Order) -> Result<(), Failure> {
    let id = order.id.to_string();
    let placed = OrderPlaced { order_id: order.id, amount_cents: order.amount_cents };
    let event = NewEvent::new("Account", &order.account_id).event_type(ORDER_PLACED).json(&placed)?;
    on_engine!(tx, Tx, tx => {
        // This locks the account's row until the commit. So one transaction at a time writes events of an account, and
        // they are delivered in the order of their commits.
        sqlx::query(include_str!("sql/account_lock.sql")).bind(&order.account_id).execute(&mut **tx).await?;
        let insert = sqlx::query(include_str!("sql/order_insert.sql"));
        insert.bind(id).bind(&order.account_id).bind(order.amount_cents).execute(&mut **tx).await?;
        enqueue(tx, event).await?;
    });
    Ok(())
}

async fn show_order(State(database): State<Database>, Path(id): Path<Uuid>) -> Result<Json<Order>, Failure> {
    let row: Option<(String, i64)> = on_engine!(&database, Database, pool => {
        sqlx::query_as(include_str!("sql/order_by_id.sql")).bind(id.to_string()).fetch_optional(pool).await?
    });
    let (account_id, amount_cents) = row.ok_or(Failure::NotFound)?;
    Ok(Json(Order { id, account_id, amount_cents }))
}

async fn show_account(
    State(database): State<Database>,
    Path(id): Path<String>,
) -> Result<Json<Account>, Failure> {
    let row: Option<(i64, i64)> = on_engine!(&database, Database, pool => {
        sqlx::query_as(include_str!("sql/account_by_id.sql")).bind(&id).fetch_optional(pool).await?
    });
    let (orders, total_cents) = row.ok_or(Failure::NotFound)?;
    Ok(Json(Account { id, orders, total_cents }))
}

/// Why there is no order.
#[derive(Debug)]
enum Failure {
    /// The client's request is wrong.
    Request(String),
    NotFound,
    /// The database, which the client can do nothing about.
    Internal(anyhow::Error),
}

impl From<JsonRejection> for Failure {
    fn from(rejection: JsonRejection) -> Self {
        Self::Request(rejection.body_text())
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Internal(error.into())
    }
}

impl From<EnqueueError> for Failure {
    fn from(error: EnqueueError) -> Self {
        Self::Internal(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::Request(error) => (StatusCode::BAD_REQUEST, error),
            Self::NotFound => (StatusCode::NOT_FOUND, "there is no such thing".to_owned()),
            Self::Internal(error) => {
                tracing::error!(error = format!("{error:#}"), "a request failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "the database cannot be used".to_owned())
            }
        };
        (status, Json(serde_json::json!({ "error": error }))).into_response()
    }
}
