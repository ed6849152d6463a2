//! The record of a chunk: a place in the free list, an owner, and images of requests.
//!
//! Chains copy the images into queues, so the record decides what is executed. Record 0 stands for «no chunk» (NIL). It
//! points to itself, and its images do nothing. So a chain needs no branch on an empty list.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | next: the offset of the next free record |
//! | 8..16 | owner |
//! | 16..24 | status, as replies say it |
//! | 24..32 | how often the chunk was freed, and one more. The low byte is the low byte of its keys |
//! | 32.. | a BIND_MW for each queue pair of a group; then LOCAL_INVs; a WRITE of zeros; the first words of the READ and the WRITE that push the record; how many requests for chunks its allocation gives back to the client, and how many its return |
//!
//! A client names a record by the number of its first 256-byte line, and can name any line. What stands in bytes 8..16 of
//! a line can then be executed, as the first word of a request. So no image lies there, and where no record begins these
//! bytes are zero, which is a NOP.

use portcullis_nic::entry;

/// The record of no chunk.
pub const NIL: u64 = 0;
/// Bytes that a handle counts.
pub const LINE_BYTES: u64 = 256;
/// Handles have 16 bits. The table has all lines that they can name.
pub const LINES: u64 = 1 << 16;
/// Bytes of the table.
pub const TABLE_BYTES: u64 = LINES * LINE_BYTES;

/// Where in a record the next one is named.
pub const NEXT_AT: u64 = 0;
/// Where in a record its owner is.
pub const OWNER_AT: u64 = 8;
/// Where in a record its status is. What follows goes back into the table when a chunk is freed.
pub const STATUS_AT: u64 = 16;
/// Where in a record the number of its uses is.
pub const KEY_WORD_AT: u64 = 24;
/// The byte of that word which is the low byte of its keys.
pub const KEY_AT: u64 = KEY_WORD_AT;
/// What is added to the word for the next key.
pub const NEXT_KEY: u64 = 1;
const IMAGES_AT: u64 = 32;
const PUSH_BYTES: u64 = 16;
const CREDIT_BYTES: u64 = 8;

/// The status of a record of a chunk.
pub const STATUS_CHUNK: u64 = 0;
/// The status of NIL: no chunk is free, or it was not the client's.
pub const STATUS_NONE: u64 = 1;

/// Where the images of a record lie, for groups of `GROUP` queue pairs.
#[derive(Debug)]
pub struct Layout<const GROUP: usize>;

/// The first offset from `from` on at which `bytes` lie over bytes 8..16 of no line behind the first.
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

/// Places for one image after another. Returns them, and the end of the last.
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
    /// Where the binds are.
    pub const BIND_AT: [u64; GROUP] = Self::BINDS.0;
    /// The end of the last bind: a reply ends there.
    pub const BINDS_END: u64 = Self::BINDS.1;
    /// Where the invalidations are.
    pub const INVALIDATE_AT: [u64; GROUP] = Self::INVALIDATIONS.0;
    /// Where the WRITE of zeros is.
    pub const ZERO_AT: u64 = place(Self::INVALIDATIONS.1, entry::TRANSFER_BYTES);
    /// Where the first words of the two requests are that push the record.
    pub const PUSH_AT: u64 = place(Self::ZERO_AT + entry::TRANSFER_BYTES, PUSH_BYTES);
    /// Where it says how many requests for chunks a client has back at once that was given this record: one of NIL.
    pub const ALLOC_CREDIT_AT: u64 = place(Self::PUSH_AT + PUSH_BYTES, CREDIT_BYTES);
    /// Where it says how many a client has back that has freed it: one, but none of NIL.
    pub const FREE_CREDIT_AT: u64 = place(Self::ALLOC_CREDIT_AT + CREDIT_BYTES, CREDIT_BYTES);
    /// Bytes of a record.
    pub const BYTES: u64 = (Self::FREE_CREDIT_AT + CREDIT_BYTES).next_multiple_of(LINE_BYTES);
    /// The most chunks that a table has records for, NIL beside them.
    pub const CHUNKS_MAX: u64 = TABLE_BYTES / Self::BYTES - 1;

    /// The offset of a chunk's record. Chunks are numbered from zero.
    #[must_use]
    pub const fn record_of(chunk: u64) -> u64 {
        (chunk + 1) * Self::BYTES
    }

    /// The chunk whose record is at an offset. `None`: no chunk's record begins there.
    #[must_use]
    pub const fn chunk_of(at: u64) -> Option<u64> {
        if at.is_multiple_of(Self::BYTES) { (at / Self::BYTES).checked_sub(1) } else { None }
    }
}

/// Whether no image of a layout lies over bytes 8..16 of a line.
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

/// A client of a pool, as chains know it. No two clients of a pool have had the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientNumber(u64);

const OWNER_SHIFT: u32 = 16;
const FREED: u64 = 1 << 63;

impl ClientNumber {
    /// The largest.
    pub const MAX: Self = Self((1 << 40) - 1);

    /// A client's number. Zero is nobody's.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        (1..=Self::MAX.0).contains(&number).then_some(Self(number))
    }

    /// The owner word of a chunk that the client holds. As the first word of a request, an owner word is a NOP.
    #[must_use]
    pub const fn holds(self) -> u64 {
        self.0 << OWNER_SHIFT
    }

    /// The number, as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Who holds a chunk with this owner word.
    #[must_use]
    pub const fn of_holder(word: u64) -> Option<Self> {
        if word & FREED == 0 && word != 0 { Some(Self(word >> OWNER_SHIFT)) } else { None }
    }

    /// Who has freed a chunk with this owner word, if it was freed.
    #[must_use]
    pub(crate) const fn freed_by(owner: u64) -> Option<Self> {
        if owner & FREED == 0 { None } else { Self::of_holder(owner & !FREED) }
    }

    /// The owner word of a chunk that the client has freed.
    #[must_use]
    pub const fn freed(self) -> u64 {
        self.holds() | FREED
    }
}

const _: () = assert!(ClientNumber::MAX.freed() & 0xffff == 0 && ClientNumber::MAX.holds() & FREED == 0);
