//! The library that `portcullis far` loads into an unmodified program: an allocator in place of the C library's, whose
//! memory is a range that another process, the monitor, fills.
//!
//! The library maps the range, hands it over ([`portcullis_memory::userfault`]), and allocates from it. It knows
//! nothing of nodes and sessions. Before the range exists, and for blocks that may not be far, it allocates from local
//! memory. It never uses the heap of Rust's standard library, which is this allocator itself.
//!
//! These blocks may not be far:
//! - the first small blocks, up to a number of bytes that the monitor sets: a program that never has more, such as a
//!   shell, can fork without restrictions;
//! - blocks of fewer bytes than the monitor's minimum;
//! - blocks that a forked child allocates. The child has its parent's blocks as they were, also those that are far (see
//!   the module `child`).
//!
//! A page that a device or the kernel has pinned, or that is locked, is never taken out: the kernel refuses to move it.

// The tests keep the C library's own functions, so nothing calls the functions that only `exports` uses.
#![cfg_attr(test, allow(dead_code))]

mod agent;
mod child;
#[cfg(not(test))]
mod exports;
mod granules;
mod heap;
mod lock;
mod range;
mod settings;
