//! The conformance suite with a network: the NIC's packets leave it and are returned to it.

use portcullis_examination::{Around, Hook};
use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, Capabilities, Completion, CqId, Event, Lkey, LocalSpan, Memory, Nic, Operation, QpAttributes,
    QpChange, QpId, ReceiveRequest, RemoteAddress, RemoteSpan, Rkey, Status, VerbsError, WindowBinding,
    WindowKind, WorkRequest, connect_qp,
};
use portcullis_protocol::{Lifetime, Moment};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::{NetworkPort, Packet, PacketBody, Response};
use proptest::prelude::*;

/// A network that leads back to its NIC's own port. Each poll takes ten microseconds.
struct Loop {
    now: Moment,
}

/// Makes a NIC on such a network.
fn looped(first_packet: u32, patience: Lifetime) -> Around<SoftNic, Loop> {
    let mut nic = SoftNic::new();
    nic.core().join(NetworkPort { address: [7; 16], first_packet, patience });
    Around { nic, hook: Loop { now: Moment(1) } }
}

/// Makes a NIC with the same clock whose queue pairs reach each other without a network.
fn loopback() -> Around<SoftNic, Loop> {
    Around { nic: SoftNic::new(), hook: Loop { now: Moment(1) } }
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

/// Two queue pairs are connected on a network. The NIC's patience is shorter than the time of a retry.
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
        connect_qp(&mut looped, end, peer).expect("each step");
    }
    let span = |address| LocalSpan { address, length: 8, lkey };
    let request = WorkRequest { id: 5, signalled: true, operation: Operation::Send { local: span(0) } };
    looped.post_send(ends[0], &[request]).expect("posted");
    let mut completions = Vec::new();
    // At ten microseconds a poll, this is ten milliseconds without a receive.
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

/// Makes a NIC on a network that does not carry packets by itself, with a queue pair of four requests that is connected
/// to another.
fn stranded() -> (SoftNic, CqId, QpId, Lkey) {
    let mut nic = SoftNic::new();
    nic.core().join(NetworkPort { address: [7; 16], first_packet: 5, patience: Lifetime::millis(1) });
    let pd = nic.allocate_pd().expect("a domain");
    let cq = nic.create_cq(16).expect("a completion queue");
    let memory = nic.allocate_memory(4096).expect("memory");
    let all = Access::LOCAL_WRITE | Access::REMOTE;
    let region = nic.register_region(pd, &memory, 0..4096, RemoteAddress(0), all).expect("a region");
    let queues = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 4, receive_depth: 4 };
    let ends = [(); 2].map(|()| nic.create_qp(pd, queues).expect("a queue pair"));
    for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let peer = nic.qp_address(peer).expect("an address");
        connect_qp(&mut nic, end, peer).expect("each step");
    }
    (nic, cq, ends[0], region.lkey)
}

fn read(lkey: Lkey, id: u64) -> WorkRequest {
    let local = LocalSpan { address: 0, length: 16, lkey };
    let remote = RemoteSpan { address: RemoteAddress(64), rkey: Rkey(lkey.0) };
    WorkRequest { id, signalled: true, operation: Operation::Read { local, remote } }
}

#[test]
fn what_was_on_its_way_is_flushed_one_by_one_and_gives_its_places_back_one_by_one() {
    let (mut nic, cq, qp, lkey) = stranded();
    let requests: Vec<_> = (1..=4).map(|id| read(lkey, id)).collect();
    assert_eq!(nic.post_send(qp, &requests), Ok(4));
    nic.turn_at(Moment(1));
    let mut packets = Vec::new();
    nic.core().take_outgoing(&mut packets);
    assert_eq!(packets.len(), 4, "all are on their way");
    nic.modify_qp(qp, QpChange::Error).expect("any queue pair can be stopped");
    nic.turn_at(Moment(2));
    for flushed in 1..=4 {
        let mut completions = Vec::new();
        assert_eq!(nic.poll(cq, 1, &mut completions), Ok(1));
        assert_eq!((completions[0].request, completions[0].status), (flushed, Status::FlushError));
        assert_eq!(nic.post_send(qp, &requests), Ok(1), "one place is free after {flushed} flushes");
    }
}

