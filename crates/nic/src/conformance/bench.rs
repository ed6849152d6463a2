//! The bench on which a NIC is tried: two protection domains, an owner's memory, a client's memory, and connected
//! pairs of queue pairs on one NIC in loopback.
//!
//! The two ends of a pair are in different domains, as they are on two machines: a NIC that checks a key against
//! the requester's domain fails here at once.

use super::report::{Check, Stop, ensure};
use crate::{
    Access, AtomicScope, Capabilities, Completion, CompletionKind, CqId, Event, LocalSpan, Memory, Nic,
    Operation, PdId, QpAttributes, QpChange, QpId, QpState, ReceiveRequest, Region, RegionId, RemoteAddress,
    RemoteSpan, Rkey, Status, Window, WindowBinding, WindowId, WindowKind, WorkRequest,
};
use std::time::{Duration, Instant};

/// Bytes of the owner's memory and of the client's, each.
pub(super) const MEMORY_BYTES: u64 = 16 * 1024;
/// Where the owner's memory starts, for peers and local spans.
pub(super) const POOL_BASE: u64 = 0x10_0000_0000;
/// Where the client's memory starts, for its local spans.
pub(super) const LOCAL_BASE: u64 = 0x20_0000_0000;
/// Where the range under test starts in the owner's memory, in bytes.
pub(super) const HELD_OFFSET: u64 = 4096;
/// Bytes of the range under test.
pub(super) const HELD_BYTES: u64 = 256;
/// The first address of the range under test.
pub(super) const HELD: u64 = POOL_BASE + HELD_OFFSET;
/// Where in the client's memory requests read and write, in bytes: not at its start, so that a stray byte shows.
pub(super) const LOCAL_OFFSET: u64 = 1024;
/// The waiting time after which a condition counts as never coming true. Nothing waits this long on a good NIC.
const PATIENCE: Duration = Duration::from_secs(5);
/// Completions that a queue of the bench holds.
const CQ_DEPTH: u32 = 64;
/// Requests, and receives, that a queue pair of the bench holds unless the promise is about that.
pub(super) const QUEUE_DEPTH: u32 = 16;
/// [`QpChange::ReadyToSend`]: try again for ever.
pub(super) const RETRY_FOR_EVER: u8 = 7;

/// What carries the key under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    Region,
    Window(WindowKind),
}

/// A key over exactly the range under test, and what carries it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) rkey: Rkey,
    pub(super) object: HeldObject,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum HeldObject {
    Region(RegionId),
    Window(WindowId),
}

/// A queue pair and its two completion queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) qp: QpId,
    pub(super) send_cq: CqId,
    pub(super) receive_cq: CqId,
}

/// Two connected queue pairs: requests are posted at the client's, and windows bound at the owner's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) client: End,
    pub(super) owner: End,
}

/// How a pair is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) owner_pd: PdId,
    pub(super) access: Access,
    pub(super) rnr_retries: u8,
    pub(super) depth: u32,
}

/// All bytes of both sides, to compare with later.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) pool: Vec<u8>,
    pub(super) local: Vec<u8>,
}

pub(super) struct Bench<N: Nic> {
    pub(super) nic: N,
    pub(super) capabilities: Capabilities,
    pub(super) owner_pd: PdId,
    pub(super) client_pd: PdId,
    pub(super) pool_memory: N::Memory,
    /// The owner's whole memory: windows may lie over it, peers may do nothing with its own key.
    pub(super) pool: Region,
    pub(super) local_memory: N::Memory,
    pub(super) local: Region,
    requests_numbered: u64,
}

