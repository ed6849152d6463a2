//! A node inside the process, for tests.

use crate::arguments::Size;
use crate::failure::OrRaise;
use portcullis::SessionOptions;
use portcullis_foreign::{Attached, ExclusiveCell, LocalNode};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// A node inside this process.
#[pyclass(frozen, subclass, module = "portcullis_memory._native")]
pub(crate) struct Node {
    /// The node. A thread that connects holds a reference of its own, and leaves the cell at once: it is in no other
    /// thread's way.
    node: ExclusiveCell<Arc<LocalNode>>,
    #[pyo3(get)]
    address: Option<String>,
}

impl Node {
    /// Opens a session with the node.
    pub(crate) fn attach(&self, py: Python<'_>, tenant: &str, options: SessionOptions) -> PyResult<Attached> {
        let node = Arc::clone(&*self.node.enter().or_raise(py)?);
        py.detach(|| node.connect(tenant, options)).or_raise(py)
    }
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (memory, socket = None))]
    fn new(py: Python<'_>, memory: Size, socket: Option<PathBuf>) -> PyResult<Self> {
        let node = py.detach(|| LocalNode::start(memory.0, socket)).or_raise(py)?;
        Ok(Self { address: node.address(), node: ExclusiveCell::new("the node", Arc::new(node)) })
    }

    /// Ends the node, and everything on it. If the node was stopped already, this does nothing.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.node.close().or_raise(py)?;
        py.detach(|| drop(node));
        Ok(())
    }

    /// Whether the node was stopped, or belongs to the process that this one was forked from.
    #[getter]
    fn stopped(&self) -> bool {
        self.node.is_closed()
    }
}
