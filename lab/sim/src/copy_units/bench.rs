//! The NIC, its clients, and the checkers' picture of their memory.

use super::CopyCounts;
use crate::Dice;
use portcullis_memory::{Mapping, Memory};
use portcullis_nic::{
    Access, ChainNic, ChainRole, ChainVerb, Completion, CqId, LocalSpan, Nic, Operation, PdId, QpAttributes,
    QpChange, QpId, QpState, Region, RemoteAddress, RemoteSpan, Rkey, Status, Window, WindowBinding,
    WindowKind, WorkRequest, connect_qp,
};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::ThreadRunner;
use portcullis_softnic::core::copy_units::{PieceSizes, Pieces};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of clients. Each has a window, a span of the node's memory and a buffer of its own.
pub(super) const CLIENTS: usize = 3;
/// Bytes of a span and of a buffer.
const BYTES: u32 = 512;
/// Turns within which an operation ends once all pieces may move.
const TURNS_MAX: usize = 1000;
const DEPTH: u32 = 64;

type Queues = Vec<Arc<Pieces<Mapping>>>;

/// Units that also move, one piece at a time, when the NIC waits for them. A unit that rests moves only then.
#[derive(Debug)]
struct Units {
    queues: Queues,
    dice: Mutex<Dice>,
}

impl ThreadRunner for Units {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let number = dice.index(self.queues.len());
        let _ = self.queues[number].move_next();
    }
}

/// An operation of a client that is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    id: u64,
    writes: bool,
    length: u32,
}

/// A withdrawal that is under way.
#[derive(Clone, Copy, Debug)]
struct Withdrawal {
    id: u64,
    has_waited: bool,
    /// The count at which the chain that withdraws has gone on. `None`: the node itself withdraws, and gets a
    /// completion.
    goes_on_at: Option<u64>,
}

/// A client, with the node's end and its window.
#[derive(Debug)]
struct Client {
    theirs: QpId,
    ours: QpId,
    window: Window,
    key: Rkey,
    is_bound: bool,
    operation: Option<UnderWay>,
    withdrawal: Option<Withdrawal>,
    /// Number of withdrawals by the chain.
    by_chain: u64,
    /// The bytes that the checkers expect in the span, while no client may write it.
    span: Vec<u8>,
    /// The bytes that the checkers expect in the buffer, while no operation uses it.
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Bench {
    nic: SoftNic,
    queues: Queues,
    /// Steps for which a unit still rests.
    rests: Vec<u64>,
    cq: CqId,
    pd: PdId,
    spans: (Mapping, Region),
    buffers: (Mapping, Region),
    /// The queue pair of a chain that withdraws, and the words that it adds to when it goes on.
    chain: QpId,
    went_on: (Mapping, Region),
    clients: Vec<Client>,
    counts: CopyCounts,
    next_id: u64,
    /// The pattern that is written next.
    pattern: u8,
    /// The fault that the handling of a completion has found.
    wrong: Option<String>,
}

fn place(client: usize) -> u64 {
    client as u64 * u64::from(BYTES)
}

/// Makes a queue pair that posts requests of chains.
fn make_chain(nic: &mut SoftNic, pd: PdId, cq: CqId) -> QpId {
    let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: DEPTH, receive_depth: 0 };
    let role = ChainRole { privileged: true, ..ChainRole::default() };
    let chain = nic.require_chains().and_then(|mut chains| chains.create_chain_qp(pd, attributes, role));
    let chain = chain.expect("a queue pair");
    let own = nic.qp_address(chain).expect("an address");
    connect_qp(nic, chain, own).expect("each step");
    nic.modify_qp(chain, QpChange::Access { access: Access::REMOTE }).expect("all rights");
    chain
}

