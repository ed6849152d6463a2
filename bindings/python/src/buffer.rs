//! The caller's memory, to which Python's buffer protocol gives access.

use crate::failure::bad_argument;
use portcullis_foreign::LentBytes;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// Bytes of a caller's object, which are contiguous, whatever its items are. While this lives, the object keeps its
/// size.
pub(crate) struct CallerBuffer {
    raw: PyUntypedBuffer,
    can_be_written: bool,
}

impl CallerBuffer {
    /// Gets the buffer of an object to read from.
    pub(crate) fn source(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let raw = raw(object)?;
        if !raw.is_c_contiguous() {
            let text = "the bytes of the buffer do not lie one after another: copy it first, for example with \
                        numpy.ascontiguousarray() or bytes()";
            return Err(bad_argument(object.py(), text));
        }
        if has_objects(raw.format().to_bytes()) {
            let text = "the items of the buffer are Python objects, whose bytes mean nothing elsewhere: give numbers, or \
                        what pickle.dumps() makes of the objects";
            return Err(bad_argument(object.py(), text));
        }
        Ok(Self { raw, can_be_written: false })
    }

    /// Gets the buffer of an object to write into.
    pub(crate) fn target(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Self::source(object)?;
        if buffer.raw.readonly() {
            let text = "the buffer is read-only, and bytes are to be read into it: give a bytearray, a numpy array or \
                        another buffer that can be written";
            return Err(bad_argument(object.py(), text));
        }
        Ok(Self { can_be_written: true, ..buffer })
    }

    /// Number of bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.raw.len_bytes()
    }

    /// Returns the address of the `length` bytes from `at` on.
    ///
    /// # Panics
    /// If these bytes are not within the buffer, like a slice.
    #[inline]
    fn place(&self, at: usize, length: usize) -> *mut u8 {
        let inside = at <= self.len() && length <= self.len() - at;
        assert!(inside, "{length} bytes at {at} reach outside a buffer of {}", self.len());
        self.raw.buf_ptr().cast::<u8>().wrapping_add(at)
    }

    /// Lends the bytes to the threads of a store. The caller keeps this value until the operation has ended. A
    /// program that changes the bytes meanwhile, or uses them while they are read into, breaks the rule that the
    /// documentation of the package's `BlockStore` states.
    pub(crate) fn lend(&self) -> LentBytes {
        let address = if self.len() == 0 { std::ptr::dangling_mut() } else { self.place(0, self.len()) };
        // SAFETY: the exporter keeps the bytes where they are until `raw` is dropped, which the caller leaves until the
        // operation has ended. That nothing else writes them is the program's part.
        unsafe { LentBytes::new(address, self.len()) }
    }

    /// Checks that no byte belongs to two of these buffers.
    pub(crate) fn check_apart(py: Python<'_>, buffers: &[Self]) -> PyResult<()> {
        let mut spans: Vec<_> = buffers.iter().filter(|buffer| buffer.len() > 0).map(Self::span).collect();
        spans.sort_unstable();
        if spans.windows(2).all(|pair| pair[0].1 <= pair[1].0) {
            return Ok(());
        }
        Err(bad_argument(py, "two of the buffers have bytes in common: each block needs bytes of its own"))
    }

    fn span(&self) -> (usize, usize) {
        let first = self.raw.buf_ptr().addr();
        (first, first + self.len())
    }

    /// Copies bytes into the caller's memory, from `at` on.
    ///
    /// # Panics
    /// If the bytes reach outside the buffer, like a slice, or if the buffer is not a [`CallerBuffer::target`].
    #[inline]
    pub(crate) fn fill(&self, _attached: Python<'_>, at: usize, from: &[u8]) {
        assert!(self.can_be_written, "a target was checked to be one");
        let to = self.place(at, from.len());
        // SAFETY: the exporter permits writes to these bytes, they are contiguous, and it keeps them where they are
        // until `raw` is dropped; the place was checked to lie within them. No Rust reference points to a caller's
        // memory, so `from` does not overlap them. The interpreter's lock is held, as for every writer that obeys
        // Python's rules.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// Copies the caller's bytes from `at` on.
    ///
    /// # Panics
    /// If the bytes reach outside the buffer, like a slice.
    #[inline]
    pub(crate) fn copy(&self, _attached: Python<'_>, at: usize, into: &mut [u8]) {
        let from = self.place(at, into.len());
        // SAFETY: as in `fill`: the exporter keeps the bytes where they are, and the place lies within them. `into` is
        // borrowed exclusively, so it does not overlap them.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Returns a copy of all bytes.
    pub(crate) fn to_vec(&self, py: Python<'_>) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy(py, 0, &mut bytes);
        bytes
    }
}

/// Gets the buffer of an object. Some objects leave out fields that follow from the others, such as the strides of
/// contiguous items: a memoryview fills them in.
fn raw(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let py = object.py();
    match PyUntypedBuffer::get(object) {
        Err(error) if error.is_instance_of::<PyBufferError>(py) => {
            let view = PyMemoryView::from(object)?;
            let flat = || PyUntypedBuffer::get(&view.call_method1("cast", ("B",))?);
            PyUntypedBuffer::get(&view).or_else(|_| flat())
        }
        gotten => gotten,
    }
}

/// Whether a format of the module `struct`, as the buffer protocol extends it, contains references to Python objects.
/// Names of fields stand between colons.
fn has_objects(format: &[u8]) -> bool {
    format.split(|letter| *letter == b':').step_by(2).any(|items| items.contains(&b'O'))
}
