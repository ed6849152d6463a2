//! The bench on which a NIC is tried: two protection domains, an owner's memory, a client's memory, and connected pairs
//! of queue pairs on one NIC in loopback.
//!
//! The two ends of a pair are in different domains, as they would be on two machines. A NIC that checks a key against
//! the requester's domain fails here at once.

use crate::Around;
use crate::check::{Check, Stop};
use crate::ensure;
use crate::nic_objects::NicObjects;
use portcullis_nic::{
    Access, AtomicScope, Capabilities, CqId, LocalSpan, Memory, Misuse, Nic, Operation, PdId, QpAttributes,
    QpChange, QpId, Region, RegionId, RemoteAddress, RemoteSpan, Rkey, Window, WindowBinding, WindowId,
    WindowKind,
};
use std::time::{Duration, Instant};

/// Size in bytes of the owner's memory, and of the client's.
pub const MEMORY_BYTES: u64 = 16 * 1024;
/// Start address of the owner's memory, for peers and local spans.
pub const POOL_BASE: u64 = 0x10_0000_0000;
/// Start address of the client's memory, for its local spans.
pub const LOCAL_BASE: u64 = 0x20_0000_0000;
/// Start of the range under test in the owner's memory, in bytes.
pub const HELD_OFFSET: u64 = 4096;
/// Size in bytes of the range under test.
pub const HELD_BYTES: u64 = 256;
/// The first address of the range under test.
pub const HELD: u64 = POOL_BASE + HELD_OFFSET;
/// Offset in the client's memory at which requests read and write, in bytes. It is not zero, so that a stray byte is
/// noticed.
pub const LOCAL_OFFSET: u64 = 1024;
/// Time after which a condition counts as never coming true. On a good NIC no condition takes this long.
const PATIENCE: Duration = Duration::from_secs(5);
const CQ_DEPTH: u32 = 64;
/// Number of requests, and of receives, that a queue pair of the bench holds, unless the check needs another number.
pub const QUEUE_DEPTH: u32 = 16;
/// Retry count for [`QpChange::ReadyToSend`]: retries without limit.
pub const RETRY_FOR_EVER: u8 = 7;

/// The kind of object that carries the key under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A memory region.
    Region,
    /// A memory window of this type.
    Window(WindowKind),
}

/// A key over exactly the range under test, and the object that carries it.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The key.
    pub rkey: Rkey,
    /// The region or window that the key opens.
    pub object: HeldObject,
}

/// The object on the NIC that carries a key.
#[derive(Clone, Copy, Debug)]
pub enum HeldObject {
    /// A memory region.
    Region(RegionId),
    /// A memory window.
    Window(WindowId),
}

/// A queue pair and its two completion queues.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The queue pair.
    pub qp: QpId,
    /// The completion queue of its send queue.
    pub send_cq: CqId,
    /// The completion queue of its receive queue.
    pub receive_cq: CqId,
}

/// Two connected queue pairs: requests are posted at the client's end, and windows are bound at the owner's.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The end that posts requests.
    pub client: End,
    /// The end in the domain of the memory under test.
    pub owner: End,
}

/// The parameters of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The domain of the owner's end.
    pub owner_pd: PdId,
    /// The rights of both queue pairs.
    pub access: Access,
    /// Number of retries of a send whose peer has no receive posted.
    pub rnr_retries: u8,
    /// Number of requests, and of receives, that each queue pair holds.
    pub depth: u32,
}

/// Snapshot of all bytes of both memories, for a later comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes {
    /// The bytes of the owner's memory.
    pub pool: Vec<u8>,
    /// The bytes of the client's memory.
    pub local: Vec<u8>,
}

/// The bench. Dropping it destroys its objects on the NIC, in an order that every device allows.
pub struct Bench<N: Nic> {
    /// The NIC, and a record of the objects on it.
    pub nic: Around<N, NicObjects>,
    /// The capabilities that the device reports.
    pub capabilities: Capabilities,
    /// The domain of the owner's memory.
    pub owner_pd: PdId,
    /// The domain of the client's memory.
    pub client_pd: PdId,
    /// The owner's memory.
    pub pool_memory: N::Memory,
    /// The region over the owner's whole memory. Windows may be bound over it; its own key gives peers no rights.
    pub pool: Region,
    /// The client's memory.
    pub local_memory: N::Memory,
    /// The region over the client's whole memory, for its local spans.
    pub local: Region,
    pub(crate) requests_numbered: u64,
    /// The limits on the bench's waiting.
    pub limits: Limits,
}

/// The limits on a bench's waiting.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest wait for one condition.
    pub patience: Duration,
    /// Time at which the whole check must have ended, if there is such a limit.
    pub deadline: Option<Instant>,
    /// Whether one of the limits was reached.
    pub reached: bool,
}

