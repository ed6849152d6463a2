//! The NIC, its engine, its clients, and the checkers' picture of their memory.

use super::EngineCounts;
use super::torn_memory::{TornMemory, interrupted};
use crate::Dice;
use portcullis_nic::{
    Access, Completion, CqId, EndpointSize, Event, Lkey, LocalSpan, Memory, Nic, Operation, PdId, QpAddress,
    QpChange, QpId, QpState, Region, RemoteAddress, RemoteSpan, Rkey, SendQueue, Status, Window,
    WindowBinding, WindowKind, WorkRequest,
};
use portcullis_softnic::core::copy_units::{PieceSizes, Pieces};
use portcullis_softnic::core::engines::{Seat, SeatTurn};
use portcullis_softnic::core::{CompletionPoller, Ring, SendPoster, ThreadRunner};
use portcullis_softnic::{NicMemory, PortLayout, PortResources, SoftNic};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Number of clients. Each has a window over a span of the node's memory.
pub(super) const CLIENTS: usize = 2;
/// Number of data queue pairs of a client. Each has a buffer of its own.
const QUEUE_PAIRS: usize = 2;
/// Bytes of a span and of a buffer.
const BYTES: u32 = 512;
/// The offset of the word to which all clients add.
const WORD: u64 = CLIENTS as u64 * BYTES as u64;
/// Turns within which an operation ends, and a busy client is lent.
const TURNS_MAX: usize = 200;
const SIZES: PieceSizes = PieceSizes { transfer_min: 400, piece_max: 100 };
const SIZE: EndpointSize = EndpointSize {
    chunk_queue_pairs: 0,
    data_queue_pairs: 2,
    send_depth: 8,
    control_depth: 1,
    message_bytes: 128,
    arena_bytes: 4096,
};

/// An engine that takes a turn when the NIC waits for it.
#[derive(Debug)]
struct Turning(Arc<Seat<TornMemory>>);

impl ThreadRunner for Turning {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        let _ = self.0.turn();
    }
}

/// A copy unit that moves a piece when the NIC waits for it.
#[derive(Debug)]
struct Moving(Arc<Pieces<TornMemory>>);

impl ThreadRunner for Moving {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        let _ = self.0.move_next();
    }
}

/// An operation that is under way.
#[derive(Clone, Debug)]
struct UnderWay {
    id: u64,
    kind: Kind,
    /// Whether a copy unit moves its bytes, if there is one.
    is_long: bool,
    /// Whether its queue pair had no rights when it was posted.
    is_without_rights: bool,
    /// The bytes of the span when a read was posted. `None`: the operation is no read.
    expected: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Add,
    Other,
}

/// A client's end of a data queue pair, and the node's.
#[derive(Debug)]
struct QueuePair {
    poster: SendPoster<TornMemory>,
    node_end: QpId,
    address: QpAddress,
    has_rights: bool,
    operation: Option<UnderWay>,
    /// The bytes that the checkers expect in the buffer, while no operation uses it.
    buffer: Option<Vec<u8>>,
}

/// A client with a port.
#[derive(Debug)]
struct Client {
    memory: TornMemory,
    arena: u64,
    lkey: Lkey,
    completions: CompletionPoller<TornMemory>,
    queue_pairs: Vec<QueuePair>,
    window: Window,
    key: Rkey,
    is_bound: bool,
    /// Whether the withdrawal that is under way has waited.
    withdrawal: Option<bool>,
    /// The bytes that the checkers expect in the span, while the client may not write it.
    span: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Bench {
    nic: SoftNic<TornMemory>,
    seat: Arc<Seat<TornMemory>>,
    /// The queue of the copy unit, if the NIC has one.
    pieces: Option<Arc<Pieces<TornMemory>>>,
    cq: CqId,
    memory: TornMemory,
    region: Region,
    clients: Vec<Client>,
    counts: EngineCounts,
    next_id: u64,
    added: u64,
    /// Refusals that clients saw, and those that the node learned of.
    refusals: [u64; 2],
    /// The pattern that is written next.
    pattern: u8,
    wrong: Option<String>,
    /// Whether clients begin nothing any more.
    is_over: bool,
}

fn place(client: usize) -> u64 {
    client as u64 * u64::from(BYTES)
}

impl Bench {
    /// Makes a NIC with an engine, and with a copy unit or without.
    pub fn new(has_copy_unit: bool) -> Self {
        let mut nic = SoftNic::<TornMemory>::default();
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(1024).expect("a queue");
        let pieces = has_copy_unit.then(Arc::<Pieces<TornMemory>>::default);
        if let Some(pieces) = &pieces {
            let unit = Arc::new(Moving(Arc::clone(pieces)));
            nic.core().set_copy_units(vec![Arc::clone(pieces)], unit, SIZES);
        }
        let mut seat = None;
        nic.core().set_engines(1, |seats| {
            seat = Some(Arc::clone(&seats[0]));
            Arc::new(Turning(Arc::clone(&seats[0])))
        });
        let memory = TornMemory::allocate(WORD + 8).expect("memory");
        let rights = Access::LOCAL_WRITE | Access::WINDOW_BIND | Access::REMOTE;
        let region = nic.register_region(pd, &memory, 0..WORD + 8, RemoteAddress(0), rights);
        let mut bench = Self {
            nic,
            seat: seat.expect("one engine"),
            pieces,
            cq,
            memory,
            region: region.expect("a region"),
            clients: Vec::new(),
            counts: EngineCounts::default(),
            next_id: 0,
            added: 0,
            refusals: [0; 2],
            pattern: 0,
            wrong: None,
            is_over: false,
        };
        (0..CLIENTS).for_each(|number| bench.join(pd, number));
        bench
    }

