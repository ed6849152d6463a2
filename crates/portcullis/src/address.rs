//! Where a node is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `shm:PATH`: on this machine, at a Unix socket; data moves through shared memory.
    Shm(PathBuf),
}

/// What was given is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no node's address: give shm:PATH, for example shm:/run/portcullis.sock")]
pub struct UnknownAddress(String);

impl FromStr for Address {
    type Err = UnknownAddress;

    fn from_str(text: &str) -> Result<Self, UnknownAddress> {
        match text.strip_prefix("shm:") {
            Some(path) if !path.is_empty() => Ok(Self::Shm(PathBuf::from(path))),
            _ => Err(UnknownAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_and_others_say_what_is_meant() {
        let address: Address = "shm:/run/a.sock".parse().expect("an address");
        assert_eq!(address.to_string(), "shm:/run/a.sock");
        for text in ["", "shm:", "/run/a.sock", "rdma:host:1"] {
            let error = text.parse::<Address>().expect_err("no address");
            assert!(error.to_string().contains("shm:PATH"), "{error}");
        }
    }
}
