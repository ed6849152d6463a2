//! Where a client looks at scopes: in copies, which no other process can change.

use super::CallError;
use crate::heap::Heap;
use crate::{ScopeRef, View};
use portcullis_memory::PrivateView;

/// Copies of more bytes give their memory back.
const KEPT_MAX: u64 = 1 << 20;

/// Copies of scopes of one heap.
#[derive(Debug)]
pub(in crate::channel) struct Copies {
    view: PrivateView,
    /// Where the last copy is, if it was a large one: the next look gives its memory back.
    large: Option<(u64, u64)>,
}

impl Copies {
    /// Copies that lie in `view`, which is as long as the heap.
    pub fn new(view: PrivateView) -> Self {
        Self { view, large: None }
    }

    /// A copy of a scope of the heap, of at most so many bytes.
    pub fn look(&mut self, heap: &Heap, scope: ScopeRef, most: u64) -> Result<View<'_>, CallError> {
        let ScopeRef { address, length } = scope;
        let offset = heap.place().offset(address, length).ok_or(CallError::Nonsense)?;
        if length > most {
            return Err(CallError::ResultTooLong { length, most });
        }
        if let Some((offset, length)) = self.large.take() {
            self.view.give_back(offset, length);
        }
        self.large = (length > KEPT_MAX).then_some((offset, length));
        Ok(View::new(address, self.view.take(heap.memory(), offset, length), length))
    }
}
