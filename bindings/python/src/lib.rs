//! The native part of the Python package `portcullis_memory`.
//!
//! It translates arguments, results and errors between Python and the crate `portcullis-foreign`, which keeps what Python
//! programs can do wrong from doing harm: a session has one thread inside at a time, nobody after its end, and nobody in a child
//! of `fork`. What needs no speed is Python, in `python/portcullis_memory`.
//!
//! The interpreter's lock is released while a call waits. A call waits in slices, and lets Python handle its signals between two
//! of them: so Ctrl-C ends a wait for operations, for entries and for permissions. It does not end the opening of a session, a table
//! or a queue, nor their ends.

mod arguments;
mod batch;
mod buffer;
mod core;
mod driven;
mod failure;
mod node;
mod object;
mod permission;
mod queue;
mod session;
mod table;
mod transfers;
mod view;

use pyo3::prelude::*;

/// The native part of the package `portcullis_memory`: import from there.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::node::Node;
    #[pymodule_export]
    use super::object::ObjectRef;
    #[pymodule_export]
    use super::permission::{Keeper, Permission};
    #[pymodule_export]
    use super::queue::Queue;
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::view::View;
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add_function(wrap_pyfunction!(super::failure::errors, module)?)
    }
}