    fn join(&mut self, pd: PdId, number: usize) {
        let layout = PortLayout::new(SIZE);
        let memory = TornMemory::allocate(layout.bytes()).expect("memory");
        let data_sends = SendQueue { cq: self.cq, depth: 8 };
        let resources = PortResources { pd, chunks: None, cq: self.cq, data_sends };
        let (_, ends, lkey) = self.nic.create_port(memory.clone(), SIZE, resources).expect("there is room");
        let queue_pair = |((place, node_end), address)| QueuePair {
            poster: SendPoster::new(Ring::new(memory.clone(), layout.data_send(place), SIZE.send_depth)),
            node_end,
            address,
            has_rights: true,
            operation: None,
            buffer: None,
        };
        let queue_pairs: Vec<_> = (0..).zip(ends.data).zip(ends.peers).map(queue_pair).collect();
        for queue_pair in &queue_pairs {
            let access = Access::REMOTE;
            self.nic.modify_qp(queue_pair.node_end, QpChange::Access { access }).expect("all rights");
        }
        let queue = layout.data_completions();
        let ring = Ring::new(memory.clone(), queue.offset, queue.depth);
        let window = self.nic.allocate_window(pd, WindowKind::One).expect("a window");
        self.clients.push(Client {
            completions: CompletionPoller::new(ring, queue.cell),
            memory,
            arena: layout.arena(),
            lkey,
            queue_pairs,
            window,
            key: window.rkey,
            is_bound: false,
            withdrawal: None,
            span: None,
        });
        self.hand_on(number);
    }

    /// Returns the next pattern: bytes that no other owner has written lately.
    fn next_pattern(&mut self) -> Vec<u8> {
        self.pattern = self.pattern.wrapping_add(1);
        vec![self.pattern; BYTES as usize]
    }

    /// The next owner writes a client's span, which is not bound.
    fn hand_on(&mut self, number: usize) {
        let bytes = self.next_pattern();
        self.memory.write(place(number), &bytes);
        self.clients[number].span = Some(bytes);
    }

    /// Binds a client's window, or unbinds it.
    fn bind(&mut self, number: usize, is_bound: bool) {
        let region = self.region.id;
        let client = &mut self.clients[number];
        client.key = Rkey::new(client.key.index(), client.key.low_byte().wrapping_add(1));
        let (length, access) = if is_bound { (BYTES, Access::REMOTE) } else { (0, Access::empty()) };
        let binding = WindowBinding {
            window: client.window.id,
            rkey: client.key,
            region,
            address: RemoteAddress(place(number)),
            length: length.into(),
            access,
        };
        // The window is bound on the last queue pair, which clients do not break.
        let node_end = client.queue_pairs[QUEUE_PAIRS - 1].node_end;
        let operation = Operation::BindWindow(binding);
        let request = WorkRequest { id: number as u64, signalled: true, operation };
        if self.nic.post_send(node_end, &[request]) != Ok(1) {
            self.wrong = Some("the node's end takes no request".to_owned());
        }
    }

