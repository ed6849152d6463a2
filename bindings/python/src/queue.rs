//! Queues in a node's memory. `portcullis_memory/structures.py` makes them easy to use.

use crate::arguments::{self, KeptFor, Seconds, Size};
use crate::core::SLICE;
use crate::driven;
use crate::failure::OrRaise;
use crate::object::ObjectRef;
use crate::session::Session;
use crate::table::{Given, address, no_more, option, small};
use portcullis::Lifetime;
use portcullis_foreign::{Driven, ExclusiveCell, QueueAsk, QueueDone};
use portcullis_structures::queue::{self, ClaimId, QueueOptions};
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
    options.claims = option(given, "claims")?.unwrap_or(options.claims);
    options.lease = option::<Seconds>(given, "lease")?.map_or(options.lease, |lease| lease.0);
    options.keep = option::<KeptFor>(given, "keep")?.map_or(options.keep, |keep| keep.0);
    no_more(given, "segment_slots, cell_bytes, segments_max, claims, lease and keep")?;
    Ok(options)
}

/// A queue in a node's memory.
#[pyclass(frozen, module = "portcullis_memory._native")]
pub(crate) struct Queue {
    queue: ExclusiveCell<Driven<queue::Queue>>,
    head: ObjectRef,
}

impl Queue {
    fn new(mut driven: Driven<queue::Queue>) -> Self {
        let head = ObjectRef(driven.run(async |queue| queue.head()));
        Self { queue: ExclusiveCell::new("the queue", driven), head }
    }

    /// Takes entries, with the interpreter's lock released. No signal interrupts this: an entry that was taken by an
    /// operation that was then given up would be lost.
    fn take(&self, py: Python<'_>, ask: QueueAsk<Given>) -> PyResult<QueueDone> {
        let mut queue = self.queue.enter().or_raise(py)?;
        let queue = &mut *queue;
        py.detach(|| queue.ask(ask)).or_raise(py)
    }

