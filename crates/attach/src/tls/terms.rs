//! The terms between node and client: the number and depth of queue pairs, and their addresses.

use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::{DEPTH_MAX, EndpointSize, GuaranteeSet, QpAddress};
use std::collections::HashSet;
use std::net::Ipv6Addr;

/// Payload of the longest datagram that every IPv6 path carries, beside its headers of 48 bytes.
pub const DATAGRAM_BYTES_MIN: u32 = 1280 - 48;
/// The longest datagram that an IP packet can carry.
pub const DATAGRAM_BYTES_MAX: u32 = 65_507;

/// The largest number of a queue pair: InfiniBand has 24 bits for it.
pub const QUEUE_PAIR_MAX: u32 = (1 << 24) - 1;

/// The node's requirements for a client's queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Number of data queue pairs. See [`EndpointSize`], also for the next three.
    pub data_queue_pairs: u32,
    /// Requests that each data queue pair holds.
    pub send_depth: u32,
    /// Control messages that may be under way in each direction.
    pub control_depth: u32,
    /// Bytes of a control message.
    pub message_bytes: u32,
    /// Guarantees that permissions rest on and the node's device does not keep. Empty, unless the node was configured
    /// to work without them.
    pub unenforced: GuaranteeSet,
}

impl Terms {
    /// Returns the size of a client's end that meets the terms and has `buffers` bytes of buffers.
    #[must_use]
    pub fn size(&self, buffers: u64) -> EndpointSize {
        let &Self { data_queue_pairs, send_depth, control_depth, message_bytes, .. } = self;
        let size = EndpointSize {
            data_queue_pairs,
            chunk_queue_pairs: 0,
            send_depth,
            control_depth,
            message_bytes,
            arena_bytes: 0,
        };
        size.with_buffers(buffers)
    }

    /// Whether all terms are within their bounds.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.size(0).is_sound()
    }
}

/// The terms of a node for a client without queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneShotTerms {
    /// The UDP port for operations, on the host of the connection.
    pub port: u16,
    /// Control messages that may be under way in each direction.
    pub control_depth: u32,
    /// Bytes of the largest datagram that the node sends and accepts.
    pub datagram_max: u32,
}

impl OneShotTerms {
    /// Whether all terms are within their bounds.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.port > 0
            && (1..=DEPTH_MAX).contains(&self.control_depth)
            && (DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(&self.datagram_max)
    }
}

/// A node's offer to a client that has sent its hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// Queue pairs, if the client provides its own ends of them.
    QueuePairs(Terms),
    /// Operations without queue pairs. Control messages travel over the connection itself.
    OneShots(OneShotTerms),
}

/// Reason for which ends do not fit the terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnfitEnds {
    /// Too many data queue pairs, or too few.
    #[error("{brought} data queue pairs, but the terms require {wanted}")]
    Count {
        /// Number of data queue pairs.
        brought: usize,
        /// Number of data queue pairs in the terms.
        wanted: u32,
    },
    /// The address cannot be that of a port.
    #[error("{0} is not the address of a port")]
    Nowhere(Ipv6Addr),
    /// The number is too large for a queue pair.
    #[error("queue pair {0:#x} has more than 24 bits")]
    Number(u32),
    /// A queue pair is named twice.
    #[error("queue pair {0:#x} is named twice")]
    Twice(u32),
}

impl Coded for UnfitEnds {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Count { .. } => ErrorCode::EndCount,
            Self::Nowhere(_) => ErrorCode::EndNowhere,
            Self::Number(_) => ErrorCode::EndNumber,
            Self::Twice(_) => ErrorCode::EndTwice,
        }
    }
}

/// The queue pairs of one side, as the other side reaches them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The queue pair for control messages.
    pub control: QpAddress,
    /// The queue pairs for one-sided access. The two sides' queue pairs are connected in this order.
    pub data: Vec<QpAddress>,
}