    /// Begins an operation of a client.
    pub fn begin(&mut self, number: usize, dice: &mut Dice) {
        let on = dice.index(QUEUE_PAIRS);
        let is_stale = on == 0 && dice.per_mille(20);
        let kind = match dice.index(5) {
            0 => Kind::Add,
            1 | 2 => Kind::Read,
            _ => Kind::Write,
        };
        let is_busy = self.clients[number].queue_pairs[on].operation.is_some();
        if self.is_over || is_busy || !self.clients[number].is_bound {
            return;
        }
        // Only the queue pair that is rebuilt carries requests that may be refused.
        if on > 0 && (kind != Kind::Add || !self.clients[number].queue_pairs[on].has_rights) {
            return;
        }
        let length = u32::try_from(dice.of(1..u64::from(BYTES) + 1)).expect("a few");
        self.post(number, on, kind, (length, is_stale));
    }

    fn post(&mut self, number: usize, on: usize, kind: Kind, (length, is_stale): (u32, bool)) {
        let pattern = self.next_pattern();
        let id = self.next_id;
        let region_key = self.region.rkey;
        let client = &mut self.clients[number];
        let key = if is_stale {
            Rkey::new(client.key.index(), client.key.low_byte().wrapping_sub(1))
        } else {
            client.key
        };
        let at = on as u64 * u64::from(BYTES);
        let local = |length| LocalSpan { address: at, length, lkey: client.lkey };
        let remote = RemoteSpan { address: RemoteAddress(place(number)), rkey: key };
        let operation = match kind {
            Kind::Read => Operation::Read { local: local(length), remote },
            Kind::Write => {
                client.memory.write(client.arena + at, &pattern);
                Operation::Write { local: local(length), remote }
            }
            Kind::Add => {
                let remote = RemoteSpan { address: RemoteAddress(WORD), rkey: region_key };
                Operation::FetchAndAdd { local: local(8), remote, add: 1 }
            }
            Kind::Other => Operation::LocalInvalidate { rkey: key },
        };
        let mut held = vec![0; length as usize];
        self.memory.read(place(number), &mut held);
        let queue_pair = &mut client.queue_pairs[on];
        if queue_pair.poster.post(&[WorkRequest { id, signalled: true, operation }]) == 0 {
            return;
        }
        self.next_id += 1;
        queue_pair.buffer = None;
        let (is_without_rights, expected) = (!queue_pair.has_rights, (kind == Kind::Read).then_some(held));
        let is_long = matches!(kind, Kind::Read | Kind::Write) && length >= SIZES.transfer_min;
        queue_pair.operation = Some(UnderWay { id, kind, is_long, is_without_rights, expected });
    }

    /// Begins an operation that an engine does not carry out, and that fails.
    pub fn begin_other(&mut self, number: usize, dice: &mut Dice) {
        let queue_pair = &self.clients[number].queue_pairs[0];
        if queue_pair.operation.is_none() && dice.per_mille(100) {
            self.post(number, 0, Kind::Other, (8, false));
        }
    }

    /// Withdraws a client's window, or binds it if it is unbound.
    pub fn withdraw(&mut self, number: usize) {
        let client = &mut self.clients[number];
        if client.withdrawal.is_some() {
            return;
        }
        if client.is_bound {
            client.withdrawal = Some(false);
            self.bind(number, false);
        } else {
            self.bind(number, true);
            self.nic.turn();
            self.take_completions();
            self.clients[number].is_bound = true;
            self.clients[number].span = None;
        }
    }

    /// Takes the rights of a client's first queue pair away, or gives them back.
    pub fn take_rights(&mut self, number: usize) {
        let queue_pair = &mut self.clients[number].queue_pairs[0];
        let gives_back_too_early = !queue_pair.has_rights && queue_pair.operation.is_some();
        if gives_back_too_early || self.nic.qp_state(queue_pair.node_end) != Ok(QpState::ReadyToSend) {
            return;
        }
        let access = if queue_pair.has_rights { Access::empty() } else { Access::REMOTE };
        self.nic.modify_qp(queue_pair.node_end, QpChange::Access { access }).expect("it is ready");
        queue_pair.has_rights = !queue_pair.has_rights;
    }

    /// Takes a turn of the NIC's thread.
    pub fn turn(&mut self) {
        self.nic.turn();
        self.take_completions();
    }

