//! Far memory: an unmodified program runs with most of its memory on a node (OneSidedMW).
//!
//! The program's allocator is replaced by one whose memory is a range of a file in memory (`portcullis-preload`). The
//! [`Monitor`] fills the pages of the range when the program touches them, and takes pages out again when more are
//! local than allowed. The bytes that the program wrote are kept in chunks of a node. The node's NIC allocates and
//! frees the chunks alone.
//!
//! The program never sees a wrong byte. If the bytes of a page cannot be read, the program ends and the reason is
//! reported: the monitor kills it before it releases its memory. If the monitor itself dies, the kernel ends the
//! program. Until then no process fills the program's pages.
//! meanwhile.
//!
//! - [`pages`] decides where each page is: a state machine without I/O.
//! - [`Monitor`] carries out these decisions over a session and the program's faults.
//! - [`Program`] is the running program.
#![forbid(unsafe_code)]

mod error;
mod monitor;
pub mod pages;
mod program;
mod summary;

pub use error::FarError;
pub use monitor::{LOCAL_MIN, Monitor, Pins, Sizes};
pub use pages::SEGMENT_PAGES;
pub use program::{Ended, Program};
pub use summary::Summary;

/// Bytes of a segment: the unit in which a range takes memory of the node. Each segment takes one chunk.
pub const SEGMENT_BYTES: u64 = SEGMENT_PAGES * portcullis_memory::userfault::PAGE as u64;
