//! Tests of the software NIC's engines: a busy client is served by one of them, everything but reads, writes and atomics is
//! done by the NIC's thread, and what ends an access completes when no engine still moves a byte of such an access.
//!
//! Most tests take the engines' turns by hand, so that each order of events is chosen and not awaited.

mod on_threads;

use portcullis_memory::{Alarm, Doorbell, Mapping, Memory, Ringer, Watched};
use portcullis_nic::{
    Access, AccessFault, Completion, CqId, DataQueuePairs, EndpointSize, Event, LocalSpan, Nic, Operation,
    PdId, QpAddress, QpChange, QpId, QpState, Region, RemoteAddress, RemoteSpan, Rkey, SendQueue, Status,
    VerbsEndpoint, Window, WindowBinding, WindowKind, WorkRequest,
};
use portcullis_softnic::core::ThreadRunner;
use portcullis_softnic::core::copy_units::{PieceSizes, Pieces};
use portcullis_softnic::core::engines::{Seat, SeatTurn};
use portcullis_softnic::{PortEndpoint, PortId, PortLayout, PortResources, SoftNic};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the node's memory.
const BYTES: u64 = 64 << 10;
const SIZE: EndpointSize = EndpointSize {
    chunk_queue_pairs: 0,
    data_queue_pairs: 2,
    send_depth: 16,
    control_depth: 8,
    message_bytes: 128,
    arena_bytes: 64 << 10,
};
/// Turns within which a busy client is lent, and an idle one goes home.
const SOON: u32 = 100_000;

type Seats = Vec<Arc<Seat<Mapping>>>;

/// Engines that take a turn when the NIC waits for them, and when the test lets them.
#[derive(Debug)]
struct ByHand(Seats);

impl ThreadRunner for ByHand {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        self.0.iter().for_each(|seat| _ = seat.turn());
    }
}

/// Engines on a machine of eight processors, on which as many other threads run as the test says.
#[derive(Debug)]
struct OnMachine(ByHand, Arc<AtomicUsize>);

impl ThreadRunner for OnMachine {
    fn wake(&self, _: usize) {}

    fn is_crowded(&self, more: usize) -> bool {
        let awake = self.0.0.iter().filter(|seat| seat.clients() > 0).count();
        self.1.load(Ordering::Relaxed) + awake + more > 8
    }

    fn wait(&self) {
        self.0.wait();
    }
}

/// A copy unit that moves a piece when the NIC waits for it, and when the test lets it.
#[derive(Debug)]
struct Unit(Arc<Pieces<Mapping>>);

impl ThreadRunner for Unit {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        self.0.move_next();
    }
}

/// A client with a port.
struct Client {
    port: PortId,
    end: PortEndpoint,
    arena: Mapping,
    /// The node's ends of its data queue pairs, and that of its control queue pair.
    node_ends: Vec<QpId>,
    control: QpId,
    /// The addresses of its own ends.
    peers: Vec<QpAddress>,
}

/// A node's memory with a window over all of it, and engines.
struct Rig {
    nic: SoftNic,
    seats: Seats,
    pd: PdId,
    cq: CqId,
    memory: Mapping,
    region: Region,
    window: Window,
    key: Rkey,
    ringer: Arc<Ringer>,
}

impl Rig {
    fn by_hand(engines: usize) -> Self {
        Self::with(engines, |seats| Arc::new(ByHand(seats)))
    }

    fn with(engines: usize, runner: impl FnOnce(Seats) -> Arc<dyn ThreadRunner>) -> Self {
        Self::on(SoftNic::new(), engines, runner)
    }

    /// Makes engines by hand on a NIC with a copy unit.
    fn with_copy_unit(pieces: &Arc<Pieces<Mapping>>) -> Self {
        let mut nic = SoftNic::new();
        let unit = Arc::new(Unit(Arc::clone(pieces)));
        nic.core().set_copy_units(vec![Arc::clone(pieces)], unit, PieceSizes::default());
        Self::on(nic, 1, |seats| Arc::new(ByHand(seats)))
    }

    fn on(mut nic: SoftNic, engines: usize, runner: impl FnOnce(Seats) -> Arc<dyn ThreadRunner>) -> Self {
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(256).expect("a queue");
        let mut seats = Seats::new();
        let early = nic.allocate_memory(BYTES).expect("memory");
        let rights = Access::LOCAL_WRITE | Access::WINDOW_BIND | Access::REMOTE;
        // One region is there before the engines, and one after them.
        nic.register_region(pd, &early, 0..BYTES, RemoteAddress(0), rights).expect("a region");
        nic.core().set_engines(engines, |all| {
            seats = all.to_vec();
            runner(all.to_vec())
        });
        let memory = nic.allocate_memory(BYTES).expect("memory");
        let region = nic.register_region(pd, &memory, 0..BYTES, RemoteAddress(0), rights).expect("a region");
        let window = nic.allocate_window(pd, WindowKind::One).expect("a window");
        let ringer = Ringer::start().expect("a thread");
        Self { nic, seats, pd, cq, memory, region, window, key: window.rkey, ringer }
    }

