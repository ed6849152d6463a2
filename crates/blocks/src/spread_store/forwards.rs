//! Copies of blocks to nodes that should have them and do not, in the background, after a get has found them elsewhere.
//!
//! A removal that this handle makes reaches every copy: it waits for the copies that are under way, and no copy of a
//! get that has begun before the removal has ended begins after it. Removals by other handles have no such promise.

use super::batch::{Batch, Bytes, BytesMut, Decisions, Ended, GetEnd, Key, Task};
use super::members::Way;
use crate::spread::{NodeNumber, NodeRequest};
use portcullis_planted::planted;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of blocks that are on their way to other nodes. Further blocks are copied after a later get.
const BYTES_MAX: usize = 64 << 20;

/// A removal that has not begun.
type Waiting = Box<dyn FnOnce(Removing) + Send>;

#[derive(Default)]
struct State {
    /// Number of copies under way.
    under_way: usize,
    bytes: usize,
    /// Number of removals that have begun, and of those that have ended.
    removals: u64,
    /// Number of removals under way.
    removing: usize,
    /// Removals that wait for the copies.
    waiting: Vec<Waiting>,
    /// No copy begins any more.
    is_closed: bool,
}

/// The copies of one handle.
#[derive(Default)]
pub(super) struct Forwards {
    state: Mutex<State>,
    ended: Condvar,
}

/// A removal under way. When this is dropped, it has ended.
pub(super) struct Removing(Option<Arc<Forwards>>);

/// A copy under way. When this is dropped, it has ended.
struct Copying {
    forwards: Arc<Forwards>,
    bytes: usize,
    way: Way,
}

/// A block that a node may lack.
struct Unasked {
    key: Key,
    length: usize,
    from: NodeNumber,
    to: NodeNumber,
}

impl Forwards {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of removals that have begun or ended, for a get that begins now.
    pub fn note(&self) -> u64 {
        self.state().removals
    }

    /// Begins to copy the blocks of a get to the nodes that should have them. `noted`: the number of removals when
    /// the get began.
    pub fn begin(self: &Arc<Self>, got: &Ended, noted: u64) {
        let mut unasked = Vec::new();
        for forward in got.forwards() {
            let Some((key, length)) = got.read_block(forward.place) else { continue };
            let ask = |to| Unasked { key: key.clone(), length, from: forward.from, to };
            unasked.extend(forward.unasked.into_iter().map(ask));
            if forward.to.is_empty() {
                continue;
            }
            let Some(copying) = self.begin_copy(length, noted, || got.way()) else { continue };
            if let Some(bytes) = got.copy_of(forward.place) {
                copying.store(vec![(key, bytes)], |_| forward.to.clone());
            }
        }
        if !unasked.is_empty()
            && let Some(copying) = self.begin_copy(0, noted, || got.way())
        {
            copying.ask(unasked);
        }
    }

    fn begin_copy(self: &Arc<Self>, bytes: usize, noted: u64, way: impl FnOnce() -> Way) -> Option<Copying> {
        let mut state = self.state();
        let is_removed = state.removals != noted || state.removing > 0 || !state.waiting.is_empty();
        if state.is_closed || is_removed || !state.reserve(bytes) {
            return None;
        }
        state.under_way += 1;
        drop(state);
        Some(Copying { forwards: Arc::clone(self), bytes, way: way() })
    }

    /// Begins a removal as soon as no block is being copied.
    pub fn remove(self: &Arc<Self>, removal: Waiting) {
        if planted!(ForwardedAfterRemoval) {
            return removal(Removing(None));
        }
        let mut state = self.state();
        state.removals += 1;
        if state.under_way > 0 {
            return state.waiting.push(removal);
        }
        state.removing += 1;
        drop(state);
        removal(Removing(Some(Arc::clone(self))));
    }