/// Setting up.
impl<N: Nic> Bench<N> {
    pub(super) fn new(mut nic: N) -> Result<Self, Stop> {
        let capabilities = nic.capabilities();
        let owner_pd = nic.allocate_pd()?;
        let client_pd = nic.allocate_pd()?;
        let pool_memory = nic.allocate_memory(MEMORY_BYTES)?;
        let local_memory = nic.allocate_memory(MEMORY_BYTES)?;
        let size = usize::try_from(MEMORY_BYTES).unwrap_or_default();
        pool_memory.write(0, &pattern(3, size));
        local_memory.write(0, &pattern(101, size));
        let pool_access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let base = RemoteAddress(POOL_BASE);
        let pool = nic.register_region(owner_pd, &pool_memory, 0..MEMORY_BYTES, base, pool_access)?;
        let base = RemoteAddress(LOCAL_BASE);
        let local =
            nic.register_region(client_pd, &local_memory, 0..MEMORY_BYTES, base, Access::LOCAL_WRITE)?;
        let requests_numbered = 0;
        Ok(Self {
            nic,
            capabilities,
            owner_pd,
            client_pd,
            pool_memory,
            pool,
            local_memory,
            local,
            requests_numbered,
        })
    }

    pub(super) fn require_window(&self, kind: WindowKind) -> Check {
        match kind {
            WindowKind::One if !self.capabilities.window_type_1 => {
                Err(Stop::Skipped("the device has no windows of type 1"))
            }
            WindowKind::Two if !self.capabilities.window_type_2 => {
                Err(Stop::Skipped("the device has no windows of type 2"))
            }
            WindowKind::One | WindowKind::Two => Ok(()),
        }
    }

    pub(super) fn require_atomics(&self) -> Check {
        match self.capabilities.atomics {
            AtomicScope::None => Err(Stop::Skipped("the device has no atomics")),
            AtomicScope::Nic | AtomicScope::System => Ok(()),
        }
    }

    pub(super) fn plan(&self) -> Plan {
        Plan {
            owner_pd: self.owner_pd,
            access: Access::REMOTE,
            rnr_retries: RETRY_FOR_EVER,
            depth: QUEUE_DEPTH,
        }
    }

    /// A connected pair that lets everything through.
    pub(super) fn pair(&mut self) -> Result<Pair, Stop> {
        let plan = self.plan();
        self.pair_as(plan)
    }

    pub(super) fn pair_as(&mut self, plan: Plan) -> Result<Pair, Stop> {
        let pair = self.unconnected(plan)?;
        self.connect(pair, plan)?;
        Ok(pair)
    }

    /// A connected pair whose owner's end is in a domain that holds nothing else.
    pub(super) fn stranger(&mut self) -> Result<Pair, Stop> {
        let plan = Plan { owner_pd: self.nic.allocate_pd()?, ..self.plan() };
        self.pair_as(plan)
    }

    /// Both ends, in RESET.
    pub(super) fn unconnected(&mut self, plan: Plan) -> Result<Pair, Stop> {
        Ok(Pair {
            client: self.end(self.client_pd, plan.depth)?,
            owner: self.end(plan.owner_pd, plan.depth)?,
        })
    }

    fn end(&mut self, pd: PdId, depth: u32) -> Result<End, Stop> {
        let send_cq = self.nic.create_cq(CQ_DEPTH)?;
        let receive_cq = self.nic.create_cq(CQ_DEPTH)?;
        let attributes = QpAttributes { send_cq, receive_cq, send_depth: depth, receive_depth: depth };
        Ok(End { qp: self.nic.create_qp(pd, attributes)?, send_cq, receive_cq })
    }

