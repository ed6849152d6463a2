//! Watches. etcd's watch reports that a key has changed since a revision, whatever happened in between, so no change is
//! lost between two looks, nor while etcd was away. The present values are read after that.

use super::Etcd;
use super::api::{KeyValue, Keys, Number};
use super::gateway::Heard;
use crate::clock;
use crate::directory::Watch;
use crate::error::DirectoryError;
use std::fmt;
use std::time::Duration;

/// Number of times that a watch is begun anew within one wait.
const BREAKS_MAX: u32 = 3;

/// Function that turns the stored keys into the value that a watch shows.
type See<T> = Box<dyn Fn(&[KeyValue]) -> Result<T, DirectoryError> + Send>;

/// A watch on keys.
pub(super) struct Watching<T> {
    etcd: Etcd,
    keys: Keys,
    see: See<T>,
    seen: T,
    /// The revision of the store at which the value was read.
    revision: Number,
}

impl<T: fmt::Debug> fmt::Debug for Watching<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, seen, revision, .. } = self;
        let mut shown = f.debug_struct("Watching");
        shown.field("keys", keys).field("seen", seen).field("revision", revision).finish_non_exhaustive()
    }
}

impl<T> Watching<T> {
    pub(super) fn new(etcd: &Etcd, keys: Keys, see: See<T>) -> Result<Self, DirectoryError> {
        let read = etcd.read(keys.clone(), etcd.until())?;
        let (seen, revision) = (see(&read.kvs)?, read.header.revision);
        Ok(Self { etcd: etcd.clone(), keys, see, seen, revision })
    }
}

impl<T: PartialEq + Clone + Send + fmt::Debug> Watch<T> for Watching<T> {
    fn seen(&self) -> &T {
        &self.seen
    }

    fn next(&mut self, at_most: Duration) -> Result<Option<T>, DirectoryError> {
        let beginning = clock::now();
        let mut broken = 0;
        loop {
            let left = at_most.saturating_sub(clock::now().saturating_duration_since(beginning));
            if !left.is_zero() {
                let from = Number(self.revision.0 + 1);
                let heard = self.etcd.0.gateway.wait_for_change(&self.keys, from, left)?;
                broken +=
                    u32::from(heard == Heard::Nothing && clock::now().duration_since(beginning) < at_most);
            }
            // Silence may also mean that etcd is away: this read shows whether it is.
            let read = self.etcd.read(self.keys.clone(), self.etcd.until())?;
            // Also if the values cannot be read: a caller that tries again waits for the next change.
            self.revision = read.header.revision;
            let there = (self.see)(&read.kvs)?;
            if there != self.seen {
                self.seen = there.clone();
                return Ok(Some(there));
            }
            if left.is_zero() {
                return Ok(None);
            }
            // An etcd that is reachable but breaks off watches must not be polled as fast as it answers.
            if broken == BREAKS_MAX {
                return Err(self.etcd.0.gateway.breaks_off());
            }
        }
    }
}
