//! Documents and searches like those of NoBench (Chasseur, Li and Patel, WebDB 2013). Each document is a function of a
//! seed and its number, so a program that knows both can check an answer.

use crate::query::Query;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// Number of sparse keys. Each document has `SPARSE_EACH` of them.
const SPARSE_KEYS: u64 = 1000;
const SPARSE_EACH: u64 = 10;
/// A search by number selects one document of this many, as NoBench's queries 6 and 7 do.
const SELECTED: u64 = 1000;
/// Number of words from which those of `nested_arr` are drawn.
const WORDS: u64 = 1 << 16;

/// The documents of one seed.
#[derive(Clone, Copy, Debug)]
pub struct Documents {
    seed: u64,
    count: u64,
}

/// The results that searches must find.
#[derive(Debug)]
pub struct Expected {
    /// The documents' numbers by their `num`.
    by_number: BTreeMap<i64, Vec<u64>>,
}

/// Returns the bits of a number in base 32 with its alphabet from RFC 4648, as NoBench writes its texts.
fn text(number: u64) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digit = |at: u32| char::from(ALPHABET[usize::try_from(number >> (5 * at) & 31).unwrap_or(0)]);
    (0..13).rev().map(digit).collect()
}

impl Documents {
    /// The first `count` documents of a seed.
    pub fn new(seed: u64, count: u64) -> Self {
        Self { seed, count }
    }

    /// Number of documents.
    pub fn count(self) -> u64 {
        self.count
    }

    fn random(self, stream: u64) -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(self.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Draws a document's `num`, which [`document`](Self::document) draws first too.
    fn num(self, random: &mut Pcg64Mcg) -> u64 {
        random.random_range(0..self.count)
    }

    /// A document's `str1`, which no other document has.
    fn str1(self, number: u64) -> String {
        text(number ^ self.seed)
    }

    /// Generates the document with a number.
    pub fn document(self, number: u64) -> Json {
        let mut random = self.random(number);
        let num = self.num(&mut random);
        let other = random.random_range(0..self.count);
        let mut fields = Map::new();
        let mut set = |key: &str, value: Json| fields.insert(key.to_owned(), value);
        set("str1", self.str1(number).into());
        set("str2", text(random.random_range(0..SPARSE_KEYS)).into());
        set("num", num.into());
        set("bool", random.random::<bool>().into());
        // The types of these values differ from document to document.
        set("dyn1", if random.random() { num.into() } else { text(num).into() });
        let dyn2 = [Json::from(other), Json::from(text(other)), Json::from(other % 2 == 0)];
        set("dyn2", dyn2[random.random_range(0..dyn2.len())].clone());
        set("nested_obj", json!({ "str": self.str1(other), "num": other }));
        let words = (0..random.random_range(0..8)).map(|_| text(random.random_range(0..WORDS)).into());
        set("nested_arr", Json::Array(words.collect()));
        set("thousandth", (num % 1000).into());
        let first = random.random_range(0..SPARSE_KEYS / SPARSE_EACH) * SPARSE_EACH;
        for key in first..first + SPARSE_EACH {
            set(&format!("sparse_{key:03}"), text(random.random_range(0..WORDS)).into());
        }
        Json::Object(fields)
    }

    /// Generates a search: alternately for one `str1`, and for a range of `num`.
    pub fn search(self, number: u64) -> Query {
        let mut random = self.random(!number);
        let at = random.random_range(0..self.count);
        if number.is_multiple_of(2) {
            return Query::Text(self.str1(at));
        }
        let from = i64::try_from(at).unwrap_or(i64::MAX);
        let width = i64::try_from((self.count / SELECTED).max(1)).unwrap_or(i64::MAX);
        Query::Between(from, from.saturating_add(width - 1))
    }

    /// The results that searches must find when all documents are stored under their numbers.
    pub fn expected(self) -> Expected {
        let mut by_number = BTreeMap::<_, Vec<u64>>::new();
        for number in 0..self.count {
            let num = i64::try_from(self.num(&mut self.random(number))).unwrap_or(i64::MAX);
            by_number.entry(num).or_default().push(number);
        }
        Expected { by_number }
    }
}

impl Expected {
    /// The numbers of the documents that a search must find, in order.
    pub fn numbers(&self, documents: Documents, query: &Query) -> Vec<u64> {
        let mut numbers: Vec<u64> = match query {
            // The text was made from this document's number, and from no other number.
            Query::Text(text) => number_of(text).map(|bits| bits ^ documents.seed).into_iter().collect(),
            Query::Between(from, to) => {
                self.by_number.range(from..=to).flat_map(|(_, numbers)| numbers).copied().collect()
            }
        };
        numbers.sort_unstable();
        numbers
    }
}

/// The number that a text was made from.
fn number_of(text: &str) -> Option<u64> {
    let digit = |byte| match byte {
        b'A'..=b'Z' => Some(u64::from(byte - b'A')),
        b'2'..=b'7' => Some(u64::from(byte - b'2') + 26),
        _ => None,
    };
    text.bytes().try_fold(0_u64, |number, byte| Some(number << 5 | digit(byte)?))
}
