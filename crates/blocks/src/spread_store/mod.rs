//! Stores of blocks on several nodes, for programs with threads.
//!
//! [`SpreadStore`] is the handle. Any thread may use it, and no call of `begin_…` waits.
//!
//! - A `batch` is one operation on many keys. The state machines of [`spread`](crate::spread) decide which node is to do
//!   what next, in whichever thread brings an answer. No thread coordinates.
//! - A `link` is the way to one node, and has a `worker`: a thread with a session and a [`Store`](crate::Store). A link
//!   whose node is lost refuses at once, so that a batch goes on with the next rank, and tries to reach the node again.
//! - `members` are the nodes, as the caller or the directory names them.
//! - `forwards` copies blocks to nodes that should have them, after a get has found them elsewhere.

mod batch;
mod forwards;
mod link;
mod members;
mod options;
mod status;
mod worker;

pub use batch::{Bytes, BytesMut, Found, GetEnd, Key, Listed, NodeList, PutEnd, Removed};
pub use members::SpreadError;
pub use options::{NodeSource, SpreadOptions};
pub use status::NodeStatus;

use self::batch::{Batch, Decisions, Task};
use self::forwards::Forwards;
use self::members::Members;
use crate::spread::{NodeRequest, SpreadGet, SpreadPut, SpreadRemoval};
use std::any::Any;
use std::fmt;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// A handle on the blocks of several nodes. Any thread may use it, but a function that gets the end of an operation
/// runs on a thread of the handle, so it calls no method that waits.
///
/// A put stores R copies ([`SpreadOptions::copies`]), each on another node. If it reports N copies, N − 1 of these
/// nodes may die, and the block is still found, evictions apart. A get that finds a block on a later rank than
/// another node that should have it copies the block there, in the background.
///
/// An operation on a node that is lost goes on with the next node, and so does one on which the node makes no
/// progress for the limit of the sessions ([`SessionOptions::within`](portcullis::SessionOptions::within)). So each
/// operation ends.
pub struct SpreadStore {
    members: Arc<Members>,
    forwards: Arc<Forwards>,
    copies: usize,
}

impl fmt::Debug for SpreadStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpreadStore").field("copies", &self.copies).finish_non_exhaustive()
    }
}

impl SpreadStore {
    /// Opens the stores of the nodes. Returns when each node that is known now was tried once. A node that cannot be
    /// reached is tried again in the background.
    ///
    /// # Errors
    /// No node is named, two have one name, none can be reached, or the directory is away.
    pub fn open(nodes: NodeSource, options: SpreadOptions) -> Result<Self, SpreadError> {
        let copies = options.copies.max(1);
        let members = Arc::new(Members::open(nodes, options)?);
        Ok(Self { members, forwards: Arc::default(), copies })
    }

    /// Ends the leases of look-ups and the sessions, when the operations under way have ended. The blocks stay.
    /// Operations that begin afterwards reach no node.
    pub fn close(&self) {
        self.forwards.close();
        self.members.close_and_wait();
    }

    /// Begins to store blocks. `done` gets the end of each, on any thread, and should return soon.
    ///
    /// The bytes must not change before `done` is called. A key that occurs several times is stored once.
    pub fn begin_put(&self, blocks: Vec<(Key, Bytes)>, done: impl FnOnce(Vec<PutEnd>) + Send + 'static) {
        let (nodes, way) = self.members.now();
        let decisions = SpreadPut::new(&nodes, self.copies, blocks.iter().map(|(key, _)| &**key));
        Batch::begin(Task::Put { blocks }, Decisions::Put(decisions), way, |ended| done(ended.put_ends()));
    }

    /// Begins to read blocks, each into a buffer that has its length. `done` gets the end of each, and its buffer, on
    /// any thread, and should return soon. A buffer whose block was not read has any bytes.
    pub fn begin_get(
        &self,
        wanted: Vec<(Key, Box<dyn BytesMut>)>,
        done: impl FnOnce(Vec<GetEnd>) + Send + 'static,
    ) {
        let (forwards, noted) = (Arc::clone(&self.forwards), self.forwards.note());
        let (nodes, way) = self.members.now();
        let decisions = SpreadGet::new(&nodes, self.copies, wanted.iter().map(|(key, _)| &**key));
        let task = Task::get(wanted, false);
        Batch::begin(task, Decisions::Get(decisions), way, move |ended| {
            forwards.begin(&ended, noted);
            done(ended.get_ends());
        });
    }

