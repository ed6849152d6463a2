//! References to objects.

use crate::failure::{bad_argument, lasting};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

/// A reference to one object of a node. It names this object for ever: no later object has the same reference.
///
/// A reference has two forms: 24 bytes, and a text of three hexadecimal numbers. It can be pickled, compared, and used
/// as a key of a dict.
///
/// >>> ref = portcullis_memory.ObjectRef("00c0ffee00c0ffee-100000210020-2a")
/// >>> portcullis_memory.ObjectRef.from_bytes(bytes(ref)) == ref
/// True
/// >>> print(ref)
/// 00c0ffee00c0ffee-100000210020-2a
#[pyclass(frozen, eq, hash, ord, module = "portcullis_memory")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ObjectRef(pub portcullis::ObjectRef);

#[pymethods]
impl ObjectRef {
    #[new]
    #[pyo3(signature = (text, /))]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        text.parse().map(Self).map_err(|wrong| lasting(py, &wrong))
    }

    /// Returns the reference with these 24 bytes, as bytes(ref) returns them. Any 24 bytes are a reference: the node
    /// knows whether it names an object.
    #[classmethod]
    #[pyo3(signature = (data, /))]
    fn from_bytes(_class: &Bound<'_, PyType>, py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        match data.try_into() {
            Ok(bytes) => Ok(Self(portcullis::ObjectRef::from_bytes(bytes))),
            Err(_) => {
                let text =
                    format!("a reference has {} bytes, not {}", portcullis::ObjectRef::BYTES, data.len());
                Err(bad_argument(py, text))
            }
        }
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("ObjectRef('{}')", self.0)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (String,)) {
        (py.get_type::<Self>(), (self.0.to_string(),))
    }
}