    /// Takes a turn of the engine, within which the NIC's thread may withdraw windows.
    pub fn turn_engine(bench: &Rc<RefCell<Self>>, dice: &mut Dice) {
        let (seat, victims) = {
            let mut own = bench.borrow_mut();
            // The NIC's thread gives and takes clients only between the engine's turns.
            own.turn();
            own.turn();
            (0..CLIENTS).for_each(|client| own.begin(client, dice));
            (Arc::clone(&own.seat), own.interruptible())
        };
        let turn = if !victims.is_empty() && dice.per_mille(500) {
            let (other, victim) = (Rc::clone(bench), victims[dice.index(victims.len())]);
            let steps = move || other.borrow_mut().go_on_within_a_turn(victim);
            interrupted(dice.of(0..1001), steps, || seat.turn())
        } else {
            seat.turn()
        };
        let mut own = bench.borrow_mut();
        own.counts.on_engine += u64::from(turn == SeatTurn::Worked);
        own.take_completions();
    }

    /// Returns the clients whose windows the NIC's thread may withdraw within a turn of the engine. That thread then neither gives
    /// a client nor takes one back, since it would wait for the end of this very turn: the engine has all clients, or all but
    /// one, of which a piece waits at the copy unit and whose operation is not refused.
    fn interruptible(&self) -> Vec<usize> {
        if self.seat.clients() == CLIENTS {
            return (0..CLIENTS).collect();
        }
        let is_handed_over = |client: &Client| {
            client.is_bound
                && client.withdrawal.is_none()
                && client.queue_pairs[0].operation.as_ref().is_some_and(|operation| operation.is_long)
        };
        let of_unit = (0..CLIENTS).filter(|&number| is_handed_over(&self.clients[number]));
        let of_unit: Vec<usize> = of_unit.collect();
        let is_moving = self.pieces.as_ref().is_some_and(|pieces| pieces.is_waiting());
        if self.seat.clients() + 1 < CLIENTS || !is_moving || of_unit.len() != 1 {
            return Vec::new();
        }
        (0..CLIENTS).filter(|number| !of_unit.contains(number)).collect()
    }

