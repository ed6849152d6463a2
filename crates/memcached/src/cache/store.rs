//! Where a cache keeps its items.

use portcullis::Lifetime;
use portcullis_structures::table::{Condition, Stored};

/// Why a store did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// There is no memory for more.
    NoRoom,
    /// Too much was asked for at once: alone it may succeed.
    Crowded,
    /// It failed otherwise: why, in words for the client.
    Failed(String),
}

/// Keys and values, with times to live. Each operation is linearizable by itself.
pub trait Store {
    /// The value of a key.
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// The values of several keys.
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Stores a value, which goes by itself after `live`.
    async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
        live: Option<Lifetime>,
    ) -> Result<Stored, StoreError>;

    /// Removes a key. Returns the value that it had then.
    async fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Removes a key. Returns whether it was there.
    async fn remove(&self, key: &[u8]) -> Result<bool, StoreError>;

    /// Removes a key and what lies beside it, so that its memory is of use to values of any size. Each key is handed to
    /// `removed`. Returns the bytes that are free now.
    async fn vacate(&self, key: &[u8], removed: impl FnMut(&[u8])) -> Result<u64, StoreError>;

    /// Waits until something has happened in the store, or an operation of this thread wakes those that wait.
    ///
    /// Fails at once where nothing can happen any more.
    async fn anything(&self) -> Result<(), StoreError>;

    /// Wakes the operations of this thread that wait.
    fn wake_waiting(&self);

    /// What a value takes.
    fn takes(&self, key_bytes: usize, value_bytes: usize) -> Takes;
}

/// What a value takes of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Takes {
    /// Its size: the memory of a removed value goes to values of the same size at once.
    pub size: u64,
    /// Bytes in all.
    pub bytes: u64,
}