impl Bench {
    pub fn new(dice: &mut Dice) -> Self {
        let queues: Queues = (0..=dice.index(3)).map(|_| Arc::default()).collect();
        let piece_max = u32::try_from(dice.of(1..129)).unwrap_or(1);
        let transfer_min = u32::try_from(dice.of(1..200)).unwrap_or(1);
        let mut nic = SoftNic::new();
        let units = Units { queues: queues.clone(), dice: Mutex::new(Dice::new(dice.any(), 2)) };
        nic.core().set_copy_units(queues.clone(), Arc::new(units), PieceSizes { transfer_min, piece_max });
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(1024).expect("a queue");
        let mut memory = |rights| {
            let bytes = place(CLIENTS);
            let memory = nic.allocate_memory(bytes).expect("memory");
            let region = nic.register_region(pd, &memory, 0..bytes, RemoteAddress(0), rights);
            (memory, region.expect("a region"))
        };
        let spans = memory(Access::LOCAL_WRITE | Access::WINDOW_BIND);
        let buffers = memory(Access::LOCAL_WRITE);
        let went_on = memory(Access::LOCAL_WRITE | Access::REMOTE);
        let chain = make_chain(&mut nic, pd, cq);
        let rests = vec![0; queues.len()];
        let mut bench = Self {
            nic,
            queues,
            rests,
            cq,
            pd,
            spans,
            buffers,
            chain,
            went_on,
            clients: Vec::new(),
            counts: CopyCounts::default(),
            next_id: 0,
            pattern: 0,
            wrong: None,
        };
        (0..CLIENTS).for_each(|number| bench.join(number));
        bench
    }

    fn join(&mut self, number: usize) {
        let (nic, cq) = (&mut self.nic, self.cq);
        let attributes =
            QpAttributes { send_cq: cq, receive_cq: cq, send_depth: DEPTH, receive_depth: DEPTH };
        let [theirs, ours] = [(); 2].map(|()| nic.create_qp(self.pd, attributes).expect("a queue pair"));
        let window = nic.allocate_window(self.pd, WindowKind::Two).expect("a window");
        let none = vec![0; BYTES as usize];
        self.clients.push(Client {
            theirs,
            ours,
            window,
            key: window.rkey,
            is_bound: false,
            operation: None,
            withdrawal: None,
            by_chain: 0,
            span: none.clone(),
            buffer: none,
        });
        self.connect(number);
        self.take_over(number);
        self.refill(number);
    }

    /// Connects both ends of a client, again if they are broken, and binds its window.
    fn connect(&mut self, number: usize) {
        let Client { theirs, ours, .. } = self.clients[number];
        let ends = [theirs, ours];
        ends.iter().for_each(|&end| self.nic.modify_qp(end, QpChange::Reset).expect("RESET"));
        for (one, other) in [(theirs, ours), (ours, theirs)] {
            let peer = self.nic.qp_address(other).expect("an address");
            connect_qp(&mut self.nic, one, peer).expect("each step");
            self.nic.modify_qp(one, QpChange::Access { access: Access::REMOTE }).expect("all rights");
        }
    }

    /// Connects both ends again. An operation that is under way is forgotten, and has no completion.
    fn reconnect(&mut self, number: usize) {
        self.connect(number);
        if self.clients[number].operation.take().is_some() {
            self.refill(number);
        }
    }

    fn post(&mut self, qp: QpId, operation: Operation) -> u64 {
        self.next_id += 1;
        let request = WorkRequest { id: self.next_id, signalled: true, operation };
        assert_eq!(self.nic.post_send(qp, &[request]), Ok(1), "few requests are under way");
        self.next_id
    }

    fn next_pattern(&mut self) -> Vec<u8> {
        self.pattern = self.pattern.wrapping_add(1);
        vec![self.pattern; BYTES as usize]
    }

    /// The span gets its next owner, which writes it.
    fn take_over(&mut self, number: usize) {
        let bytes = self.next_pattern();
        self.spans.0.write(place(number), &bytes);
        self.clients[number].span = bytes;
    }

    /// The client uses its buffer for something else.
    fn refill(&mut self, number: usize) {
        let bytes = self.next_pattern();
        self.buffers.0.write(place(number), &bytes);
        self.clients[number].buffer = bytes;
    }