impl Ends {
    /// Checks that these ends fit the terms: as many as agreed, numbers of 24 bits, none named twice.
    ///
    /// # Errors
    /// The fault of the ends.
    pub fn check(&self, terms: &Terms) -> Result<(), UnfitEnds> {
        let (wanted, brought) = (terms.data_queue_pairs, self.data.len());
        if usize::try_from(wanted) != Ok(brought) {
            return Err(UnfitEnds::Count { brought, wanted });
        }
        let mut seen = HashSet::new();
        for end in std::iter::once(&self.control).chain(&self.data) {
            if !is_somebody(end.port) {
                return Err(UnfitEnds::Nowhere(Ipv6Addr::from(end.port)));
            }
            if end.number > QUEUE_PAIR_MAX {
                return Err(UnfitEnds::Number(end.number));
            }
            if !seen.insert((end.port, end.number)) {
                return Err(UnfitEnds::Twice(end.number));
            }
        }
        Ok(())
    }
}

/// Whether a GID can be that of one port: not multicast, broadcast, unspecified or loopback, at which no peer can be
/// reached.
fn is_somebody(gid: [u8; 16]) -> bool {
    let address = Ipv6Addr::from(gid);
    let odd = address.is_multicast() || address.is_unspecified() || address.is_loopback();
    let odd_ipv4 = address.to_ipv4_mapped().is_some_and(|address| {
        address.is_multicast() || address.is_unspecified() || address.is_loopback() || address.is_broadcast()
    });
    !odd && !odd_ipv4
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        data_queue_pairs: 2,
        send_depth: 256,
        control_depth: 64,
        message_bytes: 128,
        unenforced: GuaranteeSet::NONE,
    };

    fn end(number: u32) -> QpAddress {
        QpAddress { number, port: [1; 16], lid: 0, first_packet: 0 }
    }

    #[test]
    fn terms_beyond_their_bounds_are_not_sound() {
        assert!(TERMS.is_sound());
        assert!(
            Terms {
                data_queue_pairs: 16,
                send_depth: 4096,
                control_depth: 1,
                message_bytes: 65_536,
                ..TERMS
            }
            .is_sound()
        );
        let unsound = [
            Terms { data_queue_pairs: 0, ..TERMS },
            Terms { data_queue_pairs: 17, ..TERMS },
            Terms { send_depth: 0, ..TERMS },
            Terms { send_depth: 3, ..TERMS },
            Terms { send_depth: 8192, ..TERMS },
            Terms { control_depth: 0, ..TERMS },
            Terms { control_depth: 65, ..TERMS },
            Terms { message_bytes: 0, ..TERMS },
            Terms { message_bytes: 64, ..TERMS },
            Terms { message_bytes: 160, ..TERMS },
            Terms { message_bytes: 65_600, ..TERMS },
        ];
        for terms in unsound {
            assert!(!terms.is_sound(), "{terms:?}");
        }
    }

    #[test]
    fn ends_that_do_not_fit_their_terms_are_told_apart() {
        let ends = |control, data: &[u32]| Ends {
            control: end(control),
            data: data.iter().map(|&number| end(number)).collect(),
        };
        assert_eq!(ends(QUEUE_PAIR_MAX, &[0, 1]).check(&TERMS), Ok(()));
        for (wrong, why) in [
            (ends(1, &[2]), "1 data queue pairs"),
            (ends(1, &[2, 3, 4]), "3 data queue pairs"),
            (ends(1, &[]), "0 data queue pairs"),
            (ends(1 << 24, &[2, 3]), "24 bits"),
            (ends(1, &[2, u32::MAX]), "24 bits"),
            (ends(1, &[1, 2]), "twice"),
            (ends(1, &[2, 2]), "twice"),
        ] {
            let reason = wrong.check(&TERMS).expect_err(why).to_string();
            assert!(reason.contains(why), "{reason}");
        }
    }

    #[test]
    fn an_address_that_is_nobodys_is_refused() {
        let at = |text: &str| {
            let port = text.parse::<Ipv6Addr>().expect("an address").octets();
            let end = |number| QpAddress { number, port, ..QpAddress::default() };
            Ends { control: end(1), data: vec![end(2), end(3)] }.check(&TERMS)
        };
        for good in ["fe80::1", "fd00::7", "::ffff:10.0.0.1"] {
            assert_eq!(at(good), Ok(()), "{good}");
        }
        for odd in ["::", "::1", "ff02::1", "::ffff:255.255.255.255", "::ffff:224.0.0.1", "::ffff:127.0.0.1"]
        {
            assert!(at(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn one_number_on_two_ports_is_two_queue_pairs() {
        let other_port = QpAddress { port: [2; 16], ..end(1) };
        assert_eq!(Ends { control: end(1), data: vec![other_port, end(2)] }.check(&TERMS), Ok(()));
    }
}
