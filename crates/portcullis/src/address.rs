//! The address of a node: its three forms, and how they are parsed and printed.

use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `shm:PATH`: a node on this machine, at a Unix socket. Data moves through shared memory.
    Shm(PathBuf),
    /// `rdma:HOST:PORT`: a node that clients reach over RDMA. At that port client and node exchange the addresses of
    /// their queue pairs.
    #[cfg(feature = "rdma")]
    Rdma(String),
    /// `udp:HOST:PORT`: a node that clients reach over UDP, with every access encrypted. At that TCP port the client
    /// proves its identity.
    #[cfg(feature = "udp")]
    Udp(String),
}

impl Address {
    /// Returns the `HOST:PORT` of an address over a network. `None`: the address is a socket of this machine.
    #[must_use]
    pub fn network_place(&self) -> Option<&str> {
        match self {
            Self::Shm(_) => None,
            #[cfg(feature = "rdma")]
            Self::Rdma(place) => Some(place),
            #[cfg(feature = "udp")]
            Self::Udp(place) => Some(place),
        }
    }

    /// Returns the same kind of address at another `HOST:PORT`. A socket stays as it is.
    #[must_use]
    #[cfg_attr(
        not(any(feature = "rdma", feature = "udp")),
        expect(unused_variables, reason = "all addresses are sockets")
    )]
    pub fn at_network_place(&self, place: String) -> Self {
        match self {
            Self::Shm(path) => Self::Shm(path.clone()),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Self::Rdma(place),
            #[cfg(feature = "udp")]
            Self::Udp(_) => Self::Udp(place),
        }
    }

    /// Returns whether clients reach the node over RDMA. A program that was built without RDMA accepts no such address.
    #[must_use]
    pub fn is_over_rdma(&self) -> bool {
        match self {
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => true,
            _ => false,
        }
    }
}

/// The reason why a text is no address at which a session can be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownAddress {
    /// The text has the form of no address.
    #[error(
        "{0:?} is not a node's address: give shm:PATH, for example shm:/run/portcullis.sock, rdma:HOST:PORT, \
         for example rdma:node1:7471, udp:HOST:PORT, for example udp:node1:7472, or name:NAME, for example \
         name:bank/node1"
    )]
    Malformed(String),
    /// The address is for RDMA, and this program was built without RDMA.
    #[error(
        "{0:?} is a node's address over RDMA, and this program was built without: build the crate portcullis with its \
         feature \"rdma\""
    )]
    WithoutRdma(String),
    /// The address is for UDP, and this program was built without UDP.
    #[error(
        "{0:?} is a node's address over UDP, and this program was built without: build the crate portcullis with its \
         feature \"udp\""
    )]
    WithoutUdp(String),
}

impl Coded for UnknownAddress {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed(_) => ErrorCode::UnknownAddress,
            Self::WithoutRdma(_) => ErrorCode::WithoutRdma,
            Self::WithoutUdp(_) => ErrorCode::WithoutUdp,
        }
    }
}

impl FromStr for Address {
    type Err = UnknownAddress;

    fn from_str(text: &str) -> Result<Self, UnknownAddress> {
        match text.split_once(':') {
            Some(("shm", path)) if !path.is_empty() => Ok(Self::Shm(PathBuf::from(path))),
            Some(("rdma", place)) if place.contains(':') => over_rdma(text, place),
            Some(("udp", place)) if place.contains(':') => over_udp(text, place),
            _ => Err(UnknownAddress::Malformed(text.to_owned())),
        }
    }
}

#[cfg(feature = "rdma")]
fn over_rdma(_: &str, place: &str) -> Result<Address, UnknownAddress> {
    Ok(Address::Rdma(place.to_owned()))
}

#[cfg(not(feature = "rdma"))]
fn over_rdma(text: &str, _: &str) -> Result<Address, UnknownAddress> {
    Err(UnknownAddress::WithoutRdma(text.to_owned()))
}

#[cfg(feature = "udp")]
fn over_udp(_: &str, place: &str) -> Result<Address, UnknownAddress> {
    Ok(Address::Udp(place.to_owned()))
}

#[cfg(not(feature = "udp"))]
fn over_udp(text: &str, _: &str) -> Result<Address, UnknownAddress> {
    Err(UnknownAddress::WithoutUdp(text.to_owned()))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
            #[cfg(feature = "rdma")]
            Self::Rdma(place) => write!(f, "rdma:{place}"),
            #[cfg(feature = "udp")]
            Self::Udp(place) => write!(f, "udp:{place}"),
        }
    }
}

/// Serialization of an address as its text. A path that is not UTF-8 has no text and is refused.
#[cfg(feature = "serde")]
mod as_serde {
    use super::Address;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

    impl Serialize for Address {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let text = self.to_string();
            if text.parse().as_ref() != Ok(self) {
                return Err(ser::Error::custom("the path of the node's socket is not UTF-8"));
            }
            serializer.serialize_str(&text)
        }
    }

    impl<'de> Deserialize<'de> for Address {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads_back(text: &str) {
        assert_eq!(text.parse::<Address>().expect("an address").to_string(), text);
    }

    #[test]
    fn addresses_read_back_and_others_say_what_is_meant() {
        reads_back("shm:/run/a.sock");
        for text in ["", "shm:", "/run/a.sock", "rdma:host", "tcp:host:1"] {
            let error = text.parse::<Address>().expect_err("no address");
            assert!(error.to_string().contains("shm:PATH"), "{error}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn an_address_is_passed_on_as_its_text_and_one_without_a_text_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let address = Address::Shm("/run/a.sock".into());
        let json = serde_json::to_string(&address).expect("text");
        assert_eq!(json, r#""shm:/run/a.sock""#);
        assert_eq!(serde_json::from_str::<Address>(&json).expect("the same"), address);
        let path = std::ffi::OsStr::from_bytes(b"/run/\xff.sock");
        assert!(serde_json::to_string(&Address::Shm(path.into())).is_err());
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn addresses_over_rdma_read_back() {
        reads_back("rdma:node1:7471");
        reads_back("rdma:[fd00::1]:7471");
    }

    #[cfg(feature = "udp")]
    #[test]
    fn addresses_over_udp_read_back() {
        reads_back("udp:node1:7472");
        reads_back("udp:[fd00::1]:7472");
    }

    #[cfg(not(feature = "rdma"))]
    #[test]
    fn an_address_over_rdma_names_the_feature_that_is_missing() {
        let refused = crate::connect("rdma:node1:7471").expect_err("no such way").to_string();
        assert!(refused.contains("rdma:node1:7471") && refused.contains("feature \"rdma\""), "{refused}");
    }
}
