//! Addresses in the form `HOST:PORT`, and the check whether an address belongs to this machine.

use rustls::pki_types::ServerName;
use std::net::{SocketAddr, ToSocketAddrs};

/// An address to listen at or to connect to, as a person wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostPort {
    /// A name or an address, without brackets.
    host: String,
    port: u16,
}

impl HostPort {
    /// Parses `HOST:PORT` or `[IPv6]:PORT`.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?,
            None if host.contains(':') => return None,
            None => host,
        };
        let port = port.parse().ok()?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }

    /// Returns the name that a certificate of this host must be for.
    pub fn server_name(&self) -> Option<ServerName<'static>> {
        ServerName::try_from(self.host.clone()).ok()
    }

    /// Resolves the host to its addresses. A DNS lookup may take any time.
    pub fn addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        let addresses: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if addresses.is_empty() {
            let none = format!("{} has no address", self.host);
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, none));
        }
        Ok(addresses)
    }
}

/// Whether packets to this address stay on this machine.
pub(crate) fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (text, host, port) in
            [("node1:7000", "node1", 7000), ("10.0.0.1:1", "10.0.0.1", 1), ("[::1]:65535", "::1", 65_535)]
        {
            assert_eq!(HostPort::parse(text), Some(HostPort { host: host.to_owned(), port }));
        }
        for text in ["", "node1", "node1:", ":7000", "::1:7000", "[::1]", "[::1:7", "node1:65536", "node1:-1"]
        {
            assert_eq!(HostPort::parse(text), None, "{text}");
        }
    }

    #[test]
    fn this_machine_is_known_in_every_spelling() {
        for (text, ours) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
        ] {
            assert_eq!(is_loopback(&text.parse().expect("an address")), ours, "{text}");
        }
    }
}
