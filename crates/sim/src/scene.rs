//! What a worker sees of the cluster while it acts: its clock, the checkers, and what it may have been told.

use crate::clock::Nanos;
use crate::endpoint::SimEndpoint;
use crate::oracle::{Oracle, Promise, SessionId};
use crate::trace::Trace;
use portcullis_client::Client;
use portcullis_protocol::{Moment, ObjectRef, PermissionId, RemoteAddress, Rkey};
use std::collections::VecDeque;

/// A client of the simulator.
pub(crate) type SimClient = Client<SimEndpoint>;

/// Keys and addresses that are remembered of a node.
const REMEMBERED: usize = 96;

/// A key and where it opens something, or once did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    pub object: ObjectRef,
    pub address: RemoteAddress,
    pub length: u64,
    pub key: Rkey,
    /// The lifetime word, and the key to it.
    pub word: (RemoteAddress, Rkey),
    /// The permission, by its name.
    pub permission: PermissionId,
}

/// What goes round among clients: objects that tenants share, and, for spies, everybody's keys.
#[derive(Debug, Default)]
pub(crate) struct Gossip {
    /// Objects by tenant.
    pub objects: Vec<VecDeque<ObjectRef>>,
    /// Objects of nodes that are no more, by tenant: references to them are still around.
    pub lost: Vec<Vec<ObjectRef>>,
    pub sightings: VecDeque<Sighting>,
}

impl Gossip {
    pub fn new(tenants: usize) -> Self {
        let (objects, lost) = (vec![VecDeque::new(); tenants], vec![Vec::new(); tenants]);
        Self { objects, lost, sightings: VecDeque::new() }
    }

    /// What is still told after the node has started again.
    pub fn after_restart(&self) -> Self {
        let lost = self.objects.iter().map(|objects| objects.iter().copied().collect()).collect();
        Self { lost, ..Self::new(self.objects.len()) }
    }

    /// Tells of an object that siblings may acquire.
    pub fn share(&mut self, tenant: usize, object: ObjectRef) {
        let objects = &mut self.objects[tenant];
        if objects.len() == REMEMBERED {
            objects.pop_front();
        }
        objects.push_back(object);
    }

    /// Tells of a key.
    pub fn sight(&mut self, sighting: Sighting) {
        if self.sightings.len() == REMEMBERED {
            self.sightings.pop_front();
        }
        self.sightings.push_back(sighting);
    }
}

/// A worker's view of the cluster, for one turn.
pub(crate) struct Scene<'a> {
    pub now: Nanos,
    /// The same on the client's clock.
    pub moment: Moment,
    pub session: SessionId,
    pub tenant: usize,
    pub oracle: &'a mut Oracle,
    pub gossip: &'a mut Gossip,
    pub trace: &'a mut Trace,
    /// Nothing new is begun.
    pub winding_down: bool,
    /// Faults have touched this client, so that its operations may be interrupted.
    pub excused: bool,
    /// Faults have touched clocks: a permission may end earlier than its holder thinks.
    pub clocks_off: bool,
}

impl Scene<'_> {
    /// Finds a promise broken.
    pub fn fail(&mut self, promise: Promise, what: String) {
        self.oracle.fail(promise, self.now, what);
    }
}