    /// Takes both ends from RESET to RTS.
    pub(super) fn connect(&mut self, pair: Pair, plan: Plan) -> Check {
        let client = self.nic.qp_address(pair.client.qp)?;
        let owner = self.nic.qp_address(pair.owner.qp)?;
        for (qp, peer) in [(pair.client.qp, owner), (pair.owner.qp, client)] {
            self.nic.modify_qp(qp, QpChange::Init { access: plan.access })?;
            self.nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
        }
        for qp in [pair.client.qp, pair.owner.qp] {
            self.nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: plan.rnr_retries })?;
        }
        Ok(())
    }

    /// Takes both ends, whatever state they are in, back into service.
    pub(super) fn recover(&mut self, pair: Pair) -> Check {
        for end in [pair.client, pair.owner] {
            self.nic.modify_qp(end.qp, QpChange::Reset)?;
        }
        for end in [pair.client, pair.owner] {
            self.drain(end)?;
        }
        let plan = self.plan();
        self.connect(pair, plan)
    }

    /// Forgets what is in an end's completion queues.
    fn drain(&mut self, end: End) -> Check {
        for cq in [end.send_cq, end.receive_cq] {
            let mut old = Vec::new();
            while self.nic.poll(cq, 16, &mut old)? > 0 {
                ensure!(old.len() <= 2 * CQ_DEPTH as usize, "a completion queue never runs empty");
            }
        }
        Ok(())
    }

    /// A pair, and a key over the range under test that can be used through it.
    pub(super) fn fresh(&mut self, holder: Holder, access: Access) -> Result<(Pair, Held), Stop> {
        let pair = self.pair()?;
        let held = self.key(pair, holder, access)?;
        Ok((pair, held))
    }

    /// A key over exactly the range under test.
    pub(super) fn key(&mut self, pair: Pair, holder: Holder, access: Access) -> Result<Held, Stop> {
        self.key_over(pair, holder, access, HELD_BYTES)
    }

    /// A key over the first bytes of the range under test.
    pub(super) fn key_over(
        &mut self,
        pair: Pair,
        holder: Holder,
        access: Access,
        length: u64,
    ) -> Result<Held, Stop> {
        match holder {
            Holder::Region => {
                let span = HELD_OFFSET..HELD_OFFSET + length;
                let access = access | Access::LOCAL_WRITE;
                let base = RemoteAddress(HELD);
                let region =
                    self.nic.register_region(self.owner_pd, &self.pool_memory, span, base, access)?;
                Ok(Held { rkey: region.rkey, object: HeldObject::Region(region.id) })
            }
            Holder::Window(kind) => {
                let window = self.window(kind)?;
                let binding = self.binding(window.id, window.rkey.advanced(), access);
                let binding = WindowBinding { length, ..binding };
                self.succeed(pair.owner, Operation::BindWindow(binding))?;
                Ok(Held { rkey: binding.rkey, object: HeldObject::Window(window.id) })
            }
        }
    }

    /// A window that is bound to nothing yet.
    pub(super) fn window(&mut self, kind: WindowKind) -> Result<Window, Stop> {
        self.require_window(kind)?;
        Ok(self.nic.allocate_window(self.owner_pd, kind)?)
    }

    /// Binds a window over the range under test, and says its key.
    pub(super) fn bind(&mut self, end: End, window: Window, access: Access) -> Result<Rkey, Stop> {
        let binding = self.binding(window.id, window.rkey.advanced(), access);
        self.succeed(end, Operation::BindWindow(binding))?;
        Ok(binding.rkey)
    }

    /// A good bind over the range under test: checks change what they are about.
    pub(super) fn binding(&self, window: WindowId, rkey: Rkey, access: Access) -> WindowBinding {
        WindowBinding {
            window,
            rkey,
            region: self.pool.id,
            address: RemoteAddress(HELD),
            length: HELD_BYTES,
            access,
        }
    }
}

/// Spans and bytes.
impl<N: Nic> Bench<N> {
    /// A span of the client's memory.
    pub(super) fn local(&self, offset: u64, length: u32) -> LocalSpan {
        LocalSpan { address: LOCAL_BASE + offset, length, lkey: self.local.lkey }
    }

    /// A span of the owner's memory, for the owner's own requests.
    pub(super) fn pool(&self, offset: u64, length: u32) -> LocalSpan {
        LocalSpan { address: POOL_BASE + offset, length, lkey: self.pool.lkey }
    }

    /// A READ into the usual place of the client's memory.
    pub(super) fn read(&self, address: u64, length: u32, rkey: Rkey) -> Operation {
        Operation::Read { local: self.local(LOCAL_OFFSET, length), remote: remote(address, rkey) }
    }

