//! Times to live: keys that expire by themselves.
//!
//! A key that has expired counts for no client any more. Its block stays claimed until a client stores or takes the
//! key, or removes all such keys.

use super::find::Found;
use super::store::Wanted;
use super::{Table, TableError};
use crate::pipeline::join;
use portcullis::{Clock, Effect, VerbsEndpoint};
use std::ops::ControlFlow;

/// Number of keys that are removed at a time, and number of the bytes of these keys and their values: to remove a key,
/// its block is read into the arena.
const REMOVED_AT_ONCE: usize = 16;
const BYTES_AT_ONCE: usize = 128 << 10;

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Removes the keys that have expired, and frees their blocks. Hands each of them to `removed`, and returns their
    /// number. A key that is stored again meanwhile stays. This reads the whole table. Any client may do it at any
    /// time, and all other clients go on.
    ///
    /// # Errors
    /// As [`Table::insert`]. Keys that were removed before stay removed.
    pub async fn remove_expired(&self, mut removed: impl FnMut(&[u8])) -> Result<u64, TableError> {
        self.leases.check_writable()?;
        let operation = async {
            let now = self.head.node_time().await?;
            let (mut visits, mut count) = (vec![self.index.first_visit()], 0);
            while let Some(next) = visits.pop() {
                let mut group = Group::default();
                let mut groups = Vec::new();
                let look = self.look_at(next, &mut visits, false, |item| {
                    if item.expires.is_some_and(|at| at <= now) {
                        groups.extend(group.add(item.key, item.key.len() + item.value.len()));
                    }
                    ControlFlow::Continue(())
                });
                // The closure never breaks off, so the look goes on to its end.
                let _ = look.await?;
                for keys in groups.into_iter().chain([group.keys]) {
                    self.pipeline.note_step();
                    let done =
                        join(keys.iter().map(|key| self.take_wanted(key, Wanted::Expired, false))).await;
                    for (key, taken) in keys.iter().zip(done) {
                        if taken?.is_some() {
                            removed(key);
                            count += 1;
                        }
                    }
                }
            }
            Ok(count)
        };
        self.pipeline.limited(("a look at a whole table", Effect::Perhaps), operation).await
    }

    /// Whether a key has expired.
    pub(super) async fn has_expired(&self, found: &Found) -> Result<bool, TableError> {
        Ok(match found.expires {
            Some(at) => at <= self.head.node_time().await?,
            None => false,
        })
    }
}

/// Keys that are removed together.
#[derive(Default)]
struct Group {
    keys: Vec<Vec<u8>>,
    bytes: usize,
}

impl Group {
    /// Adds a key. Returns the keys before it, if there is no room for one more beside them.
    fn add(&mut self, key: &[u8], bytes: usize) -> Option<Vec<Vec<u8>>> {
        let is_full = self.keys.len() == REMOVED_AT_ONCE || self.bytes + bytes > BYTES_AT_ONCE;
        let full = (is_full && !self.keys.is_empty()).then(|| std::mem::take(self).keys);
        self.bytes += bytes;
        self.keys.push(key.to_vec());
        full
    }
}
