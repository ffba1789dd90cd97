//! What the options of several sinks have in common.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// A number or a switch that may also come as text, as it does from an environment variable.
///
/// # Errors
/// What cannot be read as `T`.
pub(crate) fn lenient<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr + Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Lenient<T>(std::marker::PhantomData<T>);

    impl<'de, T: FromStr + Deserialize<'de>> Visitor<'de> for Lenient<T> {
        type Value = T;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            let name = std::any::type_name::<T>();
            formatter.write_str(if name == "bool" {
                "true or false"
            } else {
                "a whole number that is not negative"
            })
        }

        fn visit_bool<E: de::Error>(self, value: bool) -> Result<T, E> {
            T::deserialize(de::value::BoolDeserializer::new(value))
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
            T::deserialize(de::value::U64Deserializer::new(value))
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
            T::deserialize(de::value::I64Deserializer::new(value))
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<T, E> {
            value.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(value), &self))
        }
    }

    deserializer.deserialize_any(Lenient(std::marker::PhantomData))
}

/// The same for an option that may be left out.
///
/// # Errors
/// What cannot be read as `T`.
pub(crate) fn lenient_option<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr + Deserialize<'de>,
    D: Deserializer<'de>,
{
    lenient(deserializer).map(Some)
}

/// The PEM files of a TLS connection, as options name them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsFiles<'a> {
    /// Who signed the server's certificate, when it is nobody that everybody knows.
    pub(crate) ca_file: Option<&'a PathBuf>,
    /// The client's certificate …
    pub(crate) cert_file: Option<&'a PathBuf>,
    /// … and its key.
    pub(crate) key_file: Option<&'a PathBuf>,
}

/// Their contents.
#[derive(Debug, Default)]
pub(crate) struct TlsPem {
    /// Certificates of authorities.
    pub(crate) ca: Option<Vec<u8>>,
    /// Certificate and key of the client.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl<'a> TlsFiles<'a> {
    /// Of the three options.
    pub(crate) fn new(
        ca_file: &'a Option<PathBuf>,
        cert_file: &'a Option<PathBuf>,
        key_file: &'a Option<PathBuf>,
    ) -> Self {
        Self { ca_file: ca_file.as_ref(), cert_file: cert_file.as_ref(), key_file: key_file.as_ref() }
    }

    /// Whether any is named.
    pub(crate) fn any(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some()
    }

    /// Nobody looks at them where there is no TLS.
    ///
    /// # Errors
    /// One line that says how there is: by this `scheme` of the URL.
    pub(crate) fn need(&self, sink: &str, tls: bool, scheme: &str) -> Result<(), String> {
        if tls || !self.any() {
            return Ok(());
        }
        Err(format!(
            "sinks.{sink}: `ca_file`, `cert_file` and `key_file` need a `url` that begins with {scheme}"
        ))
    }

    /// Reads what is named.
    ///
    /// # Errors
    /// One line: a file that cannot be read, or a certificate without its key.
    pub(crate) fn read(&self, sink: &str) -> Result<TlsPem, String> {
        let client = match (self.cert_file, self.key_file) {
            (Some(cert), Some(key)) => Some((read(sink, "cert_file", cert)?, read(sink, "key_file", key)?)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(format!("sinks.{sink}: `cert_file` needs `key_file`, its private key"));
            }
            (None, Some(_)) => {
                return Err(format!("sinks.{sink}: `key_file` needs `cert_file`, its certificate"));
            }
        };
        let ca = self.ca_file.map(|path| read(sink, "ca_file", path)).transpose()?;
        Ok(TlsPem { ca, client })
    }
}

/// How rustls and OpenSSL say that nobody known signed the server's certificate …
const STRANGER: &[&str] = &["UnknownIssuer", "certificate verify failed"];
/// … and that the server does not take the client's, or misses it.
const UNWELCOME: &[&str] = &[
    "alert: BadCertificate",
    "alert: CertificateRequired",
    "alert: UnknownCA",
    "alert bad certificate",
    "alert certificate required",
    "alert unknown ca",
];

/// What to do about an error of TLS, to stand behind it.
pub(crate) fn tls_hint(error: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| error.contains(word));
    if says(STRANGER) {
        "; name who signed the server's certificate in `ca_file`"
    } else if says(UNWELCOME) {
        "; the server wants a client's certificate that it trusts: see `cert_file` and `key_file`"
    } else {
        ""
    }
}

fn read(sink: &str, option: &str, path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| {
        format!(
            "sinks.{sink}: `{option}` = \"{}\" cannot be read: {error}; check path and permissions",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Options {
        #[serde(deserialize_with = "lenient")]
        on: bool,
        #[serde(default, deserialize_with = "lenient_option")]
        count: Option<u32>,
    }

    #[test]
    fn numbers_and_switches_may_come_as_text() {
        for json in [r#"{"on":true,"count":7}"#, r#"{"on":"true","count":"7"}"#] {
            assert_eq!(serde_json::from_str::<Options>(json).unwrap(), Options { on: true, count: Some(7) });
        }
        assert_eq!(serde_json::from_str::<Options>(r#"{"on":false}"#).unwrap().count, None);
        for (json, expected) in [
            (r#"{"on":"yes"}"#, "expected true or false"),
            (r#"{"on":true,"count":"-1"}"#, "expected a whole number that is not negative"),
            (r#"{"on":true,"count":-1}"#, "invalid value"),
        ] {
            let error = serde_json::from_str::<Options>(json).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_certificate_comes_with_its_key() {
        let path = PathBuf::from("/nowhere/at/all.pem");
        let files = TlsFiles { ca_file: None, cert_file: Some(&path), key_file: None };
        assert!(files.any());
        assert!(files.read("orders").unwrap_err().contains("`key_file`"));
        let files = TlsFiles { ca_file: Some(&path), cert_file: None, key_file: None };
        let error = files.read("orders").unwrap_err();
        assert!(error.contains("sinks.orders") && error.contains("/nowhere/at/all.pem"), "{error}");
    }
}
