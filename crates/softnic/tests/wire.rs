//! The same promises where every request crosses a network: a NIC whose packets go out and come back in.

use portcullis_conformance::{Around, Hook};
use portcullis_nic::{
    Access, Capabilities, Completion, CqId, Event, LocalSpan, Nic, Operation, QpAttributes, QpChange,
    ReceiveRequest, RemoteAddress, Status, VerbsError, WorkRequest,
};
use portcullis_protocol::{Lifetime, Moment};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::NetworkPort;

/// A network that ends at its NIC's own port. Each poll is ten microseconds.
struct Loop {
    now: Moment,
}

/// A NIC on such a network.
fn looped(first_packet: u32, patience: Lifetime) -> Around<SoftNic, Loop> {
    let mut nic = SoftNic::new();
    nic.core().join(NetworkPort { address: [7; 16], first_packet, patience });
    Around { nic, hook: Loop { now: Moment(1) } }
}

impl Loop {
    fn turn(&mut self, nic: &mut SoftNic) {
        self.now = self.now.after(Lifetime::micros(10));
        nic.turn_at(self.now);
        let mut packets = Vec::new();
        nic.core().take_outgoing(&mut packets);
        for packet in &packets {
            nic.core().receive(packet, self.now);
        }
        nic.turn_at(self.now);
    }
}

impl Hook<SoftNic> for Loop {
    fn capabilities(&self, nic: &SoftNic) -> Capabilities {
        Capabilities { name: "softnic over a wire".to_owned(), ..nic.capabilities() }
    }
    fn poll(
        &mut self,
        nic: &mut SoftNic,
        cq: CqId,
        most: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        self.turn(nic);
        nic.poll(cq, most, into)
    }
    fn poll_event(&mut self, nic: &mut SoftNic) -> Option<Event> {
        self.turn(nic);
        nic.poll_event()
    }
}

portcullis_conformance::conformance_tests!(looped(5, Lifetime::millis(1)));

/// Two connected queue pairs of a NIC on a network that is patient for less than a retry takes.
#[test]
fn a_send_waits_for_a_receive_for_as_long_as_its_retries_last_whatever_the_patience() {
    let mut looped = looped(0, Lifetime::micros(400));
    let pd = looped.allocate_pd().expect("a domain");
    let cq = looped.create_cq(16).expect("a completion queue");
    let memory = looped.allocate_memory(4096).expect("memory");
    let local = looped.register_region(pd, &memory, 0..4096, RemoteAddress(0), Access::LOCAL_WRITE);
    let lkey = local.expect("a region").lkey;
    let queues = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 4, receive_depth: 4 };
    let ends = [(); 2].map(|()| looped.create_qp(pd, queues).expect("a queue pair"));
    for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let peer = looped.qp_address(peer).expect("an address");
        for change in [
            QpChange::Init { access: Access::empty() },
            QpChange::ReadyToReceive { peer },
            QpChange::ReadyToSend { rnr_retries: 7 },
        ] {
            looped.modify_qp(end, change).expect("a step");
        }
    }
    let span = |address| LocalSpan { address, length: 8, lkey };
    let request = WorkRequest { id: 5, signalled: true, operation: Operation::Send { local: span(0) } };
    looped.post_send(ends[0], &[request]).expect("posted");
    let mut completions = Vec::new();
    // Ten microseconds a poll: ten milliseconds without a receive.
    for _ in 0..1_000 {
        looped.poll(cq, 4, &mut completions).expect("polled");
    }
    assert_eq!(completions, [], "it waits");
    looped.post_receive(ends[1], &[ReceiveRequest { id: 6, local: span(64) }]).expect("posted");
    for _ in 0..200 {
        looped.poll(cq, 4, &mut completions).expect("polled");
    }
    let ended: Vec<_> = completions.iter().map(|it| (it.request, it.status)).collect();
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert!(ended.iter().all(|&(_, status)| status == Status::Success), "{ended:?}");
}
