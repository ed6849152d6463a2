//! The heap of all clients of a channel, from which a server's end can also take arguments.

use super::copies::Copies;
use super::words::RequestLine;
use crate::heap::Heap;
use portcullis_memory::{MappingError, PrivateView};
use portcullis_planted::planted;

/// A heap that all clients of a channel have, with the copies of one thread of the server.
#[derive(Debug)]
pub struct ShardHeap {
    heap: Heap,
    copies: Copies,
}

impl ShardHeap {
    /// Makes the copies of one thread in `view`. `None`: in addresses of its own, since only one thread can have the
    /// heap's.
    pub fn new(heap: &Heap, view: Option<PrivateView>) -> Result<Self, MappingError> {
        let view = view.map_or_else(|| PrivateView::anywhere(heap.place().length), Ok)?;
        Ok(Self { heap: heap.clone(), copies: Copies::new(view) })
    }
}

/// Returns the heap that a call's arguments are in, and the place for copies of it. It is the shared heap if the call's
/// scope begins there, or, without a scope, if the call's pointer leads there. Otherwise it is the connection's own
/// heap.
pub(super) fn heap_of<'a>(
    own: (&'a Heap, &'a mut Copies),
    shared: Option<&'a mut ShardHeap>,
    request: &RequestLine,
) -> (&'a Heap, &'a mut Copies) {
    let address = if request.scope.length > 0 { request.scope.address } else { request.root };
    match shared {
        _ if planted!(OwnHeapAlone) => own,
        Some(ShardHeap { heap, copies }) if heap.place().offset(address, 1).is_some() => (heap, copies),
        _ => own,
    }
}
