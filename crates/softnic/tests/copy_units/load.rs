//! Withdrawals under load, with units on threads: each is confirmed by a completion, or by a chain that goes on, and no byte
//! of an access that it has ended arrives in memory of the next owner.

use super::on_threads::with_units;
use super::{Access, LocalSpan, Mapping, Nic, Operation, PieceSizes, QpId, SoftNic, Window, WindowBinding};
use portcullis_memory::Memory;
use portcullis_nic::{
    ChainNic, ChainRole, ChainVerb, Completion, CqId, QpAttributes, QpChange, QpState, Region, RemoteAddress,
    RemoteSpan, Rkey, Status, WindowKind, WorkRequest, connect_qp,
};

/// Number of withdrawals, unless `PORTCULLIS_WITHDRAWALS` requests another.
const WITHDRAWALS: u64 = 5000;
/// Number of clients, which write all the time.
const CLIENTS: usize = 4;
/// Bytes of a client's span of the node's memory. A write of all of it has more pieces than its client's share.
const SPAN: u32 = 3072;
const SIZES: PieceSizes = PieceSizes { transfer_min: 1024, piece_max: 1024 };
/// Number of turns after which the next owner reads what it wrote.
const LOOK_AFTER: u64 = 3;
/// Bytes of the node's memory: the spans, and for each client the word in which a chain counts its withdrawals and the
/// word before it.
const NODE_BYTES: u64 = 64 << 10;
const COUNTS: u64 = 32 << 10;
const LATE: u8 = 0xee;

/// The kinds of requests, which are in the lower bits of their numbers.
const WRITE: u64 = 0;
const BIND: u64 = 1;
const END: u64 = 2;
const COUNT: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The window is being bound.
    Binding,
    /// The client may write.
    Bound,
    /// A withdrawal was posted in this turn.
    Ending { posted: u64, by_chain: bool },
    /// The next owner has written the span in this turn.
    Owned { since: u64 },
}

#[derive(Debug)]
struct Client {
    client: QpId,
    node: QpId,
    window: Window,
    key: Rkey,
    state: State,
    /// The turn in which the write under way was posted.
    writes_since: Option<u64>,
    /// Number of withdrawals, and of those by a chain.
    ends: u64,
    by_chain: u64,
    pattern: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    withdrawals: u64,
    by_chain: u64,
    /// Number of withdrawals that were not confirmed in the turn in which they were executed.
    awaited: u64,
    /// Number of writes that were refused.
    refused: u64,
}

struct Load {
    nic: SoftNic,
    cq: CqId,
    chain: QpId,
    node_memory: Mapping,
    spans: Region,
    /// The node's memory, for the chain.
    all: Region,
    /// The buffer that all clients write from.
    buffer: Region,
    clients: Vec<Client>,
    turn: u64,
    counts: Counts,
}

fn place(number: usize) -> u64 {
    number as u64 * u64::from(SPAN)
}

/// The word in which the chain counts the withdrawals of a client.
fn count_at(number: usize) -> u64 {
    COUNTS + number as u64 * 16
}

