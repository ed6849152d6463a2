//! Operations that are begun together.

use crate::arena::{ArenaBuffer, Place};
use crate::arguments::{KeptFor, Letters, Seconds, Size, Word};
use crate::buffer::CallerBuffer;
use crate::core::{Core, Wanted, outcome};
use crate::failure::{bad_argument, raised};
use crate::object::ObjectRef;
use crate::permission::Permission;
use crate::session::{Session, acquire_ask, allocate_ask};
use crate::transfers::length_of;
use portcullis::{Access, ControlRequest, Error, Lifetime, Rights};
use portcullis_foreign::{ArenaAccess, Failure, Misuse};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// One operation of a batch, before it is begun.
enum BatchedOperation {
    Read {
        permission: Py<Permission>,
        offset: u64,
        length: usize,
        wanted: Wanted,
    },
    Write {
        permission: Py<Permission>,
        offset: u64,
        data: CallerBuffer,
    },
    /// A read or a write, by the one right that it needs, of a buffer of the session's arena.
    InPlace {
        permission: Py<Permission>,
        offset: u64,
        place: Arc<Place>,
        right: Rights,
    },
    /// An access without bytes of the caller's.
    Atomic(ArenaAccess<Py<Permission>>),
    /// A request for a permission.
    Grant(ControlRequest),
    Revoke {
        permission: Py<Permission>,
        free: bool,
    },
    Extend {
        permission: Py<Permission>,
        time: Lifetime,
    },
}

impl BatchedOperation {
    /// Adds the operation to the session's. Returns the result that is wanted of it, or the operation and the error if
    /// the arena has no room for it.
    fn add(self, py: Python<'_>, core: &mut Core, tag: u64) -> Result<Wanted, (Box<Self>, Error)> {
        match self.try_to_add(py, core, tag) {
            Ok(wanted) => Ok(wanted),
            Err(Refused::NoRoom(step, error)) => Err((step, error)),
            Err(Refused::Failed(failure)) => {
                core.attached.operations.fail(tag, failure);
                Ok(Wanted::Nothing)
            }
        }
    }

    fn try_to_add(self, py: Python<'_>, core: &mut Core, tag: u64) -> Result<Wanted, Refused> {
        let attached = &mut core.attached;
        match self {
            Self::InPlace { permission, offset, place, right } => {
                core.add_in_place(tag, &place, right, (&*permission.get().held.enter()?, offset))?;
                Ok(Wanted::Nothing)
            }
            Self::Read { permission, offset, length, wanted } => {
                let held = permission.get().held.enter()?;
                held.check_span(offset, length as u64, Rights::READ)?;
                match attached.session.buffer(length_of(length)) {
                    Ok(buffer) => attached.operations.add(tag, Access::read(held.view(), offset, buffer)),
                    Err(error) => {
                        drop(held);
                        let step = Self::Read { permission, offset, length, wanted };
                        return Err(Refused::of_buffer(step, error));
                    }
                }
                Ok(wanted)
            }
            Self::Write { permission, offset, data } => {
                let held = permission.get().held.enter()?;
                held.check_span(offset, data.len() as u64, Rights::WRITE)?;
                match attached.session.buffer(length_of(data.len())) {
                    Ok(mut buffer) => {
                        data.copy(py, 0, &mut buffer.bytes_mut());
                        attached.operations.add(tag, Access::write(held.view(), offset, buffer));
                    }
                    Err(error) => {
                        drop(held);
                        return Err(Refused::of_buffer(Self::Write { permission, offset, data }, error));
                    }
                }
                Ok(Wanted::Nothing)
            }
            Self::Atomic(access) => {
                let view = access.permission().get().held.enter()?.view();
                attached.operations.add(tag, access.map_permission(|_| view));
                Ok(Wanted::Word)
            }
            Self::Grant(request) => {
                attached.operations.add(tag, request);
                Ok(Wanted::Permission)
            }
            Self::Revoke { permission, free } => {
                let held = permission.get().held.close()?.ok_or(Misuse::Closed { what: "the permission" })?;
                attached.operations.revoke(tag, held, free);
                Ok(Wanted::Nothing)
            }
            Self::Extend { permission, time } => {
                let request = ControlRequest::extend(&*permission.get().held.enter()?, time);
                attached.operations.add(tag, request);
                Ok(Wanted::Nothing)
            }
        }
    }
}