    /// Waits until no block is being copied.
    pub fn wait(&self) {
        let state = self.state();
        let is_busy = |state: &mut State| state.under_way > 0;
        drop(self.ended.wait_while(state, is_busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets no further copy begin, and waits for those under way. Removals that have waited for them have begun then.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.wait();
    }
}

impl State {
    /// Takes a part of the bytes. One block alone has room in any case.
    fn reserve(&mut self, bytes: usize) -> bool {
        let with_them = self.bytes.saturating_add(bytes);
        let has_room = self.bytes == 0 || with_them <= BYTES_MAX;
        if has_room {
            self.bytes = with_them;
        }
        has_room
    }
}

impl Copying {
    /// Asks nodes whether they have blocks, and copies those that they lack.
    fn ask(self, unasked: Vec<Unasked>) {
        let keys = unasked.iter().map(|block| block.key.clone()).collect();
        let requests = by_node(unasked.iter().map(|block| block.to));
        let way = self.way.clone();
        Batch::begin(Task::Contains { keys }, Decisions::Once(requests), way, move |ended| {
            let lacking = unasked.into_iter().zip(ended.lacks()).filter(|(_, lacks)| *lacks);
            self.read(lacking.map(|(block, _)| block).collect());
        });
    }

    /// Reads blocks once more, for nodes that lack them: the buffer of the get belongs to the caller again.
    fn read(mut self, mut lacking: Vec<Unasked>) {
        {
            let mut state = self.forwards.state();
            lacking.retain(|block| {
                let has_room = state.reserve(block.length);
                self.bytes += if has_room { block.length } else { 0 };
                has_room
            });
        }
        let wanted = lacking
            .iter()
            .map(|block| (block.key.clone(), Box::new(vec![0_u8; block.length]) as Box<dyn BytesMut>));
        let requests = by_node(lacking.iter().map(|block| block.from));
        let (task, way) = (Task::get(wanted.collect(), true), self.way.clone());
        Batch::begin(task, Decisions::Once(requests), way, move |ended| {
            let read = lacking.into_iter().zip(ended.get_ends());
            let read = read.filter_map(|(block, end)| Some((block.to, (block.key, bytes_of(end)?))));
            let (to, blocks): (Vec<_>, _) = read.unzip();
            self.store(blocks, |place| vec![to[place]]);
        });
    }

    /// Stores blocks on the nodes that `to` names for each place.
    fn store(self, blocks: Vec<(Key, Bytes)>, mut to: impl FnMut(usize) -> Vec<NodeNumber>) {
        let request =
            |place| to(place).into_iter().map(move |node| NodeRequest { node, places: vec![place] });
        let requests = (0..blocks.len()).flat_map(request).collect();
        let way = self.way.clone();
        Batch::begin(Task::Put { blocks }, Decisions::Once(requests), way, move |_| drop(self));
    }
}

/// Makes a request to each node, with the places that are its own.
fn by_node(nodes: impl Iterator<Item = NodeNumber>) -> Vec<NodeRequest> {
    let mut places: BTreeMap<NodeNumber, Vec<usize>> = BTreeMap::new();
    for (place, node) in nodes.enumerate() {
        places.entry(node).or_default().push(place);
    }
    places.into_iter().map(|(node, places)| NodeRequest { node, places }).collect()
}

fn bytes_of(end: GetEnd) -> Option<Bytes> {
    let buffer: Box<dyn Any> = end.buffer.filter(|_| end.got.is_hit())?;
    let bytes: Box<Vec<u8>> = buffer.downcast().ok()?;
    Some(Arc::new(*bytes))
}

impl Drop for Copying {
    fn drop(&mut self) {
        let mut state = self.forwards.state();
        state.bytes -= self.bytes;
        // The removals begin before the last copy counts as ended: a close waits for that.
        while state.under_way == 1 && !state.waiting.is_empty() {
            let waiting = std::mem::take(&mut state.waiting);
            state.removing += waiting.len();
            drop(state);
            waiting.into_iter().for_each(|removal| removal(Removing(Some(Arc::clone(&self.forwards)))));
            state = self.forwards.state();
        }
        state.under_way -= 1;
        if state.under_way == 0 {
            drop(state);
            self.forwards.ended.notify_all();
        }
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        if let Some(forwards) = &self.0 {
            let mut state = forwards.state();
            state.removing -= 1;
            state.removals += 1;
        }
    }
}
