//! Both ends of a client's queue pairs, each on its own NIC: they are made, removed, broken and rebuilt.

mod faltering;

use faltering::{FalteringNic, failure};
use portcullis_memory::Mapping;
use portcullis_nic::{
    ClientQueues, Completion, CompletionKind, EndpointSize, LocalSpan, Memory, Nic, Operation, QpAddress,
    ReceiveRequest, RemoteSpan, SendQueue, Status, VerbsEndpoint, VerbsError, WorkRequest,
};
use portcullis_node::{Admission, ClientEnds, Node, NodeConfig, ViolationLimits};
use portcullis_protocol::{
    Incarnation, Lifetime, MESSAGE_BYTES, Moment, QueuePairRequest, Refusal, RemoteAddress, Reply, ReplyBody,
    Request, RequestBody, Rkey, TenantId,
};
use portcullis_softnic::core::NetworkPort;
use portcullis_softnic::{PortEndpoint, SoftNic};

const CONTROL: portcullis_nic::QpId = <PortEndpoint as VerbsEndpoint>::CONTROL;
const NOW: Moment = Moment(1_000_000);
const SIZE: EndpointSize = EndpointSize {
    chunk_queue_pairs: 0,
    data_queue_pairs: 3,
    send_depth: 8,
    control_depth: 8,
    message_bytes: 128,
    arena_bytes: 8192,
};
/// Offset of a request in the arena.
const REQUEST_AT: u64 = 4096;

/// A client's queue pair addresses, which are never contacted.
fn client_addresses() -> (QpAddress, Vec<QpAddress>) {
    let at = |number| QpAddress { number, ..QpAddress::default() };
    (at(100), (101..101 + SIZE.data_queue_pairs).map(at).collect())
}

#[test]
fn a_clients_end_leaves_nothing_behind_whichever_call_fails() {
    let mut nic = FalteringNic::default();
    let before = nic.nic.core().objects();
    for calls in 0.. {
        nic.hook.fail_after(calls);
        let made = ClientQueues::new(&mut nic, SIZE);
        if nic.hook.is_yet_to_fail() {
            let mut queues = made.expect("no call failed");
            // Domain, memory, region, completion queue, and control queue pair.
            assert_eq!(calls, 5 + SIZE.data_queue_pairs);
            assert_ne!(nic.nic.core().objects(), before);
            queues.end(&mut nic);
            assert_eq!(nic.nic.core().objects(), before, "the end takes all off");
            queues.end(&mut nic);
            assert!(queues.addresses(&nic).is_err(), "nothing is there to be found");
            return;
        }
        assert_eq!(made.err(), Some(failure()));
        assert_eq!(nic.nic.core().objects(), before, "after call {calls} failed");
    }
}

#[test]
fn sizes_that_no_completion_queue_holds_are_refused_before_anything_is_made() {
    let mut nic = FalteringNic::default();
    let before = nic.nic.core().objects();
    for size in [
        EndpointSize { data_queue_pairs: u32::MAX, ..SIZE },
        EndpointSize { control_depth: 1 << 31, ..SIZE },
        EndpointSize { data_queue_pairs: 1, send_depth: 1 << 31, control_depth: 1, ..SIZE },
    ] {
        let refused = ClientQueues::new(&mut nic, size).err();
        assert!(matches!(refused, Some(VerbsError::Invalid(_))), "{size:?}: {refused:?}");
        assert_eq!(nic.nic.core().objects(), before);
    }
}

#[test]
fn a_nodes_ends_leave_nothing_behind_whichever_call_fails() {
    let mut nic = FalteringNic::default();
    let pd = nic.allocate_pd().expect("a domain");
    let cq = nic.create_cq(64).expect("a completion queue");
    let data_sends = SendQueue { cq, depth: 1 };
    let admission = Admission { tenant: TenantId(0), pd, cq, data_sends, chunks: None };
    let (control, data) = client_addresses();
    let before = nic.nic.core().objects();
    for calls in 0.. {
        nic.hook.fail_after(calls);
        let made = ClientEnds::connect(&mut nic, admission, &SIZE, control, &data);
        if nic.hook.is_yet_to_fail() {
            let (ends, _, addresses) = made.expect("no call failed");
            // Each end is created, changed in three steps, and queried for its address.
            assert_eq!(calls, 5 * (1 + SIZE.data_queue_pairs));
            assert_eq!((ends.data.len(), addresses.len(), &ends.peers), (data.len(), data.len(), &data));
            assert_eq!(nic.nic.core().objects().queue_pairs, before.queue_pairs + 1 + data.len());
            ends.destroy(&mut nic);
            assert_eq!(nic.nic.core().objects(), before);
            return;
        }
        assert_eq!(made.err(), Some(failure()));
        assert_eq!(nic.nic.core().objects(), before, "after call {calls} failed");
    }
}

