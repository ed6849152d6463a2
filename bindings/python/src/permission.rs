//! Permissions, and keepers that extend them.

use crate::arena::{ArenaBuffer, Place};
use crate::arguments::{Seconds, Size, Word};
use crate::buffer::CallerBuffer;
use crate::failure::{OrRaise, raised};
use crate::object::ObjectRef;
use crate::session::Session;
use crate::view::View;
use portcullis::{Access, Clock, ControlRequest, Kept, Lease, PermissionView, ProcessClock, Rights, Sharing};
use portcullis_errors::Fault;
use portcullis_foreign::{ArenaAccess, Completion, Ended, ExclusiveCell, Failure, Misuse};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use std::time::Duration;

/// The right to access some bytes of a node for some time.
///
/// Used as a context manager, the permission is revoked at the end of the block. It ends by itself at its deadline, and
/// with its session. A permission to which the program does not refer any more is revoked by the session's next call.
///
/// >>> with session.allocate("4KiB", lifetime=0.5) as permission:
/// ...     permission.write(b"hello")
/// ...     permission.read_bytes(5)
/// b'hello'
#[pyclass(frozen, module = "portcullis_memory")]
pub(crate) struct Permission {
    pub(crate) held: ExclusiveCell<portcullis::Permission>,
    pub(crate) session: Py<Session>,
    object: ObjectRef,
    #[pyo3(get)]
    offset: u64,
    #[pyo3(get)]
    length: u64,
    rights: String,
    shared: bool,
    lease: Arc<Lease>,
    clock: ProcessClock,
}

impl Permission {
    pub(crate) fn new(held: portcullis::Permission, clock: ProcessClock, session: Py<Session>) -> Self {
        Self {
            object: ObjectRef(held.object()),
            offset: held.offset(),
            length: held.length(),
            rights: held.rights().letters(),
            shared: held.sharing() == Sharing::Shared,
            lease: Arc::clone(held.lease()),
            held: ExclusiveCell::new("the permission", held),
            clock,
            session,
        }
    }

    /// Number of bytes of an access that begins at `offset`. Without a length, it reaches to the end of the
    /// permission's memory.
    pub(crate) fn length_from(&self, offset: u64, length: Option<Size>) -> PyResult<usize> {
        let rest = || self.length.saturating_sub(offset);
        Ok(usize::try_from(length.map_or_else(rest, |length| length.0))?)
    }

    fn left(&self) -> Duration {
        let (now, deadline) = (self.clock.now(), self.lease.deadline());
        if deadline > now { deadline.since(now).into() } else { Duration::ZERO }
    }

    fn end(&self, py: Python<'_>, free: bool) -> PyResult<Result<(), Failure>> {
        let mut core = self.session.get().enter(py)?;
        let Some(held) = self.held.close().or_raise(py)? else {
            return Ok(Err(Misuse::Closed { what: "the permission" }.into()));
        };
        let tag = core.tags(1).start;
        core.attached.operations.revoke(tag, held, free);
        core.attached.post();
        Ok(core.take(py, tag)?.result.map(|_| ()))
    }

    /// Reads or writes, by the one right that this needs, the bytes of a buffer of the session's arena.
    fn move_in_place(&self, py: Python<'_>, offset: u64, place: &Arc<Place>, right: Rights) -> PyResult<()> {
        let mut core = self.session.get().enter(py)?;
        if place.is_under_way() {
            // An earlier operation, whose wait a signal has ended, may have ended meanwhile.
            core.take_in();
        }
        let held = self.held.enter().or_raise(py)?;
        let tag = core.tags(1).start;
        core.add_in_place(tag, place, right, (&held, offset)).or_raise(py)?;
        core.attached.post();
        core.take(py, tag)?.result.map(|_| ()).map_err(|failure| raised(py, &failure))
    }

    fn word(
        slf: &Bound<'_, Self>,
        access: impl FnOnce(PermissionView) -> ArenaAccess<PermissionView>,
    ) -> PyResult<u64> {
        let (py, this) = (slf.py(), slf.get());
        let mut core = this.session.get().enter(py)?;
        let tag = core.tags(1).start;
        let access = access(this.held.enter().or_raise(py)?.view());
        core.attached.operations.add(tag, access);
        core.attached.post();
        match core.take(py, tag)?.result {
            Ok(Ended::Value(before)) => Ok(before),
            Ok(_) => Err(crate::failure::panicked(py)),
            Err(failure) => Err(raised(py, &failure)),
        }
    }
}

