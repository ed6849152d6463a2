//! The record of a chunk: a place in the free list, an owner, and images of requests.
//!
//! Chains copy the images into queues, so the record decides what is executed. Record 0 stands for «no chunk» (NIL).
//! NIL points to itself, and its images do nothing. So a chain needs no branch for an empty list.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..8 | next: the offset of the next free record |
//! | 8..16 | owner |
//! | 16..24 | status, as in replies |
//! | 24..32 | number of times that the chunk was freed, plus one. The low byte is the low byte of the chunk's keys |
//! | 32.. | a BIND_MW for each queue pair of a group |
//! | then | a LOCAL_INV for each queue pair of a group |
//! | then | a WRITE of zeros |
//! | then | the first words of the READ and the WRITE that push the record |
//! | then | number of requests for chunks that its allocation gives back to the client, and number that its free gives back |
//!
//! A client names a record by the number of its first 256-byte line, and can name any line. Bytes 8..16 of a line can
//! then be executed, as the first word of a request. So no image lies there. Where no record begins these bytes are
//! zero, which is a NOP.

use portcullis_nic::entry;

/// The record of no chunk.
pub const NIL: u64 = 0;
/// Number of bytes of a line, the unit of handles.
pub const LINE_BYTES: u64 = 256;
/// Number of lines. Handles have 16 bits, and the table has every line that they can name.
pub const LINES: u64 = 1 << 16;
/// Bytes of the table.
pub const TABLE_BYTES: u64 = LINES * LINE_BYTES;

/// Offset of the next record's offset in a record.
pub const NEXT_AT: u64 = 0;
/// Offset of the owner in a record.
pub const OWNER_AT: u64 = 8;
/// Offset of the status in a record. The bytes from here on are written back into the table when a chunk is freed.
pub const STATUS_AT: u64 = 16;
/// Offset of the number of uses in a record.
pub const KEY_WORD_AT: u64 = 24;
/// Offset of the byte of that word which is the low byte of the chunk's keys.
pub const KEY_AT: u64 = KEY_WORD_AT;
/// Added to the word for the next key.
pub const NEXT_KEY: u64 = 1;
const IMAGES_AT: u64 = 32;
const PUSH_BYTES: u64 = 16;
const CREDIT_BYTES: u64 = 8;

/// The status of a record of a chunk.
pub const STATUS_CHUNK: u64 = 0;
/// The status of NIL: no chunk is free, or the client does not hold the chunk to be freed.
pub const STATUS_NONE: u64 = 1;

/// Offsets of a record's images, for groups of `GROUP` queue pairs.
#[derive(Debug)]
pub struct Layout<const GROUP: usize>;

/// Returns the first offset from `from` on at which `bytes` bytes do not lie over bytes 8..16 of any line behind the
/// first.
const fn place(from: u64, bytes: u64) -> u64 {
    let mut at = from;
    let mut line = LINE_BYTES;
    while line < at + bytes {
        if at < line + 16 && line + 8 < at + bytes {
            at = line + 16;
        }
        line += LINE_BYTES;
    }
    at
}

/// Chooses places for one image after another. Returns them, and the end of the last.
const fn places<const GROUP: usize>(from: u64, bytes: u64) -> ([u64; GROUP], u64) {
    let mut places = [0; GROUP];
    let (mut at, mut number) = (from, 0);
    while number < GROUP {
        places[number] = place(at, bytes);
        at = places[number] + bytes;
        number += 1;
    }
    (places, at)
}

impl<const GROUP: usize> Layout<GROUP> {
    const BINDS: ([u64; GROUP], u64) = places(IMAGES_AT, entry::BIND_BYTES);
    const INVALIDATIONS: ([u64; GROUP], u64) = places(Self::BINDS.1, entry::INVALIDATE_BYTES);
    /// Offsets of the binds.
    pub const BIND_AT: [u64; GROUP] = Self::BINDS.0;
    /// The end of the last bind: a reply ends there.
    pub const BINDS_END: u64 = Self::BINDS.1;
    /// Offsets of the invalidations.
    pub const INVALIDATE_AT: [u64; GROUP] = Self::INVALIDATIONS.0;
    /// Offset of the WRITE of zeros.
    pub const ZERO_AT: u64 = place(Self::INVALIDATIONS.1, entry::TRANSFER_BYTES);
    /// Offset of the first words of the two requests that push the record.
    pub const PUSH_AT: u64 = place(Self::ZERO_AT + entry::TRANSFER_BYTES, PUSH_BYTES);
    /// Offset of the number of requests for chunks that a client has back at once when it gets this record: one for
    /// NIL, otherwise none.
    pub const ALLOC_CREDIT_AT: u64 = place(Self::PUSH_AT + PUSH_BYTES, CREDIT_BYTES);
    /// Offset of the number of requests for chunks that a client has back when it has freed this record: one, but none
    /// for NIL.
    pub const FREE_CREDIT_AT: u64 = place(Self::ALLOC_CREDIT_AT + CREDIT_BYTES, CREDIT_BYTES);
    /// Bytes of a record.
    pub const BYTES: u64 = (Self::FREE_CREDIT_AT + CREDIT_BYTES).next_multiple_of(LINE_BYTES);
    /// The most chunks for which a table has records, besides NIL.
    pub const CHUNKS_MAX: u64 = TABLE_BYTES / Self::BYTES - 1;

