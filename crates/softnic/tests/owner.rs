//! Tests of the NIC from its owner's side: queues of any allowed depth, and the NIC's reports of itself.

use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, ChainNic, ChainRole, ChainVerb, CompletionKind, CqId, EndpointSize, LocalSpan, Nic, Operation,
    PdId, QpAttributes, QpChange, QpId, ReceiveRequest, Region, RemoteAddress, RemoteSpan, Rkey, SendQueue,
    Status, VerbsError, WindowBinding, WindowKind, WorkRequest, connect_qp,
};
use portcullis_softnic::{PortResources, SoftNic};

const DEEPEST: u32 = 1 << 20;

struct Rig {
    nic: SoftNic,
    pd: PdId,
    cq: CqId,
    region: Region,
}

impl Rig {
    fn new(completions: u32) -> Self {
        let mut nic = SoftNic::new();
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(completions).expect("a queue");
        let memory = nic.allocate_memory(4096).expect("memory");
        let region = nic.register_region(pd, &memory, 0..4096, RemoteAddress(0), Access::LOCAL_WRITE);
        Self { nic, pd, cq, region: region.expect("a region") }
    }

    fn attributes(&self, send_depth: u32, receive_depth: u32) -> QpAttributes {
        QpAttributes { send_cq: self.cq, receive_cq: self.cq, send_depth, receive_depth }
    }

    fn resources(&self) -> PortResources {
        let data_sends = SendQueue { cq: self.cq, depth: 1 };
        PortResources { pd: self.pd, chunks: None, cq: self.cq, data_sends }
    }

    fn pair(&mut self, depth: u32) -> [QpId; 2] {
        let attributes = self.attributes(depth, depth);
        let pair = [(); 2].map(|()| self.nic.create_qp(self.pd, attributes).expect("a queue pair"));
        for (one, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            let peer = self.nic.qp_address(other).expect("an address");
            connect_qp(&mut self.nic, one, peer).expect("each step");
        }
        pair
    }

    fn local(&self) -> LocalSpan {
        LocalSpan { address: 0, length: 8, lkey: self.region.lkey }
    }

    fn send(&mut self, from: QpId, id: u64) {
        let request = WorkRequest { id, signalled: true, operation: Operation::Send { local: self.local() } };
        assert_eq!(self.nic.post_send(from, &[request]), Ok(1));
    }

    fn receive(&mut self, at: QpId, id: u64) {
        let receive = ReceiveRequest { id, local: self.local() };
        assert_eq!(self.nic.post_receive(at, &[receive]), Ok(1), "receive {id}");
    }
}

#[test]
fn a_queue_has_a_depth_that_is_a_power_of_two_and_not_too_large() {
    let mut rig = Rig::new(64);
    let invalid = |result: Result<(), VerbsError>| matches!(result, Err(VerbsError::Invalid(_)));
    for depth in [0, 3, 100, DEEPEST + 1, 2 * DEEPEST, u32::MAX] {
        assert!(invalid(rig.nic.create_cq(depth).map(drop)), "completions: {depth}");
        let attributes = rig.attributes(depth, 4);
        assert!(invalid(rig.nic.create_qp(rig.pd, attributes).map(drop)), "sends: {depth}");
        if depth > 0 {
            let attributes = rig.attributes(4, depth);
            assert!(invalid(rig.nic.create_qp(rig.pd, attributes).map(drop)), "receives: {depth}");
        }
    }
    for depth in [1, 2, 1024] {
        rig.nic.create_cq(depth).expect("a queue");
        let attributes = rig.attributes(depth, depth);
        rig.nic.create_qp(rig.pd, attributes).expect("a queue pair");
    }
    let without = rig.attributes(4, 0);
    rig.nic.create_qp(rig.pd, without).expect("one that receives nothing");
}

