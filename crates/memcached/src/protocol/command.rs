//! Commands of clients.

use super::dump::{Describe, DumpForm};
use super::keys::Spelling;
use super::meta::{MetaArithmetic, MetaDelete, MetaGet, MetaSet};
use super::reply::Reply;

/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 250;
/// Maximum relative time to live, in seconds. A greater number is a time of day.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// A key: 1 to 250 bytes.
pub type Key = Box<[u8]>;

/// Expiry time of an item, as the client sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expiry(pub i64);

impl Expiry {
    /// Returns the time of day in seconds at which the item expires, if the present time is `now`. `None`: the item
    /// does not expire.
    #[must_use]
    pub fn at(self, now: u32) -> Option<u32> {
        match self.0 {
            0 => None,
            // Expired already: any time in the past serves.
            time if time < 0 => Some(1),
            time if time > RELATIVE_MAX => Some(u32::try_from(time).unwrap_or(u32::MAX)),
            time => Some(u32::try_from(i64::from(now) + time).unwrap_or(u32::MAX)),
        }
    }
}

/// A value that was sent with a command. Room for a header is kept in front of it, so that the value is not copied
/// again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    /// The room, followed by the value.
    pub bytes: Vec<u8>,
    /// Length of the room in bytes.
    pub headroom: usize,
}

impl Data {
    /// The value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.headroom..]
    }
}

/// Condition and way of storing a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Store unconditionally.
    Set,
    /// Store if the key does not exist.
    Add,
    /// Store if the key exists.
    Replace,
    /// Append to the existing value.
    Append,
    /// Prepend to the existing value.
    Prepend,
    /// Store if the existing item has this unique number.
    Cas(u64),
}

/// `set`, `add`, `replace`, `append`, `prepend` and `cas`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Store {
    /// Condition and way of storing.
    pub mode: Mode,
    /// The key.
    pub key: Key,
    /// The client's flags.
    pub flags: u32,
    /// Time to live.
    pub expiry: Expiry,
    /// The value.
    pub data: Data,
    /// The client wants no answer.
    pub quiet: bool,
}

/// `get`, `gets`, `gat` and `gats`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Get {
    /// The keys, at least one.
    pub keys: Vec<Key>,
    /// The answer includes the unique numbers.
    pub with_cas: bool,
    /// The items get this time to live.
    pub touch: Option<Expiry>,
    /// These are the last keys of their line: the answer ends here.
    pub ends: bool,
}

/// Direction of a change of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Up, wrapping at 2^64.
    Up,
    /// Down, stopping at zero.
    Down,
}

/// `incr` and `decr`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arithmetic {
    /// The key.
    pub key: Key,
    /// The direction.
    pub direction: Direction,
    /// The amount.
    pub by: u64,
    /// The client wants no answer.
    pub quiet: bool,
}

/// `touch`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// The key.
    pub key: Key,
    /// The new time to live.
    pub expiry: Expiry,
    /// The client wants no answer.
    pub quiet: bool,
}

/// Subject of `stats`.
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
    /// A subject for which this gateway has no statistics.
    Nothing,
}

/// A request about keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// `get` and similar commands.
    Get(Get),
    /// `set` and similar commands.
    Store(Store),
    /// `incr` and `decr`.
    Arithmetic(Arithmetic),
    /// `delete`.
    Delete {
        /// The key.
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
        /// The key.
        key: Key,
        /// Spelling of the key in the answer.
        spelling: Spelling,
    },
    /// A part of a dump.
    Describe(Describe),
    /// Discards a key, because a value for it was too large: the existing value is out of date.
    Discard(Key),
}

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// A request about keys.
    Request(Request),
    /// A command whose answer is known already: the line was wrong, or requests nothing from the cache.
    Say(Reply),
    /// `flush_all`.
    Flush {
        /// Delay of the flush.
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
    /// Returns the key of the request. `None`: the request may have several keys.
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

    /// Whether the client reads no answer, whatever the result is: the client would take an answer for that of its next
    /// command.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        match self {
            Self::Store(it) => it.quiet,
            Self::Arithmetic(it) => it.quiet,
            Self::Touch(it) => it.quiet,
            Self::Delete { quiet, .. } => *quiet,
            // The answer belongs to the store command that this request is a part of.
            Self::Discard(_) => true,
            // Quiet meta commands omit only the answers of successful requests.
            _ => false,
        }
    }

    /// Whether the client reads no answer if the request succeeds.
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

    /// Returns the keys of a request that may have several.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        match self {
            Self::Get(get) => &get.keys,
            Self::Describe(describe) => &describe.keys,
            _ => &[],
        }
    }

    /// Splits a request that may have several keys, before the key with this number. The first part of the answer is
    /// then followed by further parts. Returns `None` if there are no more keys.
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
