//! What clients ask for.

use super::dump::{Describe, DumpForm};
use super::keys::Spelling;
use super::meta::{MetaArithmetic, MetaDelete, MetaGet, MetaSet};
use super::reply::Reply;

/// The most bytes of a key.
pub const KEY_BYTES_MAX: usize = 250;
/// Relative times to live end here: what is greater is a time of day.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// A key: 1 to 250 bytes.
pub type Key = Box<[u8]>;

/// When an item goes, as the client said it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expiry(pub i64);

impl Expiry {
    /// The time of day in seconds at which the item goes, where it is `now`. `None`: it stays.
    #[must_use]
    pub fn at(self, now: u32) -> Option<u32> {
        match self.0 {
            0 => None,
            // Gone already: any time that is over will do.
            time if time < 0 => Some(1),
            time if time > RELATIVE_MAX => Some(u32::try_from(time).unwrap_or(u32::MAX)),
            time => Some(u32::try_from(i64::from(now) + time).unwrap_or(u32::MAX)),
        }
    }
}

/// A value that came with a command. Room for a header is kept in front of it, so that it is not copied again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    /// The room, and the value.
    pub bytes: Vec<u8>,
    /// Bytes of the room.
    pub headroom: usize,
}

impl Data {
    /// The value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.headroom..]
    }
}

/// When and how a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Whatever is there.
    Set,
    /// If the key is not there.
    Add,
    /// If the key is there.
    Replace,
    /// Behind the value that is there.
    Append,
    /// In front of the value that is there.
    Prepend,
    /// If the item that is there has this unique number.
    Cas(u64),
}

/// `set`, `add`, `replace`, `append`, `prepend` and `cas`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Store {
    /// When and how.
    pub mode: Mode,
    /// Where.
    pub key: Key,
    /// The client's flags.
    pub flags: u32,
    /// For how long.
    pub expiry: Expiry,
    /// What.
    pub data: Data,
    /// The client wants no answer.
    pub quiet: bool,
}

/// `get`, `gets`, `gat` and `gats`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Get {
    /// Which keys. Never none.
    pub keys: Vec<Key>,
    /// The answer has the unique numbers too.
    pub with_cas: bool,
    /// The items get this time to live.
    pub touch: Option<Expiry>,
    /// These are the last keys of their line: the answer ends here.
    pub ends: bool,
}

/// Which way a number goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Up, and round at 2^64.
    Up,
    /// Down, and no further than zero.
    Down,
}

/// `incr` and `decr`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arithmetic {
    /// Which key.
    pub key: Key,
    /// Which way.
    pub direction: Direction,
    /// By how much.
    pub by: u64,
    /// The client wants no answer.
    pub quiet: bool,
}

/// `touch`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Which key.
    pub key: Key,
    /// For how long.
    pub expiry: Expiry,
    /// The client wants no answer.
    pub quiet: bool,
}

/// What `stats` is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Statistics {
    /// All counters.
    General,
    /// The settings.
    Settings,
    /// Set the counters back to zero.
    Reset,
    /// Items by their classes.
    Items,
    /// Memory by the classes of items.
    Slabs,
    /// Counts of items by their sizes, which this gateway does not keep.
    Sizes,
    /// What this gateway has nothing to say about.
    Nothing,
}

/// What is about keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// `get` and its like.
    Get(Get),
    /// `set` and its like.
    Store(Store),
    /// `incr` and `decr`.
    Arithmetic(Arithmetic),
    /// `delete`.
    Delete {
        /// Which key.
        key: Key,
        /// The client wants no answer.
        quiet: bool,
    },
    /// `touch`.
    Touch(Touch),
    /// `mg`.
    MetaGet(MetaGet),
    /// `ms`.
    MetaSet(MetaSet),
    /// `md`.
    MetaDelete(MetaDelete),
    /// `ma`.
    MetaArithmetic(MetaArithmetic),
    /// `me`.
    MetaDebug {
        /// Which key.
        key: Key,
        /// How the answer writes it.
        spelling: Spelling,
    },
    /// A part of a dump.
    Describe(Describe),
    /// A value for this key was too large: what is there is out of date, so it goes.
    Discard(Key),
}

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// About keys.
    Request(Request),
    /// The answer is known already: the line was wrong, or asks for nothing of the cache.
    Say(Reply),
    /// `flush_all`.
    Flush {
        /// In so many seconds.
        delay: Expiry,
        /// The client wants no answer.
        quiet: bool,
    },
    /// `stats`.
    Statistics(Statistics),
    /// `lru_crawler metadump` and `lru_crawler mgdump`.
    Dump(DumpForm),
    /// End the connection.
    Quit,
}

impl Request {
    /// The key that the request is about. `None`: it may be about several.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        Some(match self {
            Self::Get(_) | Self::Describe(_) => return None,
            Self::Store(it) => &it.key,
            Self::Arithmetic(it) => &it.key,
            Self::Touch(it) => &it.key,
            Self::MetaGet(it) => &it.key,
            Self::MetaSet(it) => &it.key,
            Self::MetaDelete(it) => &it.key,
            Self::MetaArithmetic(it) => &it.key,
            Self::Delete { key, .. } | Self::MetaDebug { key, .. } | Self::Discard(key) => key,
        })
    }

    /// Whether the client reads no answer, whatever comes of it: it would take one for the answer to its next command.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        match self {
            Self::Store(it) => it.quiet,
            Self::Arithmetic(it) => it.quiet,
            Self::Touch(it) => it.quiet,
            Self::Delete { quiet, .. } => *quiet,
            // The store that it belongs to has its answer.
            Self::Discard(_) => true,
            // Quiet meta commands leave out what went well.
            _ => false,
        }
    }

    /// Whether the client reads no answer where all goes well.
    #[must_use]
    pub fn is_quiet_if_well(&self) -> bool {
        match self {
            Self::MetaGet(it) => it.common.quiet,
            Self::MetaSet(it) => it.common.quiet,
            Self::MetaDelete(it) => it.common.quiet,
            Self::MetaArithmetic(it) => it.common.quiet,
            _ => self.is_quiet(),
        }
    }

    /// The keys of a request that may be about several.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        match self {
            Self::Get(get) => &get.keys,
            Self::Describe(describe) => &describe.keys,
            _ => &[],
        }
    }

    /// Cuts a request that may be about several keys in two, before the key with this number. Further parts of the same answer
    /// then follow the first one. `None`: it has no more keys.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Option<Self> {
        if at >= self.keys().len() {
            return None;
        }
        match self {
            Self::Get(get) => {
                let (keys, ends) = (get.keys.split_off(at), std::mem::replace(&mut get.ends, false));
                Some(Self::Get(Get { keys, with_cas: get.with_cas, touch: get.touch, ends }))
            }
            Self::Describe(describe) => {
                let (keys, ends) =
                    (describe.keys.split_off(at), std::mem::replace(&mut describe.ends, false));
                Some(Self::Describe(Describe { keys, form: describe.form, ends }))
            }
            _ => None,
        }
    }

    /// Whether further parts of the same answer follow.
    #[must_use]
    pub fn is_part(&self) -> bool {
        match self {
            Self::Get(get) => !get.ends,
            Self::Describe(describe) => !describe.ends,
            _ => false,
        }
    }

    /// Whether the request can change nothing.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        match self {
            Self::Get(get) => get.touch.is_none(),
            Self::MetaGet(get) => get.only_reads(),
            Self::MetaDebug { .. } | Self::Describe(_) => true,
            _ => false,
        }
    }
}