/// Reason why a step was not added.
enum Refused {
    NoRoom(Box<BatchedOperation>, Error),
    Failed(Failure),
}

impl Refused {
    /// Returns the reason why an operation got no buffer.
    fn of_buffer(step: BatchedOperation, error: Error) -> Self {
        match error {
            Error::ArenaFull { .. } => Self::NoRoom(Box::new(step), error),
            error => Self::Failed(error.into()),
        }
    }
}

impl<E: Into<Failure>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Operations that are begun together, with one doorbell, and carried out in order.
///
/// Each method that adds an operation returns the operation's place. run() begins the operations and waits for them; it
/// returns a list that has, at each place, the operation's result, or the exception itself. submit() begins the
/// operations and does not wait.
///
/// >>> with session.allocate(64, rights="rwa") as permission:
/// ...     batch = session.batch()
/// ...     _ = batch.write(permission, b"hello")
/// ...     _ = batch.read_bytes(permission, 5)
/// ...     _ = batch.fetch_and_add(permission, 8, 1)
/// ...     _ = batch.read_bytes(permission, 1, offset=64)
/// ...     batch.run()
/// [None, b'hello', 0, CallerError("1 bytes at 64 reach outside the permission's 64", 104, 'outside-range')]
#[pyclass(frozen, module = "portcullis_memory")]
pub(crate) struct Batch {
    session: Py<Session>,
    steps: Mutex<Vec<BatchedOperation>>,
}

impl Batch {
    pub(crate) fn new(session: Py<Session>) -> Self {
        Self { session, steps: Mutex::new(Vec::new()) }
    }

    /// Adds a read or a write, by the one right that it needs, if the object is a buffer that one operation can move in
    /// place.
    fn push_in_place(
        &self,
        permission: &Py<Permission>,
        object: &Bound<'_, PyAny>,
        offset: u64,
        right: Rights,
    ) -> Option<usize> {
        let place = ArenaBuffer::of(object, &self.session)?;
        let permission = permission.clone_ref(object.py());
        Some(self.push(BatchedOperation::InPlace { permission, offset, place, right }))
    }

    fn push(&self, step: BatchedOperation) -> usize {
        let mut steps = self.steps.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        steps.push(step);
        steps.len() - 1
    }