    /// Begins an operation of a client, if none is under way. Its window is bound first, if it is not.
    pub fn begin(&mut self, number: usize, dice: &mut Dice) {
        let client = &self.clients[number];
        if client.operation.is_some() || client.withdrawal.is_some() {
            return;
        }
        if self.nic.qp_state(client.theirs) != Ok(QpState::ReadyToSend) {
            self.connect(number);
        }
        if !self.clients[number].is_bound {
            self.bind(number);
        }
        let client = &self.clients[number];
        let (length, writes) =
            (u32::try_from(dice.of(1..u64::from(BYTES) + 1)).unwrap_or(1), dice.per_mille(500));
        let local = LocalSpan { address: place(number), length, lkey: self.buffers.1.lkey };
        let remote = RemoteSpan { address: RemoteAddress(place(number)), rkey: client.key };
        let operation =
            if writes { Operation::Write { local, remote } } else { Operation::Read { local, remote } };
        let id = self.post(client.theirs, operation);
        self.clients[number].operation = Some(UnderWay { id, writes, length });
    }

    fn bind(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.key = Rkey::new(client.key.index(), client.key.low_byte().wrapping_add(1));
        client.is_bound = true;
        let (qp, binding) = (
            client.ours,
            WindowBinding {
                window: client.window.id,
                rkey: client.key,
                region: self.spans.1.id,
                address: RemoteAddress(place(number)),
                length: BYTES.into(),
                access: Access::REMOTE,
            },
        );
        self.post(qp, Operation::BindWindow(binding));
        // A binding is not waited for by units: nothing was bound before.
        self.turn();
    }

    /// Ends a client's accesses by an invalidation, which is confirmed later.
    pub fn withdraw(&mut self, number: usize, dice: &mut Dice) {
        let client = &self.clients[number];
        if !client.is_bound || client.withdrawal.is_some() {
            return;
        }
        if dice.per_mille(400) {
            return self.withdraw_by_chain(number);
        }
        if dice.per_mille(100) {
            // The queue pair ends, as that of a client that was barred.
            let (theirs, ours) = (client.theirs, client.ours);
            self.nic.modify_qp(theirs, QpChange::Error).expect("ERR");
            self.take_completions();
            if self.clients[number].withdrawal.is_none() && self.nic.qp_state(ours).is_ok() {
                self.check_moves_nothing(number);
            }
        }
        let Client { ours, key, .. } = self.clients[number];
        if self.nic.qp_state(ours) != Ok(QpState::ReadyToSend) {
            self.reconnect(number);
        }
        let id = self.post(ours, Operation::LocalInvalidate { rkey: key });
        self.clients[number].withdrawal = Some(Withdrawal { id, has_waited: false, goes_on_at: None });
    }

    /// Ends a client's accesses by a chain, whose next request tells that the memory is free: as a chain that frees a
    /// chunk does.
    fn withdraw_by_chain(&mut self, number: usize) {
        let Client { ours: queue_pair, key: rkey, by_chain, .. } = self.clients[number];
        self.post(self.chain, Operation::Chain(ChainVerb::LocalInvalidate { rkey, queue_pair }));
        let (at, region) = (place(number), self.went_on.1);
        let local = LocalSpan { address: at + 8, length: 8, lkey: region.lkey };
        let remote = RemoteSpan { address: RemoteAddress(at), rkey: region.rkey };
        let id = self.post(self.chain, Operation::FetchAndAdd { local, remote, add: 1 });
        let client = &mut self.clients[number];
        client.by_chain = by_chain + 1;
        client.withdrawal = Some(Withdrawal { id, has_waited: false, goes_on_at: Some(client.by_chain) });
    }

    /// Whether the chain that withdraws a client's accesses has gone on.
    fn has_gone_on(&self, number: usize) -> bool {
        let goes_on_at = self.clients[number].withdrawal.and_then(|withdrawal| withdrawal.goes_on_at);
        goes_on_at.is_some_and(|count| self.went_on.0.load(place(number)) == count)
    }

    /// After the end of a queue pair, which has no completion, none of its pieces moves.
    fn check_moves_nothing(&mut self, number: usize) {
        if self.queues.iter().any(|queue| queue.is_waiting()) {
            self.wrong = Some(format!("client {number}: a piece moves after the end of its queue pair"));
        }
    }

    /// Lets a unit move a piece, unless it rests.
    pub fn move_piece(&mut self, dice: &mut Dice) {
        let number = dice.index(self.queues.len());
        if self.rests[number] > 0 {
            self.rests[number] -= 1;
            return;
        }
        let _ = self.queues[number].move_next();
    }

    /// Lets a unit rest for some steps.
    pub fn rest(&mut self, dice: &mut Dice) {
        let number = dice.index(self.queues.len());
        self.rests[number] = dice.magnitude(1..64);
    }

