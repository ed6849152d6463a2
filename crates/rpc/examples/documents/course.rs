//! The workload of a store: it is built, and searched, and every answer is checked. This module does not depend on how
//! a store is reached, so it can be used with other stores too.

use crate::nobench::Documents;
use crate::query::Query;
use serde::Serialize;
use serde_json::Value as Json;
use std::time::{Duration, Instant};

/// An error of the store or of the workload.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection to a store.
pub trait Course {
    /// Stores a document.
    ///
    /// # Errors
    /// The store did not store it.
    fn put(&mut self, key: u64, document: &Json) -> Result<(), BoxError>;

    /// Searches for documents.
    ///
    /// # Errors
    /// The store did not perform the search.
    fn find(&mut self, query: &Query) -> Result<Timed, BoxError>;
}

/// Result of a search.
#[derive(Debug)]
pub struct Timed {
    /// Time from the search until `num` was read of every document that was found.
    pub took: Duration,
    /// The sum of these values of `num`.
    pub sum: i64,
    /// The documents and their keys.
    pub documents: Vec<(u64, Json)>,
}

/// Times of building and searching.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Number of documents that were stored.
    pub documents: u64,
    /// Seconds for storing all documents, without the time to generate them.
    pub build_seconds: f64,
    /// Median of the time for storing one document, in microseconds.
    pub put_p50: f64,
    /// Number of searches.
    pub searches: u64,
    /// Seconds for all searches, without the time to check their results.
    pub search_seconds: f64,
    /// Median of the time of a search for one document by its text, in microseconds. Zero: there was no such search.
    pub text_p50: f64,
    /// Median of the time of a search for documents by a range of numbers, in microseconds. Zero: there was no such
    /// search.
    pub range_p50: f64,
    /// Number of documents that were found. All of them were compared with the documents that were stored.
    pub found: u64,
}

/// Times of single operations.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn seconds(&self) -> f64 {
        self.0.iter().sum::<Duration>().as_secs_f64()
    }

    /// The median in microseconds.
    fn p50(mut self) -> f64 {
        self.0.sort_unstable();
        self.0.get(self.0.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    }
}

/// Builds a store and searches it. `progress` is called with the kind of operation, and with the number of operations
/// since the last call.
///
/// # Errors
/// The store did not perform an operation, or found other documents than it should have.
pub fn run(
    store: &mut impl Course,
    documents: Documents,
    searches: u64,
    mut progress: impl FnMut(&'static str, u64),
) -> Result<Report, BoxError> {
    let puts = build(store, documents, |more| progress("documents", more))?;
    let (text, range, found) = search(store, documents, searches, |more| progress("searches", more))?;
    Ok(Report {
        documents: documents.count(),
        build_seconds: puts.seconds(),
        put_p50: puts.p50(),
        searches,
        search_seconds: text.seconds() + range.seconds(),
        text_p50: text.p50(),
        range_p50: range.p50(),
        found,
    })
}

/// Stores all documents under their numbers.
fn build(
    store: &mut impl Course,
    documents: Documents,
    mut done: impl FnMut(u64),
) -> Result<Times, BoxError> {
    let mut times = Times::default();
    for number in 0..documents.count() {
        let document = documents.document(number);
        let before = Instant::now();
        store.put(number, &document)?;
        times.0.push(before.elapsed());
        done(1);
    }
    Ok(times)
}

/// Searches, and compares all documents that are found with those that were stored. Returns the times of searches by
/// text and by a range, and the number of documents that they have found.
fn search(
    store: &mut impl Course,
    documents: Documents,
    searches: u64,
    mut done: impl FnMut(u64),
) -> Result<(Times, Times, u64), BoxError> {
    let expected = documents.expected();
    let (mut texts, mut ranges, mut found) = (Times::default(), Times::default(), 0);
    for number in 0..searches {
        let query = documents.search(number);
        let mut timed = store.find(&query)?;
        match query {
            Query::Text(_) => texts.0.push(timed.took),
            Query::Between(..) => ranges.0.push(timed.took),
        }
        found += timed.documents.len() as u64;
        timed.documents.sort_unstable_by_key(|(key, _)| *key);
        let numbers: Vec<u64> = timed.documents.iter().map(|(key, _)| *key).collect();
        let wanted = expected.numbers(documents, &query);
        if numbers != wanted {
            return Err(format!("{query:?} found the documents {numbers:?} and not {wanted:?}").into());
        }
        let differs = |(number, document): &&(u64, Json)| *document != documents.document(*number);
        if let Some((number, document)) = timed.documents.iter().find(differs) {
            return Err(format!("document {number} came back as {document}").into());
        }
        let sum: i64 = timed.documents.iter().filter_map(|(_, document)| document["num"].as_i64()).sum();
        if sum != timed.sum {
            return Err(
                format!("{query:?}: the numbers that were read came to {} and not {sum}", timed.sum).into()
            );
        }
        done(1);
    }
    Ok((texts, ranges, found))
}
