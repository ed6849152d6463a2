//! A pool of chunks on the real NIC, its clients, and the possible next steps of each of them.
//!
//! A step is one request of one queue. Requests that reach only what belongs to their own worker (its queue, its bind
//! queue, its scratch memory, its own counts) are executed along with the step before: no other queue sees when they
//! are executed.

use super::arena::{self, ArenaMemory, Difference};
use super::designs::Design;
use super::members::{Due, Life, Member};
use super::{Case, Grain};
use crate::asking::NOW;
use crate::memory::index;
use portcullis_nic::{ChainNic, Memory, Nic, QpChange, QpId, RemoteAddress};
use portcullis_offload::chain::{Line, Listing, Operand, Row, RowOperation, Scratch};
use portcullis_offload::record::Layout;
use portcullis_offload::{ChunkPool, ChunkPoolConfig, ClientNumber, Handle, Reclaim, WorkerParts, Workers};
use portcullis_softnic::SoftNic;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a chunk. They contain its holder's number, or zero.
pub(super) const CHUNK_BYTES: u64 = 8;
/// The most requests that a queue can execute without another's help. More means that a chain never ends.
const OWN_REQUESTS_MAX: u32 = 10_000;

/// A queue of a worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Part {
    Chain,
    Binds,
    Reply,
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Move {
    /// A queue of a worker executes a request.
    Execute { member: u8, worker: u8, part: Part },
    /// A client sends a request to a worker.
    Ask { member: u8, worker: u8, chunk: u8 },
    /// A client dies.
    Die { member: u8 },
    /// The node works for a client that is gone, or continues what it has begun as a client.
    Node { member: u8 },
    /// A queue of a worker fails.
    Break { member: u8, worker: u8, part: Part },
    /// The node rebuilds the pool.
    Rebuild,
    /// The node takes a chunk out of the pool.
    Take { member: u8 },
    /// The node gives a chunk back.
    Give { member: u8 },
}

impl Move {
    /// Whether no participant ever has to take this step.
    pub fn is_a_whim(self) -> bool {
        matches!(
            self,
            Self::Ask { .. } | Self::Die { .. } | Self::Break { .. } | Self::Take { .. } | Self::Give { .. }
        )
    }
}

/// Whether a worker has broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Breakage {
    /// No worker has broken.
    None,
    /// A worker has broken, and the node has not rebuilt the pool yet.
    Broken,
    /// The pool was rebuilt.
    Rebuilt,
}

/// A worker, with its purpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worker {
    pub parts: WorkerParts,
    pub frees: bool,
}

/// A system of a NIC, a pool and its clients.
pub(super) struct World<const G: usize> {
    pub case: Case,
    pub nic: SoftNic<ArenaMemory>,
    pub pool: Rc<ChunkPool<ArenaMemory, G>>,
    pub members: Rc<Vec<Member<G>>>,
    pub breakage: Breakage,
    /// The first broken condition, if there is one.
    pub broken: Option<String>,
}

/// The state of a system at a moment.
pub(super) struct Snapshot<const G: usize> {
    nic: SoftNic<ArenaMemory>,
    pool: Rc<ChunkPool<ArenaMemory, G>>,
    members: Rc<Vec<Member<G>>>,
    breakage: Breakage,
    memory: (usize, Difference),
}

impl<const G: usize> World<G> {
    /// Creates the system of a case, before any client has sent a request.
    pub fn new(case: Case) -> Self {
        arena::clear();
        let mut nic = SoftNic::default();
        let config = ChunkPoolConfig { chunks: case.chunks, chunk_bytes: CHUNK_BYTES, workers: 16 };
        let (chains, words) = case.design.chains::<G>(case.chunks);
        let mut pool = ChunkPool::create_with(&mut nic, config, chains, &words).expect("the NIC has chains");
        let members = (0..case.clients).map(|place| Member::new(&mut nic, &mut pool, &case, place));
        let mut members: Vec<_> = members.collect();
        if case.reserve > 0 {
            members.push(Member::node(&mut nic, &mut pool, case.clients));
        }
        let (pool, members, breakage) = (Rc::new(pool), Rc::new(members), Breakage::None);
        let mut world = Self { case, nic, pool, members, breakage, broken: None };
        world.run_own();
        arena::settle();
        world
    }

