//! Packed messages: one message that carries several requests, or several replies.
//!
//! A packed message is a head of 64 bytes and its records, one behind the other. A record is what is sent of a message
//! that travels alone: 64 or 128 bytes, without data. Each record has its own sequence number and its own outcome, so a
//! packed message has no meaning besides those of its records.
//!
//! The first record of a packed message and a message that travels alone have the same bytes. A writer therefore leaves
//! room for the head, writes records behind it, and writes the head only if there are several.

use super::wire::kind;
use super::{MESSAGE_BYTES, MalformedMessage, sent_part};
use zerocopy::little_endian::{U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a packed message before its records.
pub const PACKED_HEAD_BYTES: usize = 64;

/// The most records that a message carries.
pub const RECORDS_MAX: usize = 128;

/// Bytes of a short record.
const SHORT_BYTES: usize = MESSAGE_BYTES / 2;

/// The head of a packed message.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    kind: u8,
    unused: [u8; 3],
    /// Number of records: 2 to [`RECORDS_MAX`].
    records: U32,
    /// A bit for each record: whether it has [`MESSAGE_BYTES`]. Other records have half of that.
    long: U128,
    rest: [u8; 40],
}

const _: () = assert!(size_of::<Head>() == PACKED_HEAD_BYTES);

/// A message that is being written, record by record.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    records: u32,
    long: u128,
    /// Bytes of the message so far, with the room for its head.
    bytes: usize,
    /// The most bytes that the message may have.
    room: usize,
}

impl Packing {
    /// Begins a message of at most `room` bytes. A message without room for two records has no room for a head either,
    /// and carries one record.
    #[must_use]
    pub fn new(room: usize) -> Self {
        let mut packing = Self { records: 0, long: 0, bytes: 0, room };
        if packing.has_head() {
            packing.bytes = PACKED_HEAD_BYTES;
        }
        packing
    }

    /// The most records that a message of at most `room` bytes carries.
    #[must_use]
    pub fn records_max(room: usize) -> usize {
        match room.checked_sub(PACKED_HEAD_BYTES) {
            Some(records) if records >= MESSAGE_BYTES => (records / SHORT_BYTES).min(RECORDS_MAX),
            _ => 1,
        }
    }

    /// Adds a record. Returns its place in the message, and the bytes to be written there. `None`: the message has no
    /// room for it.
    pub fn add<'a>(&mut self, message: &'a [u8; MESSAGE_BYTES]) -> Option<(usize, &'a [u8])> {
        if !self.has_room_for(message) {
            return None;
        }
        let (at, record) = (self.bytes, sent_part(message));
        self.long |= u128::from(record.len() == MESSAGE_BYTES) << self.records;
        self.records += 1;
        self.bytes += record.len();
        Some((at, record))
    }

    /// Returns whether the message has room for a record.
    #[must_use]
    pub fn has_room_for(&self, message: &[u8; MESSAGE_BYTES]) -> bool {
        let most = if self.has_head() { RECORDS_MAX } else { 1 };
        (self.records as usize) < most && self.bytes + sent_part(message).len() <= self.room
    }

    /// Returns the number of records.
    #[must_use]
    pub fn records(&self) -> usize {
        self.records as usize
    }

    /// Whether there is room for a head.
    fn has_head(&self) -> bool {
        self.room >= PACKED_HEAD_BYTES + MESSAGE_BYTES
    }

    /// Returns the place at which the message begins, and its bytes in all. A single record travels alone.
    #[must_use]
    pub fn span(&self) -> (usize, usize) {
        match self.records {
            0 | 1 if self.has_head() => (PACKED_HEAD_BYTES, self.bytes - PACKED_HEAD_BYTES),
            _ => (0, self.bytes),
        }
    }

    /// Returns the head, which belongs at the beginning. `None`: a single record has none.
    #[must_use]
    pub fn head(&self) -> Option<[u8; PACKED_HEAD_BYTES]> {
        let head = Head {
            kind: kind::PACKED,
            unused: [0; 3],
            records: U32::new(self.records),
            long: U128::new(self.long),
            rest: [0; 40],
        };
        (self.records > 1).then(|| zerocopy::transmute!(head))
    }
}

