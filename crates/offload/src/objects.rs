//! The verbs objects of a pool or a worker. They are destroyed together, in an order that every device allows.

use portcullis_nic::{CqId, Nic, PdId, QpId, Region, RegionId, VerbsError, Window};

/// Verbs objects that are destroyed together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    windows: Vec<Window>,
    queue_pairs: Vec<QpId>,
    completion_queues: Vec<CqId>,
    regions: Vec<RegionId>,
    domains: Vec<PdId>,
}

impl Objects {
    pub fn domain<N: Nic>(&mut self, nic: &mut N) -> Result<PdId, VerbsError> {
        nic.allocate_pd().inspect(|pd| self.domains.push(*pd))
    }

    pub fn region(&mut self, made: Result<Region, VerbsError>) -> Result<Region, VerbsError> {
        made.inspect(|region| self.regions.push(region.id))
    }

    pub fn cq(&mut self, made: Result<CqId, VerbsError>) -> Result<CqId, VerbsError> {
        made.inspect(|cq| self.completion_queues.push(*cq))
    }

    pub fn queue_pair(&mut self, made: Result<QpId, VerbsError>) -> Result<QpId, VerbsError> {
        made.inspect(|qp| self.queue_pairs.push(*qp))
    }

    /// Takes over queue pairs that were made elsewhere.
    pub fn adopt_queue_pairs(&mut self, qps: &[QpId]) {
        self.queue_pairs.extend(qps);
    }

    /// Takes over objects that were made elsewhere, but no windows.
    pub fn adopt(&mut self, other: Self) {
        assert!(other.windows.is_empty(), "the windows are those of the pool's chunks");
        self.queue_pairs.extend(other.queue_pairs);
        self.completion_queues.extend(other.completion_queues);
        self.regions.extend(other.regions);
        self.domains.extend(other.domains);
    }

    pub fn window(&mut self, made: Result<Window, VerbsError>) -> Result<Window, VerbsError> {
        made.inspect(|window| self.windows.push(*window))
    }

    /// The windows, in the order in which they were made.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// Puts another window in the place of one, and returns the old one.
    pub fn replace_window(&mut self, place: usize, window: Window) -> Window {
        std::mem::replace(&mut self.windows[place], window)
    }

    /// Destroys everything.
    ///
    /// # Errors
    /// The first error of the NIC. An object that the NIC does not destroy stays on it.
    pub fn destroy<N: Nic>(self, nic: &mut N) -> Result<(), VerbsError> {
        let mut first = Ok(());
        let mut note = |said: Result<(), VerbsError>| {
            if first.is_ok() {
                first = said;
            }
        };
        self.windows.into_iter().for_each(|window| note(nic.deallocate_window(window.id)));
        self.queue_pairs.into_iter().for_each(|qp| note(nic.destroy_qp(qp)));
        self.completion_queues.into_iter().for_each(|cq| note(nic.destroy_cq(cq)));
        self.regions.into_iter().for_each(|region| note(nic.deregister_region(region)));
        self.domains.into_iter().for_each(|pd| note(nic.deallocate_pd(pd)));
        first
    }
}
