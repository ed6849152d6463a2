//! The messages of an attach, in their encoding. Here a peer's bytes become a value of a checked type, or are refused.

use crate::tls::terms::{Ends, OneShotTerms, Terms};
use portcullis_nic::{GuaranteeSet, QpAddress};
use serde::{Deserialize, Serialize};

/// Marks the first message of an attach.
const MAGIC: [u8; 8] = *b"PORTCUL\0";
/// Version of the protocol. The hello is the same in all versions.
pub const VERSION: u32 = 3;
/// The longest reason that is sent to a peer, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;

#[derive(Serialize, Deserialize)]
struct WireEnd {
    number: u32,
    port: [u8; 16],
    lid: u16,
    first_packet: u32,
}

#[derive(Serialize, Deserialize)]
struct WireEnds {
    control: WireEnd,
    data: Vec<WireEnd>,
}

#[derive(Serialize, Deserialize)]
enum FromClient {
    Hello { magic: [u8; 8], version: u32 },
    Ends(WireEnds),
}

#[derive(Serialize, Deserialize)]
enum FromNode {
    Terms { data_queue_pairs: u32, send_depth: u32, control_depth: u32, message_bytes: u32, unenforced: u16 },
    Refused(String),
    Welcome { client: u64, ends: WireEnds },
    OneShots { client: u64, port: u16, control_depth: u32, datagram_max: u32 },
    TooLate,
}

/// A message from a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientSays {
    /// The client requests to attach, in the protocol of this version.
    Hello {
        /// [`VERSION`], or another version.
        version: u32,
    },
    /// The client's queue pairs, not checked against the terms yet.
    Ends(Ends),
}

/// A message from a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeSays {
    /// The terms that the client must meet. They are within their bounds.
    Terms(Terms),
    /// The node refuses, for this reason: without control characters, at most [`REASON_BYTES_MAX`] bytes.
    Refused(String),
    /// The client is admitted. The ends are not checked yet.
    Welcome {
        /// The client's number on the node.
        client: u64,
        /// The node's queue pairs.
        ends: Ends,
    },
    /// The client is admitted, without queue pairs.
    OneShots {
        /// The client's number on the node.
        client: u64,
        /// The terms of the node. They are within their bounds.
        terms: OneShotTerms,
    },
    /// The client's time for the attach is up.
    TooLate,
}

impl ClientSays {
    /// Parses a message, if the bytes are exactly one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match parse(bytes)? {
            FromClient::Hello { magic, version } => (magic == MAGIC).then_some(Self::Hello { version }),
            FromClient::Ends(ends) => Some(Self::Ends(ends.into())),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&match self {
            Self::Hello { version } => FromClient::Hello { magic: MAGIC, version: *version },
            Self::Ends(ends) => FromClient::Ends(ends.into()),
        })
    }
}

impl NodeSays {
    /// Parses a message, if the bytes are exactly one and its values are within their bounds.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match parse(bytes)? {
            FromNode::Terms { data_queue_pairs, send_depth, control_depth, message_bytes, unenforced } => {
                let unenforced = GuaranteeSet::of_bits(unenforced)?;
                let terms = Terms { data_queue_pairs, send_depth, control_depth, message_bytes, unenforced };
                terms.is_sound().then_some(Self::Terms(terms))
            }
            FromNode::Refused(reason) => Some(Self::Refused(presentable(&reason))),
            FromNode::Welcome { client, ends } => Some(Self::Welcome { client, ends: ends.into() }),
            FromNode::OneShots { client, port, control_depth, datagram_max } => {
                let terms = OneShotTerms { port, control_depth, datagram_max };
                terms.is_sound().then_some(Self::OneShots { client, terms })
            }
            FromNode::TooLate => Some(Self::TooLate),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&match self {
            Self::Terms(terms) => {
                let &Terms { data_queue_pairs, send_depth, control_depth, message_bytes, unenforced } = terms;
                let unenforced = unenforced.bits();
                FromNode::Terms { data_queue_pairs, send_depth, control_depth, message_bytes, unenforced }
            }
            Self::Refused(reason) => FromNode::Refused(presentable(reason)),
            Self::Welcome { client, ends } => FromNode::Welcome { client: *client, ends: ends.into() },
            &Self::OneShots { client, terms: OneShotTerms { port, control_depth, datagram_max } } => {
                FromNode::OneShots { client, port, control_depth, datagram_max }
            }
            Self::TooLate => FromNode::TooLate,
        })
    }
}

