//! Packets to be sent, one after the other in one buffer, so that a packet costs no allocation.

use crate::cipher::{Cipher, Sender, TAG_BYTES};
use crate::packet::{HEADER_BYTES, Header};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Number of bytes of sent packets from which on the buffer drops them, even if other packets follow.
const LEFT_BYTES_MAX: usize = 1 << 16;

/// Packets that wait to be sent, the oldest first.
#[derive(Debug)]
pub(crate) struct Outbox {
    sender: Sender,
    /// Destinations and lengths.
    packets: VecDeque<(SocketAddr, usize)>,
    bytes: Vec<u8>,
    /// The offset of the first packet. The bytes before it have been sent.
    first: usize,
}

impl Outbox {
    pub fn new(sender: Sender) -> Self {
        Self { sender, packets: VecDeque::new(), bytes: Vec::new(), first: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds a packet with a body of this length, which `fill` writes, and seals it. The header's counter must be new.
    pub fn seal(
        &mut self,
        to: SocketAddr,
        cipher: &Cipher,
        header: &Header,
        body: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let sender = self.sender;
        let packet = self.add(to, header, body + TAG_BYTES);
        fill(&mut packet[HEADER_BYTES..HEADER_BYTES + body]);
        cipher.seal(sender, header.counter, packet, HEADER_BYTES);
    }

    /// Adds a packet that is a header alone and not sealed.
    pub fn add_bare(&mut self, to: SocketAddr, header: &Header) {
        self.add(to, header, 0);
    }

    /// Adds bytes that are not a packet of an operation.
    pub fn add_bytes(&mut self, to: SocketAddr, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.packets.push_back((to, bytes.len()));
    }

    fn add(&mut self, to: SocketAddr, header: &Header, rest: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&header.encode());
        self.bytes.resize(start + HEADER_BYTES + rest, 0);
        self.packets.push_back((to, HEADER_BYTES + rest));
        &mut self.bytes[start..]
    }

    /// Appends the next packet to `packet`, and returns its destination.
    pub fn poll(&mut self, packet: &mut Vec<u8>) -> Option<SocketAddr> {
        let (to, length) = self.packets.pop_front()?;
        packet.extend_from_slice(&self.bytes[self.first..self.first + length]);
        self.first += length;
        if self.packets.is_empty() {
            self.bytes.clear();
            self.first = 0;
        } else if self.first >= LEFT_BYTES_MAX && self.first >= self.bytes.len() / 2 {
            self.bytes.drain(..self.first);
            self.first = 0;
        }
        Some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::OperationType;
    use crate::packet::{AnswerSize, Kind};
    use crate::regions::RegionId;

    #[test]
    fn packets_leave_in_order_and_what_has_left_takes_no_room() {
        let (mut outbox, to) = (Outbox::new(Sender::Responder), SocketAddr::from(([10, 0, 0, 1], 1)));
        let header = |counter| Header {
            kind: Kind::Unknown,
            of: OperationType::Read,
            length: 64,
            client: 2,
            region: RegionId { index: 3, generation: 4 },
            operation: 5,
            slot: 6,
            counter,
            salt: 0,
            address: 8,
            offset: 0,
            answers: AnswerSize::of(0),
        };
        let (mut next, mut packet) = (1, Vec::new());
        for counter in 1..=10_000 {
            outbox.add_bare(to, &header(counter));
            // The outbox is never empty in between.
            if counter > 10 {
                assert_eq!(outbox.poll(&mut packet), Some(to));
                assert_eq!(packet, header(next).encode());
                packet.clear();
                next += 1;
            }
            assert!(outbox.bytes.len() <= 2 * LEFT_BYTES_MAX + 20 * HEADER_BYTES);
        }
        while outbox.poll(&mut packet).is_some() {}
        assert_eq!((packet.len(), outbox.is_empty(), outbox.bytes.len()), (10 * HEADER_BYTES, true, 0));
        assert_eq!(outbox.poll(&mut packet), None);
    }
}
