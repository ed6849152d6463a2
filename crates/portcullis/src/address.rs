//! Where a node is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `shm:PATH`: on this machine, at a Unix socket; data moves through shared memory.
    Shm(PathBuf),
    /// `rdma:HOST:PORT`: over RDMA; at that port both ends tell each other where their queue pairs are.
    Rdma(String),
}

/// What was given is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no node's address: give shm:PATH, for example shm:/run/portcullis.sock, or rdma:HOST:PORT, for example \
     rdma:node1:7471"
)]
pub struct UnknownAddress(String);

impl FromStr for Address {
    type Err = UnknownAddress;

    fn from_str(text: &str) -> Result<Self, UnknownAddress> {
        match text.split_once(':') {
            Some(("shm", path)) if !path.is_empty() => Ok(Self::Shm(PathBuf::from(path))),
            Some(("rdma", place)) if place.contains(':') => Ok(Self::Rdma(place.to_owned())),
            _ => Err(UnknownAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
            Self::Rdma(place) => write!(f, "rdma:{place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_and_others_say_what_is_meant() {
        for text in ["shm:/run/a.sock", "rdma:node1:7471", "rdma:[fd00::1]:7471"] {
            assert_eq!(text.parse::<Address>().expect("an address").to_string(), text);
        }
        for text in ["", "shm:", "/run/a.sock", "rdma:host", "tcp:host:1"] {
            let error = text.parse::<Address>().expect_err("no address");
            assert!(error.to_string().contains("shm:PATH"), "{error}");
        }
    }
}
