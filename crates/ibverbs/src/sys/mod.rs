//! libibverbs itself: the library, its objects and their owners, and its calls. This is the only unsafe code of the
//! crate.
//!
//! The interface of this module is safe to use in any order: an object keeps alive the objects that it was made from,
//! and is destroyed before them. This module decides nothing: it chooses no device and no state, and does not check
//! whether a queue has room.

#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unsafe_op_in_unsafe_fn,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "made by bindgen"
)]
pub(crate) mod bindings;
mod context;
mod convention;
mod library;
mod objects;
mod post;
mod queue_pair;

pub(crate) use context::{Context, DeviceEvent, gid_bytes};
pub(crate) use library::{DeviceList, library};
pub(crate) use objects::{Cq, Mr, Mw, Pd, WorkCompletion};
pub(crate) use post::{INLINE_BYTES, InlineBytes, Posting, RawOperation, RawRequest, RawSpan};
pub(crate) use queue_pair::{Qp, QpPlan, Route};

pub use library::NoLibrary;
