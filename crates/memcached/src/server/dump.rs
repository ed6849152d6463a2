//! Dumps of `lru_crawler`: all items that the gateway knows, a part of them at a time.

use crate::cache::Shared;
use crate::protocol::{Describe, DumpForm, Key};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A dump in progress. There is one at a time: it holds the keys of a part of the items.
#[derive(Debug)]
pub struct Dump {
    shared: Arc<Shared>,
    form: DumpForm,
    /// Keys of the present part that were not returned yet.
    keys: Vec<Key>,
    /// Number of the part that follows.
    part: usize,
}

impl Dump {
    /// Begins a dump. Returns `None` if another one is in progress.
    pub fn begin(shared: &Arc<Shared>, form: DumpForm) -> Option<Self> {
        let others = shared.dumps.swap(true, Ordering::AcqRel);
        (!others).then(|| Self { shared: Arc::clone(shared), form, keys: Vec::new(), part: 0 })
    }

    /// Returns the next items, `most` at most. There may be none. The last ones are marked ([`Describe::ends`]).
    pub fn next(&mut self, most: usize) -> Describe {
        if self.keys.is_empty()
            && let Some(keys) = self.shared.age.keys_of_part(self.part)
        {
            self.keys = keys;
            self.part += 1;
        }
        let keys = self.keys.split_off(self.keys.len().saturating_sub(most));
        let ends = self.keys.is_empty() && self.shared.age.is_last_part(self.part);
        Describe { keys, form: self.form, ends }
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        self.shared.dumps.store(false, Ordering::Release);
    }
}
