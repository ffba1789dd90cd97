use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use serde::{Deserialize, Serialize};

use super::address::{self, PrivateAddress};
use crate::options::{self, TlsFiles};
use crate::secret::{Secret, SecretUrl};

/// Most requests on their way at once: as many connections.
const MOST_CONCURRENCY: u32 = 1024;

/// Options of the HTTP sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where events are posted to: `https://…` or `http://…`. A user and password in it are sent as basic authentication.
    pub url: SecretUrl,
    /// `whsec_` and base64 of 24 to 64 bytes: what requests are signed with. Several, separated by white space, sign
    /// side by side while receivers change from one to the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<Secret>,
    /// Sent as `Authorization: Bearer …`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer_token: Option<Secret>,
    /// Sent as basic authentication, with `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Goes with `username`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// Further headers of every request. No event can set one of the same name.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Most requests on their way at once, over all queues; one connection each. 1 to 1024.
    #[serde(default = "concurrency", deserialize_with = "options::lenient")]
    pub concurrency: u32,
    /// Longest time for name, connection and TLS.
    #[serde(default = "connect_timeout", with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// Longest time from the request to the head of its response. The queue's `publish_timeout` bounds it too.
    #[serde(default = "request_timeout", with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Connect to loopback, private, link-local and other addresses that are not public.
    #[serde(default, deserialize_with = "options::lenient")]
    pub allow_private_addresses: bool,
    /// A proxy for everything: `http://host:port`. It looks the name up, so it is the one that must refuse private
    /// addresses. `HTTP_PROXY` and the like are not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<SecretUrl>,
    /// PEM file of who may sign the receiver's certificate, instead of those the system trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client's certificate, with `key_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

fn concurrency() -> u32 {
    16
}

fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}

fn request_timeout() -> Duration {
    Duration::from_secs(10)
}

impl Config {
    pub(super) fn check_limits(&self) -> Result<(), String> {
        if !(1..=MOST_CONCURRENCY).contains(&self.concurrency) {
            return Err(format!(
                "`concurrency` = {} is not allowed: 1 to {MOST_CONCURRENCY}, where 16 is the default",
                self.concurrency
            ));
        }
        for (option, value) in
            [("connect_timeout", self.connect_timeout), ("request_timeout", self.request_timeout)]
        {
            if value.is_zero() {
                return Err(format!("`{option}` is zero: write a time such as \"5s\""));
            }
        }
        Ok(())
    }

    /// The URL, with user and password still in it.
    pub(super) fn target(&self) -> Result<Url, String> {
        let example = "write `https://host/path`";
        let mut url = Url::parse(self.url.expose())
            .map_err(|error| format!("`url` = \"{}\" is no URL: {error}; {example}", self.url))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!(
                "`url` has the scheme `{}`, allowed are https and http; {example}",
                url.scheme()
            ));
        }
        url.set_fragment(None);
        let host = url.host_str().unwrap_or_default();
        if !self.allow_private_addresses && address::is_private_host(host) {
            return Err(format!("`url`: {}", PrivateAddress::of_host(host)));
        }
        Ok(url)
    }

    pub(super) fn tls_files(&self) -> TlsFiles<'_> {
        TlsFiles::new(&self.ca_file, &self.cert_file, &self.key_file)
    }
}
