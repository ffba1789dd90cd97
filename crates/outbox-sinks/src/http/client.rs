//! The connections.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Identity, Proxy, Url};

use super::Config;
use super::address::Resolver;

/// Receivers close idle connections, many after 5 s, and a request that crosses the closing is lost: we close first.
const IDLE: Duration = Duration::from_secs(4);

/// Where requests go.
pub(super) struct Endpoint {
    pub(super) client: Client,
    /// Scheme, host and port: what may be shown of the URL.
    pub(super) origin: String,
    /// Nothing on the way is encrypted.
    pub(super) is_plain: bool,
}

impl Endpoint {
    pub(super) fn new(name: &str, config: &Config, url: &Url) -> Result<Self, String> {
        // The client takes the provider that the process has, and panics without one.
        crate::install_crypto_provider();
        let builder = Client::builder()
            .http1_only()
            .redirect(Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            .connect_timeout(config.connect_timeout)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(config.concurrency as usize)
            // Where a proxy is set, it is what is looked up and connected to, by the operator's wish.
            .dns_resolver(Resolver {
                allow_private: config.allow_private_addresses || config.proxy.is_some(),
            });
        let builder = with_proxy(name, builder, config)?;
        let builder = with_tls(name, builder, config, url)?;
        let client = builder.build().map_err(|error| {
            let causes = super::answer::causes(&error);
            format!("sinks.{name}: TLS cannot be set up{causes}; check `ca_file`, `cert_file`, `key_file`")
        })?;
        let origin = url.origin().ascii_serialization();
        Ok(Self { client, origin, is_plain: url.scheme() == "http" })
    }
}

fn with_proxy(name: &str, builder: ClientBuilder, config: &Config) -> Result<ClientBuilder, String> {
    let Some(proxy) = &config.proxy else { return Ok(builder.no_proxy()) };
    let is_http = ["http://", "https://"].iter().any(|scheme| proxy.expose().starts_with(scheme));
    match Proxy::all(proxy.expose()) {
        Ok(proxy) if is_http => Ok(builder.proxy(proxy)),
        _ => Err(format!("sinks.{name}: `proxy` = \"{proxy}\" cannot be used: write `http://host:port`")),
    }
}

fn with_tls(name: &str, builder: ClientBuilder, config: &Config, url: &Url) -> Result<ClientBuilder, String> {
    let files = config.tls_files();
    let pem = files.read(name)?;
    let via_tls = config.proxy.as_ref().is_some_and(|proxy| proxy.expose().starts_with("https://"));
    if url.scheme() == "http" && !via_tls {
        files.need(name, false, "https://")?;
        // The certificates that the system trusts need not be there when nobody is asked for one.
        return Ok(builder.tls_certs_only([]));
    }
    let builder = match &pem.ca {
        None => builder,
        Some(ca) => {
            let certificates = Certificate::from_pem_bundle(ca).unwrap_or_default();
            if certificates.is_empty() {
                return Err(format!("sinks.{name}: `ca_file` holds no certificate in PEM"));
            }
            builder.tls_certs_only(certificates)
        }
    };
    Ok(match &pem.client {
        None => builder,
        Some((cert, key)) => {
            let both = [cert.as_slice(), b"\n", key.as_slice()].concat();
            let identity = Identity::from_pem(&both).map_err(|_| {
                format!("sinks.{name}: `cert_file` and `key_file` hold no certificate and private key in PEM")
            })?;
            builder.identity(identity)
        }
    })
}
