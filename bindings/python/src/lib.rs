//! The native part of the Python package `portcullis_memory`.
//!
//! It translates arguments, results and errors between Python and the crate `portcullis-foreign`. That crate keeps
//! mistakes of Python programs from doing harm: only one thread at a time can use a session, and no thread can use it
//! after its end or in a child of `fork`. Code that need not be fast is Python, in `python/portcullis_memory`.
//!
//! The interpreter's lock is released while a call waits. A call waits in slices, and lets Python handle its signals
//! between two of them. So Ctrl-C ends a wait for operations, for entries and for permissions. It does not interrupt
//! the opening, the closing or the destruction of a session, a table or a queue.

mod arena;
mod arguments;
mod batch;
mod blocks;
mod buffer;
mod core;
mod driven;
mod failure;
mod interpreter;
mod node;
mod object;
mod permission;
mod queue;
mod session;
mod table;
mod transfers;
mod view;

use portcullis_structures::queue::ClaimId;
use pyo3::prelude::*;

/// The native part of the package `portcullis_memory`. Programs import the package.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::require_main(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DELIVERIES_MAX", ClaimId::DELIVERIES_MAX.end())?;
    module.add_class::<arena::ArenaBuffer>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<blocks::BlockStore>()?;
    module.add_class::<node::Node>()?;
    module.add_class::<object::ObjectRef>()?;
    module.add_class::<permission::Keeper>()?;
    module.add_class::<permission::Permission>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<view::View>()?;
    module.add_function(wrap_pyfunction!(failure::errors, module)?)
}
