//! Searches, and the index that answers them.

use std::collections::{BTreeMap, HashMap};

/// A search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Documents whose `str1` is this text (NoBench's query 5).
    Text(String),
    /// Documents whose `num` is neither less than the first number nor more than the second (NoBench's query 6).
    Between(i64, i64),
}

/// An index that finds the keys of documents.
#[derive(Debug, Default)]
pub struct Index {
    by_text: HashMap<String, Vec<u64>>,
    by_number: BTreeMap<i64, Vec<u64>>,
}

/// The values by which a document is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexed {
    /// The document's `str1`.
    pub text: Option<String>,
    /// The document's `num`.
    pub number: Option<i64>,
}

impl Index {
    /// Adds a document to the index.
    pub fn add(&mut self, key: u64, by: &Indexed) {
        if let Some(text) = &by.text {
            self.by_text.entry(text.clone()).or_default().push(key);
        }
        if let Some(number) = by.number {
            self.by_number.entry(number).or_default().push(key);
        }
    }

    /// Removes a document from the index.
    pub fn remove(&mut self, key: u64, by: &Indexed) {
        if let Some(text) = &by.text
            && let Some(keys) = self.by_text.get_mut(text)
        {
            keys.retain(|&it| it != key);
            if keys.is_empty() {
                self.by_text.remove(text);
            }
        }
        if let Some(number) = by.number
            && let Some(keys) = self.by_number.get_mut(&number)
        {
            keys.retain(|&it| it != key);
            if keys.is_empty() {
                self.by_number.remove(&number);
            }
        }
    }

    /// The keys of documents with a text.
    pub fn text(&self, text: &str) -> &[u64] {
        self.by_text.get(text).map_or(&[], Vec::as_slice)
    }

    /// The keys of documents whose number is in a range.
    pub fn between(&self, from: i64, to: i64) -> impl Iterator<Item = u64> {
        // If the first number is greater than the second, the range is empty.
        let range = (from <= to).then(|| self.by_number.range(from..=to));
        range.into_iter().flatten().flat_map(|(_, keys)| keys).copied()
    }
}
