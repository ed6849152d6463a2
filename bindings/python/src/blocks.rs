//! Stores of blocks on several nodes.

use crate::arguments::{self, KeptFor, Seconds, Size};
use crate::buffer::CallerBuffer;
use crate::failure::{OrRaise, bad_argument, raised};
use crate::session::security;
use portcullis::names::Name;
use portcullis::{RdmaOptions, SessionOptions, UdpOptions};
use portcullis_blocks::spread_store::{
    Bytes, BytesMut, Key, NodeList, NodeSource, NodeStatus, PutEnd, Removed, SpreadOptions,
};
use portcullis_blocks::{Got, StoreOptions};
use portcullis_foreign::{Blocks, BlocksEnd, ExclusiveCell, Failure};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest time that a call waits before it lets Python handle its signals.
const SLICE: Duration = Duration::from_millis(50);

/// A store of immutable blocks on several nodes. Any thread may use it.
///
/// The methods that begin an operation return its number. `wait` and `take` return its end.
#[pyclass(frozen, subclass, module = "portcullis_memory._native")]
pub(crate) struct BlockStore {
    /// The store. A thread that uses it holds a reference of its own, and leaves the cell at once, while it still
    /// holds the interpreter's lock: it is in no other thread's way.
    cell: ExclusiveCell<Arc<Blocks>>,
    /// The buffers that operations under way use, by their numbers. They keep their places until the ends are taken.
    lent: Mutex<HashMap<u64, Vec<CallerBuffer>>>,
}

impl BlockStore {
    fn blocks(&self, py: Python<'_>) -> PyResult<Arc<Blocks>> {
        Ok(Arc::clone(&*self.cell.enter().or_raise(py)?))
    }

    /// Begins an operation that uses these buffers. Returns its number.
    fn lend(&self, buffers: Vec<CallerBuffer>, begin: impl FnOnce() -> u64) -> u64 {
        // If this panicked, the store's threads might use the buffers already.
        let buffers = ManuallyDrop::new(buffers);
        let number = begin();
        self.lent().insert(number, ManuallyDrop::into_inner(buffers));
        number
    }

    /// Releases the buffers of operations that have ended. A release may run Python code, so it is done without the
    /// lock.
    fn release(&self, numbers: impl IntoIterator<Item = u64>) {
        let released: Vec<_> = {
            let mut lent = self.lent();
            numbers.into_iter().filter_map(|number| lent.remove(&number)).collect()
        };
        drop(released);
    }

    /// While the lock is held, no Python code runs: it could give the interpreter's lock away.
    fn lent(&self) -> MutexGuard<'_, HashMap<u64, Vec<CallerBuffer>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BlockStore {
    fn drop(&mut self) {
        match self.cell.close() {
            Ok(Some(store)) => store.close(),
            Ok(None) => {}
            // The threads that use the buffers are the parent's.
            Err(_) => {
                let lent = self.lent.get_mut().unwrap_or_else(PoisonError::into_inner);
                std::mem::forget(std::mem::take(lent));
            }
        }
    }
}

/// Returns keys as a store wants them.
fn keys_of(keys: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Key>> {
    keys.iter().map(key_of).collect()
}

/// A key: bytes, or a text, which stands for its UTF-8.
fn key_of(key: &Bound<'_, PyAny>) -> PyResult<Key> {
    match key.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().into()),
        Err(_) => match key.extract::<String>() {
            Ok(text) => Ok(text.into_bytes().into()),
            Err(_) => Err(bad_argument(key.py(), "a key is bytes or a str")),
        },
    }
}

fn check_counts(py: Python<'_>, keys: usize, buffers: usize) -> PyResult<()> {
    if keys == buffers {
        return Ok(());
    }
    Err(bad_argument(
        py,
        format!("there are {keys} keys and {buffers} buffers: give one buffer for each key"),
    ))
}

