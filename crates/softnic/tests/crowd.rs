//! The cost of many waiting queue pairs, in visits of the NIC's engine per turn.

use portcullis_memory::{Alarm, Doorbell, Mapping, Ringer, Watched};
use portcullis_nic::{
    Access, Completion, CqId, DataQueuePairs, Endpoint, EndpointSize, Lkey, LocalSpan, Nic, Operation, PdId,
    Pollable, QpAttributes, QpChange, QpId, ReceiveRequest, RemoteAddress, RemoteSpan, Rkey, SendQueue,
    Status, VerbsEndpoint, WorkRequest, connect_qp,
};
use portcullis_softnic::{PortEndpoint, PortId, PortLayout, PortResources, SoftNic};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::sync::Arc;

/// Number of queue pairs that wait for their peers.
const CROWD: usize = 1000;
/// The most visits in a turn to queue pairs that wait or are not known to have work.
const VISITS_PER_TURN_MAX: u64 = 24;
const SIZE: EndpointSize = EndpointSize {
    chunk_queue_pairs: 0,
    data_queue_pairs: 1,
    send_depth: 8,
    control_depth: 8,
    message_bytes: 128,
    arena_bytes: 4096,
};

struct Rig {
    nic: SoftNic,
    pd: PdId,
    cq: CqId,
    lkey: Lkey,
    ringer: Arc<Ringer>,
}

impl Rig {
    fn new() -> Self {
        let mut nic = SoftNic::new();
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(4096).expect("a completion queue");
        let memory = nic.allocate_memory(4096).expect("memory");
        let region = nic.register_region(pd, &memory, 0..4096, RemoteAddress(0), Access::LOCAL_WRITE);
        Self { nic, pd, cq, lkey: region.expect("a region").lkey, ringer: Ringer::start().expect("a thread") }
    }

    fn resources(&self) -> PortResources {
        let data_sends = SendQueue { cq: self.cq, depth: 1 };
        PortResources { pd: self.pd, chunks: None, cq: self.cq, data_sends }
    }

    fn span(&self) -> LocalSpan {
        LocalSpan { address: 0, length: 8, lkey: self.lkey }
    }

