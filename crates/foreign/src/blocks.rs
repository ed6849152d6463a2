//! A store of blocks on several nodes, as another language uses it: operations that are begun, and ends that are taken.

use crate::Misuse;
use portcullis_blocks::Got;
use portcullis_blocks::spread_store::{
    Bytes, BytesMut, Found, Key, NodeList, NodeSource, NodeStatus, PutEnd, Removed, SpreadError,
    SpreadOptions, SpreadStore,
};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Memory of a caller in another language.
///
/// A store reads or writes these bytes on its own threads, from the begin of an operation until its end.
#[derive(Debug)]
pub struct LentBytes {
    address: *mut u8,
    length: usize,
}

// SAFETY: `LentBytes::new` requires that any thread may use the bytes.
unsafe impl Send for LentBytes {}
// SAFETY: a shared reference only reads the bytes, and `LentBytes::new` requires that no other thread writes them.
unsafe impl Sync for LentBytes {}

impl LentBytes {
    /// Makes a reference to a caller's memory.
    ///
    /// # Safety
    /// Until the operation for which this is made has ended, the `length` bytes from `address` on stay where they
    /// are, any thread may use them, and no other part of the program writes them. For a read into them, nothing else
    /// may use them either. `address` is not null, also for no bytes.
    #[must_use]
    pub unsafe fn new(address: *mut u8, length: usize) -> Self {
        Self { address, length }
    }
}

impl AsRef<[u8]> for LentBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: see `LentBytes::new`. A store uses the bytes during the operation only.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

impl AsMut<[u8]> for LentBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: see `LentBytes::new`. A store uses the bytes during the operation only.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.length) }
    }
}

/// The end of an operation on blocks.
#[derive(Debug)]
pub enum BlocksEnd {
    /// Of a put.
    Put(Vec<PutEnd>),
    /// Of a get.
    Got(Vec<Got>),
    /// Of a look-up.
    Found(Vec<Found>),
    /// Of a removal.
    Removed(Vec<Removed>),
}

/// The operations whose ends no call has taken.
struct Ends {
    /// The end of each operation. `None`: it is under way.
    operations: Mutex<HashMap<u64, Option<BlocksEnd>>>,
    arrived: Condvar,
    bell: OwnedFd,
}

impl Ends {
    fn operations(&self) -> MutexGuard<'_, HashMap<u64, Option<BlocksEnd>>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, number: u64, end: BlocksEnd) {
        self.operations().insert(number, Some(end));
        self.arrived.notify_all();
        // The write fails if no call has taken billions of ends: then the descriptor is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// A store of blocks on several nodes. Operations are begun, and their ends are taken by number. Any thread may use it.
pub struct Blocks {
    store: SpreadStore,
    ends: Arc<Ends>,
    next: AtomicU64,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Blocks {
    /// Opens the stores of the nodes.
    ///
    /// # Errors
    /// As [`SpreadStore::open`], or the machine refuses a descriptor.
    pub fn open(nodes: NodeSource, options: SpreadOptions) -> Result<Self, SpreadError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let ends = Ends { operations: Mutex::default(), arrived: Condvar::new(), bell };
        let store = SpreadStore::open(nodes, options)?;
        Ok(Self { store, ends: Arc::new(ends), next: AtomicU64::new(0) })
    }

    /// Returns the number of a new operation, and the function that notes its end.
    fn number<T>(&self, end: fn(T) -> BlocksEnd) -> (u64, impl FnOnce(T) + Send + 'static)
    where
        T: 'static,
    {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.ends.operations().insert(number, None);
        let ends = Arc::clone(&self.ends);
        (number, move |done| ends.add(number, end(done)))
    }

    /// Begins to store blocks. Returns the number of the operation.
    pub fn begin_put(&self, blocks: Vec<(Key, Bytes)>) -> u64 {
        let (number, done) = self.number(BlocksEnd::Put);
        self.store.begin_put(blocks, done);
        number
    }

    /// Begins to read blocks. Returns the number of the operation.
    pub fn begin_get(&self, wanted: Vec<(Key, Box<dyn BytesMut>)>) -> u64 {
        let (number, done) = self.number(BlocksEnd::Got);
        self.store.begin_get(wanted, |ends| done(ends.into_iter().map(|end| end.got).collect()));
        number
    }

    /// Begins to look blocks up. Returns the number of the operation.
    pub fn begin_look_up(&self, keys: Vec<Key>) -> u64 {
        let (number, done) = self.number(BlocksEnd::Found);
        self.store.begin_look_up(keys, done);
        number
    }

    /// Begins to remove blocks. Returns the number of the operation.
    pub fn begin_remove(&self, keys: Vec<Key>) -> u64 {
        let (number, done) = self.number(BlocksEnd::Removed);
        self.store.begin_remove(keys, done);
        number
    }

    /// Takes the end of an operation, and waits for it for at most this time. `None`: it has not ended yet.
    ///
    /// # Errors
    /// No operation has this number, or its end was taken.
    pub fn wait(&self, number: u64, at_most: Duration) -> Result<Option<BlocksEnd>, Misuse> {
        let is_under_way = |operations: &mut HashMap<u64, Option<BlocksEnd>>| {
            operations.get(&number).is_some_and(Option::is_none)
        };
        let waited = self.ends.arrived.wait_timeout_while(self.ends.operations(), at_most, is_under_way);
        let (mut operations, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match operations.get(&number) {
            None => {
                let wrong = "names no operation: its end was taken before, or it never began";
                Err(Misuse::Argument { argument: "the number", wrong })
            }
            Some(None) => Ok(None),
            Some(Some(_)) => Ok(operations.remove(&number).flatten()),
        }
    }

    /// Takes the ends of those of the operations that have ended. The descriptor is not readable then, until another
    /// operation ends.
    #[must_use]
    pub fn take(&self, numbers: &[u64]) -> Vec<(u64, BlocksEnd)> {
        let _ = rustix::io::read(&self.ends.bell, &mut [0_u8; 8]);
        let mut operations = self.ends.operations();
        let end = |number: &u64| match operations.get(number) {
            Some(Some(_)) => Some((*number, operations.remove(number).flatten()?)),
            _ => None,
        };
        numbers.iter().filter_map(end).collect()
    }

    /// Returns the descriptor that is readable when an operation has ended since [`Blocks::take`] was called last.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.ends.bell.as_fd()
    }

    /// Returns what this handle knows of each node.
    #[must_use]
    pub fn status(&self) -> Vec<NodeStatus> {
        self.store.status()
    }

    /// Lists the blocks of each node, with the node's name.
    #[must_use]
    pub fn list(&self) -> Vec<(String, NodeList)> {
        self.store.list()
    }

    /// Waits until no block is copied to another node in the background.
    pub fn settle(&self) {
        self.store.settle();
    }

    /// Ends the store, when all operations have ended. Operations that begin afterwards reach no node.
    pub fn close(&self) {
        self.store.close();
    }
}
