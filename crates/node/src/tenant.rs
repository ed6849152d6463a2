//! A tenant on the NIC: its protection domain, its region over the pool, its windows, and the queue pair that binds
//! them.

use crate::NodeConfig;
use crate::permissions::Grip;
use crate::quota::Usage;
use crate::slabs::ObjectId;
use crate::windows::{GoneWindows, Residue, WindowIndex, Windows};
use portcullis_nic::{
    Access, CqId, Nic, PdId, QpAttributes, QpChange, QpId, Region, RemoteAddress, VerbsError, WorkRequest,
};
use portcullis_protocol::{Mechanism, Moment, ReplyBody, Rights};
use rand::rngs::StdRng;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Requests that the queue pair for binds holds.
pub(crate) const BIND_DEPTH: u32 = 1024;

/// A permission that has ended and whose protection is to be taken down.
#[derive(Debug)]
pub(crate) struct Ending {
    pub grip: Grip,
    pub header: RemoteAddress,
    pub rights: Rights,
    pub client: u64,
    pub object: ObjectId,
    /// The object goes with it: nobody gets at its memory before the protection is down.
    pub last: bool,
    pub answer: Option<Answer>,
}

/// A reply that waits until what it promises is true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub client: u64,
    pub sequence: u32,
    pub body: ReplyBody,
}

/// Binds and unbinds that were posted together: they are confirmed together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The id of its last request, whose completion confirms it. Not zero, and not used again.
    pub number: u64,
    /// Permissions that start with it.
    pub starts: Vec<u32>,
    /// What is free once it is confirmed.
    pub releases: Vec<Release>,
    pub answers: Vec<Answer>,
    /// All windows that it binds or unbinds.
    pub windows: Vec<WindowIndex>,
}

impl Batch {
    /// Empties it, and keeps its room.
    pub fn clear(&mut self) {
        self.starts.clear();
        self.releases.clear();
        self.answers.clear();
        self.windows.clear();
    }
}

/// What is free once a window is known to be bound to it no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    pub residue: Residue,
    /// The window itself, if it was unbound.
    pub window: Option<WindowIndex>,
}

/// A tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub name: Arc<str>,
    /// Tells its bytes from other tenants'; not used again.
    pub mark: u64,
    pub pd: PdId,
    pub region: Region,
    /// Binds windows. Clients have no part in it, so none of them can break it.
    pub binder: QpId,
    /// The binder broke, and the NIC would not take it up again.
    pub binder_is_down: bool,
    pub windows: Windows,
    pub usage: Usage,
    /// Its objects, those that are going included. Each knows its place here.
    pub objects: Vec<ObjectId>,
    /// Those of them that are kept, by how long they stay after the last client has gone.
    pub kept: BTreeSet<(u64, ObjectId)>,
    pub clients: u32,
    /// Since when it has no clients, and stays for what it has left behind.
    pub alone_since: Option<Moment>,
    /// It has broken a rule on this node before: its standing has to be looked up.
    pub offended: bool,
    /// Permissions that wait for this turn's batch.
    pub starting: Vec<u32>,
    pub ending: Vec<Ending>,
    /// Windows that must not linger any longer.
    pub overdue: Vec<(WindowIndex, Residue)>,
    pub batches: VecDeque<Batch>,
    /// Confirmed batches, empty: their room is used again.
    pub spare: Vec<Batch>,
    /// Batches that there have been.
    pub batch_count: u64,
    /// Requests of those batches that the queue had no room for yet.
    pub unposted: VecDeque<WorkRequest>,
}

impl Tenant {
    /// Sets a tenant up on the NIC. Nothing is left behind when that fails.
    pub fn new<N: Nic>(
        nic: &mut N,
        config: &NodeConfig,
        pool: (&N::Memory, RemoteAddress, u64),
        cq: CqId,
        (name, mark): (Arc<str>, u64),
        secret: &mut StdRng,
    ) -> Result<Self, VerbsError> {
        let pd = nic.allocate_pd()?;
        let region = nic.register_region(pd, pool.0, 0..pool.2, pool.1, region_access(config.mechanism));
        let region = region.inspect_err(|_| {
            let _ = nic.deallocate_pd(pd);
        })?;
        let binder = make_binder(nic, pd, cq).inspect_err(|_| {
            let _ = nic.deregister_region(region.id);
            let _ = nic.deallocate_pd(pd);
        })?;
        Ok(Self {
            name,
            mark,
            pd,
            region,
            binder,
            binder_is_down: false,
            windows: Windows::new(pd, config.windows_max, nic.capabilities().chosen_keys, secret),
            usage: Usage::default(),
            objects: Vec::new(),
            kept: BTreeSet::new(),
            clients: 0,
            alone_since: None,
            offended: false,
            starting: Vec::new(),
            ending: Vec::new(),
            overdue: Vec::new(),
            batches: VecDeque::new(),
            spare: Vec::new(),
            batch_count: 0,
            unposted: VecDeque::new(),
        })
    }

    /// How much there is to take apart when it ends.
    pub fn burden(&self) -> usize {
        let bound: usize = self.batches.iter().map(|batch| batch.starts.len() + batch.releases.len()).sum();
        self.objects.len() + self.windows.len() + self.starting.len() + self.ending.len() + bound
    }

    /// Whether something of it is still to be bound or unbound, or on its way.
    pub fn waits_for_nic(&self) -> bool {
        let idle = self.starting.is_empty() && self.ending.is_empty() && self.overdue.is_empty();
        !idle || !self.batches.is_empty() || !self.unposted.is_empty()
    }

    /// Takes the tenant off the NIC: windows, queue pair, region, in that order. Its domain is left, since its clients'
    /// queue pairs may still be there. Says what its windows still held.
    pub fn end<N: Nic>(&mut self, nic: &mut N, gone: &mut GoneWindows) -> Vec<Residue> {
        let residues = self.windows.end(nic, gone);
        let _ = nic.destroy_qp(self.binder);
        let _ = nic.deregister_region(self.region.id);
        residues
    }
}

/// What the region over the whole pool lets peers do by itself: nothing where something finer enforces permissions.
fn region_access(mechanism: Mechanism) -> Access {
    let local = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    match mechanism {
        Mechanism::QueuePair | Mechanism::None => local | Access::REMOTE,
        Mechanism::MemoryWindow | Mechanism::MemoryRegion | Mechanism::NodeCopy => local,
    }
}

fn make_binder(nic: &mut impl Nic, pd: PdId, cq: CqId) -> Result<QpId, VerbsError> {
    let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: BIND_DEPTH, receive_depth: 0 };
    let binder = nic.create_qp(pd, attributes)?;
    connect_binder(nic, binder).inspect_err(|_| {
        let _ = nic.destroy_qp(binder);
    })?;
    Ok(binder)
}

/// Takes the binder to RTS, connected to itself: it sends nothing to anybody.
pub(crate) fn connect_binder(nic: &mut impl Nic, binder: QpId) -> Result<(), VerbsError> {
    let peer = nic.qp_address(binder)?;
    nic.modify_qp(binder, QpChange::Reset)?;
    nic.modify_qp(binder, QpChange::Init { access: Access::empty() })?;
    nic.modify_qp(binder, QpChange::ReadyToReceive { peer })?;
    nic.modify_qp(binder, QpChange::ReadyToSend { rnr_retries: 0 })
}
