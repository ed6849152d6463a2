//! The layouts on which C and Rust agree. `tests/programs/layouts.c` asserts the same numbers for C.

use crate::claims::{Claim, ClaimOptions};
use crate::errors::Error;
use crate::handles::{BufferHandle, KeeperHandle, Node, PermissionHandle, QueueHandle, Session, TableHandle};
use crate::names::NameEntry;
use crate::permissions::{AcquireOptions, AllocateOptions, Object, PermissionInfo};
use crate::queue::QueueOptions;
use crate::session::{ArenaInfo, SessionOptions};
use crate::submission::{Completion, Operation};
use crate::table::{Bytes, StoreOptions, TableOptions};
use std::mem::offset_of;

const _: () = {
    assert!(size_of::<Session>() == 8);
    assert!(size_of::<TableHandle>() == 8);
    assert!(size_of::<QueueHandle>() == 8);
    assert!(size_of::<Node>() == 8);
    assert!(size_of::<PermissionHandle>() == 16);
    assert!(size_of::<BufferHandle>() == 16);
    assert!(size_of::<KeeperHandle>() == 16);
    assert!(size_of::<Object>() == 24);
    assert!(size_of::<Error>() == 520);
    assert!(offset_of!(Error, text) == 6);
    assert!(size_of::<SessionOptions>() == 16);
    assert!(size_of::<ArenaInfo>() == 24);
    assert!(offset_of!(ArenaInfo, cuda) == 16);
    assert!(size_of::<AllocateOptions>() == 40);
    assert!(offset_of!(AllocateOptions, rights) == 32);
    assert!(size_of::<AcquireOptions>() == 64);
    assert!(offset_of!(AcquireOptions, wait) == 48);
    assert!(size_of::<PermissionInfo>() == 56);
    assert!(size_of::<Operation>() == 104);
    assert!(offset_of!(Operation, data) == 40);
    assert!(offset_of!(Operation, acquire) == 96);
    assert!(size_of::<Completion>() == 40);
    assert!(offset_of!(Completion, error) == 32);
    assert!(size_of::<NameEntry>() == 88);
    assert!(offset_of!(NameEntry, object) == 56);
    assert!(size_of::<TableOptions>() == 24);
    assert!(size_of::<Bytes>() == 16);
    assert!(size_of::<StoreOptions>() == 32);
    assert!(size_of::<QueueOptions>() == 32);
    assert!(offset_of!(QueueOptions, claims) == 28);
    assert!(size_of::<ClaimOptions>() == 32);
    assert!(offset_of!(ClaimOptions, dead_letters) == 16);
    assert!(size_of::<Claim>() == 32);
};