    fn attach(&mut self) -> Client {
        let layout = PortLayout::new(SIZE);
        let file = Mapping::shareable("port", layout.bytes()).expect("memory");
        let data_sends = SendQueue { cq: self.cq, depth: 16 };
        let resources = PortResources { pd: self.pd, chunks: None, cq: self.cq, data_sends };
        let (port, ends, lkey) = self.nic.create_port(file.clone(), SIZE, resources).expect("there is room");
        for &end in &ends.data {
            self.nic.modify_qp(end, QpChange::Access { access: Access::REMOTE }).expect("all rights");
        }
        let page = Mapping::private(4096).expect("a page");
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an event");
        let (alarm, watched) = Alarm::pair(&self.ringer).expect("an alarm");
        self.nic.set_alarm(port, alarm);
        let bells = (Doorbell::new(page, event), Watched::new(watched));
        let arena = file.part(layout.arena(), SIZE.arena_bytes).expect("the arena lies in the file");
        Client {
            port,
            end: PortEndpoint::new(file, SIZE, lkey, bells, None),
            arena,
            node_ends: ends.data,
            control: ends.control,
            peers: ends.peers,
        }
    }

    /// Binds the window over the whole of the node's memory, under the next key.
    fn bind(&mut self, node_end: QpId) {
        self.bind_bytes(node_end, BYTES);
    }

    /// Unbinds the window.
    fn unbind(&mut self, node_end: QpId) {
        self.bind_bytes(node_end, 0);
    }

    fn bind_bytes(&mut self, node_end: QpId, length: u64) {
        self.key = Rkey::new(self.key.index(), self.key.low_byte().wrapping_add(1));
        let binding = WindowBinding {
            window: self.window.id,
            rkey: self.key,
            region: self.region.id,
            address: RemoteAddress(0),
            length,
            access: if length > 0 { Access::REMOTE } else { Access::empty() },
        };
        self.post(node_end, Operation::BindWindow(binding));
    }

    fn post(&mut self, qp: QpId, operation: Operation) {
        assert_eq!(self.nic.post_send(qp, &[WorkRequest { id: 7, signalled: true, operation }]), Ok(1));
    }

    /// Polls the node's completions.
    fn polled(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.nic.poll(self.cq, 64, &mut completions).expect("it is there");
        completions
    }

    /// Takes a turn of the NIC and of each engine.
    fn turn(&mut self) {
        self.nic.turn();
        self.seats.iter().for_each(|seat| _ = seat.turn());
    }

    fn span(&self, offset: u64) -> RemoteSpan {
        RemoteSpan { address: RemoteAddress(offset), rkey: self.region.rkey }
    }

    /// Posts an operation on a data queue pair, and returns how it ended.
    fn ended(&mut self, client: &mut Client, queue_pair: u32, operation: Operation) -> Status {
        client.post(queue_pair, 1, operation);
        for _ in 0..SOON {
            self.turn();
            if let Some(completion) = client.poll() {
                return completion.status;
            }
        }
        panic!("{operation:?} has not ended")
    }

    /// Reads until an engine serves the client.
    fn make_busy(&mut self, client: &mut Client) {
        let before = self.lent();
        for _ in 0..1000 {
            let read = Operation::Read { local: client.local(0, 8), remote: self.span(0) };
            assert_eq!(self.ended(client, 0, read), Status::Success);
            if self.lent() > before {
                return;
            }
        }
        panic!("no engine serves a busy client");
    }

    fn detach(&mut self, client: Client) {
        assert!(self.nic.destroy_port(client.port).is_some());
        for end in client.node_ends.into_iter().chain([client.control]) {
            self.nic.destroy_qp(end).expect("nothing is bound to it");
        }
    }

    /// Rebuilds a client's first data queue pair.
    fn rebuild(&mut self, client: &mut Client) {
        self.rebuild_number(client, 0);
    }