#[test]
fn ends_for_another_number_of_queue_pairs_are_refused() {
    let mut nic = FalteringNic::default();
    let pd = nic.allocate_pd().expect("a domain");
    let cq = nic.create_cq(64).expect("a completion queue");
    let data_sends = SendQueue { cq, depth: 1 };
    let admission = Admission { tenant: TenantId(0), pd, cq, data_sends, chunks: None };
    let mut queues = ClientQueues::new(&mut nic, SIZE).expect("there is room");
    let (control, data) = client_addresses();
    let before = nic.nic.core().objects();
    for wrong in [data[1..].to_vec(), [&data[..], &data[..1]].concat()] {
        let theirs = ClientEnds::connect(&mut nic, admission, &SIZE, control, &wrong).err();
        assert!(matches!(theirs, Some(VerbsError::Invalid(_))), "{theirs:?}");
        let ours = queues.connect(&mut nic, control, wrong).err();
        assert!(matches!(ours, Some(VerbsError::Invalid(_))), "{ours:?}");
        assert_eq!(nic.nic.core().objects(), before);
    }
}

#[test]
fn a_rebuild_that_the_nic_refuses_is_told() {
    let mut nic = FalteringNic::default();
    let mut queues = ClientQueues::new(&mut nic, SIZE).expect("there is room");
    assert!(queues.rebuilt(&mut nic, 0).is_err(), "it was never connected");
    let (control, data) = client_addresses();
    queues.connect(&mut nic, control, data).expect("connected");
    assert_eq!(queues.rebuilt(&mut nic, 0), Ok(()));
    for step in 0..4 {
        nic.hook.fail_after(step);
        assert_eq!(queues.rebuilt(&mut nic, 1), Err(failure()), "step {step}");
    }
    let unknown = queues.rebuilt(&mut nic, SIZE.data_queue_pairs);
    assert_eq!(unknown, Err(VerbsError::NoSuch { what: "data queue pair" }));
}

/// A node and one client, each with a NIC, and a network between them.
struct Pair {
    nics: [SoftNic; 2],
    node: Node<SoftNic>,
    queues: ClientQueues<Mapping>,
    sequence: u32,
    completions: Vec<Completion>,
}

impl Pair {
    /// `first` are the packet numbers of each NIC's first connection.
    fn new(first: [u32; 2]) -> Self {
        Self::under(first, ViolationLimits::default())
    }

    /// Makes the pair with these limits on violations.
    fn under(first: [u32; 2], violations: ViolationLimits) -> Self {
        let mut nics = [0, 1].map(|machine: u8| {
            let patience = Lifetime::seconds(60);
            let (address, first_packet) = ([1 + machine; 16], first[usize::from(machine)]);
            let mut nic = SoftNic::new();
            nic.core().join(NetworkPort { address, first_packet, patience });
            nic
        });
        let [node_nic, own] = &mut nics;
        let config = NodeConfig {
            pool_bytes: 4 << 20,
            headers: 1024,
            windows_ready: 8,
            violations,
            ..NodeConfig::default()
        };
        let mut node =
            Node::new(node_nic, config, Incarnation(1), [7; 32]).expect("the configuration is sound");
        let admission = node.admit(node_nic, "tenant", NOW).expect("it may come");
        let mut queues = ClientQueues::new(own, SIZE).expect("there is room");
        let (control, data) = queues.addresses(own).expect("they are there");
        let (ends, control, data) =
            ClientEnds::connect(node_nic, admission, &SIZE, control, &data).expect("there is room");
        queues.connect(own, control, data).expect("connected");
        node.attach(node_nic, admission.tenant, Some(1), ends, NOW).expect("there is room");
        for slot in 0..SIZE.control_depth / 2 {
            let span = LocalSpan {
                address: u64::from(slot * SIZE.message_bytes),
                length: SIZE.message_bytes,
                lkey: queues.arena_key(),
            };
            let receive = ReceiveRequest { id: u64::from(slot), local: span };
            assert_eq!(queues.post_control_receive(own, &[receive]), Ok(1));
        }
        Self { nics, node, queues, sequence: 0, completions: Vec::new() }
    }

    /// Lets both NICs work, and delivers their packets to each other.
    fn carry(&mut self) {
        for from in [0, 1] {
            let mut packets = Vec::new();
            self.nics[from].turn_at(NOW);
            self.nics[from].core().take_outgoing(&mut packets);
            for packet in packets {
                self.nics[1 - from].core().receive(&packet, NOW);
            }
        }
    }

    /// Lets all happen that needs no time.
    fn settle(&mut self) {
        for _ in 0..64 {
            self.carry();
            self.node.turn(&mut self.nics[0], NOW);
            let polled = self.queues.poll(&mut self.nics[1], 16, &mut self.completions);
            polled.expect("the queue is there");
        }
    }

