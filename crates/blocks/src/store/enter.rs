//! The entries of new blocks in the table.

use super::evict::{Need, Room};
use super::put::{New, Put, PutResult, Written, entry_of, no_room};
use super::write::EvictionBudget;
use super::{Store, end_of_session, is_gone};
use crate::entry::Entry;
use crate::error::{BlockError, is_no_room};
use portcullis::{BarePermission, Clock, Error, Refusal, VerbsEndpoint};
use portcullis_structures::join;
use portcullis_structures::table::TableError;
use std::rc::Rc;

/// Number of times that a block is entered anew if other clients are quicker.
const ATTEMPTS: u32 = 8;

/// Bytes of the objects that the table allocates as it grows, about.
const TABLE_OBJECT_BYTES: u64 = 256 << 10;

/// The end of an entry into the table.
pub(super) enum Entered {
    /// The block has its entry, in place of this one.
    Instead(Option<Entry>),
    /// Another client was quicker.
    Not(Put),
}

impl<E: VerbsEndpoint, C: Clock> Store<E, C> {
    /// Enters blocks into the table. Returns those that are in it now.
    pub(super) async fn enter<'a>(
        &self,
        written: Vec<Written<'a>>,
        ends: &mut [PutResult],
    ) -> Result<Vec<Written<'a>>, BlockError> {
        let results = join(written.iter().map(|(new, permission)| self.enter_one(new, permission))).await;
        let (mut entered, mut unused, mut over) = (Vec::new(), Vec::new(), Ok(()));
        for ((mut new, permission), result) in written.into_iter().zip(results) {
            match result {
                Ok(Entered::Instead(before)) => {
                    new.before = before;
                    entered.push((new, permission));
                }
                Ok(Entered::Not(put)) => {
                    ends[new.place] = Ok(put);
                    unused.push(permission);
                }
                // If the entry is in the table nevertheless, it is a miss.
                Err(error) => {
                    if let BlockError::Session(error) = &error {
                        over = over.and(end_of_session([error]));
                    }
                    ends[new.place] = Err(error);
                    unused.push(permission);
                }
            }
        }
        self.end(unused, true).await;
        over.map(|()| entered)
    }

    pub(super) async fn enter_one(
        &self,
        new: &New<'_>,
        permission: &Rc<BarePermission>,
    ) -> Result<Entered, BlockError> {
        let (mut value, mut before) = (new.value.clone(), new.before);
        let (mut attempts_left, mut budget) = (ATTEMPTS, EvictionBudget::default());
        while attempts_left > 0 {
            if let Some(before) = before {
                // It is of another length, or gone. A client that dies in between leaves a key without a block, and no
                // block without a key.
                self.free_each([before.object].into_iter()).await.into_iter().collect::<Result<(), _>>()?;
            }
            let is_pinned = before.is_some_and(|before| before.is_pinned);
            let entry = Entry { is_pinned, ..entry_of(new, permission) }.to_bytes();
            let entered = match &value {
                None => self.table.insert(new.key, &entry).await,
                Some(value) => self.table.compare_and_set(new.key, value, &entry).await,
            };
            match entered {
                Ok(true) => return Ok(Entered::Instead(before)),
                Ok(false) => attempts_left -= 1,
                Err(TableError::Session(reason)) if is_no_room(&reason) => {
                    let need = Need::after(&reason, [TABLE_OBJECT_BYTES].into_iter());
                    let room = match budget.has_more() {
                        true => self.make_room_for_table(need).await?,
                        false => Room::None,
                    };
                    match room {
                        Room::Made => budget.take(&reason),
                        Room::Perhaps => {}
                        Room::None => return Err(no_room(new, reason)),
                    }
                }
                Err(error) => return Err(error.into()),
            }
            value = self.values(&[new.key]).await?.remove(0);
            before = value.as_deref().and_then(Entry::from_bytes);
            if let Some(put) = self.is_there(before, new.bytes.len() as u64).await? {
                return Ok(Entered::Not(put));
            }
        }
        Ok(Entered::Not(Put::Busy))
    }

    /// Returns the end of a put whose block of this length another client has stored, or stores now. `None`: there is
    /// no such block. Only a permission shows whether there is.
    async fn is_there(&self, entry: Option<Entry>, length: u64) -> Result<Option<Put>, BlockError> {
        let Some(entry) = entry.filter(|entry| entry.length == length) else { return Ok(None) };
        match self.acquire([entry].into_iter(), self.read_lifetime).await.remove(0) {
            Ok(permission) => {
                self.revoke([permission]).await;
                Ok(Some(Put::ThereAlready))
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(Error::Refused(Refusal::Conflict)) => Ok(Some(Put::Busy)),
            Err(error) => Err(error.into()),
        }
    }
}
