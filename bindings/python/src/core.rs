//! The value behind a session's cell: the session, and the results that are wanted of its operations under way.

use crate::arena::Place;
use crate::buffer::CallerBuffer;
use crate::failure::{panicked, raised};
use crate::permission::Permission;
use crate::session::Session;
use crate::view::View;
use portcullis::{Access, ControlRequest, Lifetime, Rights};
use portcullis_foreign::{Attached, Completion, Ended, Failure};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Longest time that a call waits before it lets Python handle its signals.
pub(crate) const SLICE: Lifetime = Lifetime::millis(50);

/// The result that is wanted of an operation.
pub(crate) enum Wanted {
    /// `None`. The bytes that were read are copied to this buffer.
    Into(CallerBuffer),
    /// The bytes that were read, as `bytes`.
    Bytes,
    /// The bytes that were read, in place. `true`: the program may write them.
    View(bool),
    /// The word's previous value.
    Word,
    /// A permission.
    Permission,
    /// `None`.
    Nothing,
}

/// A session, and the results that are wanted of its operations under way.
#[derive(Debug)]
pub(crate) struct Core {
    pub attached: Attached,
    next_tag: u64,
    /// Operations that were submitted and have not ended. [`Core::landed`] returns the ended ones, for
    /// [`WaitingClient::poll`](portcullis::WaitingClient::poll).
    submitted: HashMap<u64, Wanted>,
    landed: Vec<(u64, Wanted, Completion)>,
    /// The program's buffers of the arena that operations under way have borrowed, by the operations' tags.
    borrowed: HashMap<u64, Arc<Place>>,
}