/// The records of a message that has arrived, in order: their places and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Records {
    left: u32,
    /// A bit for each record that is left.
    long: u128,
    at: u64,
}

/// Returns whether a message that begins with `head` carries several records.
#[must_use]
pub fn is_packed(head: &[u8; PACKED_HEAD_BYTES]) -> bool {
    head[0] == kind::PACKED
}

impl Records {
    /// The single record of a message that travels alone.
    fn alone(length: u64) -> Self {
        Self { left: 1, long: u128::from(length != SHORT_BYTES as u64), at: 0 }
    }

    /// Returns the records of a message of `length` bytes that begins with `head`.
    ///
    /// # Errors
    /// The message is cut, or its head is none that this version writes.
    pub fn of(head: [u8; PACKED_HEAD_BYTES], length: u64) -> Result<Self, MalformedMessage> {
        let head: Head = zerocopy::transmute!(head);
        let malformed = |what, at| Err(MalformedMessage { what, at });
        if head.kind != kind::PACKED {
            let is_cut = length < MESSAGE_BYTES as u64 && length != SHORT_BYTES as u64;
            return if is_cut { malformed(head.kind, 0) } else { Ok(Self::alone(length)) };
        }
        let records = head.records.get();
        let long = head.long.get();
        let is_known = head.unused.iter().chain(&head.rest).all(|&byte| byte == 0);
        if !is_known || records < 2 || records as usize > RECORDS_MAX {
            return malformed(records.to_le_bytes()[0], 4);
        }
        let beyond = long.checked_shr(records).unwrap_or(0);
        let halves = u64::from(records) + u64::from(long.count_ones());
        if beyond != 0 || length != PACKED_HEAD_BYTES as u64 + halves * SHORT_BYTES as u64 {
            return malformed(records.to_le_bytes()[0], 8);
        }
        Ok(Self { left: records, long, at: PACKED_HEAD_BYTES as u64 })
    }

    /// Returns the number of records that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left as usize
    }

    /// Reads the next record with `read`, which fills its buffer with the message's bytes from a place on.
    pub fn read(&mut self, read: impl FnOnce(u64, &mut [u8])) -> Option<[u8; MESSAGE_BYTES]> {
        self.left = self.left.checked_sub(1)?;
        let bytes = if self.long & 1 == 1 { MESSAGE_BYTES } else { SHORT_BYTES };
        let mut message = [0; MESSAGE_BYTES];
        read(self.at, &mut message[..bytes]);
        self.long >>= 1;
        self.at += bytes as u64;
        Some(message)
    }
}

