//! `--listen`: addresses for clients, and the clients' tenants.

use portcullis::Address;
use portcullis::host::Listen;

/// The text between the address and the tenant's name.
const TENANT: &str = "?tenant=";
/// Reserved prefixes: the library gives such names to tenants without a name.
const KEPT: [(&str, &str); 2] =
    [("uid:", "users, which the kernel identifies"), ("address:", "clients without certificates")];

/// An address for clients, and the tenant that they act for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The address.
    pub address: Address,
    /// The tenant, if one is given.
    pub tenant: Option<String>,
}

/// Parses an address, optionally followed by `?tenant=NAME`.
///
/// # Errors
/// An explanation for the person who typed it.
pub fn parse(text: &str) -> Result<ListenAddress, String> {
    let (address, tenant) = match text.split_once(TENANT) {
        Some((address, tenant)) => (address, Some(tenant)),
        None => (text, None),
    };
    if let Some((_, rest)) = address.split_once('?') {
        return Err(format!("{rest:?} is not an option of an address: write ?tenant=NAME"));
    }
    let address = address.parse().map_err(|error: portcullis::UnknownAddress| error.to_string())?;
    if let Some(name) = tenant
        && let Some((_, whom)) = KEPT.iter().find(|(kept, _)| name.starts_with(kept))
    {
        return Err(format!("{name:?} is reserved for {whom}: leave ?tenant= out for them"));
    }
    match tenant {
        Some(name) if name.contains(|letter: char| "?&=".contains(letter) || letter.is_control()) => {
            Err(format!("{name:?} is not a name: write ?tenant=NAME once, without any of ? & = in the name"))
        }
        Some("") => Err("the tenant has no name: write ?tenant=NAME, or leave it out".to_owned()),
        tenant => Ok(ListenAddress { address, tenant: tenant.map(str::to_owned) }),
    }
}

impl ListenAddress {
    /// The socket, if the address is one.
    pub fn socket(&self) -> Option<Listen> {
        match &self.address {
            Address::Shm(path) => Some(Listen { path: path.clone(), tenant: self.tenant.clone() }),
            _ => None,
        }
    }

    /// Whether clients attach there over TCP, from this machine or others.
    pub fn is_on_network(&self) -> bool {
        self.address.network_place().is_some()
    }

    /// Whether clients attach there over UDP.
    pub fn is_over_udp(&self) -> bool {
        matches!(self.address, Address::Udp(_))
    }

    /// Whether the kernel is to choose the port.
    pub fn is_any_port(&self) -> bool {
        has_any_port(&self.address)
    }

    /// The address as text, with the port that was assigned, if any.
    pub fn written(&self, got: Option<std::net::SocketAddr>) -> String {
        let tenant = self.tenant.as_ref().map(|name| format!("{TENANT}{name}")).unwrap_or_default();
        let address = match got.filter(|_| self.is_any_port()) {
            Some(got) => self.address.at_network_place(got.to_string()),
            None => self.address.clone(),
        };
        format!("{address}{tenant}")
    }
}

/// Whether the kernel is to choose the port of an address.
pub(super) fn has_any_port(address: &Address) -> bool {
    address.network_place().is_some_and(|socket| socket.ends_with(":0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_read_back_as_they_were_written() {
        for text in
            ["shm:/run/a.sock", "shm:/run/a.sock?tenant=orange", "rdma:0.0.0.0:7471", "udp:0.0.0.0:7472"]
        {
            assert_eq!(parse(text).expect("an address").written(None), text);
        }
        let got = "127.0.0.1:4711".parse().ok();
        let any = parse("rdma:127.0.0.1:0?tenant=orange").expect("an address");
        assert_eq!(any.written(got), "rdma:127.0.0.1:4711?tenant=orange");
        assert_eq!(parse("rdma:node1:7471").expect("an address").written(got), "rdma:node1:7471");
        assert_eq!(parse("shm:/a?tenant=orange").expect("an address").tenant.as_deref(), Some("orange"));
    }

    #[test]
    fn others_are_told_what_to_write() {
        for wrong in ["", "shm:", "/run/a.sock", "tcp:host:1", "shm:?tenant=a"] {
            assert!(parse(wrong).expect_err(wrong).contains("shm:PATH"), "{wrong}");
        }
        for wrong in [
            "shm:/a?tenant=",
            "shm:/a?tenant=uid:0",
            "rdma:h:1?tenant=address:10.0.0.1",
            "shm:/a?tenant=a&tenant=b",
            "shm:/a?tenant=a?tenant=b",
            "shm:/a?tenant=a\nb",
            "shm:/a?owner=me",
            "shm:/a?b?tenant=c",
        ] {
            assert!(parse(wrong).expect_err(wrong).contains("?tenant="), "{wrong}");
        }
    }
}
