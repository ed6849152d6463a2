//! A NIC that fails once, at whichever of its calls it is told to.

use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, Completion, CqId, Nic, PdId, QpAddress, QpAttributes, QpChange, QpId, Region, RemoteAddress,
    VerbsError, Window, WindowKind,
};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::ObjectCounts;
use std::cell::Cell;
use std::ops::Range;

/// A software NIC. What takes objects off it always works, as on real ones.
#[derive(Default)]
pub struct Faltering {
    nic: SoftNic,
    /// Calls that still work; none are counted while this is unset.
    left: Cell<Option<u32>>,
}

/// What the one failing call says.
pub fn failure() -> VerbsError {
    VerbsError::Machine("one call fails".to_owned())
}

impl Faltering {
    /// After `calls` more that work, one fails.
    pub fn fail_after(&self, calls: u32) {
        self.left.set(Some(calls));
    }

    pub fn is_yet_to_fail(&self) -> bool {
        self.left.get().is_some()
    }

    pub fn objects(&mut self) -> ObjectCounts {
        self.nic.core().objects()
    }

    fn count(&self) -> Result<(), VerbsError> {
        let left = self.left.get();
        self.left.set(left.and_then(|left| left.checked_sub(1)));
        if left == Some(0) { Err(failure()) } else { Ok(()) }
    }
}

impl Nic for Faltering {
    type Memory = Mapping;

    portcullis_conformance::forward_nic! { nic:
        capabilities, deallocate_pd, deregister_region, deallocate_window, destroy_cq, destroy_qp,
        qp_state, post_send, post_receive, poll_event
    }

    fn allocate_memory(&mut self, length: u64) -> Result<Mapping, VerbsError> {
        self.count()?;
        self.nic.allocate_memory(length)
    }

    fn allocate_pd(&mut self) -> Result<PdId, VerbsError> {
        self.count()?;
        self.nic.allocate_pd()
    }

    fn register_region(
        &mut self,
        pd: PdId,
        memory: &Mapping,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        self.count()?;
        self.nic.register_region(pd, memory, span, base, access)
    }

    fn allocate_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Window, VerbsError> {
        self.count()?;
        self.nic.allocate_window(pd, kind)
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        self.count()?;
        self.nic.create_cq(depth)
    }

    fn create_qp(&mut self, pd: PdId, attributes: QpAttributes) -> Result<QpId, VerbsError> {
        self.count()?;
        self.nic.create_qp(pd, attributes)
    }

    fn qp_address(&self, qp: QpId) -> Result<QpAddress, VerbsError> {
        self.count()?;
        self.nic.qp_address(qp)
    }

    fn modify_qp(&mut self, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        self.count()?;
        self.nic.modify_qp(qp, change)
    }

    fn poll(&mut self, cq: CqId, most: usize, into: &mut Vec<Completion>) -> Result<usize, VerbsError> {
        self.count()?;
        self.nic.poll(cq, most, into)
    }
}
