//! Look-ups and reads.

use super::{STEP_KEYS, Store, end_of_session, is_gone};
use crate::entry::Entry;
use crate::error::{BlockError, is_no_room};
use crate::transfer;
use portcullis::{BarePermission, Buffer, Clock, Error, Lend, Lifetime, Memory, Refusal, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

/// A read uses the lease of a look-up only if this much of the lease is left, or a quarter of the lease if that is
/// less: the node counts late accesses against the client.
const LEASE_MARGIN: Lifetime = Lifetime::millis(500);

/// The end of a read of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// The whole block was read.
    Hit,
    /// The key has no block.
    Absent,
    /// The key has a block of this length, which is not that of the buffer.
    OtherLength(u64),
    /// The node refused the read: it came too late, or another client holds the block exclusively. The buffer has any
    /// bytes.
    Failed(Error),
}

impl Got {
    /// Whether the buffer has the whole block.
    #[must_use]
    pub fn is_hit(self) -> bool {
        self == Self::Hit
    }
}

/// A block in the memory of the session, without a copy of its own.
#[derive(Debug)]
pub struct Block<M: Memory> {
    buffer: Buffer<M>,
}

impl<M: Memory> Block<M> {
    /// Number of bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.buffer.len().into()
    }
}

impl<M: Lend> Block<M> {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> M::Bytes<'_> {
        self.buffer.bytes()
    }
}

/// A block that is to be read: its place among the caller's keys, and the permission.
struct Ready {
    place: usize,
    permission: Rc<BarePermission>,
}

impl<E: VerbsEndpoint, C: Clock> Store<E, C> {
    /// Looks blocks up. Returns for each key the length of its block. `None`: it has none.
    ///
    /// Each block that is found has a lease afterwards, as far as [`leases_max`](crate::StoreOptions::leases_max) and
    /// the tenant's quota of permissions allow it. The next read of the block by this handle finds the block,
    /// whatever others do, if it begins within half of the lease.
    ///
    /// # Errors
    /// The table failed, or the session is over.
    pub async fn look_up(&self, keys: &[&[u8]]) -> Result<Vec<Option<u64>>, BlockError> {
        let mut found = Vec::with_capacity(keys.len());
        for step in keys.chunks(STEP_KEYS) {
            self.check_heard()?;
            found.extend(self.look_up_step(step).await?);
        }
        Ok(found)
    }

    async fn look_up_step(&self, keys: &[&[u8]]) -> Result<Vec<Option<u64>>, BlockError> {
        let entries = self.entries(keys).await?;
        let (now, lease) = (self.pipeline.now(), self.options.lease);
        let mut found = vec![None; keys.len()];
        let mut fresh = Vec::new();
        {
            let held = &mut *self.held.borrow_mut();
            held.forget_ended(now, lease);
            for (place, (key, entry)) in keys.iter().zip(&entries).enumerate() {
                let Some(entry) = entry else {
                    self.count(|counters| counters.absent += 1);
                    continue;
                };
                found[place] = Some(entry.length);
                let may_hold = lease.0 > 0 && held.len() + fresh.len() < self.options.leases_max;
                let is_held = held.hold_again(key, now.after(Lifetime(lease.0 / 4 * 3)));
                if !is_held && may_hold && !planted!(BlockLeaseNotTaken) {
                    fresh.push((place, *entry));
                }
            }
        }
        let granted = self.acquire(fresh.iter().map(|(_, entry)| *entry), lease).await;
        end_of_session(granted.iter().filter_map(|it| it.as_ref().err()))?;
        let mut surplus = Vec::new();
        for ((place, entry), granted) in fresh.into_iter().zip(granted) {
            match granted {
                Ok(permission) => {
                    let until = permission.lease().deadline();
                    let before = self.held.borrow_mut().hold(keys[place], entry.length, permission, until);
                    surplus.extend(before);
                }
                Err(error) => {
                    // The tenant may have as many permissions as it can have: then the block has no lease.
                    found[place] = is_no_room(&error).then_some(entry.length);
                    self.note(&error);
                }
            }
        }
        self.revoke(surplus).await;
        Ok(found)
    }

