//! The keys of a `get` line. They are cut off the line when they are looked up: as separate values they would take many
//! times the bytes that the client has sent.

use super::command::{Expiry, Get, Key};
use std::borrow::Cow;

/// Options that apply to all keys of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub with_cas: bool,
    pub touch: Option<Expiry>,
}

/// The rest of a `get` line: all its words are valid keys, and there is at least one.
#[derive(Debug)]
pub(super) struct GetLine {
    line: Vec<u8>,
    at: usize,
    manner: Manner,
}

impl GetLine {
    /// Cuts the first keys off a line, up to `most` of them and at least one. Returns the rest too, if there are more.
    ///
    /// `at`: offset of the first key.
    pub fn begin(line: Cow<'_, [u8]>, at: usize, manner: Manner, most: usize) -> (Get, Option<Self>) {
        let (keys, rest) = cut(&line, at, most);
        let get = manner.get(keys, rest.is_none());
        let rest = rest.map(|at| match line {
            Cow::Owned(line) => Self { line, at, manner },
            Cow::Borrowed(line) => Self { line: line[at..].to_vec(), at: 0, manner },
        });
        (get, rest)
    }

    /// Cuts the next keys off, up to `most` of them and at least one. Returns the rest too, if there are more.
    pub fn go_on(self, most: usize) -> (Get, Option<Self>) {
        Self::begin(Cow::Owned(self.line), self.at, self.manner, most)
    }

    /// Bytes of memory that the line takes.
    pub fn memory(&self) -> usize {
        self.line.capacity()
    }
}

impl Manner {
    fn get(self, keys: Vec<Key>, ends: bool) -> Get {
        let Self { with_cas, touch } = self;
        Get { keys, with_cas, touch, ends }
    }
}

/// Returns up to `most` words of a line from `at` on, at least one, and the offset of the next one.
fn cut(line: &[u8], mut at: usize, most: usize) -> (Vec<Key>, Option<usize>) {
    let mut keys = Vec::new();
    loop {
        let Some(begin) = line[at..].iter().position(|byte| *byte != b' ') else { return (keys, None) };
        at += begin;
        if keys.len() >= most.max(1) {
            return (keys, Some(at));
        }
        let end = line[at..].iter().position(|byte| *byte == b' ').map_or(line.len(), |end| at + end);
        keys.push(Key::from(&line[at..end]));
        at = end;
    }
}