/// Returns the messages that `bytes` carry. `None`: they are cut, or packed as no writer packs them.
pub fn messages_in(bytes: &[u8]) -> Option<impl Iterator<Item = [u8; MESSAGE_BYTES]> + '_> {
    let head = *bytes.first_chunk()?;
    let mut records = Records::of(head, bytes.len() as u64).ok()?;
    let read = |at: u64, into: &mut [u8]| {
        let at = usize::try_from(at).expect("a place in these bytes");
        into.copy_from_slice(&bytes[at..at + into.len()]);
    };
    Some(std::iter::from_fn(move || records.read(read)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A message whose first byte is `kind`. A long one has a byte in its second half.
    fn message(kind: u8, is_long: bool) -> [u8; MESSAGE_BYTES] {
        let mut message = [0; MESSAGE_BYTES];
        (message[0], message[9], message[127]) = (kind, 7, u8::from(is_long));
        message
    }

    /// Writes messages until one has no room. Returns the bytes that are sent, and how many messages they carry.
    fn packed(messages: &[[u8; MESSAGE_BYTES]], room: usize) -> (Vec<u8>, usize) {
        let (mut bytes, mut packing) = (vec![0xaa; room], Packing::new(room));
        for message in messages {
            let Some((at, record)) = packing.add(message) else { break };
            bytes[at..at + record.len()].copy_from_slice(record);
        }
        if let Some(head) = packing.head() {
            bytes[..PACKED_HEAD_BYTES].copy_from_slice(&head);
        }
        let (at, length) = packing.span();
        (bytes[at..at + length].to_vec(), packing.records())
    }

    fn head_of(bytes: &[u8]) -> [u8; PACKED_HEAD_BYTES] {
        *bytes.first_chunk().expect("a message has a head's bytes at least")
    }

    fn unpacked(bytes: &[u8]) -> Vec<[u8; MESSAGE_BYTES]> {
        messages_in(bytes).unwrap().collect()
    }

    proptest! {
        #[test]
        fn records_come_as_they_were_packed_however_many_have_room(
            kinds in prop::collection::vec((1..=100_u8, any::<bool>()), 1..200),
            room in 2..200_usize,
        ) {
            let messages: Vec<_> = kinds.iter().map(|&(kind, is_long)| message(kind, is_long)).collect();
            let (bytes, count) = packed(&messages, room * SHORT_BYTES);
            prop_assert!(count >= 1 && bytes.len() <= room * SHORT_BYTES);
            prop_assert_eq!(unpacked(&bytes), &messages[..count]);
        }

        #[test]
        fn no_bytes_are_read_outside_a_message(
            head in any::<[u8; PACKED_HEAD_BYTES]>(),
            length in 0..20_000_u64,
            records in 0..140_u32,
            long in any::<u128>(),
            beside in 0..=2_u64,
        ) {
            let read_all = |head, length: u64| {
                let mut records = Records::of(head, length).ok()?;
                let count = records.left();
                while records.read(|at, bytes| assert!(at + bytes.len() as u64 <= length)).is_some() {}
                Some(count)
            };
            read_all(head, length);
            // A head as a writer would write it, and a length that may be wrong.
            let long = long & 1_u128.checked_shl(records).map_or(u128::MAX, |bit| bit - 1);
            let halves = 1 + u64::from(records) + u64::from(long.count_ones());
            let length = (halves + beside - 1) * SHORT_BYTES as u64;
            let mut packed = [0; PACKED_HEAD_BYTES];
            packed[0] = kind::PACKED;
            packed[4..8].copy_from_slice(&records.to_le_bytes());
            packed[8..24].copy_from_slice(&long.to_le_bytes());
            let records = records as usize;
            let is_whole = beside == 1 && (2..=RECORDS_MAX).contains(&records);
            prop_assert_eq!(read_all(packed, length), is_whole.then_some(records));
        }
    }

    #[test]
    fn one_record_travels_alone() {
        for (is_long, length) in [(false, 64), (true, 128)] {
            for room in [128, 192, 4160] {
                let (bytes, count) = packed(&[message(3, is_long)], room);
                assert_eq!((bytes.len(), count), (length, 1));
                assert_eq!(unpacked(&bytes), [message(3, is_long)]);
            }
        }
    }

    #[test]
    fn a_message_that_no_writer_makes_is_refused() {
        let (bytes, _) = packed(&[message(1, true), message(2, false), message(3, true)], 4160);
        let length = bytes.len() as u64;
        assert!(Records::of(head_of(&bytes), length).is_ok());
        for cut in [0, 64, length - 1, length - 64, length + 64] {
            assert!(Records::of(head_of(&bytes), cut).is_err(), "{cut}");
        }
        // A count, a bit of a record that is not there, and bytes without a meaning.
        for (at, value) in [(4, 0), (4, 1), (4, 4), (5, 1), (8, 13), (8, 1), (1, 1), (24, 1), (63, 1)] {
            let mut head = head_of(&bytes);
            head[at] = value;
            assert!(Records::of(head, length).is_err(), "{at}: {value}");
        }
    }
}
