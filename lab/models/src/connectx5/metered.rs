//! A NIC that counts the requests of its node, and reports the end of a bind only when the modelled hardware would.

use super::counts::counts;
use super::ends::ModelNic;
use super::inputs::Inputs;
use super::pipe::Pipe;
use crate::time::Nanos;
use portcullis_examination::{Around, Hook};
use portcullis_nic::{
    Access, Completion, CqId, Nic, Operation, PdId, QpAttributes, QpChange, QpId, Region, RegionId,
    RemoteAddress, VerbsError, Window, WindowKind, WorkRequest,
};
use portcullis_protocol::MESSAGE_BYTES;
use portcullis_sim::SimMemory;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// The unit in which registrations are counted.
const HUGE_PAGE: u64 = 2 << 20;

/// Counts of a node's requests to its NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Binds and unbinds.
    pub binds: u64,
    /// Core time for posting the binds, in ns.
    pub posting_ns: Nanos,
    /// Huge pages of regions that were registered.
    pub registered: u64,
    /// Huge pages deregistered.
    pub deregistered: u64,
    /// Changes of a queue pair's flags.
    pub flags: u64,
    /// Queue pairs rebuilt.
    pub recoveries: u64,
    /// Bytes copied into replies.
    pub copied: u64,
    /// Windows allocated.
    pub windows: u64,
}

counts!(Tally: binds, posting_ns, registered, deregistered, flags, recoveries, copied, windows);

/// A core's view of the memory node's NIC. Calls on the software NIC inside it are not counted.
pub(super) type MeteredNic = Around<ModelNic, Meter>;

/// Counts the requests to the NIC, and times its binds.
#[derive(Debug)]
pub(super) struct Meter {
    pub tally: Tally,
    /// The time for polls.
    pub now: Nanos,
    inputs: Inputs,
    pages: HashMap<RegionId, u64>,
    completes_on: HashMap<QpId, CqId>,
    bind_cq: Option<CqId>,
    /// Posts whose time is not known yet: binds, and signalled ones among them.
    posted: Vec<(u64, usize)>,
    /// Time from which each signalled bind may be reported.
    ends: VecDeque<Nanos>,
    /// A queue pair that was just rebuilt. Setting its flags is part of the rebuild.
    rebuilt: Option<QpId>,
}

impl Meter {
    /// Creates a meter without counts.
    pub fn new(inputs: Inputs) -> Self {
        Self {
            tally: Tally::default(),
            now: 0,
            inputs,
            pages: HashMap::new(),
            completes_on: HashMap::new(),
            bind_cq: None,
            posted: Vec::new(),
            ends: VecDeque::new(),
            rebuilt: None,
        }
    }

    /// Computes the ends of the posted binds after the turn that posted them. A post's last bind was posted one
    /// posting time before the end of the turn. The NIC needs at least a bind's latency more.
    pub fn settle(&mut self, turn_ended: Nanos, unit: &mut Pipe) {
        for (binds, signalled) in std::mem::take(&mut self.posted) {
            let posted = turn_ended.saturating_sub(self.inputs.post_ns(binds));
            let passed = (0..binds).map(|_| unit.pass(posted)).max().unwrap_or(posted);
            let end = turn_ended.max(posted + self.inputs.bind_ns).max(passed);
            let end = self.ends.back().map_or(end, |&last| end.max(last));
            self.ends.extend(std::iter::repeat_n(end, signalled));
        }
    }

    /// Returns the time at which the NIC has the next bind to report.
    pub fn next_end(&self) -> Option<Nanos> {
        self.ends.front().copied()
    }

    fn note_posts(&mut self, qp: QpId, requests: &[WorkRequest]) {
        let (mut binds, mut signalled) = (0, 0);
        for request in requests {
            match request.operation {
                Operation::BindWindow(_) => {
                    binds += 1;
                    signalled += usize::from(request.signalled);
                }
                Operation::Send { local } => {
                    self.tally.copied += u64::from(local.length).saturating_sub(MESSAGE_BYTES as u64);
                }
                _ => {}
            }
        }
        if binds > 0 {
            self.bind_cq = self.completes_on.get(&qp).copied();
            self.tally.binds += binds;
            self.tally.posting_ns += self.inputs.post_ns(binds);
            self.posted.push((binds, signalled));
        }
    }
}

impl Hook<ModelNic> for Meter {
    fn register_region(
        &mut self,
        nic: &mut ModelNic,
        pd: PdId,
        memory: &SimMemory,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        let pages = (span.end - span.start).div_ceil(HUGE_PAGE);
        let region = nic.register_region(pd, memory, span, base, access)?;
        self.pages.insert(region.id, pages);
        self.tally.registered += pages;
        Ok(region)
    }

    fn deregister_region(&mut self, nic: &mut ModelNic, region: RegionId) -> Result<(), VerbsError> {
        nic.deregister_region(region)?;
        self.tally.deregistered += self.pages.remove(&region).unwrap_or(0);
        Ok(())
    }

    fn allocate_window(
        &mut self,
        nic: &mut ModelNic,
        pd: PdId,
        kind: WindowKind,
    ) -> Result<Window, VerbsError> {
        let window = nic.allocate_window(pd, kind)?;
        self.tally.windows += 1;
        Ok(window)
    }

    fn create_cq(&mut self, nic: &mut ModelNic, depth: u32) -> Result<CqId, VerbsError> {
        // The few clients of the model never fill a larger queue.
        nic.create_cq(depth.min(1 << 14))
    }

    fn create_qp(
        &mut self,
        nic: &mut ModelNic,
        pd: PdId,
        attributes: QpAttributes,
    ) -> Result<QpId, VerbsError> {
        let qp = nic.create_qp(pd, attributes)?;
        self.completes_on.insert(qp, attributes.send_cq);
        Ok(qp)
    }

    fn modify_qp(&mut self, nic: &mut ModelNic, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        nic.modify_qp(qp, change)?;
        match change {
            QpChange::ReadyToSend { .. } => {
                self.tally.recoveries += 1;
                self.rebuilt = Some(qp);
            }
            QpChange::Access { .. } if self.rebuilt.take() != Some(qp) => self.tally.flags += 1,
            _ => {}
        }
        Ok(())
    }

    fn post_send(
        &mut self,
        nic: &mut ModelNic,
        qp: QpId,
        requests: &[WorkRequest],
    ) -> Result<usize, VerbsError> {
        let posted = nic.post_send(qp, requests)?;
        self.note_posts(qp, &requests[..posted]);
        Ok(posted)
    }

    fn poll(
        &mut self,
        nic: &mut ModelNic,
        cq: CqId,
        most: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        if self.bind_cq != Some(cq) {
            return nic.poll(cq, most, into);
        }
        let over = self.ends.iter().take_while(|&&end| end <= self.now).count();
        let polled = nic.poll(cq, most.min(over), into)?;
        self.ends.drain(..polled);
        Ok(polled)
    }
}
