//! The heap of all clients of a channel, where a server's end finds arguments beside the connection's own heap.

use super::copies::Copies;
use super::words::RequestLine;
use crate::heap::Heap;
use portcullis_memory::{MappingError, PrivateView};
use portcullis_protocol::planted::{self, Fault};

/// A heap that all clients of a channel have, as one thread of the server serves calls from it.
#[derive(Debug)]
pub struct LaneHeap {
    heap: Heap,
    copies: Copies,
}

impl LaneHeap {
    /// For a thread that copies to `view`. `None`: to addresses of its own, since only one thread can have the heap's.
    pub fn new(heap: &Heap, view: Option<PrivateView>) -> Result<Self, MappingError> {
        let view = view.map_or_else(|| PrivateView::anywhere(heap.place().length), Ok)?;
        Ok(Self { heap: heap.clone(), copies: Copies::new(view) })
    }
}

/// The heap that a call's arguments are in, with where they are copied to: the shared one if its scope begins there, or, without a
/// scope, if its pointer leads there. Otherwise the connection's own.
pub(super) fn heap_of<'a>(
    own: (&'a Heap, &'a mut Copies),
    shared: Option<&'a mut LaneHeap>,
    request: &RequestLine,
) -> (&'a Heap, &'a mut Copies) {
    let address = if request.scope.length > 0 { request.scope.address } else { request.root };
    match shared {
        _ if planted::is(Fault::OwnHeapAlone) => own,
        Some(LaneHeap { heap, copies }) if heap.place().offset(address, 1).is_some() => (heap, copies),
        _ => own,
    }
}
