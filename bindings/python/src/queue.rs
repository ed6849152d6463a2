//! Queues. `portcullis_memory/structures.py` makes them easy to use.

use crate::arguments::{self, KeptFor, Seconds, Size};
use crate::core::SLICE;
use crate::driven;
use crate::failure::OrRaise;
use crate::object::ObjectRef;
use crate::session::Session;
use crate::table::{Given, no_more, option, place, small};
use portcullis_foreign::{Door, Driven};
use portcullis_structures::queue::{self, QueueError, QueueOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::time::{Duration, Instant};

fn options(given: &Bound<'_, PyDict>) -> PyResult<QueueOptions> {
    let (py, mut options) = (given.py(), QueueOptions::default());
    options.segment_slots = option(given, "segment_slots")?.unwrap_or(options.segment_slots);
    if let Some(cell) = option::<Size>(given, "cell_bytes")? {
        options.cell_bytes = small(py, "cell_bytes", cell)?;
    }
    options.segments_max = option(given, "segments_max")?.unwrap_or(options.segments_max);
    options.lease = option::<Seconds>(given, "lease")?.map_or(options.lease, |lease| lease.0);
    options.keep = option::<KeptFor>(given, "keep")?.map_or(options.keep, |keep| keep.0);
    no_more(given, "segment_slots, cell_bytes, segments_max, lease and keep")?;
    Ok(options)
}

/// A queue in a node's memory.
#[pyclass(frozen, module = "portcullis_memory._native")]
pub(crate) struct Queue {
    queue: Door<Driven<queue::Queue>>,
    head: ObjectRef,
}

impl Queue {
    fn new(mut driven: Driven<queue::Queue>) -> Self {
        let head = ObjectRef(driven.run(async |queue| queue.head()));
        Self { queue: Door::new("the queue", driven), head }
    }

    /// Takes entries without the interpreter's lock, to the end: an entry that was taken and given up would be lost.
    fn take<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl AsyncFnOnce(&queue::Queue) -> Result<T, QueueError> + Send,
    ) -> PyResult<T> {
        let mut queue = self.queue.enter().or_raise(py)?;
        let queue = &mut *queue;
        py.detach(|| queue.run(operation)).or_raise(py)
    }

    /// Carries another operation out without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl AsyncFnOnce(&queue::Queue) -> Result<T, QueueError> + Send,
    ) -> PyResult<T> {
        driven::run(&self.queue, py, operation)
    }
}

#[pymethods]
impl Queue {
    #[staticmethod]
    fn create(
        py: Python<'_>,
        session: &Bound<'_, Session>,
        name: Option<&str>,
        given: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let options = options(given)?;
        let name = name.map(|name| arguments::name(py, name)).transpose()?;
        let session = session.get().another(py)?;
        py.detach(|| Driven::<queue::Queue>::create(session, &options, name)).or_raise(py).map(Self::new)
    }

    #[staticmethod]
    fn open(py: Python<'_>, session: &Bound<'_, Session>, at: &Bound<'_, PyAny>) -> PyResult<Self> {
        let place = place(at)?;
        let session = session.get().another(py)?;
        py.detach(|| Driven::<queue::Queue>::open(session, place)).or_raise(py).map(Self::new)
    }

    #[getter]
    fn head(&self) -> ObjectRef {
        self.head
    }

    #[getter]
    fn closed(&self) -> bool {
        self.queue.is_closed()
    }

    fn push(&self, py: Python<'_>, entry: Given) -> PyResult<()> {
        self.run(py, async |queue| queue.push(&entry).await)
    }

    /// Takes the first entry. Waits for one in slices, so that a signal can end the wait.
    fn pop<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        // A time beyond all clocks is as long as it takes.
        let wait = timeout.map(|time| Duration::try_from_secs_f64(time.max(0.0)).unwrap_or(Duration::MAX));
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        if wait == Some(Duration::ZERO) {
            let popped = self.take(py, async |queue| queue.pop().await)?;
            return Ok(popped.map(|entry| PyBytes::new(py, &entry)));
        }
        loop {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let slice = SLICE.min(left.into());
            let popped = self.take(py, async |queue| queue.pop_within(slice).await)?;
            if let Some(entry) = popped {
                return Ok(Some(PyBytes::new(py, &entry)));
            }
            py.check_signals()?;
            if left <= Duration::from(slice) {
                return Ok(None);
            }
        }
    }

    fn pop_many<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let entries = self.take(py, async |queue| queue.pop_many(most).await)?;
        PyList::new(py, entries.iter().map(|entry| PyBytes::new(py, entry)))
    }

    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, async |queue| queue.close().await)
    }

    fn sweep(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, async |queue| queue.sweep().await)
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.run(py, async |queue| queue.statistics().await)?;
        let found = PyDict::new(py);
        found.set_item("slots", statistics.slots)?;
        found.set_item("segments", statistics.segments)?;
        found.set_item("bytes", statistics.bytes)?;
        found.set_item("is_ended", statistics.is_closed)?;
        Ok(found)
    }

    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        match self.queue.close().or_raise(py)? {
            Some(queue) => py.detach(|| queue.end(async |queue| queue.destroy().await)).or_raise(py),
            None => Ok(()),
        }
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.queue.close().or_raise(py)?;
        py.detach(|| drop(queue));
        Ok(())
    }
}
