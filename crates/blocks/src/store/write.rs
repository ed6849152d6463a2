//! The objects of new blocks: their memory, and their bytes.

use super::evict::{Need, Room};
use super::put::{New, PutResult, Written, no_room};
use super::{Store, each, end_of_session};
use crate::error::{BlockError, is_no_room};
use crate::transfer;
use portcullis::{Allocate, Clock, Error, Refusal, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

/// The evictions that a put may make for the room that is missing.
pub(super) struct EvictionBudget(u32);

impl Default for EvictionBudget {
    fn default() -> Self {
        Self(16)
    }
}

impl EvictionBudget {
    /// Whether another eviction may help.
    pub fn has_more(&self) -> bool {
        self.0 > 0
    }

    /// Takes an eviction for this reason. Others may take the room that it has made. Memory that is free in small
    /// pieces has no place for a long block, however much of it there is: such evictions count four times.
    pub fn take(&mut self, reason: &Error) {
        let weight = if matches!(reason, Error::Refused(Refusal::OutOfMemory { .. })) { 4 } else { 1 };
        self.0 = self.0.saturating_sub(weight);
    }
}

impl<E: VerbsEndpoint, C: Clock> Store<E, C> {
    /// Writes blocks into objects of their own. Returns those that were written as a whole.
    pub(super) async fn write_new<'a>(
        &self,
        new: Vec<New<'a>>,
        ends: &mut [PutResult],
    ) -> Result<Vec<Written<'a>>, BlockError> {
        let allocated = self.allocate(new, ends).await?;
        if planted!(BlockKeptBeforeWritten) {
            for (new, permission) in &allocated {
                self.enter_one(new, permission).await?;
                self.pipeline.keep_object(permission.object(), self.options.keep).await?;
            }
        }
        let blocks: Vec<_> = allocated.iter().map(|(new, permission)| (permission, new.bytes)).collect();
        let results = transfer::write(&self.pipeline, &blocks).await;
        let (mut written, mut unused) = (Vec::new(), Vec::new());
        for ((new, permission), result) in allocated.into_iter().zip(&results) {
            match result {
                Err(error) => {
                    ends[new.place] = Err((*error).into());
                    unused.push(permission);
                }
                Ok(()) => written.push((new, permission)),
            }
        }
        self.end(unused, true).await;
        end_of_session(results.iter().filter_map(|result| result.as_ref().err()))?;
        Ok(written)
    }

    /// Allocates the objects of new blocks, and evicts others if there is no room. A block without an object has ended.
    async fn allocate<'a>(
        &self,
        mut new: Vec<New<'a>>,
        ends: &mut [PutResult],
    ) -> Result<Vec<Written<'a>>, BlockError> {
        let mut allocated = Vec::with_capacity(new.len());
        let mut budget = EvictionBudget::default();
        while !new.is_empty() {
            let ask = |new: &New<'_>| Allocate::bytes(new.bytes.len() as u64).lifetime(self.write_lifetime);
            let granted = each(new.iter().map(|new| self.pipeline.allocate(ask(new)))).await;
            end_of_session(granted.iter().filter_map(|it| it.as_ref().err()))?;
            let (mut without_room, mut reason) = (Vec::new(), None);
            for (new, granted) in new.into_iter().zip(granted) {
                match granted {
                    Ok(permission) => allocated.push((new, Rc::new(permission))),
                    Err(error) if is_no_room(&error) && is_hopeless(&error, &new) => {
                        ends[new.place] = Err(no_room(&new, error));
                    }
                    Err(error) if is_no_room(&error) => {
                        reason = Some(error);
                        without_room.push(new);
                    }
                    Err(error) => ends[new.place] = Err(error.into()),
                }
            }
            new = without_room;
            let Some(reason) = reason else { break };
            let need = Need::after(&reason, new.iter().map(|new| new.bytes.len() as u64));
            let room = if budget.has_more() { self.make_room(need).await? } else { Room::None };
            match room {
                Room::Made => budget.take(&reason),
                Room::Perhaps => {}
                Room::None => {
                    for new in new.drain(..) {
                        ends[new.place] = Err(no_room(&new, reason));
                    }
                }
            }
        }
        Ok(allocated)
    }
}

/// Whether no eviction makes room for a block: it is longer than the quota.
fn is_hopeless(error: &Error, new: &New<'_>) -> bool {
    matches!(error, Error::Quota { used, limit } if used < limit && *limit < new.bytes.len() as u64)
}