    /// Makes two connected queue pairs. The first waits for the second without a limit.
    fn pair(&mut self) -> [QpId; 2] {
        let attributes =
            QpAttributes { send_cq: self.cq, receive_cq: self.cq, send_depth: 4, receive_depth: 4 };
        let pair = [(); 2].map(|()| self.nic.create_qp(self.pd, attributes).expect("a queue pair"));
        for (one, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            let peer = self.nic.qp_address(other).expect("an address");
            connect_qp(&mut self.nic, one, peer).expect("each step");
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
    let mut rig = Rig::new();
    let crowd: Vec<[QpId; 2]> = (0..CROWD).map(|_| rig.pair()).collect();
    for pair in &crowd {
        rig.send(pair[0]);
    }
    rig.turns(10_000);
    let visits = rig.turns(10_000);
    assert!((1..=10_000 * VISITS_PER_TURN_MAX).contains(&visits), "{visits} visits in 10,000 turns");
    assert!(rig.poll().is_empty(), "they all wait");
    // A late receive is matched within a few naps.
    let receive = ReceiveRequest { id: 2, local: rig.span() };
    assert_eq!(rig.nic.post_receive(crowd[7][1], &[receive]), Ok(1));
    rig.turns(10_000);
    let got = rig.poll();
    assert_eq!(got.len(), 2, "a send and a receive: {got:?}");
    assert!(got.iter().all(|it| it.status == Status::Success));
    // A queue pair that breaks meanwhile reports its break at once.
    rig.nic.modify_qp(crowd[8][0], QpChange::Error).expect("any queue pair can be stopped");
    rig.turns(2);
    assert_eq!(rig.poll().len(), 1, "its request is flushed");
}

fn attach(rig: &mut Rig, page: &Mapping) -> (PortId, PortEndpoint) {
    attach_with(rig, page, SIZE, Access::empty())
}

fn attach_with(rig: &mut Rig, page: &Mapping, size: EndpointSize, access: Access) -> (PortId, PortEndpoint) {
    let memory = Mapping::shareable("port", PortLayout::new(size).bytes()).expect("memory");
    let (port, ends, lkey) =
        rig.nic.create_port(memory.clone(), size, rig.resources()).expect("there is room");
    for qp in ends.data {
        rig.nic.modify_qp(qp, QpChange::Access { access }).expect("it is ready");
    }
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an event");
    let (alarm, watched) = Alarm::pair(&rig.ringer).expect("a pair");
    rig.nic.set_alarm(port, alarm);
    let bells = (Doorbell::new(page.clone(), event), Watched::new(watched));
    let connection = None;
    (port, PortEndpoint::new(memory, size, lkey, bells, connection))
}

#[test]
fn a_turn_moves_so_much_and_no_more_and_clients_get_as_much_each_however_many_queue_pairs_they_use() {
    const BYTES: u32 = 64 << 10;
    const TURNS: u64 = 2_000;
    let mut rig = Rig::new();
    let page = Mapping::shareable("page", 4096).expect("a page");
    let memory = rig.nic.allocate_memory(BYTES.into()).expect("memory");
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = rig.nic.register_region(rig.pd, &memory, 0..BYTES.into(), RemoteAddress(0), access);
    let remote = RemoteSpan { address: RemoteAddress(0), rkey: region.expect("a region").rkey };
    let size = |client: u32| EndpointSize {
        arena_bytes: BYTES.into(),
        data_queue_pairs: 1 + client % 2 * 2,
        ..SIZE
    };
    let attach = |client| attach_with(&mut rig, &page, size(client), Access::REMOTE);
    let mut clients: Vec<_> = (0..100).map(attach).collect();
    let mut ended = vec![0u64; clients.len()];
    for turn in 0..TURNS + 500 {
        if turn == 500 {
            // By now the NIC has found that all clients are busy.
            ended.fill(0);
        }
        for (_, client) in &mut clients {
            let local = LocalSpan { address: 0, length: BYTES, lkey: client.arena_key() };
            let operation = Operation::Read { local, remote };
            for queue_pair in 0..client.size().data_queue_pairs {
                client.post(queue_pair, &[WorkRequest { id: 1, signalled: true, operation }; 4]);
            }
        }
        rig.nic.turn();
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
        rig.nic.destroy_port(port);
    }
}

#[test]
fn clients_that_have_posted_what_nobody_takes_cost_no_more_than_quiet_ones() {
    let mut rig = Rig::new();
    let page = Mapping::shareable("page", 4096).expect("a page");
    let mut clients: Vec<_> = (0..CROWD / 2).map(|_| attach(&mut rig, &page)).collect();
    for (_, client) in &mut clients {
        let local = LocalSpan { address: 0, length: 8, lkey: client.arena_key() };
        let request = WorkRequest { id: 1, signalled: true, operation: Operation::Send { local } };
        assert_eq!(client.post(0, &[request]), 1);
    }
    rig.turns(20_000);
    let visits = rig.turns(10_000);
    assert!(visits <= 10_000 * VISITS_PER_TURN_MAX, "{visits} visits in 10,000 turns");
    for (port, _) in clients {
        rig.nic.destroy_port(port);
    }
}

fn nothing(lkey: Lkey, id: u64) -> WorkRequest {
    let local = LocalSpan { address: 0, length: 0, lkey };
    let remote = RemoteSpan { address: RemoteAddress(0), rkey: Rkey(0) };
    WorkRequest { id, signalled: true, operation: Operation::Write { local, remote } }
}

#[test]
fn clients_that_rest_for_a_few_turns_are_all_served_in_the_next() {
    let mut rig = Rig::new();
    let page = Mapping::shareable("page", 4096).expect("a page");
    let mut clients: Vec<_> = (0..64).map(|_| attach(&mut rig, &page)).collect();
    for rest in [1, 2, 10] {
        for (_, client) in &mut clients {
            assert_eq!(client.post(0, &[nothing(client.arena_key(), rest)]), 1);
        }
        if rest == 1 {
            // All clients are new at this point.
            rig.nic.turn_all();
        } else {
            rig.nic.turn();
        }
        for (number, (_, client)) in clients.iter_mut().enumerate() {
            let mut completions = Vec::new();
            client.poll(4, &mut completions);
            let ended: Vec<_> = completions.iter().map(|it| (it.request, it.status)).collect();
            assert_eq!(ended, [(rest, Status::Success)], "client {number}");
        }
        rig.turns(rest);
    }
    for (port, _) in clients {
        rig.nic.destroy_port(port);
    }
}

#[test]
fn a_visit_gets_all_that_a_queue_pair_has_done_before_the_next_one_has_its_turn() {
    let mut rig = Rig::new();
    let pairs = [rig.pair(), rig.pair()];
    let lkey = rig.lkey;
    for (pair, first) in pairs.iter().zip([1, 11]) {
        let requests: Vec<_> = (first..first + 4).map(|id| nothing(lkey, id)).collect();
        assert_eq!(rig.nic.post_send(pair[0], &requests), Ok(4));
    }
    rig.turns(8);
    let order: Vec<_> = rig.poll().iter().map(|it| it.request).collect();
    assert_eq!(order, [1, 2, 3, 4, 11, 12, 13, 14]);
}

#[test]
fn a_queue_pair_that_is_rung_while_it_waits_is_visited_once_a_turn_all_the_same() {
    let mut rig = Rig::new();
    let [waiting, _] = rig.pair();
    rig.send(waiting);
    rig.turns(1);
    let mut visits = 0;
    for _ in 0..20 {
        rig.nic.core().ring(waiting);
        visits += rig.turns(1);
    }
    assert!((1..=20).contains(&visits), "{visits} visits in 20 turns");
}

#[test]
fn a_message_needs_as_much_of_its_receives_memory_as_it_is_long() {
    let mut rig = Rig::new();
    let [from, to] = rig.pair();
    let beyond = LocalSpan { address: 4088, length: 64, lkey: rig.lkey };
    assert_eq!(rig.nic.post_receive(to, &[ReceiveRequest { id: 2, local: beyond }]), Ok(1));
    rig.send(from);
    rig.turns(4);
    let got = rig.poll();
    assert_eq!(got.len(), 2, "{got:?}");
    assert!(got.iter().all(|it| it.status == Status::Success), "{got:?}");
}

#[test]
fn clients_that_have_rested_for_long_cost_few_visits() {
    let mut rig = Rig::new();
    let page = Mapping::shareable("page", 4096).expect("a page");
    let mut clients: Vec<_> = (0..256).map(|_| attach(&mut rig, &page)).collect();
    for (_, client) in &mut clients {
        assert_eq!(client.post(0, &[nothing(client.arena_key(), 1)]), 1);
    }
    rig.nic.turn_all();
    rig.turns(20_000);
    let visits = rig.turns(1_000);
    assert!((1..=1_000 * VISITS_PER_TURN_MAX).contains(&visits), "{visits} visits in 1,000 turns");
    for (port, _) in clients {
        rig.nic.destroy_port(port);
    }
}

#[test]
fn queue_pairs_that_are_gone_cost_no_visits() {
    let mut rig = Rig::new();
    let page = Mapping::shareable("page", 4096).expect("a page");
    let mut stays = attach(&mut rig, &page).1;
    // This client posts nothing before the other clients are gone.
    let mut rests = attach(&mut rig, &page).1;
    for _ in 0..500 {
        let (port, mut client) = attach(&mut rig, &page);
        assert_eq!(client.post(0, &[nothing(client.arena_key(), 1)]), 1);
        assert_eq!(stays.post(0, &[nothing(stays.arena_key(), 1)]), 1);
        rig.nic.turn_all();
        assert_eq!(stays.poll(4, &mut Vec::new()), 1, "the client that stays is served");
        rig.nic.destroy_port(port);
    }
    let before = rig.nic.core().visits();
    rig.nic.turn_all();
    let visits = rig.nic.core().visits() - before;
    assert!(visits <= 16, "{visits} visits to the queue pairs of two clients");
    for client in [&mut stays, &mut rests] {
        assert_eq!(client.post(0, &[nothing(client.arena_key(), 2)]), 1);
        rig.nic.turn_all();
        assert_eq!(client.poll(4, &mut Vec::new()), 1, "the clients that stay are served");
    }
}

#[test]
fn a_client_that_waits_for_its_alarm_hears_of_a_completion_and_of_the_end_of_its_port() {
    let mut rig = Rig::new();
    let page = Mapping::shareable("page", 4096).expect("a page");
    let (port, mut client) = attach(&mut rig, &page);
    let is_readable_within = |client: &PortEndpoint, seconds| {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let mut ends = [PollFd::from_borrowed_fd(client.descriptor(), PollFlags::IN)];
        rustix::event::poll(&mut ends, Some(&timeout)).expect("a poll") > 0
    };
    let is_readable = |client: &PortEndpoint| is_readable_within(client, 0);
    assert!(client.arm() && !is_readable(&client));
    assert_eq!(client.post(0, &[nothing(client.arena_key(), 1)]), 1);
    rig.nic.turn_all();
    assert!(is_readable_within(&client, 10), "something has come");
    assert!(!client.arm(), "it is there still");
    assert_eq!(client.poll(4, &mut Vec::new()), 1);
    assert!(client.arm() && !is_readable(&client) && client.node_alive());
    rig.nic.destroy_port(port);
    assert!(is_readable_within(&client, 10) && !client.node_alive() && !client.arm());
}

#[test]
fn a_queue_pair_that_waits_for_its_peer_goes_on_waiting_when_others_go() {
    let mut rig = Rig::new();
    let [waiting, peer] = rig.pair();
    rig.send(waiting);
    rig.turns(1_000);
    let [other, other_peer] = rig.pair();
    rig.send(other);
    rig.turns(1_000);
    for qp in [other, other_peer] {
        assert_eq!(rig.nic.destroy_qp(qp), Ok(()));
    }
    let local = rig.span();
    assert_eq!(rig.nic.post_receive(peer, &[ReceiveRequest { id: 2, local }]), Ok(1));
    rig.turns(10_000);
    assert_eq!(rig.poll().len(), 2, "a send and a receive");
}