#[test]
fn a_deep_receive_queue_holds_all_that_are_posted() {
    const DEPTH: u32 = 1024;
    let mut rig = Rig::new(4 * DEPTH);
    let [from, to] = rig.pair(DEPTH);
    for id in 0..u64::from(DEPTH) {
        rig.receive(to, id);
    }
    for id in 0..u64::from(DEPTH) {
        rig.send(from, id);
    }
    while rig.nic.turn() {}
    let mut completions = Vec::new();
    rig.nic.poll(rig.cq, 4 * DEPTH as usize, &mut completions).expect("the queue is there");
    let received = completions.iter().filter(|it| matches!(it.kind, CompletionKind::Receive { .. }));
    let ids: Vec<u64> =
        received.inspect(|it| assert_eq!(it.status, Status::Success)).map(|it| it.request).collect();
    assert_eq!(ids, (0..u64::from(DEPTH)).collect::<Vec<_>>());
}

#[test]
fn a_completion_queue_never_runs_full_where_it_is_polled() {
    let mut rig = Rig::new(4);
    let [from, to] = rig.pair(2);
    for id in 0..100 {
        rig.receive(to, id);
        rig.send(from, id);
        while rig.nic.turn() {}
        let mut completions = Vec::new();
        assert_eq!(rig.nic.poll(rig.cq, 64, &mut completions), Ok(2), "message {id}");
        assert!(completions.iter().all(|it| it.request == id && it.status == Status::Success));
    }
}