#[test]
fn an_answer_of_another_length_than_was_asked_for_is_no_answer() {
    for short in [true, false] {
        let (mut nic, cq, qp, lkey) = stranded();
        assert_eq!(nic.post_send(qp, &[read(lkey, 1)]), Ok(1));
        nic.turn_at(Moment(1));
        let mut packets = Vec::new();
        nic.core().take_outgoing(&mut packets);
        let [asked] = &packets[..] else { panic!("one request: {packets:?}") };
        let bytes = vec![9; if short { 8 } else { 24 }];
        let body = PacketBody::Response(Response::Bytes(bytes));
        let lie = Packet { from: asked.to, to: asked.from, number: asked.number, body };
        nic.core().receive(&lie, Moment(2));
        nic.turn_at(Moment(2));
        let mut completions = Vec::new();
        assert_eq!(nic.poll(cq, 4, &mut completions), Ok(1));
        assert_eq!(completions[0].status, Status::RemoteOperationError, "short: {short}");
    }
}

#[test]
fn a_nic_that_waits_for_an_answer_says_when_it_gives_up() {
    let (mut nic, _, qp, lkey) = stranded();
    nic.turn_at(Moment(1));
    assert_eq!(nic.core().next_wake(), None, "nothing is under way");
    assert_eq!(nic.post_send(qp, &[read(lkey, 1)]), Ok(1));
    nic.turn_at(Moment(10));
    assert_eq!(nic.core().next_wake(), Some(Moment(10).after(Lifetime::millis(1))));
}

/// Bytes of each end's memory: more than one visit moves.
const HALF: u64 = 128 << 10;
const BASE: RemoteAddress = RemoteAddress(0x10_0000);

/// A request. Most requests make sense.
#[derive(Clone, Debug)]
struct Asked {
    verb: u8,
    /// The offset in the requester's memory, and the number of bytes.
    local: (u64, u32),
    writable: bool,
    remote: u64,
    rkey: usize,
    /// Length of a receive that the responder posts before the request.
    receive: Option<u32>,
}

fn requests() -> impl Strategy<Value = Vec<Asked>> {
    let length = prop_oneof![4 => Just(8), 2 => 0u32..200, 1 => 60_000u32..100_000, 1 => 0u32..200_000];
    let place = || prop_oneof![4 => (0u64..200).prop_map(|word| word * 8), 1 => 0..HALF];
    let receive = prop::option::weighted(0.7, prop_oneof![3 => Just(200_000u32), 1 => 0u32..300]);
    let rkey = prop_oneof![8 => Just(0usize), 1 => 1usize..4];
    let asked = (0u8..9, (place(), length), prop::bool::weighted(0.95), place(), rkey, receive);
    let asked = asked.prop_map(|(verb, local, writable, remote, rkey, receive)| Asked {
        verb,
        local,
        writable,
        remote,
        rkey,
        receive,
    });
    prop::collection::vec(asked, 1..12)
}

struct Pair {
    nic: Around<SoftNic, Loop>,
    memory: Mapping,
    cqs: [CqId; 2],
    ends: [QpId; 2],
    /// Two keys: one for writing, one for reading only.
    lkeys: [Lkey; 2],
    /// The key for the responder's receives, in memory apart from the requester's: a message onto itself has no defined
    /// result.
    receives: Lkey,
    /// Four keys: with all rights, for reading only, of a type-2 window on the responder's queue pair, and of no
    /// object.
    rkeys: [Rkey; 4],
}

