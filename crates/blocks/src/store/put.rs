//! Stores of new blocks.

use super::{Store, each, end_of_session, is_gone};
use crate::entry::Entry;
use crate::error::BlockError;
use portcullis::{BarePermission, Clock, Error, Refusal, VerbsEndpoint};
use std::collections::HashSet;
use std::rc::Rc;

/// Largest number of blocks that are stored in one step.
const STEP_BLOCKS: usize = 32;

/// The end of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The block is stored.
    Stored,
    /// A block of this length was there, or another client was quicker.
    ThereAlready,
    /// Another client holds the block exclusively: it stores it now, or evicts it. Nothing was stored.
    Busy,
}

/// A block on its way into the store.
pub(super) struct New<'a> {
    /// The place among the caller's blocks.
    pub place: usize,
    pub key: &'a [u8],
    pub bytes: &'a [u8],
    /// The value that the key's entry replaces.
    pub value: Option<Vec<u8>>,
    /// That value, if it is an entry.
    pub before: Option<Entry>,
}

/// A new block with its object.
pub(super) type Written<'a> = (New<'a>, Rc<BarePermission>);

/// The end of one put.
pub(super) type PutResult = Result<Put, BlockError>;

impl<E: VerbsEndpoint, C: Clock> Store<E, C> {
    /// Stores blocks, each under its key. Returns the end of each put.
    ///
    /// When a put has ended with [`Put::Stored`], each client of the tenant finds the whole block, until the block is
    /// removed or evicted. If the end is an error, no part of the block can be found. If another client has removed
    /// the block before the put has ended, the end may be `object-gone`. A key that occurs several times is stored
    /// once. A block of the same length under the same key counts as the same block.
    ///
    /// # Errors
    /// The table failed, or the session is over: blocks may have been stored or not.
    pub async fn put_many(&self, blocks: &[(&[u8], &[u8])]) -> Result<Vec<PutResult>, BlockError> {
        let mut ends: Vec<PutResult> = vec![Ok(Put::Busy); blocks.len()];
        for (number, step) in blocks.chunks(STEP_BLOCKS).enumerate() {
            self.check_heard()?;
            let first = number * STEP_BLOCKS;
            self.put_step(step, &mut ends[first..first + step.len()]).await?;
        }
        self.count(|counters| {
            for end in &ends {
                match end {
                    Ok(Put::Stored) => counters.stored += 1,
                    Ok(Put::ThereAlready) => counters.there_already += 1,
                    Ok(Put::Busy) => counters.busy += 1,
                    Err(BlockError::NoRoom { .. }) => counters.refused += 1,
                    Err(_) => {}
                }
            }
        });
        Ok(ends)
    }

    /// Stores a block.
    ///
    /// # Errors
    /// As [`Store::put_many`], there is no room ([`BlockError::NoRoom`]), or the block is empty.
    pub async fn put(&self, key: &[u8], bytes: &[u8]) -> PutResult {
        self.put_many(&[(key, bytes)]).await?.remove(0)
    }

    async fn put_step(&self, blocks: &[(&[u8], &[u8])], ends: &mut [PutResult]) -> Result<(), BlockError> {
        let new = self.select_new(blocks, ends).await?;
        let written = self.write_new(new, ends).await?;
        let entered = self.enter(written, ends).await?;
        // The object is kept only now: a client that dies before this leaves a key without a block, and no block
        // without a key.
        let keep =
            |permission: &BarePermission| self.pipeline.keep_object(permission.object(), self.options.keep);
        let kept = each(entered.iter().map(|(_, permission)| keep(permission))).await;
        end_of_session(kept.iter().filter_map(|kept| kept.as_ref().err()))?;
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for ((new, permission), kept) in entered.into_iter().zip(kept) {
            // A look-up's permission would serve later reads with the block that was replaced.
            done.extend(self.held.borrow_mut().let_go(new.key));
            match kept {
                Ok(()) => {
                    ends[new.place] = Ok(Put::Stored);
                    self.recency.borrow_mut().used(new.key);
                }
                Err(error) => {
                    ends[new.place] = Err(error.into());
                    failed.push((new.key, entry_of(&new, &permission)));
                }
            }
            done.push(permission);
        }
        // The node may have kept an object although the request has failed.
        let removed = self.free_and_remove(failed).await;
        self.revoke(done).await;
        for (place, (key, bytes)) in blocks.iter().enumerate() {
            let is_first = |(other, bytes): &(&[u8], &[u8])| other == key && !bytes.is_empty();
            if let Some(first) = blocks.iter().position(is_first).filter(|_| !bytes.is_empty()) {
                ends[place] = ends[first];
            }
        }
        removed
    }

    /// Returns the blocks that are not stored yet.
    async fn select_new<'a>(
        &self,
        blocks: &[(&'a [u8], &'a [u8])],
        ends: &mut [PutResult],
    ) -> Result<Vec<New<'a>>, BlockError> {
        let mut seen = HashSet::new();
        let mut once: Vec<_> = Vec::new();
        for (place, (key, bytes)) in blocks.iter().copied().enumerate() {
            if bytes.is_empty() {
                ends[place] = Err(BlockError::Empty);
            } else if seen.insert(key) {
                once.push((place, key, bytes));
            }
        }
        let keys: Vec<_> = once.iter().map(|(_, key, _)| *key).collect();
        let values = self.values(&keys).await?;
        let (mut new, mut there) = (Vec::new(), Vec::new());
        for ((place, key, bytes), value) in once.into_iter().zip(values) {
            let before = value.as_deref().and_then(Entry::from_bytes);
            let is_there = before.is_some_and(|before| before.length == bytes.len() as u64);
            let block = New { place, key, bytes, value, before };
            if is_there { there.push(block) } else { new.push(block) }
        }
        // A key may have lost its block: only a permission shows that there is one.
        let granted = self.acquire(there.iter().filter_map(|block| block.before), self.read_lifetime).await;
        end_of_session(granted.iter().filter_map(|it| it.as_ref().err()))?;
        let mut live = Vec::new();
        for (block, granted) in there.into_iter().zip(granted) {
            match granted {
                Ok(permission) => {
                    self.recency.borrow_mut().used(block.key);
                    ends[block.place] = Ok(Put::ThereAlready);
                    live.push(permission);
                }
                Err(Error::Refused(Refusal::Conflict)) => ends[block.place] = Ok(Put::Busy),
                Err(error) if is_gone(&error) => new.push(block),
                Err(error) => ends[block.place] = Err(error.into()),
            }
        }
        self.revoke(live).await;
        Ok(new)
    }
}

/// The entry of a block. A pin goes on to the block that takes the place of another one.
pub(super) fn entry_of(new: &New<'_>, permission: &BarePermission) -> Entry {
    let is_pinned = new.before.is_some_and(|before| before.is_pinned);
    Entry { length: new.bytes.len() as u64, is_pinned, object: permission.object() }
}

pub(super) fn no_room(new: &New<'_>, reason: Error) -> BlockError {
    BlockError::NoRoom { bytes: new.bytes.len() as u64, reason }
}
