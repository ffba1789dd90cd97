//! Certificates of an authority that nobody else knows.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

const SCRIPT: &str = r"
    set -eu
    new() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 $@; }
    for name in ca stranger; do
      new -x509 -keyout $name.key -out $name.crt -subj /CN=$name -addext basicConstraints=critical,CA:true
    done
    for name in server client; do
      new -keyout $name.key -out $name.csr -subj /CN=$name
      printf 'subjectAltName=DNS:localhost\nbasicConstraints=CA:false\n' >$name.ext
      openssl x509 -req -days 2 -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile $name.ext -out $name.crt
    done
    cat server.crt server.key >server.pem
    cp ca.crt clients.pem
";

/// Makes, in `directory`: the authority `ca.crt` and what it has signed, `server.crt` with `server.key` for the name
/// localhost and no address, `client.crt` with `client.key`; another authority, `stranger.crt`, that has signed
/// nothing; `server.pem` (certificate and key) and `clients.pem` (the authority) for servers that want them so.
/// No, where there is no openssl.
///
/// # Errors
/// When openssl fails; what it said is in the text.
pub fn make_certificates(directory: &Path) -> Result<bool> {
    if Command::new("openssl").arg("version").output().is_err() {
        return Ok(false);
    }
    let output = Command::new("sh").arg("-c").arg(SCRIPT).current_dir(directory).output()?;
    ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    Ok(true)
}