    /// A WRITE from the usual place of the client's memory.
    pub(super) fn write(&self, address: u64, length: u32, rkey: Rkey) -> Operation {
        Operation::Write { local: self.local(LOCAL_OFFSET, length), remote: remote(address, rkey) }
    }

    pub(super) fn fetch_and_add(&self, address: u64, add: u64, rkey: Rkey) -> Operation {
        Operation::FetchAndAdd { local: self.local(LOCAL_OFFSET, 8), remote: remote(address, rkey), add }
    }

    pub(super) fn compare_and_swap(&self, address: u64, compare: u64, swap: u64, rkey: Rkey) -> Operation {
        let local = self.local(LOCAL_OFFSET, 8);
        Operation::CompareAndSwap { local, remote: remote(address, rkey), compare, swap }
    }

    /// The first word of the range under test.
    pub(super) fn held_word(&self) -> u64 {
        self.pool_memory.load(HELD_OFFSET)
    }

    pub(super) fn bytes(&self) -> Bytes {
        let size = usize::try_from(MEMORY_BYTES).unwrap_or_default();
        let (mut pool, mut local) = (vec![0; size], vec![0; size]);
        self.pool_memory.read(0, &mut pool);
        self.local_memory.read(0, &mut local);
        Bytes { pool, local }
    }

    /// Checks every byte of both sides, so that one that moved where it should not is seen wherever it is.
    pub(super) fn expect_bytes(&self, expected: &Bytes) -> Check {
        let now = self.bytes();
        for (side, now, expected) in
            [("owner", &now.pool, &expected.pool), ("client", &now.local, &expected.local)]
        {
            if let Some(at) = now.iter().zip(expected).position(|(now, expected)| now != expected) {
                let (is, should) = (now[at], expected[at]);
                return Err(Stop::Broken(format!("byte {at} of the {side} is {is:#04x}, not {should:#04x}")));
            }
        }
        Ok(())
    }
}

/// Posting and waiting.
impl<N: Nic> Bench<N> {
    /// A work request with a number of its own.
    pub(super) fn request(&mut self, operation: Operation, signalled: bool) -> WorkRequest {
        self.requests_numbered += 1;
        WorkRequest { id: self.requests_numbered, signalled, operation }
    }

    pub(super) fn post(&mut self, end: End, requests: &[WorkRequest]) -> Check {
        let accepted = self.nic.post_send(end.qp, requests)?;
        ensure!(
            accepted == requests.len(),
            "a queue with room took {accepted} of {} requests",
            requests.len()
        );
        Ok(())
    }

    /// Posts a receive and says its number.
    pub(super) fn receive(&mut self, end: End, local: LocalSpan) -> Result<u64, Stop> {
        self.requests_numbered += 1;
        let id = self.requests_numbered;
        let accepted = self.nic.post_receive(end.qp, &[ReceiveRequest { id, local }])?;
        ensure!(accepted == 1, "a receive queue with room took no receive");
        Ok(id)
    }

