//! The conformance suite: the promises of InfiniBand semantics for a permission, with a named test for each promise.
//!
//! A NIC crate puts `portcullis_conformance::conformance_tests!(MyNic::new())` into a test file and gets a `#[test]`
//! for each promise. A program that has a device at run time calls [`run`] and shows or asserts the [`Report`]. Both
//! are generated from one list, so they cover the same promises.
//!
//! Each promise is tested on a NIC of its own, on which only the bench has objects. A promise about a feature that
//! the device does not have ([`Capabilities`]) is reported as skipped, and so is misuse that the device does not
//! survive ([`Misuse`]). A promise under a [`Guarantee`] that the device is known not to keep must fail, and so must
//! a promise that the device is known by name to break.
//!
//! The suite uses a NIC only through [`Nic`]. It waits for conditions, never for fixed times. The longest wait is
//! part of the verdict.
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
pub use report::{PromiseOutcome, Report};