    /// Takes an entry. Waits for one in slices, so that a signal can end the wait.
    fn take_within<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        ask: impl Fn(Lifetime) -> QueueAsk<Given>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let until = wait_of(timeout).and_then(|wait| Instant::now().checked_add(wait));
        loop {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let slice = SLICE.min(left.into());
            let done = self.take(py, ask(slice))?;
            let is_nothing = matches!(done, QueueDone::Popped(None) | QueueDone::Claimed(None));
            if !is_nothing || left <= Duration::from(slice) {
                return given(py, done);
            }
            py.check_signals()?;
        }
    }

    /// Carries out an operation that takes no entry, and returns its result. `later`: only begins an operation, of any
    /// kind, and returns the number under which poll returns its result.
    fn ask<'py>(&self, py: Python<'py>, ask: QueueAsk<Given>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        if later {
            let number = self.queue.enter().or_raise(py)?.begin(ask);
            return Ok(number.into_pyobject(py)?.into_any());
        }
        given(py, driven::run(&self.queue, py, ask)?)
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
        let address = address(at)?;
        let session = session.get().another(py)?;
        py.detach(|| Driven::<queue::Queue>::open(session, address)).or_raise(py).map(Self::new)
    }

    #[getter]
    fn head(&self) -> ObjectRef {
        self.head
    }

    #[getter]
    fn closed(&self) -> bool {
        self.queue.is_closed()
    }

    #[pyo3(signature = (entry, later = false))]
    fn push<'py>(&self, py: Python<'py>, entry: Given, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::Push(entry), later)
    }

    fn pop<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.take_within(py, timeout, |slice| QueueAsk::Pop(Some(slice)))
    }

    /// Claims an entry. Returns the entry, the number of its deliveries, and the words that identify the claim.
    fn claim<'py>(
        &self,
        py: Python<'py>,
        lease: Seconds,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.take_within(py, timeout, |slice| QueueAsk::Claim { lease: lease.0, within: Some(slice) })
    }

    fn claim_later<'py>(
        &self,
        py: Python<'py>,
        lease: Seconds,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let within = wait_of(timeout).map(Into::into);
        self.ask(py, QueueAsk::Claim { lease: lease.0, within }, true)
    }

    #[pyo3(signature = (claim, later = false))]
    fn acknowledge<'py>(&self, py: Python<'py>, claim: [u64; 3], later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::Acknowledge(ClaimId::from_words(claim)), later)
    }

    #[pyo3(signature = (claim, later = false))]
    fn give_claim_back<'py>(
        &self,
        py: Python<'py>,
        claim: [u64; 3],
        later: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::GiveBack(ClaimId::from_words(claim)), later)
    }

    #[pyo3(signature = (claim, lease, later = false))]
    fn extend_claim<'py>(
        &self,
        py: Python<'py>,
        claim: [u64; 3],
        lease: Seconds,
        later: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::ExtendClaim(ClaimId::from_words(claim), lease.0), later)
    }

    fn pop_later<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::Pop(wait_of(timeout).map(Into::into)), true)
    }

    fn pop_many<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyAny>> {
        given(py, self.take(py, QueueAsk::PopMany(most))?)
    }

    fn pop_many_later<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::PopMany(most), true)
    }

    #[pyo3(signature = (later = false))]
    fn end<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::Close, later)
    }

    #[pyo3(signature = (later = false))]
    fn sweep<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::Sweep, later)
    }

    #[pyo3(signature = (later = false))]
    fn statistics<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, QueueAsk::Statistics, later)
    }

    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        driven::poll(&self.queue, py, |done| given(py, done))
    }

    fn arm(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        driven::arm(&self.queue, py)
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.queue.enter().or_raise(py)?.descriptor())
    }

    fn forget(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.queue.enter().or_raise(py)?.forget(number);
        Ok(())
    }

    /// Gives back entries that were popped and that no caller received: the next pops return them.
    fn give_back(&self, py: Python<'_>, entries: Vec<Given>) -> PyResult<()> {
        let mut queue = self.queue.enter().or_raise(py)?;
        entries.iter().for_each(|entry| queue.leave_over(entry.to_vec()));
        Ok(())
    }

    fn under_way(&self, py: Python<'_>) -> PyResult<usize> {
        driven::under_way(&self.queue, py)
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

/// Returns how long a pop waits. A time that is too long for a clock becomes a wait without a limit.
fn wait_of(timeout: Option<f64>) -> Option<Duration> {
    timeout.map(|time| Duration::try_from_secs_f64(time.max(0.0)).unwrap_or(Duration::MAX))
}

/// Converts the result of an operation to a Python object.
fn given(py: Python<'_>, done: QueueDone) -> PyResult<Bound<'_, PyAny>> {
    let bytes = |entry: Vec<u8>| PyBytes::new(py, &entry);
    Ok(match done {
        QueueDone::Done => py.None().into_bound(py),
        QueueDone::Popped(entry) => entry.map(bytes).into_pyobject(py)?.into_any(),
        QueueDone::PoppedMany(entries) => PyList::new(py, entries.into_iter().map(bytes))?.into_any(),
        QueueDone::Claimed(None) => py.None().into_bound(py),
        QueueDone::Claimed(Some(claim)) => {
            let (deliveries, words) = (claim.id.deliveries(), claim.id.to_words());
            (bytes(claim.entry), deliveries, words).into_pyobject(py)?.into_any()
        }
        QueueDone::Extended(claim) => claim.to_words().into_pyobject(py)?.into_any(),
        QueueDone::Statistics(statistics) => {
            let found = PyDict::new(py);
            found.set_item("slots", statistics.slots)?;
            found.set_item("claimed", statistics.claimed)?;
            found.set_item("segments", statistics.segments)?;
            found.set_item("bytes", statistics.bytes)?;
            found.set_item("is_ended", statistics.is_closed)?;
            found.into_any()
        }
    })
}