    /// Tries a condition again until it holds.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut Self) -> Result<Option<T>, Stop>,
    ) -> Result<T, Stop> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = holds(self)? {
                return Ok(found);
            }
            ensure!(Instant::now() < deadline, "in {} s there was no {what}", PATIENCE.as_secs());
            std::thread::yield_now();
        }
    }

    /// Waits for exactly this many completions.
    pub(super) fn completions(&mut self, cq: CqId, count: usize) -> Result<Vec<Completion>, Stop> {
        let mut seen = Vec::new();
        while seen.len() < count {
            let what = format!("completion {} of {count}", seen.len() + 1);
            let (most, mut more) = (count - seen.len(), Vec::new());
            let said = self.until(&what, |bench| {
                let said = bench.nic.poll(cq, most, &mut more)?;
                Ok((said > 0).then_some(said))
            })?;
            ensure!(said == more.len() && said <= most, "a poll for {most} gave {}, said {said}", more.len());
            seen.append(&mut more);
        }
        self.no_completion(cq)?;
        Ok(seen)
    }

    /// Checks that a completion queue is empty now.
    pub(super) fn no_completion(&mut self, cq: CqId) -> Check {
        let mut surplus = Vec::new();
        self.nic.poll(cq, 16, &mut surplus)?;
        ensure!(surplus.is_empty(), "there is a completion too many: {:?}", surplus[0]);
        Ok(())
    }

    /// Posts one request, waits for its one completion and says how it ended.
    pub(super) fn execute(&mut self, end: End, operation: Operation) -> Result<Status, Stop> {
        let request = self.request(operation, true);
        self.post(end, &[request])?;
        let completion = self.completions(end.send_cq, 1)?[0];
        let right = completion.request == request.id && completion.queue_pair == end.qp;
        ensure!(right, "{request:?} on {:?} was completed as {completion:?}", end.qp);
        ensure!(
            completion.kind == CompletionKind::Send,
            "a send queue's request completed as {completion:?}"
        );
        Ok(completion.status)
    }

    pub(super) fn succeed(&mut self, end: End, operation: Operation) -> Check {
        let status = self.execute(end, operation)?;
        ensure!(status == Status::Success, "{operation:?} should work and gave {status}");
        Ok(())
    }

    /// Checks that a request ends with one of these, and that no byte anywhere changed.
    pub(super) fn fails(&mut self, end: End, operation: Operation, statuses: &[Status]) -> Check {
        let before = self.bytes();
        let status = self.execute(end, operation)?;
        ensure!(
            statuses.contains(&status),
            "{operation:?} should give one of {statuses:?} and gave {status:?}"
        );
        self.expect_bytes(&before)
    }

    /// Checks that the peer's NIC refuses an access, and that no byte anywhere changed.
    pub(super) fn refused(&mut self, pair: Pair, operation: Operation) -> Check {
        self.fails(pair.client, operation, &[Status::RemoteAccessError])
    }

    /// Waits for the next completion of a receive queue, and says its length and what it invalidated.
    pub(super) fn received(&mut self, end: End, id: u64) -> Result<(u32, Option<Rkey>), Stop> {
        let completion = self.completions(end.receive_cq, 1)?[0];
        let right = completion.request == id
            && completion.queue_pair == end.qp
            && completion.status == Status::Success;
        ensure!(right, "receive {id} should succeed and there is {completion:?}");
        match completion.kind {
            CompletionKind::Receive { length, invalidated } => Ok((length, invalidated)),
            CompletionKind::Send => Err(Stop::Broken("a receive completed as a send".to_owned())),
        }
    }

    pub(super) fn expect_state(&mut self, end: End, expected: QpState) -> Check {
        let what = format!("{:?} in {expected}", end.qp);
        self.until(&what, |bench| {
            // Progress without taking a completion from whoever checks those.
            bench.nic.poll(end.send_cq, 0, &mut Vec::new())?;
            Ok((bench.nic.qp_state(end.qp)? == expected).then_some(()))
        })
    }

    pub(super) fn expect_event(&mut self, expected: Event) -> Check {
        let seen = self.until(&format!("{expected:?}"), |bench| Ok(bench.nic.poll_event()))?;
        ensure!(seen == expected, "there should be {expected:?} and there is {seen:?}");
        Ok(())
    }
}

pub(super) fn remote(address: u64, rkey: Rkey) -> RemoteSpan {
    RemoteSpan { address: RemoteAddress(address), rkey }
}

/// Where in a snapshot a span of bytes lies.
pub(super) fn at(offset: u64, length: u32) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    start..start + length as usize
}

/// Bytes that show where they come from: the period has no factor in common with any length used here.
fn pattern(salt: u8, length: usize) -> Vec<u8> {
    (0..251_u8).cycle().take(length).map(|byte| byte.wrapping_add(salt)).collect()
}