    /// Returns for each key whether it has a block now. Holds nothing: the block may be gone when it is read.
    ///
    /// # Errors
    /// As [`Store::look_up`].
    pub async fn contains(&self, keys: &[&[u8]]) -> Result<Vec<bool>, BlockError> {
        let mut found = Vec::with_capacity(keys.len());
        for step in keys.chunks(STEP_KEYS) {
            found.extend(self.entries(step).await?.iter().map(Option::is_some));
        }
        Ok(found)
    }

    /// Reads blocks into the caller's buffers, each of which has its block's length. Returns the end of each read.
    ///
    /// A block that a look-up of this handle has found is read under that look-up's permission. Other blocks are
    /// looked up now.
    ///
    /// # Errors
    /// The table failed, or the session is over. The buffers have any bytes.
    pub async fn get_many(&self, wanted: &mut [(&[u8], &mut [u8])]) -> Result<Vec<Got>, BlockError> {
        self.get_all(wanted, true).await
    }

    /// Reads blocks as [`get_many`](Self::get_many) does, and leaves the leases of look-ups for other reads.
    ///
    /// # Errors
    /// As [`Store::get_many`].
    pub async fn get_many_without_leases(
        &self,
        wanted: &mut [(&[u8], &mut [u8])],
    ) -> Result<Vec<Got>, BlockError> {
        self.get_all(wanted, false).await
    }

    async fn get_all(
        &self,
        wanted: &mut [(&[u8], &mut [u8])],
        uses_leases: bool,
    ) -> Result<Vec<Got>, BlockError> {
        let mut ends = Vec::with_capacity(wanted.len());
        for step in wanted.chunks_mut(STEP_KEYS) {
            self.check_heard()?;
            ends.extend(self.get_step(step, uses_leases).await?);
        }
        self.count(|counters| counters.hits += ends.iter().filter(|end| end.is_hit()).count() as u64);
        Ok(ends)
    }

    /// Reads a block into the caller's buffer, which has its length.
    ///
    /// # Errors
    /// As [`Store::get_many`].
    pub async fn get(&self, key: &[u8], into: &mut [u8]) -> Result<Got, BlockError> {
        let ends = self.get_many(&mut [(key, into)]).await?;
        Ok(ends[0])
    }

    async fn get_step(
        &self,
        wanted: &mut [(&[u8], &mut [u8])],
        uses_leases: bool,
    ) -> Result<Vec<Got>, BlockError> {
        let mut ends = vec![Got::Absent; wanted.len()];
        let (mut ready, mut surplus) = (Vec::new(), Vec::new());
        let mut unheld = Vec::new();
        for (place, (key, buffer)) in wanted.iter().enumerate() {
            let held = if uses_leases { self.take_held(key, Some(buffer.len() as u64)) } else { None };
            match held {
                Some((permission, is_last, _)) => {
                    if is_last {
                        surplus.push(Rc::clone(&permission));
                    }
                    ready.push(Ready { place, permission });
                }
                None => unheld.push(place),
            }
        }
        let found = self.find_to_read(wanted, unheld, &mut ends).await?;
        surplus.extend(found.iter().map(|ready| Rc::clone(&ready.permission)));
        ready.extend(found);
        // The transfer wants the blocks in the order of the caller's buffers.
        ready.sort_unstable_by_key(|ready| ready.place);
        let mut next = ready.iter().peekable();
        let mut blocks: Vec<(&Rc<BarePermission>, &mut [u8])> = wanted
            .iter_mut()
            .enumerate()
            .filter_map(|(place, (_, buffer))| {
                let ready = next.next_if(|ready| ready.place == place)?;
                Some((&ready.permission, &mut **buffer))
            })
            .collect();
        let results = transfer::read(&self.pipeline, &mut blocks).await;
        for (Ready { place, .. }, result) in ready.iter().zip(&results) {
            ends[*place] = match result {
                Ok(()) => Got::Hit,
                Err(error) => self.failed(error),
            };
        }
        drop(ready);
        self.revoke(surplus).await;
        for ((key, _), end) in wanted.iter().zip(&ends) {
            if end.is_hit() {
                self.recency.borrow_mut().used(key);
            }
        }
        end_of_session(results.iter().filter_map(|result| result.as_ref().err()))?;
        Ok(ends)
    }

