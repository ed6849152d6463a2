//! The server: a cache of values by their keys, like memcached, with a limit on its bytes.
//!
//! Keys and values are small and have no pointers, so each is copied (RPCool §6.3 does the same with memcached).

use lru::LruCache;
use portcullis_rpc::channel::{Copied, Failure, Reply, ServeError, Server, ServerOptions, serve};
use portcullis_rpc::{Boxed, HeapFull, Room, Vector};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Returns the value of a key, a [`Vector`] of bytes. The answer's word is 1 if there is a value, and else 0.
pub const GET: u32 = 1;
/// Sets the value of a key.
pub const SET: u32 = 2;
/// Deletes a key. Returns 1 if the cache had it, and else 0.
pub const DELETE: u32 = 3;

/// The key or the value is too long.
pub const TOO_LONG: u32 = 1;

/// Bytes of the longest key, as in memcached.
pub const KEY_BYTES_MAX: u64 = 250;
/// Bytes of the longest value, as in memcached.
pub const VALUE_BYTES_MAX: u64 = 1 << 20;
/// Approximate bytes of an entry beside its key and its value.
const ENTRY_BYTES: u64 = 96;

/// The arguments of a call.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Entry {
    key: Vector<u8>,
    /// Empty, unless the call sets a value.
    value: Vector<u8>,
}

impl Entry {
    /// Puts a key and a value into a scope.
    ///
    /// # Errors
    /// There is no room.
    pub fn plant<R: Room>(room: &R, key: &[u8], value: &[u8]) -> Result<Boxed<Self>, HeapFull> {
        let entry = Self { key: Vector::new(room, key)?, value: Vector::new(room, value)? };
        Boxed::new(room, entry)
    }
}

/// Values by their keys. The least recently used value is removed first.
struct Cache {
    values: LruCache<Box<[u8]>, Box<[u8]>>,
    bytes: u64,
    bytes_max: u64,
}

/// Serves a cache of at most `bytes_max` bytes at a path, until the server is dropped.
///
/// # Errors
/// No socket can be made at the path, or the machine refuses.
pub fn start(path: &Path, bytes_max: u64, options: ServerOptions) -> Result<Server, ServeError> {
    let cache = Arc::new(Mutex::new(Cache { values: LruCache::unbounded(), bytes: 0, bytes_max }));
    let (getting, setting, deleting) = (Arc::clone(&cache), Arc::clone(&cache), cache);
    serve(path)
        .with(options)
        .copied(GET, move |entry, reply| lock(&getting).get(key(&entry)?, reply))
        .copied(SET, move |entry: Copied<'_, Entry>, _| {
            let value = entry.get()?.value.get(entry.view())?;
            lock(&setting).set(key(&entry)?, value)
        })
        .copied(DELETE, move |entry, reply| {
            reply.set_word(lock(&deleting).delete(key(&entry)?).into());
            Ok(())
        })
        .start()
}

/// Locks the cache. A method that panicked has made all of its changes, or none, so a poisoned lock can be used.
fn lock(cache: &Mutex<Cache>) -> MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key<'a>(entry: &Copied<'a, Entry>) -> Result<&'a [u8], Failure> {
    let key = entry.get()?.key.get(entry.view())?;
    at_most(key, KEY_BYTES_MAX)
}

fn at_most(bytes: &[u8], most: u64) -> Result<&[u8], Failure> {
    let length = bytes.len() as u64;
    if length <= most {
        Ok(bytes)
    } else {
        Err(Failure::new(TOO_LONG, format_args!("{length} bytes, and at most {most} are taken")))
    }
}

fn bytes_of(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + ENTRY_BYTES
}

impl Cache {
    fn get(&mut self, key: &[u8], reply: &mut Reply<'_>) -> Result<(), Failure> {
        let Some(value) = self.values.get(key) else { return Ok(()) };
        let scope = reply.scope((value.len().next_multiple_of(8) + size_of::<Vector<u8>>()) as u64)?;
        let root = Boxed::new(scope, Vector::new(scope, value)?)?;
        reply.set_root(root);
        reply.set_word(1);
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let value = at_most(value, VALUE_BYTES_MAX)?;
        self.bytes += bytes_of(key, value);
        if let Some(replaced) = self.values.put(key.into(), value.into()) {
            self.bytes -= bytes_of(key, &replaced);
        }
        while self.bytes > self.bytes_max {
            let Some((key, value)) = self.values.pop_lru() else { break };
            self.bytes -= bytes_of(&key, &value);
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.values.pop(key) else { return false };
        self.bytes -= bytes_of(key, &value);
        true
    }
}
