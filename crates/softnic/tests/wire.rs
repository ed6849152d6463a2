//! The same promises where every request crosses a network: a NIC whose packets go out and come back in.

use portcullis_nic::{
    Access, Capabilities, Completion, CqId, Event, Nic, PdId, QpAddress, QpAttributes, QpChange, QpId,
    QpState, ReceiveRequest, Region, RegionId, RemoteAddress, VerbsError, Window, WindowId, WindowKind,
    WorkRequest,
};
use portcullis_protocol::{Lifetime, Moment};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::NetworkPort;
use portcullis_softnic::shared::Mapping;
use std::ops::Range;

/// A NIC on a network that ends at its own port. Each poll is ten microseconds.
struct Looped {
    nic: SoftNic,
    now: Moment,
}

impl Looped {
    fn new() -> Self {
        let mut nic = SoftNic::new();
        let patience = Lifetime::millis(1);
        nic.core().join(NetworkPort { address: [7; 16], first_packet: 5, patience });
        Self { nic, now: Moment(1) }
    }

    fn turn(&mut self) {
        self.now = self.now.after(Lifetime::micros(10));
        self.nic.turn_at(self.now);
        let mut packets = Vec::new();
        self.nic.core().take_outgoing(&mut packets);
        for packet in &packets {
            self.nic.core().receive(packet, self.now);
        }
        self.nic.turn_at(self.now);
    }
}

impl Nic for Looped {
    type Memory = Mapping;

    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "softnic over a wire".to_owned(), ..self.nic.capabilities() }
    }
    fn allocate_memory(&mut self, length: u64) -> Result<Mapping, VerbsError> {
        self.nic.allocate_memory(length)
    }
    fn allocate_pd(&mut self) -> Result<PdId, VerbsError> {
        self.nic.allocate_pd()
    }
    fn deallocate_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.nic.deallocate_pd(pd)
    }
    fn register_region(
        &mut self,
        pd: PdId,
        memory: &Mapping,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        self.nic.register_region(pd, memory, span, base, access)
    }
    fn deregister_region(&mut self, region: RegionId) -> Result<(), VerbsError> {
        self.nic.deregister_region(region)
    }
    fn allocate_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Window, VerbsError> {
        self.nic.allocate_window(pd, kind)
    }
    fn deallocate_window(&mut self, window: WindowId) -> Result<(), VerbsError> {
        self.nic.deallocate_window(window)
    }
    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        self.nic.create_cq(depth)
    }
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.nic.destroy_cq(cq)
    }
    fn create_qp(&mut self, pd: PdId, attributes: QpAttributes) -> Result<QpId, VerbsError> {
        self.nic.create_qp(pd, attributes)
    }
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.nic.destroy_qp(qp)
    }
    fn qp_address(&self, qp: QpId) -> Result<QpAddress, VerbsError> {
        self.nic.qp_address(qp)
    }
    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.nic.qp_state(qp)
    }
    fn modify_qp(&mut self, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        self.nic.modify_qp(qp, change)
    }
    fn post_send(&mut self, qp: QpId, requests: &[WorkRequest]) -> Result<usize, VerbsError> {
        self.nic.post_send(qp, requests)
    }
    fn post_receive(&mut self, qp: QpId, requests: &[ReceiveRequest]) -> Result<usize, VerbsError> {
        self.nic.post_receive(qp, requests)
    }
    fn poll(&mut self, cq: CqId, most: usize, into: &mut Vec<Completion>) -> Result<usize, VerbsError> {
        self.turn();
        self.nic.poll(cq, most, into)
    }
    fn poll_event(&mut self) -> Option<Event> {
        self.turn();
        self.nic.poll_event()
    }
}

portcullis_nic::conformance_tests!(Looped::new());