    fn rebuild_number(&mut self, client: &mut Client, number: u32) {
        let place = number as usize;
        let ours = client.node_ends[place];
        // The flushes of its requests come first.
        let before = self.nic.modify_qp(ours, QpChange::Reset);
        before.expect("any queue pair can be reset");
        while client.poll().is_some() {}
        let access = Access::REMOTE;
        let peer = client.peers[place];
        self.nic.modify_qp(ours, QpChange::Init { access }).expect("a step");
        self.nic.modify_qp(ours, QpChange::ReadyToReceive { peer }).expect("a step");
        self.nic.modify_qp(ours, QpChange::ReadyToSend { rnr_retries: 7 }).expect("a step");
        client.end.data_queue_pairs().expect("it has some").rebuilt(number);
    }

    /// Number of clients that engines serve.
    fn lent(&self) -> usize {
        self.seats.iter().map(|seat| seat.clients()).sum()
    }
}

impl Client {
    fn local(&self, offset: u64, length: u32) -> LocalSpan {
        LocalSpan { address: offset, length, lkey: self.end.arena_key() }
    }

    fn post(&mut self, queue_pair: u32, id: u64, operation: Operation) {
        let request = WorkRequest { id, signalled: true, operation };
        let posted = self.end.data_queue_pairs().expect("it has some").post(queue_pair, &[request]);
        assert_eq!(posted, 1, "there is room");
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut completions = Vec::new();
        self.end.poll(1, &mut completions);
        completions.pop()
    }
}

#[test]
fn a_busy_client_is_served_by_an_engine_and_goes_home_when_it_is_idle() {
    let mut rig = Rig::by_hand(1);
    let mut client = rig.attach();
    let read = Operation::Read { local: client.local(0, 8), remote: rig.span(0) };
    assert_eq!(rig.ended(&mut client, 0, read), Status::Success);
    assert_eq!(rig.lent(), 0, "one request makes no client busy");
    rig.make_busy(&mut client);
    // The NIC's thread has no part in what follows.
    rig.memory.write(80, &[5; 8]);
    client.post(1, 1, Operation::Read { local: client.local(64, 8), remote: rig.span(80) });
    client.arena.write(0, &[6; 16]);
    client.post(1, 2, Operation::Write { local: client.local(0, 16), remote: rig.span(160) });
    let add = Operation::FetchAndAdd { local: client.local(128, 8), remote: rig.span(240), add: 3 };
    client.post(1, 3, add);
    assert_eq!(rig.seats[0].turn(), SeatTurn::Worked);
    let ended: Vec<_> = std::iter::from_fn(|| client.poll()).map(|it| (it.request, it.status)).collect();
    assert_eq!(ended, [1, 2, 3].map(|id| (id, Status::Success)));
    let (mut read, mut written) = ([0; 8], [0; 16]);
    client.arena.read(64, &mut read);
    rig.memory.read(160, &mut written);
    assert_eq!((read, written, rig.memory.load(240)), ([5; 8], [6; 16], 3));
    for _ in 0..SOON {
        rig.turn();
    }
    assert_eq!(rig.lent(), 0, "an idle client goes home");
    let read = Operation::Read { local: client.local(0, 8), remote: rig.span(80) };
    assert_eq!(rig.ended(&mut client, 0, read), Status::Success);
}

#[test]
fn busy_clients_are_spread_over_the_engines() {
    let mut rig = Rig::by_hand(2);
    let mut clients = [rig.attach(), rig.attach()];
    clients.iter_mut().for_each(|client| rig.make_busy(client));
    assert_eq!(rig.seats.iter().map(|seat| seat.clients()).collect::<Vec<_>>(), [1, 1]);
    let loads = rig.nic.core().engine_loads();
    assert!(loads.iter().all(|load| load.clients == 1 && load.requests > 0), "{loads:?}");
}

#[test]
fn clients_move_to_engines_that_have_become_free() {
    let mut rig = Rig::by_hand(2);
    let mut clients: Vec<Client> = (0..4).map(|_| rig.attach()).collect();
    clients.iter_mut().for_each(|client| rig.make_busy(client));
    // The first and the third are on one engine.
    for leaving in [2, 0] {
        let client = clients.remove(leaving);
        rig.nic.destroy_port(client.port);
    }
    assert_eq!(rig.seats.iter().map(|seat| seat.clients()).collect::<Vec<_>>(), [0, 2]);
    for _ in 0..SOON {
        for client in &mut clients {
            let read = Operation::Read { local: client.local(0, 8), remote: rig.span(0) };
            assert_eq!(rig.ended(client, 0, read), Status::Success);
        }
        if rig.seats.iter().all(|seat| seat.clients() == 1) {
            return;
        }
    }
    panic!("two busy clients share an engine, and another has none");
}

