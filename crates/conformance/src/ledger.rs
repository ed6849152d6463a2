//! What is on a NIC, written down, so that it can be taken off again: windows, queue pairs, completion queues, regions,
//! domains, in that order. On a real device nothing goes by itself in time, and some do not survive another order.

use portcullis_nic::{
    Access, CqId, Nic, PdId, QpAttributes, QpId, Region, RegionId, RemoteAddress, VerbsError, Window,
    WindowId, WindowKind,
};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A NIC that knows what is on it. Whatever is left goes when it goes, on every path.
pub(crate) struct Ledger<N: Nic> {
    nic: N,
    windows: Vec<WindowId>,
    queue_pairs: Vec<QpId>,
    completion_queues: Vec<CqId>,
    regions: Vec<RegionId>,
    domains: Vec<PdId>,
}

impl<N: Nic> Ledger<N> {
    /// For a NIC with nothing on it.
    pub(crate) fn new(nic: N) -> Self {
        Self {
            nic,
            windows: Vec::new(),
            queue_pairs: Vec::new(),
            completion_queues: Vec::new(),
            regions: Vec::new(),
            domains: Vec::new(),
        }
    }

    /// Takes everything off, as far as the device lets it, the youngest first within each kind.
    ///
    /// # Errors
    /// The first refusal; what it was about stays.
    pub(crate) fn clear(&mut self) -> Result<(), VerbsError> {
        let Self { nic, windows, queue_pairs, completion_queues, regions, domains } = self;
        let mut first = Ok(());
        let mut note = |said: Result<(), VerbsError>| {
            if first.is_ok() {
                first = said;
            }
        };
        windows.drain(..).rev().for_each(|window| note(nic.deallocate_window(window)));
        queue_pairs.drain(..).rev().for_each(|qp| note(nic.destroy_qp(qp)));
        completion_queues.drain(..).rev().for_each(|cq| note(nic.destroy_cq(cq)));
        regions.drain(..).rev().for_each(|region| note(nic.deregister_region(region)));
        domains.drain(..).rev().for_each(|pd| note(nic.deallocate_pd(pd)));
        first
    }
}

impl<N: Nic> Drop for Ledger<N> {
    fn drop(&mut self) {
        // A device that panicked may do so again, and a second panic while the first goes up ends the process. What is
        // refused here has been told already, or its check has failed for a reason of its own.
        let _ = catch_unwind(AssertUnwindSafe(|| self.clear()));
    }
}

/// Notes what was made.
fn made<T: Copy, U>(
    said: Result<U, VerbsError>,
    list: &mut Vec<T>,
    id: impl Fn(&U) -> T,
) -> Result<U, VerbsError> {
    said.inspect(|object| list.push(id(object)))
}

/// Strikes out what is gone.
fn gone<T: PartialEq>(said: Result<(), VerbsError>, list: &mut Vec<T>, id: &T) -> Result<(), VerbsError> {
    // What was made last mostly goes first.
    said.inspect(|()| {
        if let Some(at) = list.iter().rposition(|there| there == id) {
            list.remove(at);
        }
    })
}

impl<N: Nic> Nic for Ledger<N> {
    type Memory = N::Memory;

    crate::forward_nic! { nic:
        capabilities, allocate_memory, qp_address, qp_state, modify_qp, post_send, post_receive, poll,
        poll_event
    }

    fn allocate_pd(&mut self) -> Result<PdId, VerbsError> {
        made(self.nic.allocate_pd(), &mut self.domains, |pd| *pd)
    }

    fn deallocate_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        gone(self.nic.deallocate_pd(pd), &mut self.domains, &pd)
    }

    fn register_region(
        &mut self,
        pd: PdId,
        memory: &N::Memory,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        let said = self.nic.register_region(pd, memory, span, base, access);
        made(said, &mut self.regions, |region| region.id)
    }

    fn deregister_region(&mut self, region: RegionId) -> Result<(), VerbsError> {
        gone(self.nic.deregister_region(region), &mut self.regions, &region)
    }

    fn allocate_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Window, VerbsError> {
        made(self.nic.allocate_window(pd, kind), &mut self.windows, |window| window.id)
    }

    fn deallocate_window(&mut self, window: WindowId) -> Result<(), VerbsError> {
        gone(self.nic.deallocate_window(window), &mut self.windows, &window)
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        made(self.nic.create_cq(depth), &mut self.completion_queues, |cq| *cq)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        gone(self.nic.destroy_cq(cq), &mut self.completion_queues, &cq)
    }

    fn create_qp(&mut self, pd: PdId, attributes: QpAttributes) -> Result<QpId, VerbsError> {
        made(self.nic.create_qp(pd, attributes), &mut self.queue_pairs, |qp| *qp)
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        gone(self.nic.destroy_qp(qp), &mut self.queue_pairs, &qp)
    }
}
