//! A NIC that fails at one chosen call.

use portcullis_examination::{Around, Hook};
use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, Completion, CqId, Nic, PdId, QpAddress, QpAttributes, QpChange, QpId, Region, RemoteAddress,
    VerbsError, Window, WindowKind,
};
use portcullis_softnic::SoftNic;
use std::cell::Cell;
use std::ops::Range;

/// A software NIC that fails at one chosen call. Removing objects always works, as on real NICs.
pub type FalteringNic = Around<SoftNic, Faltering>;

#[derive(Default)]
pub struct Faltering {
    /// Number of calls that still work. `None`: no call fails.
    left: Cell<Option<u32>>,
}

/// The error of the failing call.
pub fn failure() -> VerbsError {
    VerbsError::Machine("one call fails".to_owned())
}

impl Faltering {
    /// Makes the call after the next `calls` ones fail.
    pub fn fail_after(&self, calls: u32) {
        self.left.set(Some(calls));
    }

    pub fn is_yet_to_fail(&self) -> bool {
        self.left.get().is_some()
    }

    fn count(&self) -> Result<(), VerbsError> {
        let left = self.left.get();
        self.left.set(left.and_then(|left| left.checked_sub(1)));
        if left == Some(0) { Err(failure()) } else { Ok(()) }
    }
}

impl Hook<SoftNic> for Faltering {
    fn allocate_memory(&mut self, nic: &mut SoftNic, length: u64) -> Result<Mapping, VerbsError> {
        self.count()?;
        nic.allocate_memory(length)
    }

    fn allocate_pd(&mut self, nic: &mut SoftNic) -> Result<PdId, VerbsError> {
        self.count()?;
        nic.allocate_pd()
    }

    fn register_region(
        &mut self,
        nic: &mut SoftNic,
        pd: PdId,
        memory: &Mapping,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        self.count()?;
        nic.register_region(pd, memory, span, base, access)
    }

    fn allocate_window(
        &mut self,
        nic: &mut SoftNic,
        pd: PdId,
        kind: WindowKind,
    ) -> Result<Window, VerbsError> {
        self.count()?;
        nic.allocate_window(pd, kind)
    }

    fn create_cq(&mut self, nic: &mut SoftNic, depth: u32) -> Result<CqId, VerbsError> {
        self.count()?;
        nic.create_cq(depth)
    }

    fn create_qp(
        &mut self,
        nic: &mut SoftNic,
        pd: PdId,
        attributes: QpAttributes,
    ) -> Result<QpId, VerbsError> {
        self.count()?;
        nic.create_qp(pd, attributes)
    }

    fn qp_address(&self, nic: &SoftNic, qp: QpId) -> Result<QpAddress, VerbsError> {
        self.count()?;
        nic.qp_address(qp)
    }

    fn modify_qp(&mut self, nic: &mut SoftNic, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        self.count()?;
        nic.modify_qp(qp, change)
    }

    fn poll(
        &mut self,
        nic: &mut SoftNic,
        cq: CqId,
        most: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        self.count()?;
        nic.poll(cq, most, into)
    }
}