#[pymethods]
impl BlockStore {
    #[new]
    #[pyo3(
        signature = (
            nodes, *, copies = 1, table = "blocks", lease = Seconds(portcullis::Lifetime::seconds(2)),
            leases_max = 4096, evicts = true, keep = KeptFor::ATTACHED, arena = Size(16 << 20), tenant = None,
            certificates = None, within = None, young_for = None
        ),
        text_signature = "(nodes, *, copies=1, table='blocks', lease=2.0, leases_max=4096, evicts=True, keep=True, arena='16MiB', tenant=None, certificates=None, within=2.0, young_for=3600.0)"
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument in Python")]
    fn new(
        py: Python<'_>,
        nodes: &Bound<'_, PyAny>,
        copies: usize,
        table: &str,
        lease: Seconds,
        leases_max: usize,
        evicts: bool,
        keep: KeptFor,
        arena: Size,
        tenant: Option<String>,
        certificates: Option<PathBuf>,
        within: Option<Seconds>,
        young_for: Option<Seconds>,
    ) -> PyResult<Self> {
        let nodes = source_of(nodes)?;
        if copies == 0 {
            return Err(bad_argument(py, "copies is the number of nodes that have each block: 1 or more"));
        }
        let plain = SpreadOptions::default();
        if certificates.is_some() != tenant.is_some() {
            let wrong =
                "tenant and certificates belong together: give both, for nodes on other machines, or neither";
            return Err(bad_argument(py, wrong));
        }
        let security = security(py, certificates.zip(tenant))?;
        let session = SessionOptions {
            arena_bytes: arena.0,
            within: within.map_or(plain.session.within, |time| time.0),
            udp: UdpOptions { security: security.clone(), ..UdpOptions::default() },
            rdma: RdmaOptions { security, ..RdmaOptions::default() },
            ..plain.session
        };
        let store = StoreOptions { lease: lease.0, leases_max, evicts, keep: keep.0, ..plain.store };
        let options = SpreadOptions {
            copies,
            table: arguments::name(py, table)?,
            store,
            session,
            young_for: young_for.map_or(plain.young_for, |time| time.0.into()),
            retried_every: plain.retried_every,
        };
        let blocks = py.detach(|| Blocks::open(nodes, options)).or_raise(py)?;
        Ok(Self { cell: ExclusiveCell::new("the store", Arc::new(blocks)), lent: Mutex::default() })
    }

    /// Begins to store a block for each key. Returns the number of the operation.
    fn begin_put(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, PyAny>>,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        check_counts(py, keys.len(), buffers.len())?;
        let buffers = buffers.iter().map(CallerBuffer::source).collect::<PyResult<Vec<_>>>()?;
        let bytes = buffers.iter().map(|buffer| Arc::new(buffer.lend()) as Bytes);
        let blocks = keys_of(keys)?.into_iter().zip(bytes).collect();
        let store = self.blocks(py)?;
        Ok(self.lend(buffers, || store.begin_put(blocks)))
    }

    /// Begins to read the block of each key into its buffer. Returns the number of the operation.
    fn begin_get(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, PyAny>>,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        check_counts(py, keys.len(), buffers.len())?;
        let buffers = buffers.iter().map(CallerBuffer::target).collect::<PyResult<Vec<_>>>()?;
        CallerBuffer::check_apart(py, &buffers)?;
        let targets = buffers.iter().map(|buffer| Box::new(buffer.lend()) as Box<dyn BytesMut>);
        let wanted = keys_of(keys)?.into_iter().zip(targets).collect();
        let store = self.blocks(py)?;
        Ok(self.lend(buffers, || store.begin_get(wanted)))
    }

    /// Begins to look keys up. Returns the number of the operation.
    fn begin_look_up(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>) -> PyResult<u64> {
        Ok(self.blocks(py)?.begin_look_up(keys_of(keys)?))
    }

    /// Begins to remove blocks. Returns the number of the operation.
    fn begin_remove(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>) -> PyResult<u64> {
        Ok(self.blocks(py)?.begin_remove(keys_of(keys)?))
    }

    /// Waits for the end of an operation, and returns it.
    fn wait<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyList>> {
        let store = self.blocks(py)?;
        loop {
            if let Some(end) = py.detach(|| store.wait(number, SLICE)).or_raise(py)? {
                self.release([number]);
                return end_of(py, end);
            }
            py.check_signals()?;
        }
    }

