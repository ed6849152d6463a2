//! What the NIC's owner asks of it: queues of any depth that it allows, and what it says of itself.

use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, CompletionKind, CqId, EndpointSize, LocalSpan, Nic, Operation, PdId, QpAttributes, QpChange,
    QpId, ReceiveRequest, Region, RemoteAddress, Status, VerbsError, WorkRequest,
};
use portcullis_softnic::SoftNic;

const DEEPEST: u32 = 1 << 20;

struct Scene {
    nic: SoftNic,
    pd: PdId,
    cq: CqId,
    region: Region,
}

impl Scene {
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

    fn pair(&mut self, depth: u32) -> [QpId; 2] {
        let attributes = self.attributes(depth, depth);
        let pair = [(); 2].map(|()| self.nic.create_qp(self.pd, attributes).expect("a queue pair"));
        for (one, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            let peer = self.nic.qp_address(other).expect("an address");
            for change in [
                QpChange::Init { access: Access::empty() },
                QpChange::ReadyToReceive { peer },
                QpChange::ReadyToSend { rnr_retries: 7 },
            ] {
                self.nic.modify_qp(one, change).expect("a step");
            }
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
    let mut scene = Scene::new(64);
    let invalid = |result: Result<(), VerbsError>| matches!(result, Err(VerbsError::Invalid(_)));
    for depth in [0, 3, 100, DEEPEST + 1, 2 * DEEPEST, u32::MAX] {
        assert!(invalid(scene.nic.create_cq(depth).map(drop)), "completions: {depth}");
        let attributes = scene.attributes(depth, 4);
        assert!(invalid(scene.nic.create_qp(scene.pd, attributes).map(drop)), "sends: {depth}");
        if depth > 0 {
            let attributes = scene.attributes(4, depth);
            assert!(invalid(scene.nic.create_qp(scene.pd, attributes).map(drop)), "receives: {depth}");
        }
    }
    for depth in [1, 2, 1024] {
        scene.nic.create_cq(depth).expect("a queue");
        let attributes = scene.attributes(depth, depth);
        scene.nic.create_qp(scene.pd, attributes).expect("a queue pair");
    }
    let without = scene.attributes(4, 0);
    scene.nic.create_qp(scene.pd, without).expect("one that receives nothing");
}

#[test]
fn a_deep_receive_queue_holds_all_that_are_posted() {
    const DEPTH: u32 = 1024;
    let mut scene = Scene::new(4 * DEPTH);
    let [from, to] = scene.pair(DEPTH);
    for id in 0..u64::from(DEPTH) {
        scene.receive(to, id);
    }
    for id in 0..u64::from(DEPTH) {
        scene.send(from, id);
    }
    while scene.nic.turn() {}
    let mut completions = Vec::new();
    scene.nic.poll(scene.cq, 4 * DEPTH as usize, &mut completions).expect("the queue is there");
    let received = completions.iter().filter(|it| matches!(it.kind, CompletionKind::Receive { .. }));
    let ids: Vec<u64> =
        received.inspect(|it| assert_eq!(it.status, Status::Success)).map(|it| it.request).collect();
    assert_eq!(ids, (0..u64::from(DEPTH)).collect::<Vec<_>>());
}

#[test]
fn a_completion_queue_never_runs_full_where_it_is_polled() {
    let mut scene = Scene::new(4);
    let [from, to] = scene.pair(2);
    for id in 0..100 {
        scene.receive(to, id);
        scene.send(from, id);
        while scene.nic.turn() {}
        let mut completions = Vec::new();
        assert_eq!(scene.nic.poll(scene.cq, 64, &mut completions), Ok(2), "message {id}");
        assert!(completions.iter().all(|it| it.request == id && it.status == Status::Success));
    }
}

#[test]
fn the_nic_waits_for_time_while_a_peer_has_posted_no_receive_and_only_then() {
    let mut scene = Scene::new(64);
    let [from, to] = scene.pair(4);
    while scene.nic.turn_all() {}
    assert!(!scene.nic.waits_for_time());
    scene.send(from, 1);
    scene.nic.turn_all();
    assert!(scene.nic.waits_for_time());
    scene.receive(to, 1);
    for _ in 0..10_000 {
        scene.nic.turn_all();
        if !scene.nic.waits_for_time() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    assert!(!scene.nic.waits_for_time(), "the message has been taken");
    assert!(!scene.nic.turn(), "there is nothing to do");
}

#[test]
fn without_a_network_each_end_sees_the_others() {
    assert!(SoftNic::new().capabilities().sees_peer_ends);
}

#[test]
fn a_nic_that_has_counted_its_ports_to_the_end_makes_no_more() {
    let mut scene = Scene::new(64);
    let size = EndpointSize {
        data_queue_pairs: 1,
        send_depth: 8,
        control_depth: 8,
        message_bytes: 128,
        arena_bytes: 4096,
    };
    let bytes = portcullis_softnic::PortLayout::new(size).bytes();
    let make = |scene: &mut Scene| {
        let memory = Mapping::shareable("port", bytes).expect("a port's memory");
        scene.nic.create_port(memory, size, scene.pd, scene.cq).map(drop)
    };
    assert_eq!(make(&mut scene), Ok(()));
    scene.nic.dangerous_count_ports_from(u64::MAX);
    assert!(matches!(make(&mut scene), Err(VerbsError::Exhausted { what: "ports", .. })));
    assert_eq!(scene.nic.ports(), 1);
}

#[test]
fn completions_that_nobody_has_polled_are_never_written_over() {
    const MESSAGES: u64 = 16;
    let mut scene = Scene::new(4);
    let [from, to] = scene.pair(16);
    for id in 0..MESSAGES {
        scene.receive(to, id);
        scene.send(from, id);
    }
    let mut received = Vec::new();
    let mut sent = Vec::new();
    for _ in 0..1000 {
        // For as long as it likes: it can go on only where there is room.
        for _ in 0..10 {
            scene.nic.turn_all();
        }
        let mut completions = Vec::new();
        let polled = scene.nic.poll(scene.cq, 64, &mut completions).expect("the queue is there");
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
    let mut scene = Scene::new(64);
    let [from, to] = scene.pair(4);
    scene.receive(to, 1);
    let local = LocalSpan { length: u32::MAX, ..scene.local() };
    let request = WorkRequest { id: 7, signalled: true, operation: Operation::Send { local } };
    assert_eq!(scene.nic.post_send(from, &[request]), Ok(1));
    while scene.nic.turn_all() {}
    let mut completions = Vec::new();
    scene.nic.poll(scene.cq, 64, &mut completions).expect("the queue is there");
    let told: Vec<_> = completions.iter().filter(|it| it.queue_pair == from).map(|it| it.status).collect();
    assert_eq!(told, [Status::LocalLengthError]);
}

#[test]
fn regions_and_windows_are_counted_until_they_go() {
    let mut scene = Scene::new(64);
    assert_eq!(scene.nic.core().objects().keys, 1);
    let windows = [(); 3].map(|()| {
        let window = scene.nic.allocate_window(scene.pd, portcullis_nic::WindowKind::One);
        window.expect("a window").id
    });
    assert_eq!(scene.nic.core().objects().keys, 4);
    for window in windows {
        scene.nic.deallocate_window(window).expect("it is there");
    }
    scene.nic.deregister_region(scene.region.id).expect("it is there");
    assert_eq!(scene.nic.core().objects().keys, 0);
}
