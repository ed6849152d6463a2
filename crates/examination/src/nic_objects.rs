//! A record of the objects on a NIC, so that they can be destroyed: windows, queue pairs, completion queues, regions,
//! domains, in that order. A real device destroys no object in time by itself, and some devices do not survive another
//! order.

use crate::Hook;
use portcullis_nic::{
    Access, ChainNic, ChainRole, CqId, Nic, PdId, QpAttributes, QpId, Region, RegionId, RemoteAddress,
    VerbsError, Window, WindowId, WindowKind, WorkRequest,
};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Record of the objects on a NIC. Objects that are left are destroyed before the NIC is dropped, on every path.
#[derive(Default, Debug)]
pub struct NicObjects {
    windows: Vec<WindowId>,
    queue_pairs: Vec<QpId>,
    completion_queues: Vec<CqId>,
    regions: Vec<RegionId>,
    domains: Vec<PdId>,
}

impl NicObjects {
    /// Destroys all objects, as far as the device allows, newest first within each kind.
    ///
    /// # Errors
    /// The first refusal of the device. The object that it did not destroy stays on the NIC.
    pub(crate) fn clear<N: Nic>(&mut self, nic: &mut N) -> Result<(), VerbsError> {
        let Self { windows, queue_pairs, completion_queues, regions, domains } = self;
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

fn made<T: Copy, U>(
    said: Result<U, VerbsError>,
    list: &mut Vec<T>,
    id: impl Fn(&U) -> T,
) -> Result<U, VerbsError> {
    said.inspect(|object| list.push(id(object)))
}

fn gone<T: PartialEq>(said: Result<(), VerbsError>, list: &mut Vec<T>, id: &T) -> Result<(), VerbsError> {
    // In most cases the newest object is destroyed first.
    said.inspect(|()| {
        if let Some(at) = list.iter().rposition(|there| there == id) {
            list.remove(at);
        }
    })
}

impl<N: Nic> Hook<N> for NicObjects {
    fn allocate_pd(&mut self, nic: &mut N) -> Result<PdId, VerbsError> {
        made(nic.allocate_pd(), &mut self.domains, |pd| *pd)
    }

    fn deallocate_pd(&mut self, nic: &mut N, pd: PdId) -> Result<(), VerbsError> {
        gone(nic.deallocate_pd(pd), &mut self.domains, &pd)
    }

    fn register_region(
        &mut self,
        nic: &mut N,
        pd: PdId,
        memory: &N::Memory,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        let said = nic.register_region(pd, memory, span, base, access);
        made(said, &mut self.regions, |region| region.id)
    }

    fn deregister_region(&mut self, nic: &mut N, region: RegionId) -> Result<(), VerbsError> {
        gone(nic.deregister_region(region), &mut self.regions, &region)
    }

    fn allocate_window(&mut self, nic: &mut N, pd: PdId, kind: WindowKind) -> Result<Window, VerbsError> {
        made(nic.allocate_window(pd, kind), &mut self.windows, |window| window.id)
    }

    fn deallocate_window(&mut self, nic: &mut N, window: WindowId) -> Result<(), VerbsError> {
        gone(nic.deallocate_window(window), &mut self.windows, &window)
    }

    fn create_cq(&mut self, nic: &mut N, depth: u32) -> Result<CqId, VerbsError> {
        made(nic.create_cq(depth), &mut self.completion_queues, |cq| *cq)
    }

    fn destroy_cq(&mut self, nic: &mut N, cq: CqId) -> Result<(), VerbsError> {
        gone(nic.destroy_cq(cq), &mut self.completion_queues, &cq)
    }

    fn create_qp(&mut self, nic: &mut N, pd: PdId, attributes: QpAttributes) -> Result<QpId, VerbsError> {
        made(nic.create_qp(pd, attributes), &mut self.queue_pairs, |qp| *qp)
    }

    fn destroy_qp(&mut self, nic: &mut N, qp: QpId) -> Result<(), VerbsError> {
        gone(nic.destroy_qp(qp), &mut self.queue_pairs, &qp)
    }

    fn chains(&mut self, nic: &mut N) -> Option<impl ChainNic> {
        nic.chains().map(|chains| ChainObjects { chains, objects: self })
    }

    fn end(&mut self, nic: &mut N) {
        // A device that panicked may do so again, and a panic during a panic ends the process. A refusal here has been
        // reported already, or its check has failed for another reason.
        let _ = catch_unwind(AssertUnwindSafe(|| self.clear(nic)));
    }
}

/// The part of a NIC for chains, with a record of its objects.
struct ChainObjects<'a, C> {
    chains: C,
    objects: &'a mut NicObjects,
}

impl<C: ChainNic> ChainNic for ChainObjects<'_, C> {
    fn create_chain_qp(
        &mut self,
        pd: PdId,
        attributes: QpAttributes,
        role: ChainRole,
    ) -> Result<QpId, VerbsError> {
        made(self.chains.create_chain_qp(pd, attributes, role), &mut self.objects.queue_pairs, |qp| *qp)
    }

    fn create_counting_cq(&mut self) -> Result<CqId, VerbsError> {
        made(self.chains.create_counting_cq(), &mut self.objects.completion_queues, |cq| *cq)
    }

    fn completions_counted(&self, cq: CqId) -> Result<u32, VerbsError> {
        self.chains.completions_counted(cq)
    }

    fn register_queue_memory(
        &mut self,
        pd: PdId,
        qp: QpId,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        let said = self.chains.register_queue_memory(pd, qp, base, access);
        made(said, &mut self.objects.regions, |region| region.id)
    }

    fn queue_entry(&self, request: &WorkRequest) -> Result<[u64; 8], VerbsError> {
        self.chains.queue_entry(request)
    }
}