    /// Reads a block into the memory of the session. `None`: the key has no block.
    ///
    /// # Errors
    /// As [`Store::get_many`], the block is longer than the session's memory for transfers, or the node refused the
    /// read, for example since it came too late.
    pub async fn get_view(&self, key: &[u8]) -> Result<Option<Block<E::Memory>>, BlockError> {
        let (permission, length, is_surplus) = match self.take_held(key, None) {
            Some((permission, is_last, length)) => (permission, length, is_last),
            None => {
                let Some(entry) = self.entries(&[key]).await?.remove(0) else {
                    self.count(|counters| counters.absent += 1);
                    return Ok(None);
                };
                let granted = self.acquire([entry].into_iter(), self.read_lifetime).await.remove(0);
                match granted {
                    Ok(permission) => (permission, entry.length, true),
                    Err(error) => match self.failed(&error) {
                        Got::Failed(error) => return Err(error.into()),
                        _ => return Ok(None),
                    },
                }
            }
        };
        let read = match u32::try_from(length) {
            Ok(length) => self.pipeline.read(&permission, 0, length).await.map_err(BlockError::Session),
            Err(_) => Err(BlockError::TooLong { bytes: length }),
        };
        if is_surplus {
            self.revoke([permission]).await;
        }
        if let Err(BlockError::Session(error)) = &read {
            self.note(error);
        }
        let buffer = read?;
        self.count(|counters| counters.hits += 1);
        self.recency.borrow_mut().used(key);
        Ok(Some(Block { buffer }))
    }

    /// Looks up the blocks that no look-up holds, and acquires permissions to read them. Reports the others as ended.
    async fn find_to_read(
        &self,
        wanted: &[(&[u8], &mut [u8])],
        places: Vec<usize>,
        ends: &mut [Got],
    ) -> Result<Vec<Ready>, BlockError> {
        let keys: Vec<_> = places.iter().map(|place| wanted[*place].0).collect();
        let entries = self.entries(&keys).await?;
        let mut found = Vec::new();
        for (place, entry) in places.into_iter().zip(entries) {
            match entry {
                None => self.count(|counters| counters.absent += 1),
                Some(entry) if entry.length != wanted[place].1.len() as u64 => {
                    ends[place] = Got::OtherLength(entry.length);
                    self.count(|counters| counters.other_length += 1);
                }
                Some(entry) => found.push((place, entry)),
            }
        }
        let granted = self.acquire(found.iter().map(|(_, entry)| *entry), self.read_lifetime).await;
        end_of_session(granted.iter().filter_map(|it| it.as_ref().err()))?;
        let mut ready = Vec::new();
        for ((place, _), granted) in found.into_iter().zip(granted) {
            match granted {
                Ok(permission) => ready.push(Ready { place, permission }),
                Err(error) => ends[place] = self.failed(&error),
            }
        }
        Ok(ready)
    }

    /// Takes the permission that a look-up has left for a read of `length` bytes. Returns it, whether it is to be
    /// revoked afterwards, and the block's length.
    fn take_held(&self, key: &[u8], length: Option<u64>) -> Option<(Rc<BarePermission>, bool, u64)> {
        let margin = LEASE_MARGIN.min(Lifetime(self.options.lease.0 / 4));
        let (taken, length) = self.held.borrow_mut().take(key, length, self.pipeline.now().after(margin))?;
        Some((taken.permission, taken.is_last, length))
    }

    /// Looks up the entries of keys. What is no entry counts as none.
    pub(super) async fn entries(&self, keys: &[&[u8]]) -> Result<Vec<Option<Entry>>, BlockError> {
        let values = self.values(keys).await?;
        Ok(values.into_iter().map(|value| Entry::from_bytes(&value?)).collect())
    }

    /// Looks up the values of keys, be they entries or not.
    pub(super) async fn values(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, BlockError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.table.get_many(keys).await?)
    }

    /// Counts the error of a block that could not be read, and returns the end of its read.
    fn failed(&self, error: &Error) -> Got {
        self.note(error);
        if is_gone(error) { Got::Absent } else { Got::Failed(*error) }
    }

    fn note(&self, error: &Error) {
        self.count(|counters| match error {
            error if is_gone(error) => counters.gone += 1,
            Error::Refused(Refusal::Conflict) => counters.busy += 1,
            Error::Expired | Error::Revoked => counters.late += 1,
            _ => counters.failed += 1,
        });
    }
}