/// Makes a reason presentable on a terminal: short and without control characters.
fn presentable(reason: &str) -> String {
    let mut text: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
    text
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

/// Encodes a message. Serializing plain data of known shape into memory cannot fail. If it did, an empty message would
/// be sent, which means nothing.
fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).unwrap_or_default()
}

impl From<WireEnd> for QpAddress {
    fn from(end: WireEnd) -> Self {
        Self { number: end.number, port: end.port, lid: end.lid, first_packet: end.first_packet }
    }
}

impl From<&QpAddress> for WireEnd {
    fn from(end: &QpAddress) -> Self {
        Self { number: end.number, port: end.port, lid: end.lid, first_packet: end.first_packet }
    }
}

impl From<WireEnds> for Ends {
    fn from(ends: WireEnds) -> Self {
        Self { control: ends.control.into(), data: ends.data.into_iter().map(Into::into).collect() }
    }
}

impl From<&Ends> for WireEnds {
    fn from(ends: &Ends) -> Self {
        Self { control: (&ends.control).into(), data: ends.data.iter().map(Into::into).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::frames::FRAME_BYTES_MAX;
    use portcullis_nic::DATA_QUEUE_PAIRS_MAX;
    use proptest::prelude::*;

    fn end() -> impl Strategy<Value = QpAddress> {
        (any::<u32>(), any::<[u8; 16]>(), any::<u16>(), any::<u32>())
            .prop_map(|(number, port, lid, first_packet)| QpAddress { lid, number, port, first_packet })
    }

    fn ends() -> impl Strategy<Value = Ends> {
        (end(), prop::collection::vec(end(), 0..=16)).prop_map(|(control, data)| Ends { control, data })
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = ClientSays::parse(&bytes);
            match NodeSays::parse(&bytes) {
                Some(NodeSays::Terms(terms)) => prop_assert!(terms.is_sound()),
                Some(NodeSays::OneShots { terms, .. }) => prop_assert!(terms.is_sound()),
                Some(NodeSays::Refused(reason)) => prop_assert!(!reason.chars().any(char::is_control)),
                Some(NodeSays::Welcome { .. } | NodeSays::TooLate) | None => {}
            }
        }

        #[test]
        fn ends_arrive_as_they_were_sent(ends in ends(), client: u64) {
            let says = ClientSays::Ends(ends.clone());
            prop_assert_eq!(ClientSays::parse(&says.encode()), Some(says));
            let says = NodeSays::Welcome { client, ends };
            prop_assert_eq!(NodeSays::parse(&says.encode()), Some(says));
        }

        #[test]
        fn nothing_may_follow_a_message(ends in ends(), more in 1..9usize) {
            let mut bytes = ClientSays::Ends(ends).encode();
            bytes.resize(bytes.len() + more, 0);
            prop_assert_eq!(ClientSays::parse(&bytes), None);
        }

        #[test]
        fn a_reason_arrives_without_what_a_terminal_would_obey(reason in any::<String>()) {
            let Some(NodeSays::Refused(text)) = NodeSays::parse(&NodeSays::Refused(reason).encode()) else {
                panic!("a refusal is a refusal");
            };
            prop_assert!(text.len() <= REASON_BYTES_MAX && !text.chars().any(char::is_control));
        }
    }

    #[test]
    fn the_longest_message_fits_a_frame() {
        let end = QpAddress { number: u32::MAX, port: [255; 16], lid: u16::MAX, first_packet: u32::MAX };
        let ends = Ends { control: end, data: vec![end; DATA_QUEUE_PAIRS_MAX as usize] };
        assert!(NodeSays::Welcome { client: u64::MAX, ends }.encode().len() <= FRAME_BYTES_MAX);
        let reason = "ü".repeat(REASON_BYTES_MAX);
        assert!(NodeSays::Refused(reason).encode().len() <= FRAME_BYTES_MAX);
    }

    #[test]
    fn the_hello_of_another_protocol_is_none() {
        assert_eq!(
            ClientSays::parse(&ClientSays::Hello { version: 9 }.encode()),
            Some(ClientSays::Hello { version: 9 })
        );
        let mut bytes = ClientSays::Hello { version: VERSION }.encode();
        bytes[1] ^= 1;
        assert_eq!(ClientSays::parse(&bytes), None);
    }
}
