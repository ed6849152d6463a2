//! Operations of structures: they wait without the interpreter's lock, and a signal ends them.

use crate::failure::OrRaise;
use portcullis::Lifetime;
use portcullis_foreign::{Door, Driven, Failure};
use pyo3::prelude::*;

/// How often Python handles its signals while an operation is under way.
const SIGNALS_HANDLED_EVERY: Lifetime = Lifetime::millis(100);

/// Carries an operation out. Where a signal's handler raises an exception, the operation is given up where it stands.
pub(crate) fn run<S, T: Send, E: Into<Failure> + Send>(
    structure: &Door<Driven<S>>,
    py: Python<'_>,
    operation: impl AsyncFnOnce(&S) -> Result<T, E> + Send,
) -> PyResult<T>
where
    Driven<S>: Send,
{
    let mut entered = structure.enter().or_raise(py)?;
    let driven = &mut *entered;
    let mut raised = None;
    let done = py.detach(|| {
        driven.run_while(operation, SIGNALS_HANDLED_EVERY, || {
            raised = Python::attach(|py| py.check_signals()).err();
            raised.is_none()
        })
    });
    match done {
        Some(result) => result.or_raise(py),
        None => Err(raised.expect("it was given up for a signal")),
    }
}