    /// Returns the offset of a chunk's record. Chunks are numbered from zero.
    #[must_use]
    pub const fn record_of(chunk: u64) -> u64 {
        (chunk + 1) * Self::BYTES
    }

    /// Returns the chunk whose record is at an offset. `None`: no chunk's record begins there.
    #[must_use]
    pub const fn chunk_of(at: u64) -> Option<u64> {
        if at.is_multiple_of(Self::BYTES) { (at / Self::BYTES).checked_sub(1) } else { None }
    }
}

/// Returns whether no image of a layout lies over bytes 8..16 of a line.
const fn is_sound<const GROUP: usize>() -> bool {
    let mut sound = Layout::<GROUP>::FREE_CREDIT_AT + CREDIT_BYTES <= Layout::<GROUP>::BYTES;
    let mut line = LINE_BYTES;
    while line < Layout::<GROUP>::BYTES {
        let mut number = 0;
        while number < GROUP {
            let bind = Layout::<GROUP>::BIND_AT[number];
            let invalidation = Layout::<GROUP>::INVALIDATE_AT[number];
            sound = sound && is_clear(bind, entry::BIND_BYTES, line);
            sound = sound && is_clear(invalidation, entry::INVALIDATE_BYTES, line);
            number += 1;
        }
        sound = sound && is_clear(Layout::<GROUP>::ZERO_AT, entry::TRANSFER_BYTES, line);
        sound = sound && is_clear(Layout::<GROUP>::PUSH_AT, PUSH_BYTES, line);
        sound = sound && is_clear(Layout::<GROUP>::ALLOC_CREDIT_AT, CREDIT_BYTES, line);
        sound = sound && is_clear(Layout::<GROUP>::FREE_CREDIT_AT, CREDIT_BYTES, line);
        line += LINE_BYTES;
    }
    sound
}

const fn is_clear(at: u64, bytes: u64, line: u64) -> bool {
    at + bytes <= line + 8 || line + 16 <= at
}

const _: () = assert!(is_sound::<1>() && is_sound::<2>() && is_sound::<4>() && is_sound::<8>());
const _: () = assert!(Layout::<1>::BYTES == 256 && Layout::<4>::BYTES == 512 && Layout::<8>::BYTES == 768);

/// Number of a client of a pool, as chains use it. No two clients of a pool have had the same number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientNumber(u64);

const OWNER_SHIFT: u32 = 16;
const FREED: u64 = 1 << 63;

impl ClientNumber {
    /// The largest number.
    pub const MAX: Self = Self((1 << 40) - 1);

    /// Returns a client's number. Zero is no client's number.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        (1..=Self::MAX.0).contains(&number).then_some(Self(number))
    }

    /// Returns the owner word of a chunk that the client holds. As the first word of a request, an owner word is a NOP.
    #[must_use]
    pub const fn holds(self) -> u64 {
        self.0 << OWNER_SHIFT
    }

    /// Returns the number as an integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the client that holds a chunk with this owner word.
    #[must_use]
    pub const fn of_holder(word: u64) -> Option<Self> {
        if word & FREED == 0 && word != 0 { Some(Self(word >> OWNER_SHIFT)) } else { None }
    }

    /// Returns the client that has freed a chunk with this owner word, if it was freed.
    #[must_use]
    pub(crate) const fn freed_by(owner: u64) -> Option<Self> {
        if owner & FREED == 0 { None } else { Self::of_holder(owner & !FREED) }
    }

    /// Returns the owner word of a chunk that the client has freed.
    #[must_use]
    pub const fn freed(self) -> u64 {
        self.holds() | FREED
    }
}

const _: () = assert!(ClientNumber::MAX.freed() & 0xffff == 0 && ClientNumber::MAX.holds() & FREED == 0);