    pub fn note(&self) -> Snapshot<G> {
        Snapshot {
            nic: self.nic.snapshot(),
            pool: Rc::clone(&self.pool),
            members: Rc::clone(&self.members),
            breakage: self.breakage,
            memory: arena::note(),
        }
    }

    pub fn put_back(&mut self, snapshot: &Snapshot<G>) {
        self.nic = snapshot.nic.snapshot();
        self.pool = Rc::clone(&snapshot.pool);
        self.members = Rc::clone(&snapshot.members);
        self.breakage = snapshot.breakage;
        self.broken = None;
        arena::put_back(&snapshot.memory);
    }

    /// Returns the workers that a client has.
    pub fn workers(&self, member: usize) -> Vec<Worker> {
        let pair = |parts: [WorkerParts; 2]| {
            [Worker { parts: parts[0], frees: false }, Worker { parts: parts[1], frees: true }]
        };
        match &self.members[member].life {
            Life::Alive(workers) => workers.iter().flat_map(|workers| pair(workers.parts())).collect(),
            Life::Gone(reclaims) => {
                let of = |reclaim: &Reclaim<ArenaMemory, G>| match reclaim.parts()[..] {
                    [alloc, free] => pair([alloc, free]).to_vec(),
                    [hired] => vec![Worker { parts: hired, frees: true }],
                    _ => Vec::new(),
                };
                reclaims.iter().flat_map(of).collect()
            }
            Life::Node(reserve) => match reserve.parts()[..] {
                [alloc, free] => pair([alloc, free]).to_vec(),
                _ => Vec::new(),
            },
            Life::Forgotten => Vec::new(),
        }
    }

    pub fn listing(&self, worker: Worker) -> &Listing {
        let chains = self.pool.parts().chains;
        if worker.frees { &chains.free } else { &chains.alloc }
    }

    /// Returns the position of a worker's chain: the number of its next row.
    pub fn position(&mut self, worker: Worker) -> usize {
        let taken = self.nic.core().send_progress(worker.parts.chain).map_or(0, |it| it.taken);
        usize::try_from(taken).unwrap_or(0) % self.listing(worker).ring()
    }

    fn row(&mut self, worker: Worker) -> Option<Row> {
        let position = self.position(worker);
        self.listing(worker).rows().get(position).copied()
    }

    /// Returns the steps that can be tried. Some turn out to wait for something.
    pub fn moves(&mut self) -> Vec<Move> {
        let mut moves = Vec::new();
        for member in 0..self.members.len() {
            let workers = self.workers(member);
            for (place, worker) in workers.iter().enumerate() {
                let (member, place) = (small(member), small(place));
                for part in [Part::Chain, Part::Binds, Part::Reply] {
                    if self.has_request(*worker, part) {
                        moves.push(Move::Execute { member, worker: place, part });
                    }
                }
            }
            self.outside(member, &workers, &mut moves);
            self.breaks(member, &workers, &mut moves);
        }
        if self.breakage == Breakage::Broken {
            moves.push(Move::Rebuild);
        }
        moves
    }

    fn has_request(&mut self, worker: Worker, part: Part) -> bool {
        let qp = queue(worker, part);
        let core = self.nic.core();
        core.state(qp) == Some(portcullis_nic::QpState::ReadyToSend)
            && core.send_progress(qp).is_some_and(|it| it.left() > 0)
    }

