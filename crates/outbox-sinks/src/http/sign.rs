//! Signatures as <https://www.standardwebhooks.com> defines them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::secret::Secret;

const PREFIX: &str = "whsec_";
/// Bytes of a key.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// Signs with one key or several, or not at all.
pub(super) struct Signer(Vec<Hmac<Sha256>>);

impl Signer {
    /// Reads the keys; none make a signer that does not sign.
    ///
    /// # Errors
    /// One line that does not show the secret.
    pub(super) fn new(secrets: Option<&Secret>) -> Result<Self, String> {
        let Some(secrets) = secrets else { return Ok(Self(Vec::new())) };
        let keys = secrets.expose().split_whitespace().map(key).collect::<Option<Vec<_>>>();
        match keys.filter(|keys| !keys.is_empty()) {
            Some(keys) => Ok(Self(keys)),
            None => Err(format!(
                "`signing_secret` cannot be used: allowed are one or more of `{PREFIX}` followed by base64 of {} to {} \
                 bytes, separated by white space; `echo {PREFIX}$(openssl rand -base64 32)` makes one",
                LENGTHS.start(),
                LENGTHS.end()
            )),
        }
    }

    pub(super) fn signs(&self) -> bool {
        !self.0.is_empty()
    }

    /// The value of `webhook-signature`: a signature with each key, separated by spaces.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let signature = |key: &Hmac<Sha256>| {
            let mut mac = key.clone();
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        };
        self.0.iter().map(signature).collect::<Vec<_>>().join(" ")
    }
}

fn key(secret: &str) -> Option<Hmac<Sha256>> {
    let bytes = STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
    if !LENGTHS.contains(&bytes.len()) {
        return None;
    }
    Hmac::new_from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn the_example_of_the_specification_comes_out() {
        let signer = Signer::new(Some(&Secret::new(SECRET))).unwrap();
        let signed = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_key_signs_and_none_is_no_signature() {
        let both = format!("{SECRET}\n whsec_{}\n", STANDARD.encode([7; 32]));
        let signed = Signer::new(Some(&Secret::new(both))).unwrap().sign("a", 1, b"");
        assert_eq!(signed.split(' ').filter(|one| one.starts_with("v1,")).count(), 2, "{signed}");
        assert!(!Signer::new(None).unwrap().signs());
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_shown() {
        for secret in
            ["", "  ", "hunter2", "whsec_hunter2", "whsec_aHVudGVyMg==", &format!("{SECRET} hunter2")]
        {
            let error = Signer::new(Some(&Secret::new(secret))).err().expect(secret);
            assert!(
                error.contains("whsec_") && !error.contains("hunter2") && !error.contains("MfKQ"),
                "{error}"
            );
        }
    }
}
