//! What `portcullis far` loads into a program that knows nothing of it: an allocator in place of the C library's, whose
//! memory is a range that another process, the monitor, fills.
//!
//! The library maps the range, hands it over ([`portcullis_memory::userfault`]), and allocates from it. It knows nothing of
//! nodes and sessions. Until the range is there, and for what may not be far, it allocates from memory of its own. It never
//! uses the heap of Rust's standard library, which is itself.
//!
//! What may not be far:
//! - the first small blocks, as many bytes of them as the monitor says: a program that never has more, such as a shell,
//!   can fork as it likes;
//! - blocks of fewer bytes than the monitor says;
//! - what a forked child allocates. It has its parent's blocks as they were, also those that are far (see the module
//!   `child`).
//!
//! A page that a device or the kernel has pinned, or that is locked, is never taken out: the kernel refuses to move it.

// Under test the C library's own functions stay, so what only `exports` calls is not called.
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
