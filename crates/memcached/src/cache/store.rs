//! Interface of the storage of a cache's items.

use portcullis::Lifetime;
use portcullis_structures::table::{Condition, Stored};

/// Reason for which a store operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// There is no more memory.
    NoRoom,
    /// Too much was requested at once: alone the operation may succeed.
    Crowded,
    /// Any other failure, with the reason in words for the client.
    Failed(String),
}

/// Keys and values, with times to live. Each operation is linearizable by itself.
pub trait Store {
    /// Returns the value of a key.
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns the values of several keys.
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Stores a value, which expires after `live`.
    async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
        live: Option<Lifetime>,
    ) -> Result<Stored, StoreError>;

    /// Removes a key. Returns the removed value.
    async fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Removes a key. Returns whether it existed.
    async fn remove(&self, key: &[u8]) -> Result<bool, StoreError>;

    /// Removes a key and the values beside it, so that its memory becomes available for values of any size. Passes each
    /// removed key to `removed`. Returns the bytes that are free now.
    async fn vacate(&self, key: &[u8], removed: impl FnMut(&[u8])) -> Result<u64, StoreError>;

    /// Waits until an event in the store, or until an operation of this thread wakes the waiting operations.
    ///
    /// Fails at once if no event can happen any more.
    async fn anything(&self) -> Result<(), StoreError>;

    /// Wakes the operations of this thread that wait.
    fn wake_waiting(&self);

    /// Returns the memory that a value takes.
    fn takes(&self, key_bytes: usize, value_bytes: usize) -> Takes;
}

/// Memory that a value takes in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Takes {
    /// Size class of the value: the memory of a removed value is available at once for values of the same size.
    pub size: u64,
    /// Total bytes.
    pub bytes: u64,
}
