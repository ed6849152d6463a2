//! Bytes that were read, in place: the buffer protocol over a piece of the session's arena.

use crate::failure::OrRaise;
use portcullis_foreign::{ArenaBuffer, ExclusiveCell};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyWeakrefReference};
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes that were read, in the memory in which they arrived: a buffer without a copy.
///
/// The buffer is read-only, so that no part of a program can change bytes that another part looks at. A read with
/// writable=True gives a buffer that can be written, for libraries that take no other, such as torch. A write changes
/// only the program's copy, and not the node's memory.
///
/// Used as a context manager, it returns a memoryview, which is released at the end of the block. The memory of the
/// bytes goes back to the session's arena when no object refers to it any more: an object that was made from it, such
/// as a numpy array, keeps it. The bytes are a copy of the node's memory, and only the program can change them.
///
/// >>> with session.allocate(5) as permission:
/// ...     permission.write(b"hello")
/// ...     with permission.read() as view:
/// ...         view[1:4].tobytes()
/// b'ell'
#[pyclass(frozen, module = "portcullis_memory")]
pub(crate) struct View {
    bytes: ExclusiveCell<ArenaBuffer>,
    /// Address of the first byte.
    address: usize,
    length: usize,
    is_writable: bool,
    exports: AtomicUsize,
    is_released: AtomicBool,
    /// The memoryview of the `with` block. It refers to this view, so this reference must not keep it alive.
    given: Mutex<Option<Py<PyWeakrefReference>>>,
}

impl View {
    pub(crate) fn new(mut buffer: ArenaBuffer, is_writable: bool) -> Self {
        let address = buffer.bytes_mut().as_mut_ptr().expose_provenance();
        Self {
            length: buffer.len() as usize,
            address,
            is_writable,
            bytes: ExclusiveCell::new("the view", buffer),
            exports: AtomicUsize::new(0),
            is_released: AtomicBool::new(false),
            given: Mutex::new(None),
        }
    }

    fn check(&self) -> PyResult<()> {
        if self.is_released.load(Ordering::Relaxed) {
            return Err(PyBufferError::new_err("the view was released: read again"));
        }
        Ok(())
    }

    fn go_back_if_unused(&self) {
        if self.is_released.load(Ordering::Relaxed) && self.exports.load(Ordering::Relaxed) == 0 {
            // In a child of `fork` this fails, and the bytes stay: they belong to the parent.
            let _ = self.bytes.close();
        }
    }
}

#[pymethods]
impl View {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyMemoryView>> {
        let view = PyMemoryView::from(slf.as_any())?;
        let given = PyWeakrefReference::new(view.as_any())?.unbind();
        if let Ok(mut place) = slf.get().given.lock() {
            *place = Some(given);
        }
        Ok(view)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(slf: &Bound<'_, Self>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::release(slf)
    }

    /// Gives the bytes back to the session's arena: at once, or when no object refers to them any more.
    ///
    /// Raises BufferError if the memoryview of the `with` block is itself in use as a buffer, for example by a
    /// pickle.PickleBuffer.
    fn release(slf: &Bound<'_, Self>) -> PyResult<()> {
        use pyo3::types::PyWeakrefMethods;
        let this = slf.get();
        let given = this.given.lock().ok().and_then(|mut given| given.take());
        this.is_released.store(true, Ordering::Relaxed);
        let released = match given.and_then(|given| given.bind(slf.py()).upgrade()) {
            Some(view) => view.call_method0("release").map(|_| ()),
            None => Ok(()),
        };
        this.go_back_if_unused();
        released
    }

    /// Returns a copy of the bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.check()?;
        let bytes = self.bytes.enter().or_raise(py)?;
        // A copy by the arena's own means: no Rust reference points to bytes that another thread may write.
        PyBytes::new_with(py, self.length, |into| {
            bytes.read(0, into);
            Ok(())
        })
    }

    fn __len__(&self) -> usize {
        self.length
    }

    fn __repr__(&self) -> String {
        let state = if self.is_released.load(Ordering::Relaxed) { ", released" } else { "" };
        format!("<portcullis_memory.View of {} bytes{state}>", self.length)
    }

    /// # Safety
    /// Python calls it with a place for the description of the buffer.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        this.check()?;
        // A child of `fork` has no such memory. The bytes do not move while the arena's buffer is held, which is until the
        // last export has ended.
        drop(this.bytes.enter().or_raise(py)?);
        let bytes = std::ptr::with_exposed_provenance_mut(this.address);
        let is_read_only = c_int::from(!this.is_writable);
        let length = ffi::Py_ssize_t::try_from(this.length)?;
        // SAFETY: Python passes a structure that this call fills. The buffer has `length` bytes. The function takes a
        // reference to this object, which holds them. Unless the view is writable, it refuses flags that request more
        // than reading, so no code writes through the pointer. No Rust reference to the bytes exists while Python code
        // runs.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes, length, is_read_only, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(py));
        }
        this.exports.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    /// Python calls it once for each buffer that it was given.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::Relaxed);
        self.go_back_if_unused();
    }
}
