//! An object's record: who holds it, who waits for it.

use crate::permissions::NONE;
use portcullis_protocol::Sharing;
use portcullis_protocol::planted::{self, Fault};
use std::collections::VecDeque;

/// What the node keeps about an object beside its place.
#[derive(Debug)]
pub(crate) struct Object {
    pub tenant: u32,
    /// It outlives its permissions.
    pub kept: bool,
    /// Its last permission has ended: it goes when no window exposes it any more.
    pub going: bool,
    /// The header hole before its buffer is in use.
    pub hole_used: bool,
    /// The permission whose header is in the hole.
    pub hole_slot: u32,
    /// Permissions over it whose protection is not known to be down: until then its memory is not used again.
    pub exposed: u32,
    /// How its present holders share it.
    pub sharing: Sharing,
    pub holders: u32,
    /// The first of its holders.
    pub first: u32,
    /// Requests that wait for it, first come first served.
    pub waiting: VecDeque<u32>,
    /// Its bytes are being zeroed; its first permission waits for that.
    pub scrubbing: bool,
}

impl Object {
    pub fn new(tenant: u32, kept: bool) -> Self {
        Self {
            tenant,
            kept,
            going: false,
            hole_used: false,
            hole_slot: NONE,
            exposed: 0,
            sharing: Sharing::Shared,
            holders: 0,
            first: NONE,
            waiting: VecDeque::new(),
            scrubbing: false,
        }
    }

    /// Whether a permission may start beside the present holders.
    pub fn admits(&self, sharing: Sharing) -> bool {
        // Nobody but the holder that waits for it: other tenants' bytes may still lie there.
        !self.scrubbing
            && (self.holders == 0
                || (self.sharing == Sharing::Shared
                    && (sharing == Sharing::Shared || planted::is(Fault::ExclusiveBesideShared))))
    }
}