    pub fn turn(&mut self) {
        self.nic.turn_all();
        self.take_completions();
    }

    fn take_completions(&mut self) {
        let mut completions: Vec<Completion> = Vec::new();
        self.nic.poll(self.cq, 1024, &mut completions).expect("the queue");
        while self.nic.poll_event().is_some() {}
        for Completion { request, status, .. } in completions {
            let ended = |client: &Client| client.operation.is_some_and(|operation| operation.id == request);
            let confirmed = |client: &Client| client.withdrawal.is_some_and(|it| it.id == request);
            if let Some(number) = self.clients.iter().position(ended) {
                self.end_operation(number, status);
            } else if let Some(number) = self.clients.iter().position(confirmed) {
                self.end_withdrawal(number, status);
            } else if status != Status::Success {
                self.wrong = Some(format!("a window is not bound, or not by the chain: {status}"));
            }
        }
        for number in 0..CLIENTS {
            if self.has_gone_on(number) {
                self.end_withdrawal(number, Status::Success);
            }
        }
        for client in &mut self.clients {
            if let Some(withdrawal) = &mut client.withdrawal {
                withdrawal.has_waited = true;
            }
        }
    }

    fn end_operation(&mut self, number: usize, status: Status) {
        let Some(UnderWay { writes, length, .. }) = self.clients[number].operation.take() else { return };
        if status == Status::Success {
            self.counts.succeeded += 1;
            let (mut there, mut here) = (vec![0; length as usize], vec![0; length as usize]);
            self.spans.0.read(place(number), &mut there);
            self.buffers.0.read(place(number), &mut here);
            let client = &mut self.clients[number];
            if there != here && client.withdrawal.is_none() {
                self.wrong = Some(format!("client {number}: an operation has moved other bytes, or not all"));
            }
            if writes {
                client.span[..length as usize].copy_from_slice(&there);
            }
        } else {
            self.counts.failed += 1;
        }
        self.refill(number);
    }

    fn end_withdrawal(&mut self, number: usize, status: Status) {
        let Some(withdrawal) = self.clients[number].withdrawal.take() else { return };
        let Withdrawal { has_waited, goes_on_at, .. } = withdrawal;
        if status != Status::Success {
            // The node's queue pair was broken first by a refusal. The window is ended through it when it works again.
            self.reconnect(number);
            let Client { ours, key, .. } = self.clients[number];
            let id = self.post(ours, Operation::LocalInvalidate { rkey: key });
            self.clients[number].withdrawal = Some(Withdrawal { id, ..withdrawal });
            return;
        }
        self.counts.withdrawals += 1;
        self.counts.awaited += u64::from(has_waited);
        self.counts.chains_awaited += u64::from(has_waited && goes_on_at.is_some());
        self.clients[number].is_bound = false;
        self.take_over(number);
    }

    /// Compares memory with what its owners wrote.
    ///
    /// # Errors
    /// A byte has changed.
    pub fn check(&mut self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        for (number, client) in self.clients.iter().enumerate() {
            let mut bytes = vec![0; BYTES as usize];
            self.spans.0.read(place(number), &mut bytes);
            if !client.is_bound && bytes != client.span {
                return Err(format!(
                    "client {number}: a byte arrives in memory after the confirmed withdrawal"
                ));
            }
            self.buffers.0.read(place(number), &mut bytes);
            if client.operation.is_none() && bytes != client.buffer {
                return Err(format!("client {number}: a byte arrives in a buffer after the completion"));
            }
        }
        Ok(())
    }

    /// Lets everything end.
    ///
    /// # Errors
    /// A promise is broken.
    pub fn finish(mut self, dice: &mut Dice) -> Result<CopyCounts, String> {
        self.rests.fill(0);
        for _ in 0..TURNS_MAX {
            (0..8).for_each(|_| self.move_piece(dice));
            self.turn();
            self.check()?;
            if self.clients.iter().all(|client| client.operation.is_none() && client.withdrawal.is_none()) {
                return Ok(self.counts);
            }
        }
        let left: Vec<_> = self.clients.iter().map(|client| (client.operation, client.withdrawal)).collect();
        Err(format!("something never ends: {left:?}"))
    }
}
