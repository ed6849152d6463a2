//! The check that only the main interpreter of the process imports the module.
//!
//! PyO3 makes the module's classes, and all objects that the module imports, once for the process. A subinterpreter
//! that imported the module would share them with the main interpreter, and would destroy them at its end. So only the
//! main interpreter may import the module. The check comes before anything is made.

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The number of the main interpreter, in every version of CPython.
const MAIN: i64 = 0;

/// Checks that the calling thread is in the main interpreter.
///
/// # Errors
/// An `ImportError` that explains where the module can be imported.
pub(crate) fn require_main(py: Python<'_>) -> PyResult<()> {
    // SAFETY: `py` shows that this thread is attached to an interpreter.
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: an interpreter lives for as long as a thread is attached to it.
    let number = unsafe { ffi::PyInterpreterState_GetID(interpreter) };
    match number {
        MAIN => Ok(()),
        1.. => Err(PyImportError::new_err(format!(
            "portcullis_memory cannot be imported in a subinterpreter (this is number {number}), because subinterpreters would share its \
             classes: import it in the main interpreter, or in a process of its own. Under mod_wsgi set \
             `WSGIApplicationGroup %{{GLOBAL}}`"
        ))),
        _ => Err(PyErr::fetch(py)),
    }
}
