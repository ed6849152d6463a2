//! The conformance suite: what InfiniBand semantics promise a permission, with a named test for each promise.
//!
//! A NIC crate puts `portcullis_conformance::conformance_tests!(MyNic::new())` into a test file and gets a `#[test]`
//! for each promise. A program that has a device at run time calls [`run`] and shows or asserts the [`Report`]. Both
//! come from one list, so neither can fall behind.
//!
//! Each promise gets a NIC of its own, on which only the bench has objects. What a device says it cannot do
//! ([`Capabilities`]) is reported as skipped. So is what a device does not survive ([`Misuse`]). A promise under a
//! [`Guarantee`] that the device is known not to keep must fail, and so must one that it is known by name to break.
//!
//! The suite uses a NIC only through [`Nic`]. It waits for conditions, never for fixed times: the longest wait is part
//! of the verdict.
//!
//! [`Capabilities`]: portcullis_nic::Capabilities
//! [`Guarantee`]: portcullis_nic::Guarantee
//! [`Misuse`]: portcullis_nic::Misuse
//! [`Nic`]: portcullis_nic::Nic
#![forbid(unsafe_code)]

mod atomics;
mod binds;
mod binds_for_others;
mod chains;
mod engine;
mod faults;
mod ids;
mod keys;
mod list;
mod local;
mod messages;
mod order;
mod queues;
mod range;
mod regions;
mod report;
mod rights;
mod states;
mod teardown;
mod type_1;
mod type_2;

pub use list::{Promise, keep, promises, run};
pub use report::{Outcome, Report};
