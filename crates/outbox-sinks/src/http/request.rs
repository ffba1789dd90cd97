//! A message as a request.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use reqwest::{Method, Request, Url};
use time::OffsetDateTime;

use super::Config;
use super::sign::Signer;
use crate::Message;
use crate::secret::Secret;

const DESTINATION: HeaderName = HeaderName::from_static("outbox-destination");
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// What is for the connection to say, or for the sink, and never for an event: a second length would cut one request
/// into two.
const RESERVED: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// CloudEvents attributes, whose values the HTTP binding encodes.
const ATTRIBUTE: &str = "ce-";
/// The first header of a CloudEvent in binary mode.
const FIRST_ATTRIBUTE: &str = "ce-specversion";

/// What all requests have in common.
pub(super) struct Template {
    url: Url,
    /// Of the configuration. An event cannot set one of these names.
    headers: HeaderMap,
    signer: Signer,
}

impl Template {
    pub(super) fn new(config: &Config, url: &Url) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            let (name, value) = configured_header(name, value)?;
            headers.insert(name, value);
        }
        if let Some(value) = authorization(config, url)? {
            if headers.contains_key(AUTHORIZATION) {
                return Err(
                    "`headers` has `authorization` beside the credentials of other options: keep one".into(),
                );
            }
            headers.insert(AUTHORIZATION, value);
        }
        let mut url = url.clone();
        // Neither can fail for a URL with a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        Ok(Self { url, headers, signer: Signer::new(config.signing_secret.as_ref())? })
    }

    pub(super) fn is_signed(&self) -> bool {
        self.signer.signs()
    }

    /// A request that changes nothing.
    pub(super) fn probe(&self) -> Request {
        let mut request = Request::new(Method::HEAD, self.url.clone());
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// The request for a message.
    ///
    /// # Errors
    /// One line that names the header which cannot be sent.
    pub(super) fn request(&self, message: &Message<'_>, now: OffsetDateTime) -> Result<Request, String> {
        let mut request = Request::new(Method::POST, self.url.clone());
        let headers = request.headers_mut();
        *headers = self.headers.clone();
        self.add_headers(headers, message)?;
        headers
            .entry(USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("outbox/", env!("CARGO_PKG_VERSION"))));

        let (id, timestamp) = (message.event.id.to_string(), now.unix_timestamp());
        let body = message.body.clone().unwrap_or_default();
        if self.signer.signs() {
            headers.insert(
                WEBHOOK_SIGNATURE,
                value(&WEBHOOK_SIGNATURE, &self.signer.sign(&id, timestamp, &body))?,
            );
        }
        headers.insert(WEBHOOK_ID, value(&WEBHOOK_ID, &id)?);
        headers.insert(WEBHOOK_TIMESTAMP, timestamp.into());
        if body.is_empty() {
            // Left to itself the client says nothing, and some receivers answer 411 to that.
            headers.insert(CONTENT_LENGTH, 0.into());
        }
        *request.body_mut() = Some(body.into());
        Ok(request)
    }

    fn add_headers(&self, headers: &mut HeaderMap, message: &Message<'_>) -> Result<(), String> {
        let is_binary_cloudevent = message.headers.first().is_some_and(|(name, _)| name == FIRST_ATTRIBUTE);
        for (name, text) in &message.headers {
            let name = self.event_header(name)?;
            // A tombstone has no body for it to describe, and is told from an empty one by that.
            if name == CONTENT_TYPE && message.body.is_none() {
                continue;
            }
            let text = if is_binary_cloudevent && name.as_str().starts_with(ATTRIBUTE) {
                percent_encoded(text)
            } else {
                Cow::Borrowed(&**text)
            };
            let value = value(&name, &text)?;
            headers.append(name, value);
        }
        if let Some(destination) = &message.destination {
            headers.insert(DESTINATION, value(&DESTINATION, destination)?);
        }
        Ok(())
    }

    fn event_header(&self, text: &str) -> Result<HeaderName, String> {
        let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
            format!(
                "header {text:?} has a name that HTTP does not allow: letters, digits and !#$%&'*+-.^_`|~"
            )
        })?;
        if RESERVED.contains(&name.as_str()) || self.headers.contains_key(&name) {
            return Err(format!("header {text:?} cannot be set by an event: the sink sets it; rename it"));
        }
        Ok(name)
    }
}

/// Bytes beyond ASCII go as they are.
fn value(name: &HeaderName, text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| {
        let at = text.bytes().position(|byte| (byte < b' ' && byte != b'\t') || byte == 0x7f);
        format!(
            "header \"{name}\" has the control character {:#04x} in its value, which HTTP does not allow",
            at.map_or(0, |at| text.as_bytes()[at])
        )
    })
}

fn configured_header(name: &str, secret: &Secret) -> Result<(HeaderName, HeaderValue), String> {
    let known = HeaderName::from_bytes(name.as_bytes())
        .ok()
        .filter(|name| !RESERVED.contains(&name.as_str()) && !name.as_str().starts_with("outbox-"))
        .ok_or_else(|| {
            format!("`headers` cannot have {name:?}: no HTTP header, or one that the sink sets itself")
        })?;
    let mut value = HeaderValue::from_bytes(secret.expose().as_bytes())
        .map_err(|_| format!("`headers`: the value of {name:?} has a control character"))?;
    value.set_sensitive(true);
    Ok((known, value))
}

fn authorization(config: &Config, url: &Url) -> Result<Option<HeaderValue>, String> {
    let in_url = !url.username().is_empty() || url.password().is_some();
    let named = config.username.is_some() || config.password.is_some();
    if u8::from(in_url) + u8::from(named) + u8::from(config.bearer_token.is_some()) > 1 {
        return Err("credentials are set twice: keep one of `bearer_token`, `username` with `password`, and those in `url`"
            .into());
    }
    let text = if let Some(token) = &config.bearer_token {
        format!("Bearer {}", token.expose())
    } else if in_url {
        basic(&decoded(url.username()), &decoded(url.password().unwrap_or_default()))
    } else if named {
        let Some(username) = &config.username else {
            return Err("`password` needs `username`".into());
        };
        basic(username, config.password.as_ref().map(Secret::expose).unwrap_or_default())
    } else {
        return Ok(None);
    };
    let mut value = HeaderValue::from_str(&text)
        .map_err(|_| "`bearer_token` has a character that no HTTP header can carry".to_owned())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn basic(username: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
}

/// A part of a URL without its percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// As the HTTP binding of CloudEvents wants attributes: what is not visible ASCII, `"` and `%` as UTF-8 in percents.
fn percent_encoded(text: &str) -> Cow<'_, str> {
    let may_stand = |byte: u8| (0x21..=0x7e).contains(&byte) && byte != b'"' && byte != b'%';
    if text.bytes().all(may_stand) {
        return text.into();
    }
    let encode =
        |byte: u8| if may_stand(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect::<String>().into()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
