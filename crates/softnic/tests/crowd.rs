//! What a crowd that waits costs the others: visits of the NIC's engine, turn by turn.

use portcullis_memory::{Doorbell, Mapping};
use portcullis_nic::{Access, Lkey, RemoteAddress};
use portcullis_nic::{
    Completion, CqId, EndpointSize, LocalSpan, Nic, Operation, PdId, QpAttributes, QpChange, QpId,
    ReceiveRequest, RemoteSpan, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_softnic::{PortEndpoint, PortId, PortLayout, PortLife, SoftNic};
use std::sync::Arc;

/// Queue pairs that wait for their peers.
const CROWD: usize = 1000;
/// Visits of a turn to those who wait or who are not known to have anything, at the most.
const VISITS_PER_TURN_MAX: u64 = 24;
const SIZE: EndpointSize = EndpointSize {
    data_queue_pairs: 1,
    send_depth: 8,
    control_depth: 8,
    message_bytes: 128,
    arena_bytes: 4096,
};

struct Scene {
    nic: SoftNic,
    pd: PdId,
    cq: CqId,
    lkey: Lkey,
}

impl Scene {
    fn new() -> Self {
        let mut nic = SoftNic::new();
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(4096).expect("a completion queue");
        let memory = nic.allocate_memory(4096).expect("memory");
        let region = nic.register_region(pd, &memory, 0..4096, RemoteAddress(0), Access::LOCAL_WRITE);
        Self { nic, pd, cq, lkey: region.expect("a region").lkey }
    }

    fn span(&self) -> LocalSpan {
        LocalSpan { address: 0, length: 8, lkey: self.lkey }
    }

    /// Two connected queue pairs, of which the first waits for the second for as long as it takes.
    fn pair(&mut self) -> [QpId; 2] {
        let attributes =
            QpAttributes { send_cq: self.cq, receive_cq: self.cq, send_depth: 4, receive_depth: 4 };
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

    fn send(&mut self, from: QpId) {
        let operation = Operation::Send { local: self.span() };
        let request = WorkRequest { id: 1, signalled: true, operation };
        assert_eq!(self.nic.post_send(from, &[request]), Ok(1));
    }

    fn turns(&mut self, turns: u64) -> u64 {
        let before = self.nic.core().visits();
        for _ in 0..turns {
            self.nic.turn();
        }
        self.nic.core().visits() - before
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.nic.poll(self.cq, 64, &mut completions).expect("it is there");
        completions
    }
}

#[test]
fn a_crowd_whose_peers_take_nothing_is_visited_now_and_then() {
    let mut scene = Scene::new();
    let crowd: Vec<[QpId; 2]> = (0..CROWD).map(|_| scene.pair()).collect();
    for pair in &crowd {
        scene.send(pair[0]);
    }
    scene.turns(10_000);
    let visits = scene.turns(10_000);
    assert!(visits <= 10_000 * VISITS_PER_TURN_MAX, "{visits} visits in 10,000 turns");
    assert!(scene.poll().is_empty(), "they all wait");
    // Whoever takes something after all has it within a few naps.
    let receive = ReceiveRequest { id: 2, local: scene.span() };
    assert_eq!(scene.nic.post_receive(crowd[7][1], &[receive]), Ok(1));
    scene.turns(10_000);
    let got = scene.poll();
    assert_eq!(got.len(), 2, "a send and a receive: {got:?}");
    assert!(got.iter().all(|it| it.status == Status::Success));
    // Who is broken while it waits is told at once.
    scene.nic.modify_qp(crowd[8][0], QpChange::Error).expect("any queue pair can be stopped");
    scene.turns(2);
    assert_eq!(scene.poll().len(), 1, "its request is flushed");
}

fn attach(scene: &mut Scene, page: &Mapping) -> (PortId, PortEndpoint) {
    attach_with(scene, page, SIZE, Access::empty())
}

fn attach_with(
    scene: &mut Scene,
    page: &Mapping,
    size: EndpointSize,
    access: Access,
) -> (PortId, PortEndpoint) {
    let memory = Mapping::shareable("port", PortLayout::new(size).bytes()).expect("memory");
    let (port, ends, lkey) =
        scene.nic.create_port(memory.clone(), size, scene.pd, scene.cq).expect("there is room");
    for qp in ends.data {
        scene.nic.modify_qp(qp, QpChange::Access { access }).expect("it is ready");
    }
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an event");
    let life = PortLife::Local(std::array::from_fn(|_| Arc::default()));
    (port, PortEndpoint::new(memory, size, lkey, Doorbell::new(page.clone(), event), life))
}

#[test]
fn a_turn_moves_so_much_and_no_more_and_clients_get_as_much_each_however_many_queue_pairs_they_use() {
    const BYTES: u32 = 64 << 10;
    const TURNS: u64 = 2_000;
    let mut scene = Scene::new();
    let page = Mapping::shareable("page", 4096).expect("a page");
    let memory = scene.nic.allocate_memory(BYTES.into()).expect("memory");
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = scene.nic.register_region(scene.pd, &memory, 0..BYTES.into(), RemoteAddress(0), access);
    let remote = RemoteSpan { address: RemoteAddress(0), rkey: region.expect("a region").rkey };
    let size = |client: u32| EndpointSize {
        arena_bytes: BYTES.into(),
        data_queue_pairs: 1 + client % 2 * 2,
        ..SIZE
    };
    let attach = |client| attach_with(&mut scene, &page, size(client), Access::REMOTE);
    let mut clients: Vec<_> = (0..100).map(attach).collect();
    let mut ended = vec![0u64; clients.len()];
    for turn in 0..TURNS + 500 {
        if turn == 500 {
            // By now the NIC has found out that all of them are busy.
            ended.fill(0);
        }
        for (_, client) in &mut clients {
            let local = LocalSpan { address: 0, length: BYTES, lkey: client.arena_key() };
            let operation = Operation::Read { local, remote };
            for queue_pair in 0..client.size().data_queue_pairs {
                client.post(queue_pair, &[WorkRequest { id: 1, signalled: true, operation }; 4]);
            }
        }
        scene.nic.turn();
        for ((_, client), ended) in clients.iter_mut().zip(&mut ended) {
            let mut completions = Vec::new();
            client.poll(64, &mut completions);
            assert!(completions.iter().all(|it| it.status == Status::Success), "{completions:?}");
            *ended += completions.len() as u64;
        }
    }
    let (least, most) = (ended.iter().min().expect("many"), ended.iter().max().expect("many"));
    assert!(*least > 50 && most - least <= 5, "{least} to {most} reads: {ended:?}");
    let bytes = ended.iter().sum::<u64>() * u64::from(BYTES) / TURNS;
    assert!(bytes > 200 << 10 && bytes <= 300 << 10, "{bytes} bytes a turn");
    for (port, _) in clients {
        scene.nic.destroy_port(port);
    }
}

#[test]
fn clients_that_have_posted_what_nobody_takes_cost_no_more_than_quiet_ones() {
    let mut scene = Scene::new();
    let page = Mapping::shareable("page", 4096).expect("a page");
    let mut clients: Vec<_> = (0..CROWD / 2).map(|_| attach(&mut scene, &page)).collect();
    for (_, client) in &mut clients {
        let local = LocalSpan { address: 0, length: 8, lkey: client.arena_key() };
        let request = WorkRequest { id: 1, signalled: true, operation: Operation::Send { local } };
        assert_eq!(client.post(0, &[request]), 1);
    }
    scene.turns(20_000);
    let visits = scene.turns(10_000);
    assert!(visits <= 10_000 * VISITS_PER_TURN_MAX, "{visits} visits in 10,000 turns");
    for (port, _) in clients {
        scene.nic.destroy_port(port);
    }
}