impl Load {
    fn new() -> Self {
        let mut nic = with_units(SoftNic::new(), SIZES);
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(256).expect("a queue");
        let node_memory = nic.allocate_memory(NODE_BYTES).expect("memory");
        let from = nic.allocate_memory(SPAN.into()).expect("memory");
        from.write(0, &[LATE; SPAN as usize]);
        let mut region = |memory: &Mapping, length, rights| {
            let base = RemoteAddress(0);
            nic.register_region(pd, memory, 0..length, base, rights).expect("a region")
        };
        let spans = region(&node_memory, NODE_BYTES, Access::LOCAL_WRITE | Access::WINDOW_BIND);
        let all = region(&node_memory, NODE_BYTES, Access::LOCAL_WRITE | Access::REMOTE);
        let buffer = region(&from, SPAN.into(), Access::LOCAL_WRITE);
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 64, receive_depth: 0 };
        let role = ChainRole { privileged: true, ..ChainRole::default() };
        let chain = nic.require_chains().expect("chains").create_chain_qp(pd, attributes, role);
        let chain = chain.expect("a queue pair");
        let own = nic.qp_address(chain).expect("an address");
        connect_qp(&mut nic, chain, own).expect("each step");
        nic.modify_qp(chain, QpChange::Access { access: Access::REMOTE }).expect("all rights");
        let join = |_| {
            let [client, node] = [(); 2].map(|()| nic.create_qp(pd, attributes).expect("a queue pair"));
            let window = nic.allocate_window(pd, WindowKind::Two).expect("a window");
            let (key, state) = (window.rkey, State::Binding);
            Client { client, node, window, key, state, writes_since: None, ends: 0, by_chain: 0, pattern: 0 }
        };
        let clients = (0..CLIENTS).map(join).collect();
        let counts = Counts::default();
        Self { nic, cq, chain, node_memory, spans, all, buffer, clients, turn: 0, counts }
    }

    fn run(mut self, count: u64) -> Counts {
        (0..CLIENTS).for_each(|number| self.bind(number));
        let mut completions = Vec::new();
        while self.counts.withdrawals < count {
            self.turn += 1;
            self.nic.turn_all();
            self.nic.poll(self.cq, 256, &mut completions).expect("the queue");
            completions.drain(..).for_each(|completion| self.take(&completion));
            while self.nic.poll_event().is_some() {}
            (0..CLIENTS).for_each(|number| self.step(number));
            std::thread::yield_now();
        }
        self.counts
    }

    fn post(&mut self, qp: QpId, number: usize, kind: u64, operation: Operation) {
        let request = WorkRequest { id: number as u64 * 4 + kind, signalled: true, operation };
        assert_eq!(self.nic.post_send(qp, &[request]), Ok(1), "few requests are under way");
    }

    /// Binds a client's window, on queue pairs that work.
    fn bind(&mut self, number: usize) {
        let Client { client, node, window, .. } = self.clients[number];
        if [client, node].iter().any(|&end| self.nic.qp_state(end) != Ok(QpState::ReadyToSend)) {
            self.connect(number);
        }
        let client = &mut self.clients[number];
        (client.key, client.state) = (client.key.advanced(), State::Binding);
        let binding = WindowBinding {
            window: window.id,
            rkey: client.key,
            region: self.spans.id,
            address: RemoteAddress(place(number)),
            length: SPAN.into(),
            access: Access::REMOTE,
        };
        self.post(node, number, BIND, Operation::BindWindow(binding));
    }

    /// Connects both ends of a client again. What was posted on them has no completion.
    fn connect(&mut self, number: usize) {
        let Client { client, node, .. } = self.clients[number];
        for end in [client, node] {
            self.nic.modify_qp(end, QpChange::Reset).expect("RESET");
        }
        for (one, other) in [(client, node), (node, client)] {
            let peer = self.nic.qp_address(other).expect("an address");
            connect_qp(&mut self.nic, one, peer).expect("each step");
            self.nic.modify_qp(one, QpChange::Access { access: Access::REMOTE }).expect("all rights");
        }
        self.clients[number].writes_since = None;
    }

    fn take(&mut self, &Completion { request, status, .. }: &Completion) {
        let number = usize::try_from(request / 4).expect("few clients");
        let client = &mut self.clients[number];
        match (request % 4, status) {
            (WRITE, status) => {
                client.writes_since = None;
                self.counts.refused += u64::from(status == Status::RemoteAccessError);
            }
            (BIND, Status::Success) => client.state = State::Bound,
            (END, Status::Success) => self.hand_over(number),
            (COUNT, Status::Success) => {}
            // The refusal of the client's write has broken the node's end first.
            (END, Status::FlushError) => {
                self.connect(number);
                self.end(number, false);
            }
            (kind, status) => panic!("request {kind} of client {number} has failed: {status}"),
        }
    }

    /// Posts the end of a client's accesses.
    fn end(&mut self, number: usize, by_chain: bool) {
        let Client { node, key: rkey, .. } = self.clients[number];
        self.clients[number].state = State::Ending { posted: self.turn, by_chain };
        if !by_chain {
            return self.post(node, number, END, Operation::LocalInvalidate { rkey });
        }
        self.clients[number].by_chain += 1;
        let free = Operation::Chain(ChainVerb::LocalInvalidate { rkey, queue_pair: node });
        let local = LocalSpan { address: count_at(number) + 8, length: 8, lkey: self.all.lkey };
        let remote = RemoteSpan { address: RemoteAddress(count_at(number)), rkey: self.all.rkey };
        self.post(self.chain, number, COUNT, free);
        self.post(self.chain, number, COUNT, Operation::FetchAndAdd { local, remote, add: 1 });
    }

    /// The accesses have ended: the next owner of the memory writes it.
    fn hand_over(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let State::Ending { posted, by_chain } = client.state else {
            panic!("{client:?}: nothing was withdrawn")
        };
        self.counts.withdrawals += 1;
        self.counts.by_chain += u64::from(by_chain);
        self.counts.awaited += u64::from(self.turn > posted + 1);
        client.pattern = client.pattern.wrapping_add(1) % LATE;
        client.state = State::Owned { since: self.turn };
        self.node_memory.write(place(number), &[client.pattern; SPAN as usize]);
    }

    fn step(&mut self, number: usize) {
        let Client { client, state, writes_since, ends, by_chain, .. } = self.clients[number];
        match state {
            State::Ending { by_chain: true, .. } if self.node_memory.load(count_at(number)) == by_chain => {
                self.hand_over(number);
            }
            State::Bound if writes_since.is_none() => self.write(number, client),
            // Some of its pieces are posted by now, or all, or none.
            State::Bound if writes_since.is_some_and(|since| since + ends % 3 <= self.turn) => {
                self.clients[number].ends += 1;
                self.end(number, ends % 2 == 1);
            }
            State::Owned { since } if self.turn >= since + LOOK_AFTER => {
                self.look(number);
                self.bind(number);
            }
            _ => {}
        }
    }

    fn write(&mut self, number: usize, client: QpId) {
        self.clients[number].writes_since = Some(self.turn);
        let local = LocalSpan { address: 0, length: SPAN, lkey: self.buffer.lkey };
        let remote = RemoteSpan { address: RemoteAddress(place(number)), rkey: self.clients[number].key };
        self.post(client, number, WRITE, Operation::Write { local, remote });
    }

    fn look(&self, number: usize) {
        let mut bytes = [0; SPAN as usize];
        self.node_memory.read(place(number), &mut bytes);
        let Counts { withdrawals, .. } = self.counts;
        let pattern = self.clients[number].pattern;
        let late = bytes.iter().position(|&byte| byte != pattern);
        assert_eq!(late, None, "a byte arrives after a confirmation, of about {withdrawals}");
    }
}

#[test]
fn no_withdrawal_of_many_is_confirmed_early() {
    let asked = std::env::var("PORTCULLIS_WITHDRAWALS").ok().and_then(|number| number.parse().ok());
    let count = asked.unwrap_or(WITHDRAWALS);
    let counts = Load::new().run(count);
    assert!(counts.by_chain > count / 4 && counts.by_chain < count * 3 / 4, "{counts:?}");
    assert!(counts.awaited > count / 20, "the units are too fast for this test: {counts:?}");
    eprintln!("{counts:?}");
}
