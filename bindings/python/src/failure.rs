//! Failures as Python exceptions. The module `portcullis_memory/errors.py` has their classes.

use portcullis_errors::{Coded, ErrorCode};
use portcullis_foreign::{Failure, Misuse};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::fmt;

/// An error in an argument. The text describes what is wrong with it.
#[derive(Debug)]
struct BadArgument(String);

impl fmt::Display for BadArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadArgument {}

impl Coded for BadArgument {
    fn code(&self) -> ErrorCode {
        ErrorCode::BadArgument
    }
}

/// Returns the exception for an argument that makes no sense.
pub(crate) fn bad_argument(py: Python<'_>, text: impl Into<String>) -> PyErr {
    lasting(py, &BadArgument(text.into()))
}

/// Returns the exception for an error that the same call reports again.
pub(crate) fn lasting(py: Python<'_>, error: &impl Coded) -> PyErr {
    raised(py, &Failure::lasting(error))
}

/// Returns the exception for a failure.
pub(crate) fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    exception(py, failure).map_or_else(|error| error, PyErr::from_value)
}

fn exception<'py>(py: Python<'py>, failure: &Failure) -> PyResult<Bound<'py, PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let code = failure.code();
    let make = MAKE.import(py, "portcullis_memory.errors", "error_of")?;
    make.call1((
        code.number(),
        code.name(),
        failure.fault().name(),
        failure.is_retryable(),
        failure.text().to_owned(),
    ))
}

/// Turns the error of a result into an exception.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Failure>> OrRaise<T> for Result<T, E> {
    #[inline]
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error.into()))
    }
}

/// Returns the exception for a bug in this package.
pub(crate) fn panicked(py: Python<'_>) -> PyErr {
    raised(py, &Misuse::Panicked.into())
}

/// Returns all kinds of errors: number, name, side at fault, meaning.
#[pyfunction]
pub(crate) fn errors() -> Vec<(u16, &'static str, &'static str, &'static str)> {
    ErrorCode::ALL
        .iter()
        .map(|code| (code.number(), code.name(), code.fault().name(), code.meaning()))
        .collect()
}
