//! Far memory: a program that knows nothing of it runs with most of its memory on a node (OneSidedMW).
//!
//! The program's allocator is replaced by one whose memory is a range of a file in memory (`portcullis-preload`). The
//! [`Monitor`] fills the pages of the range when the program touches them, and takes them out again when more are local
//! than may be. What the program wrote is kept in chunks of a node, which the node's NIC allocates and frees alone.
//!
//! The program never sees a wrong byte. If a page cannot be had, the program ends, and the reason is told: the monitor kills
//! it before it lets go of its memory. If the monitor itself dies, the kernel ends the program, whose pages nobody fills
//! meanwhile.
//!
//! - [`pages`] decides which page is where: a state machine without I/O.
//! - [`Monitor`] carries that out over a session and the program's faults.
//! - [`Program`] is the program.
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

/// Bytes of a segment: the unit in which a range takes memory of the node, one chunk each.
pub const SEGMENT_BYTES: u64 = SEGMENT_PAGES * portcullis_memory::userfault::PAGE as u64;
