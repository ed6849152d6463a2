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

    /// What a value takes. Only values that take as much can have each other's memory.
    fn takes(&self, key_bytes: usize, value_bytes: usize) -> u64;
}