    /// Lets the copy unit move a piece.
    pub fn move_piece(&self) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.move_next();
        }
    }

    /// The NIC's thread withdraws a window while the engine is in a turn.
    fn go_on_within_a_turn(&mut self, victim: usize) {
        // The NIC's thread would wait for the end of this very turn.
        if self.seat.has_leaving() {
            return;
        }
        let begins = self.clients[victim].is_bound && self.clients[victim].withdrawal.is_none();
        if begins {
            self.withdraw(victim);
        }
        self.nic.turn();
        self.take_node_completions();
        if begins && self.clients[victim].withdrawal.is_some() {
            // It has to wait for the engine.
            self.clients[victim].withdrawal = Some(true);
            let is_moving = self.pieces.as_ref().is_some_and(|pieces| pieces.is_waiting());
            self.counts.awaited_both += u64::from(is_moving);
        }
    }

    /// Lets a client work until the engine serves it.
    pub fn make_busy(bench: &Rc<RefCell<Self>>, number: usize, dice: &mut Dice) {
        if !dice.per_mille(400) {
            return;
        }
        let before = bench.borrow().seat.clients();
        for _ in 0..TURNS_MAX {
            let mut own = bench.borrow_mut();
            let last = QUEUE_PAIRS - 1;
            if own.clients[number].queue_pairs[last].operation.is_none() {
                own.post(number, last, Kind::Add, (8, false));
            }
            own.turn();
            if own.seat.clients() > before {
                return;
            }
            own.move_piece();
            let seat = Arc::clone(&own.seat);
            drop(own);
            let _ = seat.turn();
            bench.borrow_mut().take_completions();
        }
    }

    fn take_completions(&mut self) {
        for number in 0..CLIENTS {
            while let Some((completion, taken)) = self.clients[number].completions.take() {
                self.clients[number].completions.publish();
                self.end_operation(number, &completion, taken);
            }
        }
        self.take_node_completions();
        while let Some(event) = self.nic.poll_event() {
            self.refusals[1] += u64::from(matches!(event, Event::AccessError(..)));
        }
        (0..CLIENTS).for_each(|number| self.rebuild_if_broken(number));
    }

    fn take_node_completions(&mut self) {
        let mut completions = Vec::new();
        self.nic.poll(self.cq, 64, &mut completions).expect("it is there");
        for completion in completions {
            let number = usize::try_from(completion.request).expect("a client");
            if completion.status != Status::Success {
                self.wrong = Some(format!("the node's own request ends with {:?}", completion.status));
            }
            if let Some(has_waited) = self.clients[number].withdrawal.take() {
                self.counts.withdrawals += 1;
                self.counts.awaited += u64::from(has_waited);
                self.clients[number].is_bound = false;
                self.hand_on(number);
            }
        }
    }

    fn end_operation(&mut self, number: usize, completion: &Completion, taken: u32) {
        let client = &mut self.clients[number];
        let on = completion.queue_pair.0 as usize;
        let queue_pair = &mut client.queue_pairs[on];
        queue_pair.poster.retire(taken);
        // A queue pair that is rebuilt forgets its operation, whose completion may be there already.
        let Some(operation) = queue_pair.operation.take_if(|operation| operation.id == completion.request)
        else {
            self.wrong = Some(format!("request {} ends twice", completion.request));
            return;
        };
        let mut buffer = vec![0; BYTES as usize];
        client.memory.read(client.arena + on as u64 * u64::from(BYTES), &mut buffer);
        let returned = operation.expected.as_ref().map(|expected| &buffer[..expected.len()]);
        let is_other = operation.expected.as_deref() != returned;
        queue_pair.buffer = Some(buffer.clone());
        if completion.status != Status::Success {
            self.counts.failed += 1;
            self.refusals[0] += u64::from(completion.status == Status::RemoteAccessError);
            return;
        }
        self.counts.succeeded += 1;
        self.added += u64::from(operation.kind == Kind::Add);
        if operation.is_without_rights {
            self.wrong = Some("a queue pair without rights allows an access".to_owned());
        } else if is_other {
            self.wrong = Some("a read returns other bytes than the span held".to_owned());
        }
    }

    /// Rebuilds a client's first queue pair if it is broken and its operations have ended.
    fn rebuild_if_broken(&mut self, number: usize) {
        let queue_pair = &mut self.clients[number].queue_pairs[0];
        let (ours, peer) = (queue_pair.node_end, queue_pair.address);
        if queue_pair.operation.is_some() || self.nic.qp_state(ours) != Ok(QpState::Error) {
            return;
        }
        queue_pair.has_rights = true;
        let steps = [
            QpChange::Reset,
            QpChange::Init { access: Access::REMOTE },
            QpChange::ReadyToReceive { peer },
            QpChange::ReadyToSend { rnr_retries: 7 },
        ];
        steps.into_iter().for_each(|step| self.nic.modify_qp(ours, step).expect("each step"));
        self.clients[number].queue_pairs[0].poster.reset();
    }

    /// Compares memory with the checkers' picture.
    pub fn check(&mut self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        for (number, client) in self.clients.iter().enumerate() {
            let mut found = vec![0; BYTES as usize];
            self.memory.read(place(number), &mut found);
            if client.span.as_ref().is_some_and(|span| *span != found) {
                return Err("a byte arrives in memory after the confirmed withdrawal".to_owned());
            }
            for (on, queue_pair) in client.queue_pairs.iter().enumerate() {
                client.memory.read(client.arena + on as u64 * u64::from(BYTES), &mut found);
                if queue_pair.buffer.as_ref().is_some_and(|buffer| *buffer != found) {
                    return Err("a byte arrives in a buffer after the completion".to_owned());
                }
            }
        }
        let word = self.memory.load(WORD);
        let under_way = self.clients.iter().flat_map(|client| &client.queue_pairs);
        let under_way = under_way.filter(|queue_pair| queue_pair.operation.is_some()).count() as u64;
        if word < self.added || word > self.added + under_way {
            return Err(format!("{} additions make {word}", self.added));
        }
        Ok(())
    }

    /// Ends all operations, and compares the counts.
    pub fn finish(bench: &Rc<RefCell<Self>>, dice: &mut Dice) -> Result<EngineCounts, String> {
        bench.borrow_mut().is_over = true;
        for _ in 0..TURNS_MAX {
            Self::turn_engine(bench, dice);
            let mut own = bench.borrow_mut();
            own.move_piece();
            own.turn();
            own.check()?;
        }
        let mut own = bench.borrow_mut();
        let waits = |queue_pair: &QueuePair| queue_pair.operation.is_some();
        if own.clients.iter().flat_map(|client| &client.queue_pairs).any(waits) {
            return Err("an operation does not end".to_owned());
        }
        own.turn();
        if own.refusals[0] != own.refusals[1] {
            return Err(format!("{} refusals, and the node learns of {}", own.refusals[0], own.refusals[1]));
        }
        own.counts.pieces = own.pieces.as_ref().map_or(0, |pieces| pieces.finished());
        Ok(own.counts)
    }
}
