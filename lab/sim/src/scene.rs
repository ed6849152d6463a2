//! A worker's view of the cluster while it acts: its clock, the checkers, and the information from other clients.

use crate::clock::Nanos;
use crate::endpoint::SimEndpoint;
use crate::oracle::{Oracle, Promise, SessionId};
use crate::trace::Trace;
use portcullis_client::Client;
use portcullis_protocol::{
    Credential, HolderKey, Moment, ObjectRef, PermissionId, RegionName, RemoteAddress, Rkey,
};
use std::collections::VecDeque;

pub(crate) type SimClient = Client<SimEndpoint>;

/// The most keys and objects that are remembered for a node.
const REMEMBERED: usize = 96;

/// A key, and what it opens or once opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    pub object: ObjectRef,
    pub address: RemoteAddress,
    pub length: u64,
    pub key: Rkey,
    /// The address of the lifetime word, and its key.
    pub word: (RemoteAddress, Rkey),
    /// The id of the permission.
    pub permission: PermissionId,
    /// The region and its key, if its holder is over UDP.
    pub region: Option<(RegionName, HolderKey)>,
}

/// The knowledge that clients have of each other: shared objects and, for hostile clients, all keys.
#[derive(Debug, Default)]
pub(crate) struct Gossip {
    /// Shared objects, by tenant.
    pub objects: Vec<VecDeque<ObjectRef>>,
    /// Objects of earlier runs of the node, by tenant. Clients still have references to them.
    pub lost: Vec<Vec<ObjectRef>>,
    /// Objects that were to belong to others, by tenant: other tenants try them too.
    pub members: Vec<VecDeque<ObjectRef>>,
    pub sightings: VecDeque<Sighting>,
    /// Chunks that a client holds or has held, with the keys and the length.
    pub chunks: VecDeque<(RemoteAddress, Credential, u64)>,
}

impl Gossip {
    pub fn new(tenants: usize) -> Self {
        let (objects, lost) = (vec![VecDeque::new(); tenants], vec![Vec::new(); tenants]);
        let members = vec![VecDeque::new(); tenants];
        Self { objects, lost, members, sightings: VecDeque::new(), chunks: VecDeque::new() }
    }

    /// Returns what is still known after a restart of the node.
    pub fn after_restart(&self) -> Self {
        let lost = self.objects.iter().map(|objects| objects.iter().copied().collect()).collect();
        Self { lost, ..Self::new(self.objects.len()) }
    }

    /// Shares an object, so that siblings may acquire it.
    pub fn share(&mut self, tenant: usize, object: ObjectRef) {
        remember(&mut self.objects[tenant], object);
    }

    /// Informs other tenants of an object that is to belong to another object.
    pub fn include(&mut self, tenant: usize, member: ObjectRef) {
        remember(&mut self.members[tenant], member);
    }

    /// Publishes a chunk, with its keys.
    pub fn sight_chunk(&mut self, chunk: (RemoteAddress, Credential, u64)) {
        remember(&mut self.chunks, chunk);
    }

    /// Publishes a key.
    pub fn sight(&mut self, sighting: Sighting) {
        remember(&mut self.sightings, sighting);
    }
}

fn remember<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() == REMEMBERED {
        list.pop_front();
    }
    list.push_back(new);
}

/// A worker's view of the cluster, for one turn.
pub(crate) struct Scene<'a> {
    pub now: Nanos,
    /// The time on the client's clock.
    pub moment: Moment,
    pub session: SessionId,
    pub tenant: usize,
    pub oracle: &'a mut Oracle,
    pub gossip: &'a mut Gossip,
    pub trace: &'a mut Trace,
    /// Whether the run winds down: clients begin nothing new.
    pub winding_down: bool,
    /// Whether faults have touched this client, so that its operations may be interrupted.
    pub excused: bool,
    /// Whether a permission may end earlier than its holder expects: faults have touched clocks, or an attacker on
    /// the path reports such an end.
    pub clocks_off: bool,
}

impl Scene<'_> {
    /// Reports a broken promise.
    pub fn fail(&mut self, promise: Promise, what: String) {
        self.oracle.fail(promise, self.now, what);
    }
}
