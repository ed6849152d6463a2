//! Operations of tables and queues. While a call waits for an operation, the interpreter's lock is released, and a
//! signal can end the operation. Operations that asyncio awaits are carried on in turns of the event loop.

use crate::failure::{OrRaise, raised};
use portcullis::Lifetime;
use portcullis_foreign::{Driven, ExclusiveCell, Failure, Structure, StructureAsk};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::time::Duration;

/// Time between two checks for signals while an operation is under way.
const SIGNALS_HANDLED_EVERY: Lifetime = Lifetime::millis(100);

/// Carries out an operation. If a signal handler raises an exception, the operation is given up at the step that it has
/// reached.
pub(crate) fn run<S: Structure>(
    structure: &ExclusiveCell<Driven<S>>,
    py: Python<'_>,
    ask: impl StructureAsk<S>,
) -> PyResult<S::Done>
where
    Driven<S>: Send,
{
    let mut entered = structure.enter().or_raise(py)?;
    let driven = &mut *entered;
    let mut raised = None;
    let done = py.detach(|| {
        driven.ask_while(ask, SIGNALS_HANDLED_EVERY, || {
            raised = Python::attach(|py| py.check_signals()).err();
            raised.is_none()
        })
    });
    match done {
        Some(result) => result.or_raise(py),
        None => Err(raised.expect("it was given up for a signal")),
    }
}

/// Carries on the operations that were begun. Returns those that have ended, as a list of (number, result). The result
/// is an exception, or the object to which `given` converts the operation's result.
pub(crate) fn poll<'py, S: Structure>(
    structure: &ExclusiveCell<Driven<S>>,
    py: Python<'py>,
    given: impl Fn(S::Done) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let ended = structure.enter().or_raise(py)?.turn();
    let results = ended.into_iter().map(|(number, result): (u64, Result<_, Failure>)| {
        let result = result.map_err(|failure| raised(py, &failure)).and_then(&given);
        let result = result.unwrap_or_else(|error| error.into_value(py).into_bound(py).into_any());
        PyTuple::new(py, [number.into_pyobject(py)?.into_any(), result])
    });
    PyList::new(py, results.collect::<PyResult<Vec<_>>>()?)
}

/// Prepares the descriptor, which then becomes readable when something arrives. Returns how many seconds an event loop
/// may wait for that; `None`: without a time limit.
pub(crate) fn arm<S: Structure>(
    structure: &ExclusiveCell<Driven<S>>,
    py: Python<'_>,
) -> PyResult<Option<f64>> {
    let within = structure.enter().or_raise(py)?.arm();
    Ok((within != Duration::MAX).then_some(within.as_secs_f64()))
}

/// Number of operations that were begun and have not ended.
pub(crate) fn under_way<S: Structure>(
    structure: &ExclusiveCell<Driven<S>>,
    py: Python<'_>,
) -> PyResult<usize> {
    Ok(structure.enter().or_raise(py)?.under_way())
}
