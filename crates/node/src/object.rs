//! An object's record: who holds it, who waits for it.

use crate::permissions::NONE;
use portcullis_protocol::{Keep, Lifetime};
use std::collections::VecDeque;

/// What the node keeps about an object beside its place.
#[derive(Debug)]
pub(crate) struct Object {
    pub tenant: u32,
    /// Which object of this run of the node it is: see [`portcullis_protocol::ObjectRef`].
    pub birth: u64,
    /// What it outlives.
    pub keep: Keep,
    /// A client has been told its reference. Until then nobody can ask for it to be kept or to go.
    pub told: bool,
    /// Its last permission has ended: it goes when no window exposes it any more.
    pub going: bool,
    /// The header hole before its buffer is in use.
    pub hole_used: bool,
    /// The permission whose header is in the hole.
    pub hole_slot: u32,
    /// Permissions over it whose protection is not known to be down: until then its memory is not used again.
    pub exposed: u32,
    pub holders: u32,
    /// Holders among them that share it with nobody.
    pub exclusive: u32,
    /// Somebody has asked for a part of it: holders and waiters may get along beside each other.
    pub divided: bool,
    /// The first of its holders.
    pub first: u32,
    /// Requests that wait for it, first come first served.
    pub waiting: VecDeque<u32>,
    /// Its bytes are being zeroed; its first permission waits for that.
    pub scrubbing: bool,
}

impl Object {
    pub fn new(tenant: u32, birth: u64, keep: Keep) -> Self {
        Self {
            tenant,
            birth,
            keep,
            told: false,
            going: false,
            hole_used: false,
            hole_slot: NONE,
            exposed: 0,
            holders: 0,
            exclusive: 0,
            divided: false,
            first: NONE,
            waiting: VecDeque::new(),
            scrubbing: false,
        }
    }

    /// How long it stays after its tenant's last client has gone; `None`: for as long as the node runs.
    pub fn outlasts(&self) -> Option<Lifetime> {
        match self.keep {
            Keep::No | Keep::Attached => Some(Lifetime(0)),
            Keep::For(time) => Some(time),
            Keep::Pinned => None,
        }
    }
}