    /// Adds the possible actions of clients and of the node.
    fn outside(&mut self, place: usize, workers: &[Worker], moves: &mut Vec<Move>) {
        let member = small(place);
        match self.members[place].life {
            Life::Forgotten => {}
            Life::Gone(_) => moves.push(Move::Node { member }),
            Life::Node(ref reserve) => match reserve.under_way() {
                Some(_) => moves.push(Move::Node { member }),
                None => {
                    let held = reserve.held().len() as u64;
                    moves.extend((held < self.case.reserve).then_some(Move::Take { member }));
                    moves.extend((held > 0).then_some(Move::Give { member }));
                }
            },
            Life::Alive(_) => {
                for (number, worker) in
                    workers.iter().enumerate().filter(|(number, _)| *number < 2 || number % 2 == 1)
                {
                    if !self.may_ask(*worker) {
                        continue;
                    }
                    let chunks = if worker.frees { self.named(place) } else { vec![0] };
                    let worker = small(number);
                    moves.extend(chunks.into_iter().map(|chunk| Move::Ask { member, worker, chunk }));
                }
                if self.case.dies {
                    moves.push(Move::Die { member });
                }
            }
        }
    }

    /// Returns the chunks whose freeing a client may request, counted from one. Zero is NIL. In designs that need it,
    /// clients free only what they hold.
    fn named(&self, member: usize) -> Vec<u8> {
        let number = self.members[member].number;
        let held = self.pool.chunks_of(number);
        let all = 0..=small(index(self.case.chunks));
        let is_allowed =
            |chunk: &u8| !self.case.design.needs_honesty() || held.contains(&(u64::from(*chunk) - 1));
        all.filter(|chunk| (*chunk > 0 || !self.case.design.needs_honesty()) && is_allowed(chunk)).collect()
    }

    /// Whether a client's request would be received now, after the previous one is done. A request that arrives
    /// earlier only stays in the queue until then.
    fn may_ask(&mut self, worker: Worker) -> bool {
        let parts = worker.parts;
        let received = self.nic.completions_counted(parts.received).unwrap_or(0);
        let laps = self.laps(worker);
        let admitted = self.nic.core().receive_progress(parts.messages).is_some_and(|it| it.left() > 0);
        let position = self.position(worker);
        let listing = self.listing(worker);
        let given_back = listing.position(Line::EnableRequest.first()).is_none_or(|row| position > row);
        admitted && (worker.frees || received == laps || (given_back && received == laps.wrapping_add(1)))
    }

    /// Returns the number of laps that a worker has finished.
    pub fn laps(&self, worker: Worker) -> u32 {
        let laps = self.pool.parts().scratch.load(worker.parts.scratch_at + Scratch::<G>::LAPS);
        u32::try_from(laps & u64::from(u32::MAX)).unwrap_or(0)
    }

    /// Takes a step, and executes all that follows from it in its own worker. Returns whether anything happened.
    pub fn perform(&mut self, step: Move) -> bool {
        let happened = match step {
            Move::Execute { member, worker, part } => self.execute(member.into(), worker.into(), part),
            Move::Ask { member, worker, chunk } => {
                self.ask(member.into(), worker.into(), chunk);
                true
            }
            Move::Die { member } => {
                self.die(member.into());
                true
            }
            Move::Node { member } => self.look_after(member.into()),
            Move::Break { member, worker, part } => self.break_worker(member.into(), worker.into(), part),
            Move::Rebuild => self.rebuild(),
            Move::Take { member } | Move::Give { member } => {
                self.change_reserve(member.into(), matches!(step, Move::Take { .. }))
            }
        };
        if happened {
            self.run_own();
            self.use_chunks();
        }
        happened
    }

    fn execute(&mut self, member: usize, place: usize, part: Part) -> bool {
        let worker = self.workers(member)[place];
        let row = if part == Part::Chain { self.row(worker) } else { None };
        if let Some(row) = row
            && self.case.design == Design::PatchAfterAdmission
        {
            self.check_patch(worker, row);
        }
        let before = row.map(|row| self.owner_named(worker, row));
        if !self.nic.core().execute_one(queue(worker, part), NOW) {
            return false;
        }
        self.look_at_queue(member, worker, part);
        if let (Some(row), Some(before)) = (row, before) {
            self.note_effect(member, place, worker, row, before);
        }
        if part == Part::Reply {
            self.deliver(member, place);
        }
        true
    }

