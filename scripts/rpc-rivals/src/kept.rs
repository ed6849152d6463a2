//! The store as the rivals have it: the same index over documents in the form in which they come over the wire.

use crate::query::{Index, Indexed, Query};
use std::collections::HashMap;

/// A document that can be found.
pub trait Document {
    /// What it is found by.
    fn indexed(&self) -> Indexed;
}

/// Documents by their keys.
pub struct Kept<D> {
    documents: HashMap<u64, (D, Indexed)>,
    index: Index,
}

impl<D> Default for Kept<D> {
    fn default() -> Self {
        Self { documents: HashMap::new(), index: Index::default() }
    }
}

impl<D: Document> Kept<D> {
    pub fn put(&mut self, key: u64, document: D) -> bool {
        let by = document.indexed();
        let replaced = self.documents.remove(&key);
        if let Some((_, by)) = &replaced {
            self.index.remove(key, by);
        }
        self.index.add(key, &by);
        self.documents.insert(key, (document, by));
        replaced.is_some()
    }

    pub fn find(&self, query: &Query) -> Vec<(u64, &D)> {
        let keys: Vec<u64> = match query {
            Query::Text(text) => self.index.text(text).to_vec(),
            Query::Between(from, to) => self.index.between(*from, *to).collect(),
        };
        keys.into_iter().filter_map(|key| Some((key, &self.documents.get(&key)?.0))).collect()
    }
}
