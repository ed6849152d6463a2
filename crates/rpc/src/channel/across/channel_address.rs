//! The address of a channel at a node.

use portcullis::{Address, UnknownAddress};
use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::str::FromStr;

/// The address of a channel at a memory node: the node's address, and behind `#` the channel's name, for example
/// `udp:node1:7472#greetings`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelAddress {
    /// The node's address.
    pub node: Address,
    /// The channel's name, which is that of its tenant on the node.
    pub channel: String,
}

/// Error of parsing the address of a channel at a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoChannelAddress {
    /// The text contains no channel's name.
    #[error(
        "{0:?} names no channel: give the node's address, '#' and the channel's name, for example udp:node1:7472#greetings"
    )]
    NoName(String),
    /// The text before the name is no address of a node.
    #[error(transparent)]
    Node(#[from] UnknownAddress),
}

impl Coded for NoChannelAddress {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoName(_) => ErrorCode::UnknownAddress,
            Self::Node(error) => error.code(),
        }
    }
}

impl FromStr for ChannelAddress {
    type Err = NoChannelAddress;

    fn from_str(text: &str) -> Result<Self, NoChannelAddress> {
        let named = text.rsplit_once('#').filter(|(_, channel)| !channel.is_empty());
        let (node, channel) = named.ok_or_else(|| NoChannelAddress::NoName(text.to_owned()))?;
        Ok(Self { node: node.parse()?, channel: channel.to_owned() })
    }
}

impl fmt::Display for ChannelAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.node, self.channel)
    }
}

/// Whether a text is meant as the address of a channel at a node, rather than as a path of this machine.
pub(in crate::channel) fn is_at_node(text: &str) -> bool {
    ["shm:", "udp:", "rdma:"].iter().any(|fabric| text.starts_with(fabric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_and_others_say_what_is_meant() {
        for text in ["udp:node1:7472#greetings", "rdma:[fd00::1]:7471#a", "shm:/run/a#b.sock#c"] {
            assert!(is_at_node(text));
            assert_eq!(text.parse::<ChannelAddress>().expect("an address").to_string(), text);
        }
        for text in ["udp:node1:7472", "udp:node1:7472#", "/run/a.sock", "udp:node1#x", "#x"] {
            text.parse::<ChannelAddress>().expect_err("no address");
        }
        assert!(!is_at_node("/run/udp:a.sock") && !is_at_node("udp"));
    }
}