    fn take(&self) -> Vec<BatchedOperation> {
        std::mem::take(&mut *self.steps.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[pymethods]
impl Batch {
    /// Adds a read that fills the whole buffer.
    #[pyo3(
        signature = (permission, buffer, offset = Size(0)),
        text_signature = "($self, permission, buffer, offset=0)"
    )]
    fn read_into(
        &self,
        permission: Py<Permission>,
        buffer: &Bound<'_, PyAny>,
        offset: Size,
    ) -> PyResult<usize> {
        if let Some(number) = self.push_in_place(&permission, buffer, offset.0, Rights::READ) {
            return Ok(number);
        }
        let target = CallerBuffer::target(buffer)?;
        let (length, wanted) = (target.len(), Wanted::Into(target));
        Ok(self.push(BatchedOperation::Read { permission, offset: offset.0, length, wanted }))
    }

    /// Adds a read whose result is a View. writable: whether the program may write the bytes of its copy.
    #[pyo3(
        signature = (permission, length = None, offset = Size(0), *, writable = false),
        text_signature = "($self, permission, length=None, offset=0, *, writable=False)"
    )]
    fn read(
        &self,
        permission: Py<Permission>,
        length: Option<Size>,
        offset: Size,
        writable: bool,
    ) -> PyResult<usize> {
        let length = permission.get().length_from(offset.0, length)?;
        let (offset, wanted) = (offset.0, Wanted::View(writable));
        Ok(self.push(BatchedOperation::Read { permission, offset, length, wanted }))
    }

    /// Adds a read whose result is bytes.
    #[pyo3(
        signature = (permission, length = None, offset = Size(0)),
        text_signature = "($self, permission, length=None, offset=0)"
    )]
    fn read_bytes(&self, permission: Py<Permission>, length: Option<Size>, offset: Size) -> PyResult<usize> {
        let length = permission.get().length_from(offset.0, length)?;
        Ok(self.push(BatchedOperation::Read { permission, offset: offset.0, length, wanted: Wanted::Bytes }))
    }

    /// Adds a write. The bytes are copied when the batch is begun, except those of an ArenaBuffer, which must not
    /// change until the operation has ended.
    #[pyo3(
        signature = (permission, data, offset = Size(0)),
        text_signature = "($self, permission, data, offset=0)"
    )]
    fn write(&self, permission: Py<Permission>, data: &Bound<'_, PyAny>, offset: Size) -> PyResult<usize> {
        if let Some(number) = self.push_in_place(&permission, data, offset.0, Rights::WRITE) {
            return Ok(number);
        }
        let data = CallerBuffer::source(data)?;
        Ok(self.push(BatchedOperation::Write { permission, offset: offset.0, data }))
    }

    /// Adds a compare-and-swap of the word at `offset`. The result is the word's previous value.
    fn compare_and_swap(&self, permission: Py<Permission>, offset: Size, compare: Word, swap: Word) -> usize {
        self.push(BatchedOperation::Atomic(Access::compare_and_swap(permission, offset.0, compare.0, swap.0)))
    }

    /// Adds a fetch-and-add of the word at `offset`. The result is the word's previous value.
    fn fetch_and_add(&self, permission: Py<Permission>, offset: Size, add: Word) -> usize {
        self.push(BatchedOperation::Atomic(Access::fetch_and_add(permission, offset.0, add.0)))
    }

    /// Adds an allocation: see Session.allocate. The result is a Permission.
    #[pyo3(
        signature = (
            size, lifetime = Seconds::ONE, rights = Letters::READ_WRITE, shared = false,
            keep = KeptFor::NO, alignment = 1
        ),
        text_signature = "($self, size, lifetime=1.0, rights='rw', shared=False, keep=False, alignment=1)"
    )]
    fn allocate(
        &self,
        size: Size,
        lifetime: Seconds,
        rights: Letters,
        shared: bool,
        keep: KeptFor,
        alignment: u64,
    ) -> usize {
        self.push(BatchedOperation::Grant(
            allocate_ask(&size, lifetime, &rights, shared, &keep, alignment).into(),
        ))
    }

    /// Adds an acquisition: see Session.acquire. The result is a Permission.
    #[pyo3(
        signature = (
            object, lifetime = Seconds::ONE, rights = Letters::READ, shared = None,
            wait = Seconds::ONE, part = None
        ),
        text_signature = "($self, object, lifetime=1.0, rights='r', shared=None, wait=1.0, part=None)"
    )]
    fn acquire(
        &self,
        object: PyRef<'_, ObjectRef>,
        lifetime: Seconds,
        rights: Letters,
        shared: Option<bool>,
        wait: Seconds,
        part: Option<(Size, Size)>,
    ) -> usize {
        self.push(BatchedOperation::Grant(
            acquire_ask(*object, lifetime, &rights, shared, wait, part.as_ref()).into(),
        ))
    }

    /// Adds the revocation of a permission. free: whether to free its object as well, once no other client holds it.
    #[pyo3(signature = (permission, free = false))]
    fn revoke(&self, py: Python<'_>, permission: Py<Permission>, free: bool) -> PyResult<usize> {
        if !permission.get().session.is(&self.session) {
            return Err(raised(py, &Error::ForeignPermission.into()));
        }
        Ok(self.push(BatchedOperation::Revoke { permission, free }))
    }

    /// Adds an extension of a permission, which then ends this many seconds after the batch is begun.
    fn extend(&self, permission: Py<Permission>, seconds: Seconds) -> usize {
        self.push(BatchedOperation::Extend { permission, time: seconds.0 })
    }

    /// Begins the operations that were added, waits for all of them, and returns their results in order. Each is the
    /// operation's result, or an exception. The batch is then empty, and can be used again.
    ///
    /// If a signal handler raises an exception, the operations go on, and their results are lost.
    fn run<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let steps = self.take();
        let mut run = Run::new(self.session.bind(py), steps.len())?;
        for step in steps {
            run.begin(step)?;
        }
        run.finish()?;
        let results = run.results.into_iter().map(|result| match result {
            Some(Ok(result)) => result,
            Some(Err(error)) => error.into_value(py).into_bound(py).into_any(),
            None => crate::failure::panicked(py).into_value(py).into_bound(py).into_any(),
        });
        PyList::new(py, results.collect::<Vec<_>>())
    }

    /// Begins the operations that were added, and returns a number for each of them. Session.poll returns the results
    /// under these numbers. The batch is then empty.
    fn submit(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let mut core = self.session.get().enter(py)?;
        core.take_in();
        let steps = self.take();
        let tags = core.tags(steps.len());
        for (tag, step) in tags.clone().zip(steps) {
            let wanted = step.add(py, &mut core, tag).unwrap_or_else(|(_, error)| {
                core.attached.operations.fail(tag, error.into());
                Wanted::Nothing
            });
            core.submit(tag, wanted);
        }
        core.attached.post();
        Ok(tags.collect())
    }

    fn __len__(&self) -> usize {
        self.steps.lock().map_or(0, |steps| steps.len())
    }
}

