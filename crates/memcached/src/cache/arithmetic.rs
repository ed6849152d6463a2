//! Increments and decrements of numbers.

use super::item::Found;
use super::{Cache, Change, Item, Now, Store, StoreError};
use crate::protocol::{Arithmetic, Direction, Expiry, Key, Reply};

/// Change of a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberChange {
    pub direction: Direction,
    pub by: u64,
    /// The unique number that the item must have.
    pub cas: Option<u64>,
    /// The time to live that the item gets.
    pub touch: Option<Expiry>,
    /// The number and the time to live of the item that is made if there is none.
    pub initial: Option<(u64, Expiry)>,
}

/// Result of a change.
pub(super) enum Counted {
    /// The new number, and the item that has it.
    Number(u64, Item),
    /// The number that the request made because there was none, and its item.
    Made(u64, Item),
    NoNumber,
    Missing,
    Exists,
}

impl<S: Store> Cache<S> {
    pub(super) async fn arithmetic(&self, ask: &Arithmetic, now: Now) -> Result<Reply, StoreError> {
        let &Arithmetic { ref key, direction, by, .. } = ask;
        let number_change = NumberChange { direction, by, cas: None, touch: None, initial: None };
        Ok(match self.count(key, number_change, now).await? {
            Counted::Number(number, _) | Counted::Made(number, _) => Reply::Number(number),
            Counted::NoNumber => Reply::Text("CLIENT_ERROR cannot increment or decrement non-numeric value"),
            Counted::Missing | Counted::Exists => Reply::Text("NOT_FOUND"),
        })
    }

    /// Changes a number.
    pub(super) async fn count(
        &self,
        key: &Key,
        number_change: NumberChange,
        now: Now,
    ) -> Result<Counted, StoreError> {
        let counted = self
            .change(key, now, |found| match found {
                None => self.first_number(number_change, now),
                Some(found) => self.next_number(&found, number_change, now),
            })
            .await?;
        let counters = &self.shared.counters;
        match (number_change.direction, &counted) {
            (Direction::Up, Counted::Number(..)) => counters.incr_hits.add(),
            (Direction::Up, Counted::Missing) => counters.incr_misses.add(),
            (Direction::Down, Counted::Number(..)) => counters.decr_hits.add(),
            (Direction::Down, Counted::Missing) => counters.decr_misses.add(),
            (_, Counted::Made(..) | Counted::NoNumber | Counted::Exists) => {}
        }
        Ok(counted)
    }

    fn first_number(&self, number_change: NumberChange, now: Now) -> Change<Counted> {
        let Some((number, expiry)) = number_change.initial else { return Change::Keep(Counted::Missing) };
        let expires = number_change.touch.unwrap_or(expiry).at(now.seconds());
        let item = self.new_item(0, expires, now);
        Change::Put(item.with(number.to_string().as_bytes()), expires, Counted::Made(number, item))
    }

    fn next_number(&self, found: &Found, number_change: NumberChange, now: Now) -> Change<Counted> {
        if number_change.cas.is_some_and(|cas| cas != found.item.cas) {
            return Change::Keep(Counted::Exists);
        }
        let Some(number) = number_of(found.value()) else { return Change::Keep(Counted::NoNumber) };
        let number = match number_change.direction {
            Direction::Up => number.wrapping_add(number_change.by),
            Direction::Down => number.saturating_sub(number_change.by),
        };
        let mut item = self.changed(found.item, now);
        if let Some(expiry) = number_change.touch {
            item.expires = expiry.at(now.seconds());
        }
        // A number that has become shorter keeps its length, as in memcached. A number that has become longer is a new
        // item in memcached, which is not stale.
        let text = format!("{number:<length$}", length = found.value().len());
        if text.len() > found.value().len() {
            (item.stale, item.told) = (false, false);
        }
        Change::Put(item.with(text.as_bytes()), item.expires, Counted::Number(number, item))
    }
}

/// Returns the number that a value contains: digits, and optionally a white space and anything behind it.
fn number_of(value: &[u8]) -> Option<u64> {
    let end = value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len());
    let digits = &value[..end];
    if !digits.first()?.is_ascii_digit() {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
