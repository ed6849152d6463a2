//! Buffers of a session's arena that Python programs fill and read in place.

use crate::failure::OrRaise;
use crate::session::Session;
use crate::transfers::length_of;
use portcullis::Withheld;
use portcullis_foreign::{Arena, ArenaBuffer as Buffer, Entered, ExclusiveCell, Misuse};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Arc;

/// The error of a buffer that an operation has lost.
const LOST: Misuse = Misuse::Closed { what: "the buffer" };

/// Memory of a session's arena, as a buffer that can be written: Session.buffer returns it.
///
/// Permission.read_into, Permission.write and the same operations of batches move the bytes of the whole buffer without
/// a copy, if the permission is of the same session. A buffer of more than 256 KiB is copied over UDP and by asyncio.
/// The program must not change the bytes while an operation uses them. An operation that ends with the error named
/// "timed-out" closes the buffer, because the node may still access the bytes: take another one. The bytes of a buffer
/// that is not closed go back to the arena when no object refers to them any more. They are whatever the arena held
/// before, until they are written.
///
/// >>> buffer = session.buffer(5)
/// >>> memoryview(buffer)[:] = b"hello"
/// >>> with session.allocate(5) as permission:
/// ...     permission.write(buffer)
/// ...     memoryview(buffer)[:] = bytes(5)
/// ...     permission.read_into(buffer)
/// >>> bytes(buffer)
/// b'hello'
#[pyclass(frozen, module = "portcullis_memory")]
pub(crate) struct ArenaBuffer {
    place: Arc<Place>,
    session: Py<Session>,
    length: usize,
    /// Whether one operation of the session can carry all the bytes.
    is_moved_at_once: bool,
}

/// The memory of an [`ArenaBuffer`], which operations borrow.
#[derive(Debug)]
pub(crate) struct Place {
    cell: ExclusiveCell<Held>,
    length: u32,
}

/// A buffer of the arena, and the memory in which it lies.
#[derive(Debug)]
struct Held {
    state: State,
    /// Address of the first byte.
    address: usize,
    /// Keeps the memory mapped, and registered with CUDA, although an operation may lose the buffer.
    _arena: Arena,
}

/// The holder of a buffer.
#[derive(Debug)]
enum State {
    /// The program.
    Idle(Buffer),
    /// An operation under way. If the operation loses the buffer, no later buffer gets its bytes: Python objects may still
    /// point to them.
    UnderWay(Withheld),
    /// An operation that was given up: the node may still read or write the bytes.
    Lost,
}

impl Place {
    fn enter(&self) -> Result<Entered<'_, Held>, Misuse> {
        self.cell.enter()
    }

    /// Number of bytes.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// Whether an operation has the buffer.
    pub(crate) fn is_under_way(&self) -> bool {
        self.enter().is_ok_and(|held| matches!(held.state, State::UnderWay(_)))
    }

    /// Takes the buffer, for an operation. [`Place::give_back`] ends this.
    pub(crate) fn borrow(&self) -> Result<Buffer, Misuse> {
        let mut held = self.enter()?;
        match std::mem::replace(&mut held.state, State::Lost) {
            State::Idle(mut buffer) => {
                held.state = State::UnderWay(buffer.withhold());
                Ok(buffer)
            }
            under_way @ State::UnderWay(_) => {
                held.state = under_way;
                Err(Misuse::UnderWay)
            }
            State::Lost => Err(LOST),
        }
    }

    /// Puts the buffer back after an operation. `None`: the operation has lost it.
    pub(crate) fn give_back(&self, buffer: Option<Buffer>) {
        // The cell is closed to a child of `fork` only, which has no operations.
        if let Ok(mut held) = self.enter() {
            held.state = match (buffer, &held.state) {
                (Some(mut buffer), &State::UnderWay(before)) => {
                    buffer.stop_withholding(before);
                    State::Idle(buffer)
                }
                _ => State::Lost,
            };
        }
    }

    /// Returns the address of the first byte.
    fn address(&self) -> Result<usize, Misuse> {
        let held = self.enter()?;
        if matches!(held.state, State::Lost) { Err(LOST) } else { Ok(held.address) }
    }
}

impl ArenaBuffer {
    /// Takes a buffer from a session's arena.
    pub(crate) fn take(session: &Bound<'_, Session>, length: u64) -> PyResult<Self> {
        let py = session.py();
        let length = usize::try_from(length)?;
        let mut core = session.get().enter(py)?;
        let is_moved_at_once = length_of(length) <= core.attached.operation_bytes_max();
        let open = &core.attached.session;
        let mut buffer = open.buffer(length_of(length)).or_raise(py)?;
        let address = buffer.bytes_mut().as_mut_ptr().expose_provenance();
        let held = Held { state: State::Idle(buffer), address, _arena: open.arena().clone() };
        let place = Place { cell: ExclusiveCell::new("the buffer", held), length: length_of(length) };
        Ok(Self { place: Arc::new(place), session: session.clone().unbind(), length, is_moved_at_once })
    }

    /// Returns the memory of an object that is a buffer of this session's arena, if one operation can move all of it.
    pub(crate) fn of(object: &Bound<'_, PyAny>, session: &Py<Session>) -> Option<Arc<Place>> {
        let this = object.cast::<Self>().ok()?.get();
        (this.is_moved_at_once && this.session.is(session)).then(|| Arc::clone(&this.place))
    }
}

#[pymethods]
impl ArenaBuffer {
    fn __len__(&self) -> usize {
        self.length
    }

    fn __repr__(&self) -> String {
        format!("<portcullis_memory.ArenaBuffer of {} bytes>", self.length)
    }

    /// # Safety
    /// Python calls it with a place for the description of the buffer.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let address = this.place.address().or_raise(py)?;
        let length = ffi::Py_ssize_t::try_from(this.length)?;
        let bytes = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: Python passes a structure that this call fills. The memory has `length` bytes, which stay mapped while
        // this object lives, and the function takes a reference to it. No Rust reference to the bytes exists while
        // Python code runs, and this memory is of no other buffer.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes, length, 0, flags) };
        if filled != 0 { Err(PyErr::fetch(py)) } else { Ok(()) }
    }
}
