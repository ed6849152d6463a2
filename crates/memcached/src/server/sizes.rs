//! Estimates of the thread's memory that the items of requests take, as far as it is known before they are read.

use crate::age::Age;
use crate::protocol::{Key, Mode, Request};

/// If no item can be larger than this, each counts as much: a round has room for as many keys as it takes.
const SMALL_ITEM_BYTES: u64 = 1 << 20;

/// See the module's documentation.
pub struct Sizes<'c> {
    age: &'c Age,
    item_bytes_max: u64,
}

impl<'c> Sizes<'c> {
    pub fn new(age: &'c Age, item_bytes_max: u64) -> Self {
        Self { age, item_bytes_max }
    }

    /// Bytes of the item with this key. An item that this gateway does not know counts with the maximum size.
    pub fn of_key(&self, key: &Key) -> u64 {
        if self.item_bytes_max <= SMALL_ITEM_BYTES {
            return self.item_bytes_max;
        }
        self.age.bytes_of(key).unwrap_or(self.item_bytes_max)
    }

    /// Bytes of the items of a request that has one key at most.
    pub fn of_request(&self, request: &Request) -> u64 {
        match request {
            // The existing item is not read.
            Request::Store(it) if it.mode == Mode::Set => it.data.bytes.len() as u64,
            Request::MetaSet(it) if it.mode == Mode::Set && it.cas.is_none() && !it.invalidate => {
                it.data.bytes.len() as u64
            }
            request => request.key().map_or(0, |key| self.of_key(key)),
        }
    }
}