/// Operations that are begun and waited for together.
struct Run<'a, 'py> {
    session: &'a Bound<'py, Session>,
    core: portcullis_foreign::Entered<'a, Core>,
    tags: Range<u64>,
    wanted: Vec<Wanted>,
    results: Vec<Option<PyResult<Bound<'py, PyAny>>>>,
    under_way: usize,
}

impl<'a, 'py> Run<'a, 'py> {
    fn new(session: &'a Bound<'py, Session>, count: usize) -> PyResult<Self> {
        let mut core = session.get().enter(session.py())?;
        // An operation whose wait a signal has ended may have ended meanwhile, and gives its buffer back.
        core.take_in();
        let tags = core.tags(count);
        let mut results = Vec::new();
        results.resize_with(count, || None);
        Ok(Self { session, core, tags, wanted: Vec::with_capacity(count), results, under_way: 0 })
    }

    /// Adds an operation. If the arena has no room for it, waits for earlier operations to end.
    fn begin(&mut self, mut step: BatchedOperation) -> PyResult<()> {
        let py = self.session.py();
        let tag = self.tags.start + self.wanted.len() as u64;
        let wanted = loop {
            match step.add(py, &mut self.core, tag) {
                Ok(wanted) => break wanted,
                Err((back, _)) if self.under_way > 0 => {
                    step = *back;
                    self.core.attached.post();
                    self.land_one(1)?;
                }
                Err((_, error)) => {
                    self.core.attached.operations.fail(tag, error.into());
                    break Wanted::Nothing;
                }
            }
        };
        self.wanted.push(wanted);
        self.under_way += 1;
        Ok(())
    }

    fn finish(&mut self) -> PyResult<()> {
        self.core.attached.post();
        while self.under_way > 0 {
            self.land_one(self.under_way)?;
        }
        Ok(())
    }

    #[inline]
    fn land_one(&mut self, left: usize) -> PyResult<()> {
        let (place, completion) = self.core.take_one(self.session.py(), &self.tags, left)?;
        self.under_way -= 1;
        self.results[place] = Some(outcome(self.session, &self.wanted[place], completion));
        Ok(())
    }
}

/// Reads many pieces of memory, each into a buffer.
pub(crate) fn read_many(session: &Bound<'_, Session>, reads: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = session.py();
    let reads = match reads.cast::<PyList>() {
        Ok(list) => list.clone(),
        Err(_) => PyList::new(py, reads.try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
    };
    let mut steps = Vec::with_capacity(reads.len());
    for read in &reads {
        let Ok(read) = read.cast::<PyTuple>() else {
            return Err(bad_argument(py, "each read is a tuple: (permission, offset, buffer)"));
        };
        if read.len() != 3 {
            return Err(bad_argument(py, "each read is a tuple of three: (permission, offset, buffer)"));
        }
        let permission = read.get_item(0)?.cast_into::<Permission>()?.unbind();
        let offset = read.get_item(1)?.extract::<Size>()?.0;
        let target = CallerBuffer::target(&read.get_item(2)?)?;
        steps.push(BatchedOperation::Read {
            permission,
            offset,
            length: target.len(),
            wanted: Wanted::Into(target),
        });
    }
    let mut run = Run::new(session, steps.len())?;
    for step in steps {
        run.begin(step)?;
    }
    run.finish()?;
    run.results.into_iter().flatten().find_map(Result::err).map_or(Ok(()), Err)
}