    /// Checks that no queue of a worker has failed: everything that it executes was laid out for it.
    fn look_at_queue(&mut self, member: usize, worker: Worker, part: Part) {
        let failed = self.nic.core().state(queue(worker, part)) == Some(portcullis_nic::QpState::Error);
        let alive = self.members[member].life.is_alive();
        if failed && (alive || part != Part::Reply) {
            self.fail(format!("a request of client {member}'s {part:?} queue failed"));
        }
    }

    pub fn fail(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// Returns the chunk whose owner a row is about to take, with that owner, since replies report the effect.
    fn owner_named(&self, worker: Worker, row: Row) -> Option<(u64, Option<ClientNumber>)> {
        if row.label.0 != Line::TakeOwner {
            return None;
        }
        let listing = self.listing(worker);
        let at = listing.position(row.label)? as u64 * 64 + portcullis_nic::entry::REMOTE_ADDRESS;
        let (queue, span) = self.nic.queue_memory(worker.parts.chain)?;
        let record = queue.load(span.start + at);
        Layout::<G>::chunk_of(record)
            .filter(|chunk| *chunk < self.case.chunks)
            .map(|chunk| (chunk, self.owner(chunk)))
    }

    pub fn owner(&self, chunk: u64) -> Option<ClientNumber> {
        let parts = self.pool.parts();
        let word = parts.table.load(Layout::<G>::record_of(chunk) + portcullis_offload::record::OWNER_AT);
        ClientNumber::of_holder(word)
    }

    /// Records the required content of a reply.
    fn note_effect(
        &mut self,
        member: usize,
        place: usize,
        worker: Worker,
        row: Row,
        before: Option<(u64, Option<ClientNumber>)>,
    ) {
        let due = match row.label.0 {
            Line::TakeOwner => {
                let mine = Some(self.members[member].number);
                let freed = before.filter(|&(chunk, owner)| owner == mine && self.owner(chunk) != mine);
                if let Some((chunk, _)) = freed.filter(|_| self.case.breaks) {
                    let member = &mut Rc::make_mut(&mut self.members)[member];
                    member.unsure.remove(&chunk);
                }
                Due::Freed(freed.is_some())
            }
            Line::Own => Due::Allocated(self.chunk_in_scratch(worker)),
            _ => return,
        };
        if matches!(self.members[member].life, Life::Alive(_)) && self.case.design.has_replies_checked() {
            Rc::make_mut(&mut self.members)[member].asks[place].due.push_back(due);
        }
    }

    /// Returns the chunk whose record a worker has in its scratch memory.
    pub fn chunk_in_scratch(&self, worker: Worker) -> Option<u64> {
        let at = worker.parts.scratch_at + Scratch::<G>::RECORD + Layout::<G>::BIND_AT[0];
        let address = self.pool.parts().scratch.load(at + portcullis_nic::entry::REMOTE_ADDRESS);
        self.pool.geometry().chunk_at(RemoteAddress(address))
    }

    fn ask(&mut self, member: usize, place: usize, chunk: u8) {
        let handle = match u64::from(chunk).checked_sub(1) {
            Some(chunk) => self.pool.geometry().handle::<G>(chunk),
            None => Handle(0),
        };
        let member = &mut Rc::make_mut(&mut self.members)[member];
        let named = u64::from(chunk).checked_sub(1);
        member.unsure.extend(named.filter(|chunk| member.known.remove(chunk)));
        let asks = &mut member.asks[place];
        if self.case.breaks {
            asks.named.push_back(named);
        }
        asks.waiting += 1;
        asks.end.ask::<G>(&mut self.nic, handle).expect("a client may ask");
    }

    fn die(&mut self, place: usize) {
        let member = &mut Rc::make_mut(&mut self.members)[place];
        let Life::Alive(workers) = std::mem::replace(&mut member.life, Life::Forgotten) else { return };
        (member.known, member.unsure) = Default::default();
        for asks in &mut member.asks {
            let _ = self.nic.modify_qp(asks.end.qp, QpChange::Error);
            (asks.waiting, asks.due, asks.named) = (0, VecDeque::new(), VecDeque::new());
        }
        if self.case.design == Design::WorkerDies {
            for parts in workers.iter().flat_map(Workers::parts) {
                let _ = self.nic.modify_qp(parts.chain, QpChange::Error);
            }
        }
        let begun = workers.into_iter().map(|workers| Reclaim::begin(&self.pool, &mut self.nic, workers));
        let reclaims: Result<Vec<_>, _> = begun.collect();
        member.life = Life::Gone(reclaims.expect("the workers are there"));
    }

    /// Executes all requests that reach only what belongs to their own worker.
    fn run_own(&mut self) {
        let starter = self.pool.parts().starter;
        while self.nic.core().execute_one(starter, NOW) {}
        let mut executed = 0;
        let mut moved = true;
        while std::mem::replace(&mut moved, false) {
            for member in 0..self.members.len() {
                for (place, worker) in self.workers(member).into_iter().enumerate() {
                    while self.is_own(worker) && self.execute(member, place, Part::Chain) {
                        moved = true;
                        executed += 1;
                        if executed > OWN_REQUESTS_MAX {
                            return self.fail("a chain never ends".to_owned());
                        }
                    }
                    let at_once = self.is_merged(worker);
                    if at_once && self.has_request(worker, Part::Reply) {
                        moved |= self.execute(member, place, Part::Reply);
                    }
                }
            }
        }
    }

    /// Whether requests of a worker on which no other queue's requests depend are executed along with the step
    /// before.
    fn is_merged(&self, worker: Worker) -> bool {
        match self.case.grain {
            Grain::Request => false,
            Grain::AllocRows => worker.frees,
            Grain::Merged => true,
        }
    }

    /// Whether the next request of a chain reaches only what belongs to its own worker.
    fn is_own(&mut self, worker: Worker) -> bool {
        let goes_by_rows = match self.case.grain {
            Grain::AllocRows => !worker.frees,
            Grain::Request | Grain::Merged => false,
        };
        if !self.has_request(worker, Part::Chain) || (goes_by_rows && self.breakage == Breakage::None) {
            return false;
        }
        let Some(row) = self.row(worker) else { return true };
        let merged = self.is_merged(worker);
        match row.label.0 {
            Line::ReadRecord | Line::WriteTail if merged => true,
            Line::Zero if merged => !self.case.design.shows_in_scrubs(),
            Line::AddCredit | Line::ReadCredit | Line::EnableRequest => self.case.quota.is_none(),
            // The effect of such a row is determined by an image.
            Line::Zero | Line::PushNext | Line::PushTop => false,
            line => !row.releases && is_private(row.operation) && !self.case.design.reads_late(line),
        }
    }

    /// Writes into each chunk on behalf of its holder: a client that has a window may write at any time.
    fn use_chunks(&mut self) {
        for chunk in 0..self.case.chunks {
            if let Some(holder) = self.holder(chunk) {
                self.pool.chunks_memory().store(chunk * CHUNK_BYTES, holder as u64 + 1);
            }
        }
    }

    /// Returns the client that can reach a chunk. It is a failure if two clients can.
    fn holder(&mut self, chunk: u64) -> Option<usize> {
        let mut holder = None;
        for number in 0..G {
            let bound = self.window(chunk, number);
            let Some(qp) = bound else { continue };
            let member = self.members.iter().position(|member| member.group.contains(&qp));
            if holder.is_some() && holder != member {
                self.fail(format!("two clients reach chunk {chunk}"));
            }
            holder = member;
        }
        holder
    }

    /// Returns the queue pair to which a window of a chunk is bound.
    pub fn window(&mut self, chunk: u64, number: usize) -> Option<QpId> {
        let window = self.pool.parts().windows[index(chunk) * G + number].id;
        self.nic.core().window_holder(window).map(|(qp, _)| qp)
    }

    /// Delivers a reply to a client, and compares it with what has happened.
    fn deliver(&mut self, member: usize, place: usize) {
        if !matches!(self.members[member].life, Life::Alive(_)) {
            return;
        }
        let asks = &mut Rc::make_mut(&mut self.members)[member].asks[place];
        let Some(reply) = asks.end.take::<G>(&mut self.nic) else { return };
        asks.waiting = asks.waiting.saturating_sub(1);
        let due = asks.due.pop_front();
        let named = asks.named.pop_front().flatten();
        let is_free = place % 2 == 1;
        let chunk = reply.is_done.then(|| self.pool.geometry().chunk_at(reply.windows[0].address)).flatten();
        let said = if is_free { Due::Freed(reply.is_done) } else { Due::Allocated(chunk) };
        if self.case.breaks {
            self.learn(member, named, said);
        }
        if self.case.design.has_replies_checked() && due != Some(said) {
            self.fail(format!("client {member} is told {said:?}, and {due:?} has happened"));
        }
    }

    /// Updates a client's knowledge of a chunk after a reply: the client holds it, or knows nothing while it has the
    /// chunk's free under way.
    fn learn(&mut self, place: usize, named: Option<u64>, said: Due) {
        let chunk = match said {
            Due::Allocated(chunk) => chunk,
            // A chunk whose free was answered is not in doubt any more.
            Due::Freed(_) => named.filter(|chunk| self.members[place].unsure.contains(chunk)),
        };
        let Some(chunk) = chunk else { return };
        let is_mine = self.owner(chunk) == Some(self.members[place].number);
        let mut named = self.members[place].asks.iter().flat_map(|asks| &asks.named);
        let is_named = named.any(|other| *other == Some(chunk));
        let member = &mut Rc::make_mut(&mut self.members)[place];
        member.unsure.remove(&chunk);
        match (is_mine, is_named) {
            (false, _) => false,
            (true, true) => member.unsure.insert(chunk),
            (true, false) => member.known.insert(chunk),
        };
    }

    /// Checks whether a row changes an entry that may have been fetched, on NICs that fetch entries as soon as they
    /// are admitted.
    fn check_patch(&mut self, worker: Worker, row: Row) {
        let Some(progress) = self.nic.core().send_progress(worker.parts.chain) else { return };
        let listing = self.listing(worker);
        let ring = listing.ring() as u64;
        for place in targets(row.operation) {
            let Operand::Line(label, _) = place else { continue };
            let Some(target) = listing.position(label) else { continue };
            let admitted = progress.taken + 1..progress.limit.unwrap_or(0);
            if admitted.into_iter().any(|entry| entry % ring == target as u64) {
                return self.fail(format!("{:?} changes {label:?}, which may have been fetched", row.label));
            }
        }
    }
}

fn targets(operation: RowOperation) -> Vec<Operand> {
    match operation {
        RowOperation::Read { to, .. } | RowOperation::Write { to, .. } => vec![to],
        RowOperation::CopyImage { to, .. } => vec![Operand::Bind(to)],
        RowOperation::Add { to, old, .. } => vec![to, old],
        RowOperation::Swap { at, old, .. } => vec![at, old],
        _ => Vec::new(),
    }
}

fn is_private(operation: RowOperation) -> bool {
    let own = |place| matches!(place, Operand::Line(..) | Operand::Bind(_) | Operand::Scratch(_));
    match operation {
        RowOperation::Read { from, to, .. } | RowOperation::Write { from, to, .. } => own(from) && own(to),
        RowOperation::Add { to, old, .. } => own(to) && own(old),
        RowOperation::Swap { at, old, .. } => own(at) && own(old),
        _ => true,
    }
}

pub(super) fn queue(worker: Worker, part: Part) -> QpId {
    match part {
        Part::Chain => worker.parts.chain,
        Part::Binds => worker.parts.binds,
        Part::Reply => worker.parts.messages,
    }
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("cases are small")
}
