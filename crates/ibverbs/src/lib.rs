//! A NIC through libibverbs. The library is loaded at run time: all code builds and runs without it.
//!
//! [`IbNic`] implements [`portcullis_nic::Nic`] on any RDMA card, and on Linux's Soft-RoCE. `sys` has the library's
//! calls and the only unsafe code. The rest of the crate counts, remembers and decides: which device to open, how much
//! room a queue has, which request a completion belongs to, which window lies over which region.
#![deny(unsafe_code)]

mod completions;
mod device;
mod endpoint;
mod in_flight_requests;
mod known;
mod memlock;
mod nic;
mod queue_pair;
mod regions;
mod slots;
#[allow(unsafe_code)]
mod sys;
mod ticket;

pub use device::{DeviceChoice, DeviceSummary, GidEntry, GidKind, OpenError, Port, devices};
pub use endpoint::{IbEndpoint, NodeLife};
pub use memlock::{MemlockTooLow, check_memlock, check_memlock_of_node};
pub use nic::{IbNic, WorkRequests};
pub use sys::NoLibrary;
