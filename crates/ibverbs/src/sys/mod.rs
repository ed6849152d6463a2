//! libibverbs itself: the library, its objects with their owners, and its calls. The only unsafe code of this crate.
//!
//! What leaves this module is safe to use in any order: an object keeps alive whatever it was made from, and goes
//! before it. It may not decide anything: which device, which state, whether a queue has room.

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