#[test]
fn a_refusal_on_an_engine_breaks_both_ends_and_the_node_learns_the_reason() {
    let mut rig = Rig::by_hand(1);
    let mut client = rig.attach();
    rig.make_busy(&mut client);
    let wrong = RemoteSpan { rkey: Rkey::new(99, 0), ..rig.span(0) };
    client.post(0, 1, Operation::Read { local: client.local(0, 8), remote: wrong });
    client.post(0, 2, Operation::Read { local: client.local(0, 8), remote: rig.span(0) });
    client.post(1, 3, Operation::Read { local: client.local(0, 8), remote: rig.span(0) });
    rig.seats[0].turn();
    // The node asks before the client has come home.
    assert_eq!(rig.nic.qp_state(client.node_ends[0]), Ok(QpState::Error));
    assert_eq!(rig.nic.qp_state(client.node_ends[1]), Ok(QpState::ReadyToSend));
    // The node learns of the refusal before it can have a message that the client has sent after it.
    let Some(Event::AccessError(queue_pair, Some(refused))) = rig.nic.poll_event() else {
        panic!("an event")
    };
    assert_eq!((queue_pair, refused.fault), (client.node_ends[0], AccessFault::UnknownKey));
    for _ in 0..8 {
        rig.turn();
    }
    assert_eq!(rig.lent(), 0, "a client with a broken queue pair is the NIC's");
    let mut ended: Vec<_> = std::iter::from_fn(|| client.poll()).map(|it| (it.request, it.status)).collect();
    ended.sort_unstable_by_key(|&(id, _)| id);
    assert_eq!(ended, [(1, Status::RemoteAccessError), (2, Status::FlushError), (3, Status::Success)]);
    assert_eq!(rig.nic.poll_event(), None, "each refusal is reported once");
    // The pair is rebuilt, and lent again.
    rig.rebuild(&mut client);
    rig.make_busy(&mut client);
}

#[test]
fn what_is_more_than_a_one_sided_request_is_the_nics_own_work() {
    let mut rig = Rig::by_hand(1);
    let mut client = rig.attach();
    rig.make_busy(&mut client);
    let binding = WindowBinding {
        window: rig.window.id,
        rkey: rig.key,
        region: rig.region.id,
        address: RemoteAddress(0),
        length: 8,
        access: Access::REMOTE,
    };
    client.post(0, 1, Operation::BindWindow(binding));
    rig.seats[0].turn();
    assert_eq!(client.poll(), None, "an engine binds nothing");
    rig.turn();
    rig.turn();
    assert_eq!(client.poll().map(|it| it.status), Some(Status::WindowBindError));
    assert_eq!(rig.lent(), 0);
}

#[test]
fn a_long_transfer_of_a_client_of_an_engine_is_moved_by_the_copy_units() {
    let pieces = Arc::<Pieces<Mapping>>::default();
    let mut rig = Rig::with_copy_unit(&pieces);
    let mut client = rig.attach();
    rig.make_busy(&mut client);
    rig.memory.write(0, &[9; 32 << 10]);
    let long = Operation::Read { local: client.local(0, 32 << 10), remote: rig.span(0) };
    client.post(0, 1, long);
    (0..8).for_each(|_| rig.turn());
    assert_eq!((rig.lent(), pieces.posted()), (0, 2), "the NIC's thread has handed it over");
    assert_eq!(client.poll(), None, "no piece has been moved");
    while pieces.is_waiting() {
        pieces.move_next();
        rig.turn();
    }
    rig.turn();
    assert_eq!(client.poll().map(|it| it.status), Some(Status::Success));
    let mut read = vec![0; 32 << 10];
    client.arena.read(0, &mut read);
    assert!(read.iter().all(|&byte| byte == 9));
    // A client with such transfers among short ones stays where the copy units are.
    for number in 0..1000 {
        let length = if number % 32 == 0 { 4 << 10 } else { 8 };
        client.post(0, 1, Operation::Read { local: client.local(0, length), remote: rig.span(0) });
        let completion = (0..SOON).find_map(|_| {
            rig.turn();
            pieces.move_next();
            client.poll()
        });
        assert_eq!(completion.map(|it| it.status), Some(Status::Success));
        assert_eq!(rig.lent(), 0);
    }
    rig.make_busy(&mut client);
}