#[pymethods]
impl Permission {
    fn __enter__<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: (Py<PyAny>, Py<PyAny>, Py<PyAny>)) -> PyResult<()> {
        // A permission that has ended, or whose session has, needs no revocation.
        if self.held.is_closed() || self.session.get().is_closed() {
            return Ok(());
        }
        let has_failed = !exception.0.is_none(py);
        match self.end(py, false) {
            Ok(Ok(())) => Ok(()),
            // A permission that has ended needs no revocation, and no error may hide the exception that ends the block.
            Ok(Err(failure)) if failure.fault() == Fault::Ended || has_failed => Ok(()),
            Ok(Err(failure)) => Err(raised(py, &failure)),
            // Another thread uses the session: the session's next call revokes the permission.
            Err(_) if has_failed => self.release(py),
            Err(error) => Err(error),
        }
    }

    /// Ends the permission. When this returns, no access under it can succeed any more.
    ///
    /// free: whether to free the permission's object as well, once no other client holds it.
    #[pyo3(signature = (free = false))]
    fn revoke(&self, py: Python<'_>, free: bool) -> PyResult<()> {
        self.end(py, free)?.map_err(|failure| raised(py, &failure))
    }

    /// Gives up the permission without waiting: the session's next call revokes it.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.held.close().or_raise(py).map(|_| ())
    }

    /// Extends the permission so that it ends this many seconds from now. The node's CPU has no part in this.
    fn extend(&self, py: Python<'_>, seconds: Seconds) -> PyResult<()> {
        let mut core = self.session.get().enter(py)?;
        let tag = core.tags(1).start;
        let request = ControlRequest::extend(&*self.held.enter().or_raise(py)?, seconds.0);
        core.attached.operations.add(tag, request);
        core.attached.post();
        core.take(py, tag)?.result.map(|_| ()).map_err(|failure| raised(py, &failure))
    }

    /// Keeps the permission extended, `by` seconds at a time, until the keeper is closed, the node refuses, or the
    /// node's longest lifetime is reached. A native thread, which runs no Python code, extends the permission through a
    /// second session.
    ///
    /// >>> with session.allocate(64, lifetime=0.2) as permission:
    /// ...     with permission.keep(by=0.2) as keeper:
    /// ...         keeper.is_kept
    /// True
    fn keep(&self, py: Python<'_>, by: Seconds) -> PyResult<Keeper> {
        let mut core = self.session.get().enter(py)?;
        let held = self.held.enter().or_raise(py)?;
        let (session, held) = (&mut core.attached.session, &*held);
        let kept = py.detach(|| session.keep(held, by.0)).or_raise(py)?;
        Ok(Keeper { kept: ExclusiveCell::new("the keeper", kept) })
    }

    /// Fills a buffer with the bytes from `offset` on. The buffer may be any object whose bytes are contiguous and can
    /// be written, such as a bytearray or a numpy array. If the permission does not cover all the bytes, the call is
    /// refused before a byte is read.
    ///
    /// >>> into = bytearray(5)
    /// >>> with session.allocate(64) as permission:
    /// ...     permission.write(b"hello")
    /// ...     permission.read_into(into)
    /// >>> into
    /// bytearray(b'hello')
    #[pyo3(signature = (buffer, offset = Size(0)), text_signature = "($self, buffer, offset=0)")]
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: Size) -> PyResult<()> {
        if let Some(place) = ArenaBuffer::of(buffer, &self.session) {
            return self.move_in_place(py, offset.0, &place, Rights::READ);
        }
        let target = CallerBuffer::target(buffer)?;
        let mut core = self.session.get().enter(py)?;
        let held = self.held.enter().or_raise(py)?;
        core.read(py, &held, (offset.0, target.len()), |at, bytes| target.fill(py, at, bytes))
    }

    /// Writes the bytes of a buffer, from `offset` on. If the permission does not cover all the bytes, the call is
    /// refused before a byte is written.
    #[pyo3(signature = (data, offset = Size(0)), text_signature = "($self, data, offset=0)")]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: Size) -> PyResult<()> {
        if let Some(place) = ArenaBuffer::of(data, &self.session) {
            return self.move_in_place(py, offset.0, &place, Rights::WRITE);
        }
        let source = CallerBuffer::source(data)?;
        let mut core = self.session.get().enter(py)?;
        let held = self.held.enter().or_raise(py)?;
        core.write(py, &held, (offset.0, source.len()), |at, bytes| source.copy(py, at, bytes))
    }

    /// Reads bytes and returns them in place, without a copy: see View. Without a length, reads all bytes from `offset`
    /// on. The session's arena must have room for them in one piece, and over UDP one operation carries at most 256
    /// KiB. writable: whether the program may write the bytes of its copy.
    #[pyo3(
        signature = (length = None, offset = Size(0), *, writable = false),
        text_signature = "($self, length=None, offset=0, *, writable=False)"
    )]
    fn read(&self, py: Python<'_>, length: Option<Size>, offset: Size, writable: bool) -> PyResult<View> {
        let length = self.length_from(offset.0, length)?;
        let mut core = self.session.get().enter(py)?;
        let held = self.held.enter().or_raise(py)?;
        let Completion { result, buffer, .. } = core.read_in_place(py, &held, (offset.0, length))?;
        match (result, buffer) {
            (Ok(_), Some(buffer)) => Ok(View::new(buffer, writable)),
            (Ok(_), None) => Err(crate::failure::panicked(py)),
            (Err(failure), _) => Err(raised(py, &failure)),
        }
    }

    /// Reads bytes and returns a copy of them. Without a length, reads all bytes from `offset` on.
    #[pyo3(signature = (length = None, offset = Size(0)), text_signature = "($self, length=None, offset=0)")]
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        length: Option<Size>,
        offset: Size,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let length = self.length_from(offset.0, length)?;
        let mut core = self.session.get().enter(py)?;
        let held = self.held.enter().or_raise(py)?;
        // A length that the permission does not cover must not allocate memory.
        held.check_span(offset.0, length as u64, Rights::READ).or_raise(py)?;
        PyBytes::new_with(py, length, |into| {
            core.read(py, &held, (offset.0, length), |at, bytes| {
                into[at..at + bytes.len()].copy_from_slice(bytes);
            })
        })
    }

    /// Writes `swap` to the 8-byte word at `offset` if the word equals `compare`. Returns the word's previous value.
    /// The permission must have the right "a", and the offset must be a multiple of 8. Words are little-endian.
    fn compare_and_swap(slf: &Bound<'_, Self>, offset: Size, compare: Word, swap: Word) -> PyResult<u64> {
        Self::word(slf, |held| Access::compare_and_swap(held, offset.0, compare.0, swap.0))
    }

    /// Adds `add` to the 8-byte word at `offset`, modulo 2**64. Returns the word's previous value. The permission must
    /// have the right "a".
    fn fetch_and_add(slf: &Bound<'_, Self>, offset: Size, add: Word) -> PyResult<u64> {
        Self::word(slf, |held| Access::fetch_and_add(held, offset.0, add.0))
    }

    /// Reference to the object. Other clients can use it to acquire permissions over the object.
    #[getter]
    fn object(&self) -> ObjectRef {
        self.object
    }

    /// The session that holds the permission.
    #[getter]
    fn session<'py>(&self, py: Python<'py>) -> &Bound<'py, Session> {
        self.session.bind(py)
    }

    /// Rights of the permission: letters of "rwa".
    #[getter]
    fn rights(&self) -> &str {
        &self.rights
    }

    /// Whether other clients may hold permissions over the same bytes at the same time.
    #[getter]
    fn shared(&self) -> bool {
        self.shared
    }

    /// Seconds until the deadline, on this machine's clock. 0: the permission has ended.
    #[getter]
    fn remaining(&self) -> f64 {
        if self.held.is_closed() { 0.0 } else { self.left().as_secs_f64() }
    }

    /// The deadline on the clock of time.monotonic(), as far as it is known now.
    #[getter]
    fn deadline(&self, py: Python<'_>) -> PyResult<f64> {
        let now: f64 = py.import("time")?.call_method0("monotonic")?.extract()?;
        Ok(now + self.left().as_secs_f64())
    }

    /// Whether the permission was not revoked here, its session is open, and its deadline has not passed. The node may
    /// have ended the permission all the same.
    #[getter]
    fn is_live(&self) -> bool {
        !self.held.is_closed() && !self.session.get().is_closed() && self.left() > Duration::ZERO
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.length)?)
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        let Self { object, offset, length, rights, .. } = self;
        let shared = if self.shared { ", shared" } else { "" };
        let state = if self.held.is_closed() {
            "ended".to_owned()
        } else {
            format!("{:.3} s left", self.left().as_secs_f64())
        };
        format!(
            "<portcullis_memory.Permission {rights}{shared}: {length} bytes at {offset} of {}, {state}>",
            object.0
        )
    }
}

/// Keeps a permission extended until the keeper is closed. Permission.keep returns it.
#[pyclass(frozen, module = "portcullis_memory")]
pub(crate) struct Keeper {
    kept: ExclusiveCell<Kept>,
}

#[pymethods]
impl Keeper {
    fn __enter__<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    /// Stops extending the permission.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.kept.close().or_raise(py).map(|_| ())
    }

    /// Whether the permission is still kept extended.
    #[getter]
    fn is_kept(&self) -> bool {
        self.kept.enter().is_ok_and(|kept| kept.is_kept())
    }
}
