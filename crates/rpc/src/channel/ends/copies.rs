//! Copies of scopes, which no other process can change.

use super::CallError;
use crate::heap::{Heap, PAGE_BYTES};
use crate::{ScopeRef, View};
use portcullis_memory::PrivateView;
use portcullis_planted::planted;

/// Copies of more bytes than this are large: only the last large copy keeps its memory.
const SMALL_MAX: u64 = 1 << 20;

/// Copies of scopes of one heap.
#[derive(Debug)]
pub(in crate::channel) struct Copies {
    view: PrivateView,
    /// Place of the last large copy. A large copy at another place gives this memory back. So a client that uses one
    /// large scope again and again does not wait for pages, and a client that uses many does not take memory for all of
    /// them.
    large: Option<(u64, u64)>,
}

impl Copies {
    /// Makes copies in `view`, which is as long as the heap.
    pub fn new(view: PrivateView) -> Self {
        Self { view, large: None }
    }

    /// Returns a copy of a scope of the heap, of at most `most` bytes.
    pub fn look(&mut self, heap: &Heap, scope: ScopeRef, most: u64) -> Result<View<'_>, CallError> {
        let ScopeRef { address, length } = scope;
        let offset = heap.place().offset(address, length).ok_or(CallError::Nonsense)?;
        if length > most {
            return Err(CallError::ResultTooLong { length, most });
        }
        Ok(View::new(address, self.take(heap, offset, length), length))
    }

    /// Returns a copy of `length` bytes of the heap, from an offset on.
    pub fn take(&mut self, heap: &Heap, offset: u64, length: u64) -> &[u8] {
        if length > SMALL_MAX
            && let Some((offset, length)) =
                self.large.replace((offset, length)).filter(|last| *last != (offset, length))
        {
            self.view.give_back(offset, length);
        }
        if planted!(OnePageCopied) {
            self.view.take(heap.memory(), offset, length.min(PAGE_BYTES));
            return self.view.bytes(offset, length);
        }
        self.view.take(heap.memory(), offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeapPlace, Owner};
    use portcullis_memory::Memory as _;

    #[test]
    fn the_last_large_copy_keeps_its_memory_and_those_before_it_do_not() {
        let place = HeapPlace::new(crate::heap::HEAP_ADDRESSES.start + (9 << 40), 8 << 20).unwrap();
        let heap = Heap::create(place, Owner(1)).unwrap();
        let mut copies = Copies::new(PrivateView::anywhere(place.length).unwrap());
        let (large, first, second) = (SMALL_MAX + PAGE_BYTES, 1 << 20, 4 << 20);
        heap.memory().write(first, &[7; 64]);
        copies.take(&heap, first, large);
        copies.take(&heap, first, large);
        copies.take(&heap, second, 64);
        assert_eq!(copies.view.bytes(first, 64), [7; 64], "it is kept for the next call");
        copies.take(&heap, second, large);
        assert_eq!(copies.view.bytes(first, 64), [0; 64], "it is given back");
    }
}