#[test]
fn engines_serve_nobody_while_the_machine_is_crowded() {
    let others = Arc::new(AtomicUsize::new(7));
    let machine = Arc::clone(&others);
    let mut rig = Rig::with(1, |seats| Arc::new(OnMachine(ByHand(seats), machine)));
    let mut client = rig.attach();
    rig.make_busy(&mut client);
    let read = Operation::Read { local: client.local(0, 8), remote: rig.span(0) };
    let mut lent_within = |rig: &mut Rig, reads: u32| {
        (0..reads).any(|_| {
            assert_eq!(rig.ended(&mut client, 0, read), Status::Success);
            rig.lent() > 0
        })
    };
    others.store(8, Ordering::Relaxed);
    (0..SOON).for_each(|_| _ = lent_within(&mut rig, 1));
    assert_eq!(rig.lent(), 0, "the client went home");
    // With the engine more threads than processors would run again.
    assert!(!lent_within(&mut rig, 5 * SOON), "clients come and go");
    others.store(7, Ordering::Relaxed);
    assert!(lent_within(&mut rig, 5 * SOON));
}

#[test]
fn a_client_with_a_message_for_which_there_is_no_receive_is_not_lent() {
    let mut rig = Rig::by_hand(1);
    let mut client = rig.attach();
    client.post(0, 1, Operation::Send { local: client.local(0, 8) });
    rig.turn();
    for _ in 0..1000 {
        let read = Operation::Read { local: client.local(0, 8), remote: rig.span(0) };
        assert_eq!(rig.ended(&mut client, 1, read), Status::Success);
        assert_eq!(rig.lent(), 0);
    }
}

#[test]
fn a_client_that_has_to_go_home_again_and_again_is_lent_more_and_more_seldom() {
    let mut rig = Rig::by_hand(1);
    let mut client = rig.attach();
    let mut reads_before = 0;
    for _ in 0..4 {
        let mut reads = 0;
        while rig.lent() == 0 {
            let read = Operation::Read { local: client.local(0, 8), remote: rig.span(0) };
            assert_eq!(rig.ended(&mut client, 1, read), Status::Success);
            reads += 1;
        }
        assert!(reads > reads_before + reads_before / 2, "{reads} reads, {reads_before} before");
        reads_before = reads;
        client.post(0, 1, Operation::LocalInvalidate { rkey: rig.key });
        while client.poll().is_none() {
            rig.turn();
        }
        assert_eq!(rig.lent(), 0);
        rig.rebuild(&mut client);
    }
}

#[test]
fn a_change_of_the_nodes_end_takes_the_client_home_first() {
    let mut rig = Rig::by_hand(1);
    let mut client = rig.attach();
    rig.make_busy(&mut client);
    rig.nic.modify_qp(client.node_ends[1], QpChange::Error).expect("any queue pair can be stopped");
    assert_eq!(rig.lent(), 0);
    rig.rebuild_number(&mut client, 1);
    rig.make_busy(&mut client);
    let none = QpChange::Access { access: Access::empty() };
    rig.nic.modify_qp(client.node_ends[0], none).expect("it is ready");
    assert_eq!(rig.lent(), 0);
    let read = Operation::Read { local: client.local(0, 8), remote: rig.span(0) };
    assert_eq!(rig.ended(&mut client, 0, read), Status::RemoteAccessError);
}

#[test]
fn a_port_is_destroyed_while_an_engine_serves_it() {
    let mut rig = Rig::by_hand(1);
    for _ in 0..3 {
        let mut client = rig.attach();
        rig.make_busy(&mut client);
        client.post(0, 1, Operation::Read { local: client.local(0, 8), remote: rig.span(0) });
        rig.detach(client);
        assert_eq!((rig.lent(), rig.nic.ports()), (0, 0));
        rig.turn();
    }
}

#[test]
fn the_end_of_a_window_is_the_end_of_an_engines_accesses() {
    let mut rig = Rig::by_hand(1);
    let mut client = rig.attach();
    rig.make_busy(&mut client);
    rig.bind(client.node_ends[1]);
    rig.turn();
    assert_eq!(rig.polled().len(), 1, "the window is bound");
    let opened = RemoteSpan { rkey: rig.key, ..rig.span(8) };
    client.post(1, 1, Operation::Read { local: client.local(0, 8), remote: opened });
    rig.seats[0].turn();
    assert_eq!(client.poll().map(|it| it.status), Some(Status::Success));
    rig.unbind(client.node_ends[1]);
    rig.nic.turn();
    assert_eq!(rig.polled().len(), 1, "an engine that is in no turn is not awaited");
    client.post(1, 2, Operation::Read { local: client.local(0, 8), remote: opened });
    rig.seats[0].turn();
    assert_eq!(client.poll().map(|it| it.status), Some(Status::RemoteAccessError));
}