impl std::fmt::Debug for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wanted").finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(attached: Attached) -> Self {
        Self {
            attached,
            next_tag: 0,
            submitted: HashMap::new(),
            landed: Vec::new(),
            borrowed: HashMap::new(),
        }
    }

    /// Returns tags that no other operation has.
    #[inline]
    pub(crate) fn tags(&mut self, count: usize) -> Range<u64> {
        let first = self.next_tag;
        self.next_tag += count as u64;
        first..self.next_tag
    }

    /// Waits until one of the operations with these tags, of which `left` have not ended, ends. Returns its place among
    /// them, and its completion. If a signal has ended the call that waited for an operation, the operation's result is
    /// dropped: a permission that it brings is revoked.
    #[inline]
    pub(crate) fn take_one(
        &mut self,
        py: Python<'_>,
        tags: &Range<u64>,
        left: usize,
    ) -> PyResult<(usize, Completion)> {
        loop {
            while let Some(completion) = self.next_ended() {
                if tags.contains(&completion.tag) {
                    let place = usize::try_from(completion.tag - tags.start)?;
                    return Ok((place, completion));
                }
                self.land(completion);
            }
            let attached = &mut self.attached;
            let ended = py.detach(|| attached.wait(left, Some(SLICE)));
            if ended < left {
                if ended == 0 && self.attached.operations.pending() == 0 {
                    return Err(panicked(py));
                }
                py.check_signals()?;
            }
        }
    }

    /// Waits for the end of the only operation with this tag.
    #[inline]
    pub(crate) fn take(&mut self, py: Python<'_>, tag: u64) -> PyResult<Completion> {
        self.take_one(py, &(tag..tag + 1), 1).map(|(_, completion)| completion)
    }

    /// Adds a read into, or a write from, a buffer of the program, by the one right that it needs. The program gets the
    /// buffer back when the operation has ended, also if no call waits for it any more.
    pub(crate) fn add_in_place(
        &mut self,
        tag: u64,
        place: &Arc<Place>,
        right: Rights,
        (permission, offset): (&portcullis::Permission, u64),
    ) -> Result<(), Failure> {
        permission.check_span(offset, place.length().into(), right)?;
        let buffer = place.borrow()?;
        self.borrowed.insert(tag, Arc::clone(place));
        let view = permission.view();
        let access = match right {
            Rights::WRITE => Access::write(view, offset, buffer),
            _ => Access::read(view, offset, buffer),
        };
        self.attached.operations.add(tag, access);
        Ok(())
    }

    /// Takes the next completion. A buffer of the program goes back to the program.
    #[inline]
    fn next_ended(&mut self) -> Option<Completion> {
        let mut completion = self.attached.operations.take()?;
        if !self.borrowed.is_empty()
            && let Some(place) = self.borrowed.remove(&completion.tag)
        {
            place.give_back(completion.buffer.take());
        }
        Some(completion)
    }

    /// Records the result that is wanted of a submitted operation.
    pub(crate) fn submit(&mut self, tag: u64, wanted: Wanted) {
        self.submitted.insert(tag, wanted);
    }

    /// Forgets a submitted operation. Its result is dropped.
    pub(crate) fn forget(&mut self, tag: u64) {
        self.submitted.remove(&tag);
        self.landed.retain(|(landed, ..)| *landed != tag);
    }

    fn land(&mut self, completion: Completion) {
        if let Some(wanted) = self.submitted.remove(&completion.tag) {
            self.landed.push((completion.tag, wanted, completion));
        }
    }

    /// Returns the submitted operations that have ended.
    pub(crate) fn landed(&mut self) -> Vec<(u64, Wanted, Completion)> {
        self.take_in();
        std::mem::take(&mut self.landed)
    }

    /// Takes in what has arrived, while no call waits for an operation.
    pub(crate) fn take_in(&mut self) {
        self.attached.post();
        self.attached.poll();
        while let Some(completion) = self.next_ended() {
            self.land(completion);
        }
    }

    /// Whether [`Core::landed`] would return something without polling the session.
    pub(crate) fn has_landed(&self) -> bool {
        !self.landed.is_empty() || self.attached.operations.ended() > 0
    }

    /// Sends a request to the node, and waits for its answer.
    pub(crate) fn call(&mut self, py: Python<'_>, request: ControlRequest) -> PyResult<Ended> {
        let tag = self.tags(1).start;
        self.attached.operations.add(tag, request);
        self.attached.post();
        // An exception of a signal handler ends the wait. A request that has not begun then never begins.
        let completion = self.take(py, tag).inspect_err(|_| self.attached.operations.withdraw(tag))?;
        completion.result.map_err(|failure| raised(py, &failure))
    }
}

/// Converts the completion of an operation to the Python object that is wanted of it.
pub(crate) fn outcome<'py>(
    session: &Bound<'py, Session>,
    wanted: &Wanted,
    completion: Completion,
) -> PyResult<Bound<'py, PyAny>> {
    let py = session.py();
    let Completion { result, buffer, .. } = completion;
    let ended = result.map_err(|failure| raised(py, &failure))?;
    match (wanted, ended, buffer) {
        (Wanted::Into(target), Ended::Value(_), Some(buffer)) => {
            target.fill(py, 0, &buffer.bytes());
            Ok(py.None().into_bound(py))
        }
        (Wanted::Bytes, Ended::Value(_), Some(buffer)) => Ok(PyBytes::new(py, &buffer.bytes()).into_any()),
        (Wanted::View(is_writable), Ended::Value(_), Some(buffer)) => {
            Ok(Bound::new(py, View::new(buffer, *is_writable))?.into_any())
        }
        (Wanted::Word, Ended::Value(word), _) => Ok(word.into_pyobject(py)?.into_any()),
        (Wanted::Permission, Ended::Granted(permission), _) => {
            let permission = Permission::new(*permission, session.get().clock(), session.clone().unbind());
            Ok(Bound::new(py, permission)?.into_any())
        }
        (Wanted::Nothing, Ended::Value(_) | Ended::Done, _) => Ok(py.None().into_bound(py)),
        _ => Err(panicked(py)),
    }
}
