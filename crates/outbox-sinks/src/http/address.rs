//! Which addresses are not public, and a resolver that gives out no others.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A name or an address leads into a network that is not public.
#[derive(Debug)]
pub(super) struct PrivateAddress(String);

impl PrivateAddress {
    /// Of a host that is one itself.
    pub(super) fn of_host(host: &str) -> Self {
        Self(format!("{host} is a private address"))
    }

    fn of_name(name: &str, address: IpAddr) -> Self {
        Self(format!("{name} is at the private address {address}"))
    }
}

impl fmt::Display for PrivateAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which is refused; `allow_private_addresses = true` allows it", self.0)
    }
}

impl std::error::Error for PrivateAddress {}

/// Looks names up, and keeps to itself the addresses that must not be connected to. What it gives out is what is
/// connected to: there is no second look-up that could answer differently.
pub(super) struct Resolver {
    pub(super) allow_private: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let usable: Vec<SocketAddr> =
                found.iter().copied().filter(|at| allow_private || !is_private(at.ip())).collect();
            match found.first() {
                Some(first) if usable.is_empty() => {
                    Err(PrivateAddress::of_name(name.as_str(), first.ip()).into())
                }
                _ => Ok(Box::new(usable.into_iter()) as Addrs),
            }
        })
    }
}

/// For a host as a URL has it: an address is never looked up, so it must be known by sight.
pub(super) fn is_private_host(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(address) => is_private(address),
        Err(_) => {
            let name = host.trim_end_matches('.').to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

/// Everything that is not a public unicast address.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || a == 0
        || (a == 100 && (64..128).contains(&b)) // shared by a carrier's customers
        || (a == 192 && b == 0 && c == 0) // protocol assignments
        || (a == 198 && (18..20).contains(&b)) // benchmarks
        || a >= 224 // multicast, reserved, broadcast
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    if let Some(inner) = embedded_v4(address) {
        return is_private_v4(inner);
    }
    let [first, second, ..] = address.segments();
    // Global unicast is 2000::/3; of that, Teredo and documentation lead nowhere that is meant.
    first & 0xe000 != 0x2000
        || (first == 0x2001 && second < 0x200)
        || (first == 0x2001 && second == 0xdb8)
        || (first == 0x3fff && second < 0x1000)
}

/// The IPv4 address that an IPv6 address stands for: mapped, translated (NAT64) or tunnelled (6to4).
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b) {
        (0, 0) if c == 0 && d == 0 && e == 0 && f == 0xffff => Some(v4(g, h)),
        (0x64, 0xff9b) if c == 0 && d == 0 && e == 0 && f == 0 => Some(v4(g, h)),
        (0x2002, _) => Some(v4(b, c)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_known_however_they_are_written() {
        for private in [
            "127.0.0.1",
            "127.8.9.1",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "192.0.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "203.0.113.7",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12:3456::1",
            "ff02::1",
            "fec0::1",
            "::ffff:127.0.0.1",
            "::ffff:10.1.2.3",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:0:1::1",
            "2001:db8::1",
            "::127.0.0.1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.254",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::",
            "2001:200::1",
        ] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn hosts_are_known_by_sight() {
        for private in ["127.0.0.1", "[::1]", "localhost", "LOCALHOST.", "a.localhost"] {
            assert!(is_private_host(private), "{private}");
        }
        for unknown in ["example.com", "localhost.example.com", "1.1.1.1", "[2606:4700:4700::1111]"] {
            assert!(!is_private_host(unknown), "{unknown}");
        }
    }

    #[tokio::test]
    async fn a_name_of_a_private_address_is_not_resolved_unless_allowed() {
        let resolve = |allow_private| Resolver { allow_private }.resolve("localhost".parse().unwrap());
        let error = resolve(false).await.err().expect("localhost is private");
        assert!(
            error.is::<PrivateAddress>() && error.to_string().contains("allow_private_addresses"),
            "{error}"
        );
        assert!(resolve(true).await.unwrap().all(|at| at.ip().is_loopback()));
    }
}