impl Pair {
    fn new(mut nic: Around<SoftNic, Loop>) -> Self {
        let memory = nic.allocate_memory(2 * HALF).expect("memory");
        let bytes: Vec<u8> = (0..2 * HALF).map(|at| (at % 251).to_le_bytes()[0]).collect();
        memory.write(0, &bytes);
        let pd = nic.allocate_pd().expect("a domain");
        let mut region = |span, base, access| {
            nic.register_region(pd, &memory, span, RemoteAddress(base), access).expect("a region")
        };
        let all = Access::REMOTE | Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let lkeys = [Access::LOCAL_WRITE, Access::empty()].map(|access| region(0..HALF, 0, access).lkey);
        let receives = region(HALF..2 * HALF, 0, Access::LOCAL_WRITE).lkey;
        let open = region(HALF..2 * HALF, BASE.0, all);
        let read_only = region(HALF..2 * HALF, BASE.0, Access::REMOTE_READ);
        let cqs = [(); 2].map(|()| nic.create_cq(64).expect("a completion queue"));
        let ends = cqs.map(|cq| {
            let queues = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 16, receive_depth: 16 };
            nic.create_qp(pd, queues).expect("a queue pair")
        });
        for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let peer = nic.qp_address(peer).expect("an address");
            for change in [
                QpChange::Init { access: Access::REMOTE },
                QpChange::ReadyToReceive { peer },
                QpChange::ReadyToSend { rnr_retries: 1 },
            ] {
                nic.modify_qp(end, change).expect("a step");
            }
        }
        let window = nic.allocate_window(pd, WindowKind::Two).expect("a window");
        let rkey = window.rkey.advanced();
        let rkeys = [open.rkey, read_only.rkey, rkey, rkey.advanced()];
        let mut pair = Self { nic, memory, cqs, ends, lkeys, receives, rkeys };
        let binding = WindowBinding {
            window: window.id,
            rkey,
            region: open.id,
            address: BASE,
            length: HALF,
            access: Access::REMOTE_READ,
        };
        let bound = pair.ends_with(1, Operation::BindWindow(binding));
        assert_eq!(bound[0].status, Status::Success);
        pair
    }

    fn operation(&self, asked: &Asked) -> Operation {
        let (address, length) = asked.local;
        let local = LocalSpan { address, length, lkey: self.lkeys[usize::from(!asked.writable)] };
        let rkey = self.rkeys[asked.rkey];
        let remote = RemoteSpan { address: RemoteAddress(BASE.0 + asked.remote), rkey };
        match asked.verb {
            0 | 1 => Operation::Read { local, remote },
            2 | 3 => Operation::Write { local, remote },
            4 => Operation::CompareAndSwap { local, remote, compare: 0x0706_0504_0302_0100, swap: 7 },
            5 => Operation::FetchAndAdd { local, remote, add: 0x1234_5678_9abc },
            6 => Operation::Send { local },
            7 => Operation::SendWithInvalidate { local, rkey: self.rkeys[(asked.rkey + 2) % 4] },
            _ => Operation::LocalInvalidate { rkey },
        }
    }

    /// Posts a request on one end and returns the completions of both ends.
    fn ends_with(&mut self, end: usize, operation: Operation) -> Vec<Completion> {
        self.nic
            .post_send(self.ends[end], &[WorkRequest { id: 9, signalled: true, operation }])
            .expect("posted");
        let mut completions = Vec::new();
        for _ in 0..400 {
            for cq in self.cqs {
                self.nic.poll(cq, 16, &mut completions).expect("polled");
            }
        }
        completions.sort_by_key(|completion| (completion.queue_pair.0, completion.request));
        completions
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// The code of a verb exists only once. This test compares the two ways in which its bytes travel.
    #[test]
    fn a_request_does_the_same_over_a_network_and_without_one(requests in requests()) {
        let [mut near, mut far] = [loopback(), looped(5, Lifetime::millis(1))].map(Pair::new);
        for asked in requests {
            for pair in [&mut near, &mut far] {
                if let Some(length) = asked.receive {
                    let local = LocalSpan { address: 64, length: length.min(100_000), lkey: pair.receives };
                    pair.nic.post_receive(pair.ends[1], &[ReceiveRequest { id: 3, local }]).expect("posted");
                }
            }
            let operation = near.operation(&asked);
            prop_assert_eq!(operation, far.operation(&asked));
            let ended = near.ends_with(0, operation);
            prop_assert!(ended.iter().any(|completion| completion.request == 9), "{operation:?} never ended");
            prop_assert_eq!(&ended, &far.ends_with(0, operation), "{:?}", operation);
            prop_assert_eq!(near.nic.poll_event(), far.nic.poll_event(), "{:?}", operation);
            let failed = ended.iter().any(|completion| completion.status != Status::Success);
            if failed {
                break;
            }
        }
        let same = (0..2 * HALF).step_by(8).all(|at| near.memory.load(at) == far.memory.load(at));
        prop_assert!(same, "both memories are the same at the end");
    }
}