    /// Sends a request to the node, and returns its reply.
    fn ask(&mut self, body: RequestBody) -> ReplyBody {
        self.sequence += 1;
        let bytes = Request { sequence: self.sequence, body }.encode();
        self.queues.arena().write(REQUEST_AT, &bytes);
        let length = u32::try_from(bytes.len()).expect("a short message");
        let local = LocalSpan { address: REQUEST_AT, length, lkey: self.queues.arena_key() };
        let request = WorkRequest { id: 9, signalled: true, operation: Operation::Send { local } };
        assert_eq!(self.queues.post_control(&mut self.nics[1], &[request]), Ok(1));
        self.settle();
        self.completions.retain(|it| it.kind != CompletionKind::Send);
        let completion = self.completions.pop().expect("a reply");
        assert!(self.completions.is_empty() && completion.queue_pair == CONTROL, "{completion:?}");
        let mut message = [0; MESSAGE_BYTES];
        let address = completion.request * u64::from(SIZE.message_bytes);
        self.queues.arena().read(address, &mut message);
        let local = LocalSpan { address, length: SIZE.message_bytes, lkey: self.queues.arena_key() };
        let receive = ReceiveRequest { id: completion.request, local };
        assert_eq!(self.queues.post_control_receive(&mut self.nics[1], &[receive]), Ok(1));
        Reply::decode(message).expect("a node's reply means something").body
    }

    /// Reads with a key that was never granted. Returns the status and queue pair of the completion.
    fn read(&mut self, number: u32, length: u32) -> Option<(Status, u32)> {
        let local = LocalSpan { address: REQUEST_AT, length, lkey: self.queues.arena_key() };
        let remote = RemoteSpan { address: RemoteAddress(0), rkey: Rkey(0xdead_be00) };
        let request = WorkRequest { id: 3, signalled: true, operation: Operation::Read { local, remote } };
        assert_eq!(self.queues.post(&mut self.nics[1], number, &[request]), Ok(1));
        self.settle();
        let completion = self.completions.pop()?;
        assert!(self.completions.is_empty());
        Some((completion.status, completion.queue_pair.0))
    }
}

#[test]
fn both_ends_agree_about_packet_numbers_after_any_number_of_rebuilds() {
    // The numbers cross the wrap at 24 bits, and at 32 bits.
    for first in [[0, 7], [0xff_fffe, 0xff_fffd], [u32::MAX - 1, u32::MAX]] {
        let mut pair = Pair::new(first);
        for rebuilds in 0..12 {
            let number = rebuilds % 2;
            // A read of no bytes needs no key. It succeeds if the two ends agree.
            assert_eq!(pair.read(number, 0), Some((Status::Success, number)), "{rebuilds} rebuilds");
            assert_eq!(pair.read(number, 8), Some((Status::RemoteAccessError, number)));
            assert_eq!(
                pair.ask(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: number })),
                ReplyBody::Done
            );
            assert_eq!(pair.queues.rebuilt(&mut pair.nics[1], number), Ok(()));
        }
        for number in 0..SIZE.data_queue_pairs {
            assert_eq!(pair.read(number, 0), Some((Status::Success, number)));
        }
    }
}

#[test]
fn ends_of_which_one_was_rebuilt_once_more_do_not_hear_each_other() {
    let mut pair = Pair::new([5, 6]);
    assert_eq!(pair.read(0, 8), Some((Status::RemoteAccessError, 0)));
    assert_eq!(
        pair.ask(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })),
        ReplyBody::Done
    );
    assert_eq!(pair.queues.rebuilt(&mut pair.nics[1], 0), Ok(()));
    assert_eq!(pair.queues.rebuilt(&mut pair.nics[1], 0), Ok(()));
    assert_eq!(pair.read(0, 0), None, "nobody answers");
}

/// A client that got no reply takes any reply to the rebuild as the end of the requests that it had sent before.
#[test]
fn a_queue_pair_whose_rebuild_is_put_off_serves_nothing_meanwhile() {
    let limits = ViolationLimits { free_max: 0, ..ViolationLimits::default() };
    let mut pair = Pair::under([3, 3], limits);
    assert_eq!(pair.read(0, 8), Some((Status::RemoteAccessError, 0)));
    assert_eq!(pair.read(1, 0), Some((Status::Success, 1)));
    let answer = pair.ask(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 1 }));
    assert!(matches!(answer, ReplyBody::Refused(Refusal::Paused { .. })), "{answer:?}");
    assert_eq!(pair.read(1, 0), None, "nobody answers");
}

#[test]
fn what_comes_behind_a_break_is_polled_later() {
    let mut pair = Pair::new([1, 1]);
    let local = LocalSpan { address: REQUEST_AT, length: 8, lkey: pair.queues.arena_key() };
    let remote = RemoteSpan { address: RemoteAddress(0), rkey: Rkey(0xdead_be00) };
    let request = WorkRequest { id: 3, signalled: true, operation: Operation::Read { local, remote } };
    assert_eq!(pair.queues.post(&mut pair.nics[1], 2, &[request; 3]), Ok(3));
    for _ in 0..4 {
        pair.carry();
    }
    let mut completions = Vec::new();
    assert_eq!(pair.queues.poll(&mut pair.nics[1], 16, &mut completions), Ok(1));
    assert_eq!(pair.queues.poll(&mut pair.nics[1], 16, &mut completions), Ok(2));
    let told: Vec<_> = completions.iter().map(|it| (it.status, it.queue_pair.0)).collect();
    assert_eq!(told, [(Status::RemoteAccessError, 2), (Status::FlushError, 2), (Status::FlushError, 2)]);
}
