//! Lists that are longer than a message: a client requests them part by part.

use super::messages::{NAMES_BYTES_MAX, PART_MAX, SentFound, SentName, SentRange, Told, encode, sent_range};
use crate::addresses::HeapRange;
use crate::entry::Found;
use crate::name::Name;
use std::collections::BTreeMap;

/// The remaining part of a list.
#[derive(Debug)]
pub(super) enum Parts {
    Heaps(Vec<SentRange>),
    Holders(Vec<u64>),
    Names(Vec<SentName>),
}

impl Parts {
    pub fn of_heaps(heaps: Vec<HeapRange>) -> Self {
        Self::Heaps(heaps.into_iter().map(sent_range).collect())
    }

    pub fn of_names(names: &BTreeMap<Name, Found>) -> Self {
        Self::Names(names.iter().map(|(name, found)| (name.to_string(), SentFound::of(found))).collect())
    }

    /// Returns the first part, and the rest if there is one.
    pub fn first(mut self) -> (Told, Option<Self>) {
        let (told, is_more) = match &mut self {
            Self::Heaps(list) => {
                let (heaps, is_more) = cut(list, PART_MAX);
                (Told::Heaps { heaps, is_more }, is_more)
            }
            Self::Holders(list) => {
                let (leases, is_more) = cut(list, PART_MAX);
                (Told::Holders { leases, is_more }, is_more)
            }
            Self::Names(list) => {
                let count = count_of_first(list);
                let (names, is_more) = cut(list, count);
                (Told::Names { names, is_more }, is_more)
            }
        };
        (told, is_more.then_some(self))
    }
}

/// Returns the number of names that fit into the next message.
fn count_of_first(names: &[SentName]) -> usize {
    let mut bytes = 0;
    let fits = |name: &&SentName| {
        let before = bytes;
        bytes += encode(*name).len();
        before < NAMES_BYTES_MAX
    };
    names.iter().take_while(fits).count()
}

/// Takes the first items off a list. Returns them, and whether others are left.
fn cut<T>(list: &mut Vec<T>, count: usize) -> (Vec<T>, bool) {
    let rest = list.split_off(list.len().min(count));
    let part = std::mem::replace(list, rest);
    (part, !list.is_empty())
}