    /// Returns the numbers and the ends of those of the operations that have ended, without waiting.
    fn take<'py>(&self, py: Python<'py>, numbers: Vec<u64>) -> PyResult<Vec<(u64, Bound<'py, PyList>)>> {
        let ended = self.blocks(py)?.take(&numbers);
        self.release(ended.iter().map(|(number, _)| *number));
        ended.into_iter().map(|(number, end)| Ok((number, end_of(py, end)?))).collect()
    }

    /// The descriptor that is readable when an operation has ended since the last call of take.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.blocks(py)?.descriptor().as_raw_fd())
    }

    /// Returns what this handle knows of each node.
    fn _status<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let nodes = self.blocks(py)?.status();
        let row = |node: NodeStatus| {
            let row = PyDict::new(py);
            row.set_item("name", node.name)?;
            row.set_item("weight", node.weight)?;
            row.set_item("is_near", node.is_near)?;
            row.set_item("lost", node.lost)?;
            let counters = PyDict::new(py);
            for (name, count) in node.counters.named() {
                counters.set_item(name, count)?;
            }
            row.set_item("counters", counters)?;
            Ok(row)
        };
        nodes.into_iter().map(row).collect()
    }

    /// Lists the keys of each node, with the length of each block and whether it is pinned. In the place of a node that
    /// cannot be reached: the exception.
    fn _list<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let store = self.blocks(py)?;
        let lists = py.detach(|| store.list());
        let of_node = |list: NodeList| -> PyResult<_> {
            match list {
                Ok(list) => {
                    let rows =
                        list.into_iter().map(|it| (PyBytes::new(py, &it.key), it.length, it.is_pinned));
                    Ok(PyList::new(py, rows.collect::<Vec<_>>())?.into_any())
                }
                Err(error) => Ok(raised(py, &Failure::from(error)).into_value(py).into_bound(py).into_any()),
            }
        };
        lists.into_iter().map(|(name, list)| of_node(list).map(|list| (name, list))).collect()
    }

    /// Waits until no block is copied to another node in the background.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.blocks(py)?;
        py.detach(|| store.settle());
        Ok(())
    }

    /// Closes the store, when the operations under way have ended. The blocks stay. If the store is closed already,
    /// this does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(store) = self.cell.close().or_raise(py)? else { return Ok(()) };
        py.detach(|| store.close());
        // No thread of the store uses a buffer any more.
        let lent = std::mem::take(&mut *self.lent());
        drop(lent);
        Ok(())
    }

    /// Whether the store was closed, or belongs to the process that this one was forked from.
    #[getter]
    fn closed(&self) -> bool {
        self.cell.is_closed()
    }
}

/// Returns the nodes: a list of addresses, or the text `name:TENANT/…`, below which they are registered.
fn source_of(nodes: &Bound<'_, PyAny>) -> PyResult<NodeSource> {
    let py = nodes.py();
    let Ok(text) = nodes.extract::<String>() else {
        let addresses = nodes.extract::<Vec<String>>();
        let wrong = "nodes is a list of addresses, or a name such as \"name:bank/kv\" below which nodes are registered";
        return Ok(NodeSource::Addresses(addresses.map_err(|_| bad_argument(py, wrong))?));
    };
    match text.strip_prefix("name:") {
        // Nodes are registered below it, one part deeper.
        Some(name) => {
            let name = Name::new(name.trim_end_matches('/'));
            Ok(NodeSource::Below(name.map_err(|wrong| bad_argument(py, wrong.to_string()))?))
        }
        None => Ok(NodeSource::Addresses(vec![text])),
    }
}

/// Converts the end of an operation to a list with an entry for each key.
fn end_of(py: Python<'_>, end: BlocksEnd) -> PyResult<Bound<'_, PyList>> {
    let exception = |failure: Failure| raised(py, &failure).into_value(py);
    match end {
        BlocksEnd::Put(ends) => {
            let end = |end: PutEnd| (end.copies, end.refusal.map(|refusal| exception(refusal.into())));
            PyList::new(py, ends.into_iter().map(end).collect::<Vec<_>>())
        }
        BlocksEnd::Got(ends) => {
            let end = |got| match got {
                Got::Hit => ("hit", None, None),
                Got::Absent => ("absent", None, None),
                Got::OtherLength(length) => ("length", Some(length), None),
                Got::Failed(error) => ("failed", None, Some(exception(error.into()))),
            };
            PyList::new(py, ends.into_iter().map(end).collect::<Vec<_>>())
        }
        BlocksEnd::Found(found) => PyList::new(py, found),
        BlocksEnd::Removed(removed) => {
            let end = |removed: Removed| match removed {
                Ok(copies) => (copies, None),
                Err(error) => (0, Some(exception(error.into()))),
            };
            PyList::new(py, removed.into_iter().map(end).collect::<Vec<_>>())
        }
    }
}