impl<N: Nic> std::fmt::Debug for Bench<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<N: Nic> Bench<N> {
    /// Sets up a bench on a NIC that has no other objects on it.
    ///
    /// # Errors
    /// The device refuses one of the objects.
    pub fn new(nic: N) -> Result<Self, Stop> {
        let capabilities = nic.capabilities();
        let mut nic = Around { nic, hook: NicObjects::default() };
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
            limits: Limits { patience: PATIENCE, deadline: None, reached: false },
        })
    }

    /// Destroys all objects on the NIC, and reports refusals.
    pub fn clear(mut self) -> Check {
        let Around { nic, hook: objects } = &mut self.nic;
        objects.clear(nic).map_err(|error| Stop::Broken(format!("the bench cannot be cleared: {error}")))
    }

    /// Skips a check if the device does not survive it.
    pub fn provoke(&self, misuse: Misuse) -> Check {
        if self.capabilities.crashes_on.contains(&misuse) {
            return Err(Stop::Skipped(misuse.reason()));
        }
        Ok(())
    }

    /// Skips a check if the device has no windows of this type.
    pub fn require_window(&self, kind: WindowKind) -> Check {
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

    /// Skips a check if the device has no atomics.
    pub fn require_atomics(&self) -> Check {
        match self.capabilities.atomics {
            AtomicScope::None => Err(Stop::Skipped("the device has no atomics")),
            AtomicScope::Nic | AtomicScope::System => Ok(()),
        }
    }

    /// Returns the plan of an ordinary pair: all rights, and the owner's domain.
    pub fn plan(&self) -> Plan {
        Plan {
            owner_pd: self.owner_pd,
            access: Access::REMOTE,
            rnr_retries: RETRY_FOR_EVER,
            depth: QUEUE_DEPTH,
        }
    }

    /// Makes a connected pair with all rights.
    pub fn pair(&mut self) -> Result<Pair, Stop> {
        let plan = self.plan();
        self.pair_as(plan)
    }

    /// Makes a connected pair by a plan.
    pub fn pair_as(&mut self, plan: Plan) -> Result<Pair, Stop> {
        let pair = self.unconnected(plan)?;
        self.connect(pair, plan)?;
        Ok(pair)
    }

    /// Makes a connected pair whose owner's end is in a domain of its own.
    pub fn stranger(&mut self) -> Result<Pair, Stop> {
        let plan = Plan { owner_pd: self.nic.allocate_pd()?, ..self.plan() };
        self.pair_as(plan)
    }

    /// Makes two ends, in RESET.
    pub fn unconnected(&mut self, plan: Plan) -> Result<Pair, Stop> {
        Ok(Pair {
            client: self.end(self.client_pd, plan.depth)?,
            owner: self.end(plan.owner_pd, plan.depth)?,
        })
    }

    fn end(&mut self, pd: PdId, depth: u32) -> Result<End, Stop> {
        // The queue is deep enough for all requests that may be posted: a device may insist on that.
        let entries = CQ_DEPTH.max(depth);
        let send_cq = self.nic.create_cq(entries)?;
        let receive_cq = self.nic.create_cq(entries)?;
        let attributes = QpAttributes { send_cq, receive_cq, send_depth: depth, receive_depth: depth };
        Ok(End { qp: self.nic.create_qp(pd, attributes)?, send_cq, receive_cq })
    }

    /// Takes both ends from RESET to RTS.
    pub fn connect(&mut self, pair: Pair, plan: Plan) -> Check {
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

    /// Takes both ends back into service, from any state.
    pub fn recover(&mut self, pair: Pair) -> Check {
        for end in [pair.client, pair.owner] {
            self.nic.modify_qp(end.qp, QpChange::Reset)?;
        }
        for end in [pair.client, pair.owner] {
            self.drain(end)?;
        }
        let plan = self.plan();
        self.connect(pair, plan)
    }

    /// Discards the completions in an end's completion queues.
    fn drain(&mut self, end: End) -> Check {
        for cq in [end.send_cq, end.receive_cq] {
            let mut old = Vec::new();
            while self.nic.poll(cq, 16, &mut old)? > 0 {
                ensure!(old.len() <= 2 * CQ_DEPTH as usize, "a completion queue never runs empty");
            }
        }
        Ok(())
    }

    /// Makes a pair, and a key over the range under test that can be used through it.
    pub fn fresh(&mut self, holder: Holder, access: Access) -> Result<(Pair, Held), Stop> {
        let pair = self.pair()?;
        let held = self.key(pair, holder, access)?;
        Ok((pair, held))
    }

    /// Makes a key over exactly the range under test.
    pub fn key(&mut self, pair: Pair, holder: Holder, access: Access) -> Result<Held, Stop> {
        self.key_over(pair, holder, access, HELD_BYTES)
    }

    /// Makes a key over the first bytes of the range under test.
    pub fn key_over(
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

    /// Allocates a window that is not bound yet.
    pub fn window(&mut self, kind: WindowKind) -> Result<Window, Stop> {
        self.require_window(kind)?;
        Ok(self.nic.allocate_window(self.owner_pd, kind)?)
    }

    /// Binds a window over the range under test, and returns its key.
    pub fn bind(&mut self, end: End, window: Window, access: Access) -> Result<Rkey, Stop> {
        let binding = self.binding(window.id, window.rkey.advanced(), access);
        self.succeed(end, Operation::BindWindow(binding))?;
        Ok(binding.rkey)
    }

    /// Returns the operation that ends a bind: length zero with an advanced key for type 1, an invalidate for type 2.
    pub fn unbinding(&self, kind: WindowKind, held: Held) -> Result<Operation, Stop> {
        let HeldObject::Window(window) = held.object else {
            return Err(Stop::Broken("the bench holds no window".to_owned()));
        };
        Ok(match kind {
            WindowKind::One => {
                let binding = self.binding(window, held.rkey.advanced(), Access::empty());
                Operation::BindWindow(WindowBinding { length: 0, ..binding })
            }
            WindowKind::Two => Operation::LocalInvalidate { rkey: held.rkey },
        })
    }

    /// Returns a good bind over the range under test, for checks to change.
    pub fn binding(&self, window: WindowId, rkey: Rkey, access: Access) -> WindowBinding {
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

impl<N: Nic> Bench<N> {
    /// Returns a span of the client's memory.
    pub fn local(&self, offset: u64, length: u32) -> LocalSpan {
        LocalSpan { address: LOCAL_BASE + offset, length, lkey: self.local.lkey }
    }

    /// Returns a span of the owner's memory, for the owner's own requests.
    pub fn pool(&self, offset: u64, length: u32) -> LocalSpan {
        LocalSpan { address: POOL_BASE + offset, length, lkey: self.pool.lkey }
    }

    /// Returns a READ into the usual place of the client's memory.
    pub fn read(&self, address: u64, length: u32, rkey: Rkey) -> Operation {
        Operation::Read { local: self.local(LOCAL_OFFSET, length), remote: remote(address, rkey) }
    }

    /// Returns a WRITE from the usual place of the client's memory.
    pub fn write(&self, address: u64, length: u32, rkey: Rkey) -> Operation {
        Operation::Write { local: self.local(LOCAL_OFFSET, length), remote: remote(address, rkey) }
    }

    /// Returns a fetch-and-add that writes its result to the usual place of the client's memory.
    pub fn fetch_and_add(&self, address: u64, add: u64, rkey: Rkey) -> Operation {
        Operation::FetchAndAdd { local: self.local(LOCAL_OFFSET, 8), remote: remote(address, rkey), add }
    }

    /// Returns a compare-and-swap that writes its result to the usual place of the client's memory.
    pub fn compare_and_swap(&self, address: u64, compare: u64, swap: u64, rkey: Rkey) -> Operation {
        let local = self.local(LOCAL_OFFSET, 8);
        Operation::CompareAndSwap { local, remote: remote(address, rkey), compare, swap }
    }

    /// Returns the first word of the range under test.
    pub fn held_word(&self) -> u64 {
        self.pool_memory.load(HELD_OFFSET)
    }

    /// Returns all bytes of both sides as they are now.
    pub fn bytes(&self) -> Bytes {
        let size = usize::try_from(MEMORY_BYTES).unwrap_or_default();
        let (mut pool, mut local) = (vec![0; size], vec![0; size]);
        self.pool_memory.read(0, &mut pool);
        self.local_memory.read(0, &mut local);
        Bytes { pool, local }
    }

    /// Checks every byte of both sides.
    pub fn expect_bytes(&self, expected: &Bytes) -> Check {
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

/// Returns a span of a peer's memory that a key opens.
pub fn remote(address: u64, rkey: Rkey) -> RemoteSpan {
    RemoteSpan { address: RemoteAddress(address), rkey }
}

/// Returns the place of a span of bytes in a snapshot.
pub fn at(offset: u64, length: u32) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    start..start + length as usize
}

/// Returns bytes that show their origin: their period has no factor in common with any length used here.
fn pattern(salt: u8, length: usize) -> Vec<u8> {
    (0..251_u8).cycle().take(length).map(|byte| byte.wrapping_add(salt)).collect()
}