#[test]
fn the_nic_waits_for_time_while_a_peer_has_posted_no_receive_and_only_then() {
    let mut rig = Rig::new(64);
    let [from, to] = rig.pair(4);
    while rig.nic.turn_all() {}
    assert!(!rig.nic.waits_for_time());
    rig.send(from, 1);
    rig.nic.turn_all();
    assert!(rig.nic.waits_for_time());
    rig.receive(to, 1);
    for _ in 0..10_000 {
        rig.nic.turn_all();
        if !rig.nic.waits_for_time() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    assert!(!rig.nic.waits_for_time(), "the message has been taken");
    assert!(!rig.nic.turn(), "there is nothing to do");
}

#[test]
fn without_a_network_each_end_sees_the_others() {
    assert!(SoftNic::new().capabilities().sees_peer_ends);
}

#[test]
fn a_nic_that_has_counted_its_ports_to_the_end_makes_no_more() {
    let mut rig = Rig::new(64);
    let size = EndpointSize {
        chunk_queue_pairs: 0,
        data_queue_pairs: 1,
        send_depth: 8,
        control_depth: 8,
        message_bytes: 128,
        arena_bytes: 4096,
    };
    let bytes = portcullis_softnic::PortLayout::new(size).bytes();
    let make = |rig: &mut Rig| {
        let memory = Mapping::shareable("port", bytes).expect("a port's memory");
        rig.nic.create_port(memory, size, rig.resources()).map(drop)
    };
    assert_eq!(make(&mut rig), Ok(()));
    rig.nic.dangerous_count_ports_from(u64::MAX);
    assert!(matches!(make(&mut rig), Err(VerbsError::Exhausted { what: "ports", .. })));
    assert_eq!(rig.nic.ports(), 1);
}

#[test]
fn completions_that_nobody_has_polled_are_never_written_over() {
    const MESSAGES: u64 = 16;
    let mut rig = Rig::new(4);
    let [from, to] = rig.pair(16);
    for id in 0..MESSAGES {
        rig.receive(to, id);
        rig.send(from, id);
    }
    let mut received = Vec::new();
    let mut sent = Vec::new();
    for _ in 0..1000 {
        // More turns change nothing: the NIC can continue only if there is room.
        for _ in 0..10 {
            rig.nic.turn_all();
        }
        let mut completions = Vec::new();
        let polled = rig.nic.poll(rig.cq, 64, &mut completions).expect("the queue is there");
        assert!(polled <= 4, "{polled} completions in a queue of four");
        for completion in completions {
            assert_eq!(completion.status, Status::Success);
            let all = if completion.queue_pair == from { &mut sent } else { &mut received };
            all.push(completion.request);
        }
        if sent.len() + received.len() == 2 * usize::try_from(MESSAGES).expect("a few") {
            break;
        }
    }
    let all: Vec<u64> = (0..MESSAGES).collect();
    assert_eq!((&sent, &received), (&all, &all));
}

#[test]
fn a_message_longer_than_any_may_be_says_so() {
    let mut rig = Rig::new(64);
    let [from, to] = rig.pair(4);
    rig.receive(to, 1);
    let local = LocalSpan { length: u32::MAX, ..rig.local() };
    let request = WorkRequest { id: 7, signalled: true, operation: Operation::Send { local } };
    assert_eq!(rig.nic.post_send(from, &[request]), Ok(1));
    while rig.nic.turn_all() {}
    let mut completions = Vec::new();
    rig.nic.poll(rig.cq, 64, &mut completions).expect("the queue is there");
    let told: Vec<_> = completions.iter().filter(|it| it.queue_pair == from).map(|it| it.status).collect();
    assert_eq!(told, [Status::LocalLengthError]);
}

#[test]
fn regions_and_windows_are_counted_until_they_go() {
    let mut rig = Rig::new(64);
    assert_eq!(rig.nic.core().objects().keys, 1);
    let windows = [(); 3].map(|()| {
        let window = rig.nic.allocate_window(rig.pd, WindowKind::One);
        window.expect("a window").id
    });
    assert_eq!(rig.nic.core().objects().keys, 4);
    for window in windows {
        rig.nic.deallocate_window(window).expect("it is there");
    }
    rig.nic.deregister_region(rig.region.id).expect("it is there");
    assert_eq!(rig.nic.core().objects().keys, 0);
}

#[test]
fn an_atomics_word_is_aligned_for_the_peer_and_in_memory() {
    let all = Access::REMOTE | Access::LOCAL_WRITE;
    // The addresses of a region need not be aligned in the same way as its memory.
    for (base, address) in [(4, 8), (4, 12), (0, 4)] {
        let mut rig = Rig::new(16);
        let memory = rig.nic.allocate_memory(4096).expect("memory");
        let region = rig.nic.register_region(rig.pd, &memory, 0..4096, RemoteAddress(base), all);
        let rkey = region.expect("a region").rkey;
        let [from, to] = rig.pair(16);
        rig.nic.modify_qp(to, QpChange::Access { access: Access::REMOTE }).expect("it is ready");
        let local = LocalSpan { address: 0, length: 8, lkey: rig.region.lkey };
        let remote = RemoteSpan { address: RemoteAddress(address), rkey };
        let operation = Operation::FetchAndAdd { local, remote, add: 1 };
        assert_eq!(rig.nic.post_send(from, &[WorkRequest { id: 1, signalled: true, operation }]), Ok(1));
        rig.nic.turn_all();
        let mut completions = Vec::new();
        rig.nic.poll(rig.cq, 4, &mut completions).expect("a queue");
        let status = completions.first().expect("it has ended").status;
        assert_eq!(status, Status::RemoteInvalidRequestError, "base {base}, address {address}");
    }
}

#[test]
fn a_queue_pair_whose_windows_are_invalidated_may_go() {
    let mut rig = Rig::new(16);
    let all = Access::REMOTE | Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let memory = rig.nic.allocate_memory(4096).expect("memory");
    let region = rig.nic.register_region(rig.pd, &memory, 0..4096, RemoteAddress(0), all).expect("a region");
    let [holder, _] = rig.pair(16);
    let [other, _] = rig.pair(16);
    let mut rkeys = Vec::new();
    for qp in [holder, other] {
        let window = rig.nic.allocate_window(rig.pd, WindowKind::Two).expect("a window");
        let binding = WindowBinding {
            window: window.id,
            rkey: window.rkey.advanced(),
            region: region.id,
            address: RemoteAddress(0),
            length: 64,
            access: Access::REMOTE_READ,
        };
        let operation = Operation::BindWindow(binding);
        assert_eq!(rig.nic.post_send(qp, &[WorkRequest { id: 1, signalled: true, operation }]), Ok(1));
        rkeys.push(binding.rkey);
    }
    rig.nic.turn_all();
    assert!(matches!(rig.nic.destroy_qp(holder), Err(VerbsError::Busy { .. })), "its window is bound");
    let operation = Operation::LocalInvalidate { rkey: rkeys[0] };
    assert_eq!(rig.nic.post_send(holder, &[WorkRequest { id: 2, signalled: true, operation }]), Ok(1));
    rig.nic.turn_all();
    assert_eq!(rig.nic.destroy_qp(holder), Ok(()), "another's window is bound to another queue pair");
    assert!(matches!(rig.nic.destroy_qp(other), Err(VerbsError::Busy { .. })));
}

#[test]
fn nobody_is_told_what_happened_to_a_queue_pair_that_has_gone() {
    let mut rig = Rig::new(16);
    let [one, other] = [rig.pair(16), rig.pair(16)];
    let local = LocalSpan { address: 0, length: 8, lkey: rig.region.lkey };
    let remote = RemoteSpan { address: RemoteAddress(0), rkey: Rkey(7) };
    let operation = Operation::Read { local, remote };
    for [from, _] in [one, other] {
        assert_eq!(rig.nic.post_send(from, &[WorkRequest { id: 1, signalled: true, operation }]), Ok(1));
    }
    rig.nic.turn_all();
    assert_eq!(rig.nic.destroy_qp(one[1]), Ok(()));
    let told: Vec<_> = std::iter::from_fn(|| rig.nic.poll_event()).map(|event| event.queue_pair()).collect();
    assert_eq!(told, [other[1]]);
}

/// Makes a queue pair that is its own peer, may post requests of chains, and completes on a counting queue.
fn engine(rig: &mut Rig, send_cq: CqId) -> QpId {
    let attributes = QpAttributes { send_cq, ..rig.attributes(1, 0) };
    let role = ChainRole { privileged: true, ..ChainRole::default() };
    let qp = rig.nic.create_chain_qp(rig.pd, attributes, role).expect("a queue pair");
    let own = rig.nic.qp_address(qp).expect("an address");
    connect_qp(&mut rig.nic, qp, own).expect("each step");
    qp
}

#[test]
fn requests_that_wait_cost_the_nic_nothing_however_many_they_are() {
    let mut rig = Rig::new(64);
    let clock = rig.nic.create_counting_cq().expect("a queue");
    let counted = rig.nic.create_counting_cq().expect("a queue");
    let waiting: Vec<_> = (0..1_000).map(|_| engine(&mut rig, counted)).collect();
    for (number, qp) in waiting.iter().enumerate() {
        let threshold = if number < 500 { 1 } else { 2 };
        let operation = Operation::Chain(ChainVerb::Wait { cq: clock, threshold });
        let request = WorkRequest { id: 0, signalled: true, operation };
        assert_eq!(rig.nic.post_send(*qp, &[request]), Ok(1));
    }
    while rig.nic.turn() {}
    let visits = rig.nic.core().visits();
    for _ in 0..100 {
        assert!(!rig.nic.turn_all() && !rig.nic.waits_for_time(), "the NIC may sleep");
    }
    assert_eq!(rig.nic.core().visits(), visits, "what waits is not visited");

    let ticker = engine(&mut rig, clock);
    let nop = WorkRequest { id: 0, signalled: true, operation: Operation::Chain(ChainVerb::Nop) };
    assert_eq!(rig.nic.post_send(ticker, &[nop]), Ok(1));
    while rig.nic.turn() {}
    assert_eq!(rig.nic.completions_counted(counted), Ok(500), "those that waited for this count");
    let visits = rig.nic.core().visits() - visits;
    assert!(visits < 600, "{visits} visits: the others were looked at too");
}
