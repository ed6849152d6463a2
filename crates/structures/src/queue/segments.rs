//! The segments that a handle knows, and its permissions on them: one for each, shared by many operations.

use super::words::{Indexes, Tail};
use super::{Queue, QueueError, QueueOptions};
use crate::held::{AtEnd, Held};
use crate::pipeline::word_of;
use crate::record::Record;
use portcullis::{
    Acquire, Allocate, BarePermission, Clock, Error, Keep, Lifetime, ObjectRef, Refusal, Rights, Sharing,
    VerbsEndpoint,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The object of one segment, and the handle's permission on it.
#[derive(Debug)]
struct Segment {
    object: ObjectRef,
    held: Held,
}

/// The segments that a handle knows, by number.
#[derive(Debug, Default)]
pub(super) struct Segments {
    known: BTreeMap<u64, Segment>,
}

impl Segments {
    pub fn know(&mut self, number: u64, object: ObjectRef) {
        self.known.entry(number).or_insert_with(|| Segment { object, held: Held::default() });
    }

    pub fn object(&self, number: u64) -> Option<ObjectRef> {
        self.known.get(&number).map(|segment| segment.object)
    }

    /// Returns the first segment that is known.
    pub fn first(&self) -> Option<u64> {
        self.known.keys().next().copied()
    }

    /// Forgets segments that are consumed.
    pub fn forget_before(&mut self, first: u64) {
        self.known = self.known.split_off(&first);
    }

    fn held(&mut self, number: u64) -> Option<&mut Held> {
        self.known.get_mut(&number).map(|segment| &mut segment.held)
    }

    /// Forgets all permissions: the node has ended one of them before its time.
    fn forget_permissions(&mut self) {
        self.known.values_mut().for_each(|segment| segment.held.permission = None);
    }
}

/// Turns the error that memory is gone into [`Error::Expired`]: memory that was just made and is not kept yet is gone
/// because its permission has ended.
fn expired_if_gone(error: Error) -> Error {
    if error == Error::Refused(Refusal::Gone) { Error::Expired } else { error }
}

impl<E: VerbsEndpoint, C: Clock> Queue<E, C> {
    /// Returns a permission over a segment, from those that the handle has or a new one.
    ///
    /// # Errors
    /// The segment is gone, among others.
    #[inline]
    pub(super) async fn segment(&self, number: u64) -> Result<Rc<BarePermission>, QueueError> {
        loop {
            let now = self.pipeline.now();
            let known = {
                let mut state = self.state.borrow_mut();
                match state.segments.held(number) {
                    None => false,
                    Some(held) => {
                        if let Some(permission) = held.fresh(now) {
                            return Ok(permission);
                        }
                        if !held.acquiring {
                            held.acquiring = true;
                            break;
                        }
                        true
                    }
                }
            };
            if known {
                // Another operation of this pipeline is acquiring the permission.
                self.pipeline.anything().await?;
            } else {
                self.look_up(number).await?;
            }
        }
        self.acquire_segment(number).await
    }

    /// Calls `act` with a permission over a segment, and again with a new one if the permission has ended meanwhile.
    ///
    /// # Errors
    /// The segment is gone, among others.
    pub(super) async fn on_segment<T>(
        &self,
        number: u64,
        act: impl AsyncFn(&Rc<BarePermission>) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        loop {
            let done = async {
                let permission = self.segment(number).await?;
                act(&permission).await
            };
            match done.await {
                Err(error) => self.mend(error).await?,
                done => return done,
            }
        }
    }

    async fn acquire_segment(&self, number: u64) -> Result<Rc<BarePermission>, QueueError> {
        let done = AtEnd::new(&self.pipeline, || {
            if let Some(held) = self.state.borrow_mut().segments.held(number) {
                held.acquiring = false;
            }
        });
        let object = self.state.borrow().segments.object(number);
        let object = object.expect("the segment was known when this began");
        let ask = Acquire::object(object).rights(Rights::all()).shared();
        let permission =
            self.pipeline.acquire(ask.lifetime(self.options.lease).wait(self.longest_wait())).await?;
        let permission = Rc::new(permission);
        drop(done);
        if let Some(held) = self.state.borrow_mut().segments.held(number) {
            held.keep(&permission);
        }
        Ok(permission)
    }

    /// Longest wait of a request for what other clients hold: no client holds anything for longer than a lease.
    pub(super) fn longest_wait(&self) -> Lifetime {
        Lifetime(self.options.lease.0 * 3)
    }

    /// Makes a segment with empty slots, and returns it with its permission. Unless the segment is kept in time, it is
    /// freed when the permission ends.
    pub(super) async fn make_segment(
        &self,
        lifetime: Lifetime,
    ) -> Result<(Record, Rc<BarePermission>), QueueError> {
        let ask = Allocate {
            size: self.options.segment_bytes(),
            alignment: 64,
            lifetime,
            rights: Rights::all(),
            sharing: Sharing::Shared,
            keep: Keep::No,
        };
        let permission = Rc::new(self.pipeline.allocate(ask).await?);
        let object = permission.object();
        self.pipeline.zero(&permission, self.options.cell_at(0)).await?;
        // The segment is freed with the head, whatever happens to its record.
        self.pipeline.include(object, self.head).await.map_err(expired_if_gone)?;
        Ok((Record { object, detail: 0, is_kept: true }, permission))
    }

    /// Keeps memory for as long as the queue.
    ///
    /// # Errors
    /// [`Error::Expired`]: the memory was freed with its permission before this.
    pub(super) async fn keep_part(&self, object: ObjectRef) -> Result<(), QueueError> {
        Ok(self.pipeline.keep_object(object, self.options.keep).await.map_err(expired_if_gone)?)
    }

    /// Reads both indexes of a segment. `None`: the segment is consumed and gone.
    pub(super) async fn indexes(&self, number: u64) -> Result<Option<Indexes>, QueueError> {
        let read = self.on_segment(number, async |permission| {
            let bytes = self.pipeline.read_bytes(permission, 0, Indexes::BYTES).await?;
            Ok(Indexes { head: word_of(&bytes, 0), tail: Tail(word_of(&bytes, 8)) })
        });
        match read.await {
            Err(error) if error.is_gone() => Ok(None),
            read => read.map(Some),
        }
    }

    /// Returns if the caller can try again: after an error that a new permission mends, or at the end of a pause of the
    /// tenant.
    ///
    /// # Errors
    /// Any other error.
    pub(super) async fn mend(&self, error: QueueError) -> Result<(), QueueError> {
        if let QueueError::Session(Error::Paused { wait }) = error {
            self.pipeline.sit_out(wait).await?;
            return Ok(());
        }
        if !error.wants_permission() {
            return Err(error);
        }
        // A permission that has expired is not used again. The handle's other permissions are as good as before.
        if error == QueueError::Session(Error::Revoked) {
            self.state.borrow_mut().segments.forget_permissions();
        }
        Ok(())
    }

    /// Offset in a segment of the word of a slot.
    pub(super) fn word_at(slot: u64) -> u64 {
        QueueOptions::word_at(slot)
    }
}