    /// Begins to look blocks up. `done` gets the length of each, or `None` for a key without a block, on any thread,
    /// and should return soon. The node holds each block that was found for the next read of this handle, for half of
    /// a lease: see [`Store::look_up`](crate::Store::look_up).
    pub fn begin_look_up(&self, keys: Vec<Key>, done: impl FnOnce(Vec<Found>) + Send + 'static) {
        let (nodes, way) = self.members.now();
        let decisions = SpreadGet::new(&nodes, self.copies, keys.iter().map(|key| &**key));
        Batch::begin(Task::LookUp { keys }, Decisions::Get(decisions), way, |ended| done(ended.found()));
    }

    /// Begins to remove blocks. `done` gets the number of copies of each that were removed, or the error of a node,
    /// on any thread, and should return soon. A copy on a node that is lost stays, and the same bytes may be found
    /// again.
    pub fn begin_remove(&self, keys: Vec<Key>, done: impl FnOnce(Vec<Removed>) + Send + 'static) {
        let members = Arc::clone(&self.members);
        self.forwards.remove(Box::new(move |removing| {
            let (nodes, way) = members.now();
            let decisions = Decisions::Removal(SpreadRemoval::new(&nodes, keys.len()));
            Batch::begin(Task::Remove { keys }, decisions, way, move |ended| {
                drop(removing);
                done(ended.removed());
            });
        }));
    }

    /// Stores blocks, and waits for their ends: see [`begin_put`](Self::begin_put).
    #[must_use]
    pub fn put(&self, blocks: Vec<(Key, Bytes)>) -> Vec<PutEnd> {
        waited_for(|done| self.begin_put(blocks, done))
    }

    /// Looks blocks up, and waits for the answers: see [`begin_look_up`](Self::begin_look_up).
    #[must_use]
    pub fn look_up(&self, keys: Vec<Key>) -> Vec<Found> {
        waited_for(|done| self.begin_look_up(keys, done))
    }

    /// Reads blocks of these lengths, and waits for them: see [`begin_get`](Self::begin_get). `None`: a miss.
    #[must_use]
    pub fn get(&self, wanted: Vec<(Key, usize)>) -> Vec<Option<Vec<u8>>> {
        let buffer = |(key, length): (Key, usize)| (key, Box::new(vec![0_u8; length]) as Box<dyn BytesMut>);
        let wanted = wanted.into_iter().map(buffer).collect();
        let ends: Vec<GetEnd> = waited_for(|done| self.begin_get(wanted, done));
        ends.into_iter().map(whole_of).collect()
    }

    /// Removes blocks, and waits for the ends: see [`begin_remove`](Self::begin_remove).
    pub fn remove(&self, keys: Vec<Key>) -> Vec<Removed> {
        waited_for(|done| self.begin_remove(keys, done))
    }

    /// Lists the blocks of each node, with the node's name. A length is that of the block's entry, which any program
    /// of the tenant may have written. The entry of a block whose client died while it stored the block is listed as
    /// well.
    #[must_use]
    pub fn list(&self) -> Vec<(String, NodeList)> {
        let (nodes, way) = self.members.now();
        let count = way.links.len();
        let requests = (0..count).map(|node| NodeRequest { node, places: vec![node] }).collect();
        let task = Task::List { lists: Mutex::new(vec![Vec::new(); count]) };
        let lists = waited_for(|done| {
            Batch::begin(task, Decisions::Once(requests), way, |ended| done(ended.lists()));
        });
        nodes.names().iter().cloned().zip(lists).collect()
    }

    /// Returns the names of the nodes that should have the copies of a key, be they reached or not.
    #[must_use]
    pub fn home(&self, key: &[u8]) -> Vec<String> {
        let (nodes, _) = self.members.now();
        nodes.home(key, self.copies).into_iter().map(|node| nodes.names()[node].clone()).collect()
    }

    /// Waits until no block is copied to another node in the background.
    pub fn settle(&self) {
        self.forwards.wait();
    }

    /// Returns what this handle knows of each node. Sends nothing.
    #[must_use]
    pub fn status(&self) -> Vec<NodeStatus> {
        self.members.status()
    }
}

/// Returns the bytes of a block that was read into a `Vec`.
fn whole_of(end: GetEnd) -> Option<Vec<u8>> {
    let buffer: Box<dyn Any> = end.buffer.filter(|_| end.got.is_hit())?;
    buffer.downcast::<Vec<u8>>().ok().map(|bytes| *bytes)
}

/// Begins an operation, and waits for its end.
fn waited_for<T: Send + 'static>(begin: impl FnOnce(Box<dyn FnOnce(Vec<T>) + Send>)) -> Vec<T> {
    let (sender, receiver) = channel();
    // The receiver waits until the end was sent.
    begin(Box::new(move |ends| sender.send(ends).expect("the caller waits")));
    receiver.recv().expect("each batch ends")
}
