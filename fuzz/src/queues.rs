//! Queue memory that a client fills with anything. The NIC must not panic, must come to an end, and must not read or
//! change a byte that no window of the client's domain exposes.

use crate::input::{Input, secret};
use crate::plain::Plain;
use portcullis_nic::{
    Access, ChainRole, Lkey, LocalSpan, Memory, Operation, PdId, QpChange, QpId, ReceiveRequest, Region,
    RemoteAddress, Window, WindowBinding, WindowKind, WorkRequest,
};
use portcullis_protocol::Moment;
use portcullis_softnic::core::{Core, CqRing, QpRings, ReceivePoster, Ring, SendPoster};

/// Requests, and receives, that the client's queues hold.
const DEPTH: u32 = 8;
/// Completions that the completion queue holds: less than the client can post.
const COMPLETIONS: u32 = 16;
/// The layout of the client's memory.
const CELL: u64 = 0;
const SENDS: u64 = 64;
const RECEIVES: u64 = SENDS + 64 * DEPTH as u64;
const COMPLETED: u64 = RECEIVES + 32 * DEPTH as u64;
const ARENA: u64 = COMPLETED + 32 * COMPLETIONS as u64;
const ARENA_BYTES: u64 = 1024;
/// The address and length of the node's pool for peers, and the part that the client may reach.
const POOL: u64 = 0x1000;
const POOL_BYTES: u64 = 3072;
const OPEN: std::ops::Range<u64> = 1024..2048;
/// Numbers that may make sense as an address, and as a length.
const ADDRESSES: [u64; 7] =
    [0, 8, POOL, POOL + OPEN.start, POOL + OPEN.end, POOL + OPEN.end - 8, ARENA_BYTES - 8];
const LENGTHS: [u64; 6] = [8, 0, 16, 64, 1024, 2048];
/// Turns in which all that can be posted must be over.
const TURNS_MAX: u32 = 2000;
/// The most steps of one input.
const STEPS_MAX: u32 = 64;

/// A NIC with a client, its node and another tenant.
struct Stage {
    core: Core<Plain>,
    client: Plain,
    pool: Plain,
    client_qp: QpId,
    node_qp: QpId,
    receives: ReceivePoster<Plain>,
    keys: Vec<u64>,
    /// The regions that windows are bound over.
    regions: [Region; 2],
    posted: u64,
    received: u64,
    now: Moment,
}

/// A queue of the node's own.
fn own_queue(core: &mut Core<Plain>) -> (u32, Ring<Plain>, Ring<Plain>) {
    let (cq, send, receive) = (Plain::new(64 + 32 * 1024), Plain::new(64 * 8), Plain::new(32 * 8));
    let ring = CqRing { ring: Ring::new(cq, 64, 1024), cell: 0 };
    (core.create_cq(ring).expect("a queue"), Ring::new(send, 0, 8), Ring::new(receive, 0, 8))
}

fn connect(core: &mut Core<Plain>, qp: QpId, peer: QpId, access: Access) {
    let peer = core.qp_address(peer).expect("it is there");
    for change in [
        QpChange::Reset,
        QpChange::Init { access },
        QpChange::ReadyToReceive { peer },
        QpChange::ReadyToSend { rnr_retries: 2 },
    ] {
        core.modify_qp(qp, change).expect("the steps of a connection");
    }
}

/// A domain with a region over the pool that exposes nothing by itself, and a window over `span` of it.
fn expose(
    core: &mut Core<Plain>,
    pool: &Plain,
    span: std::ops::Range<u64>,
    access: Access,
) -> (PdId, Region, Window) {
    let pd = core.allocate_pd().expect("a domain");
    let local = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let region = core.register_region(pd, pool, 0..POOL_BYTES, RemoteAddress(POOL), local).expect("a region");
    let window = core.allocate_window(pd, WindowKind::One).expect("a window");
    let (cq, send, _) = own_queue(core);
    let rings = QpRings {
        send: send.clone(),
        receive: None,
        send_cq: cq,
        receive_cq: cq,
        label: None,
        polled: false,
        role: ChainRole::default(),
    };
    let binder = core.create_qp(pd, rings).expect("a queue pair");
    connect(core, binder, binder, Access::empty());
    let rkey = window.rkey.advanced();
    let (address, length) = (RemoteAddress(POOL + span.start), span.end - span.start);
    let binding = WindowBinding { window: window.id, rkey, region: region.id, address, length, access };
    let operation = Operation::BindWindow(binding);
    assert_eq!(SendPoster::new(send).post(&[WorkRequest { id: 0, signalled: true, operation }]), 1);
    core.ring(binder);
    while core.turn(Moment(0)) {}
    (pd, region, Window { rkey, ..window })
}

impl Stage {
    fn set(access: Access) -> Self {
        let mut core = Core::new();
        let (client, pool) = (Plain::new((ARENA + ARENA_BYTES) as usize), Plain::new(POOL_BYTES as usize));
        let (_, other, foreign) = expose(&mut core, &pool, 0..POOL_BYTES, Access::REMOTE);
        let (pd, region, window) = expose(&mut core, &pool, OPEN, access);
        let client_pd = core.allocate_pd().expect("a domain");
        let arena = core
            .register_region(
                client_pd,
                &client,
                ARENA..ARENA + ARENA_BYTES,
                RemoteAddress(0),
                Access::LOCAL_WRITE,
            )
            .expect("a region");
        let ring = |offset, depth| Ring::new(client.clone(), offset, depth);
        let cq = core.create_cq(CqRing { ring: ring(COMPLETED, COMPLETIONS), cell: CELL }).expect("a queue");
        let rings = QpRings {
            send: ring(SENDS, DEPTH),
            receive: Some(ring(RECEIVES, DEPTH)),
            send_cq: cq,
            receive_cq: cq,
            label: None,
            polled: true,
            role: ChainRole::default(),
        };
        let client_qp = core.create_qp(client_pd, rings).expect("a queue pair");
        let (cq, send, receive) = own_queue(&mut core);
        let rings = QpRings {
            send,
            receive: Some(receive.clone()),
            send_cq: cq,
            receive_cq: cq,
            label: None,
            polled: false,
            role: ChainRole::default(),
        };
        let node_qp = core.create_qp(pd, rings).expect("a queue pair");
        let keys = [arena.lkey.0, region.lkey.0, other.lkey.0, window.rkey.0, foreign.rkey.0].map(u64::from);
        let (keys, regions) = (keys.to_vec(), [region, other]);
        let receives = ReceivePoster::new(receive);
        let now = Moment(0);
        let mut stage = Self {
            core,
            client,
            pool,
            client_qp,
            node_qp,
            receives,
            keys,
            regions,
            posted: 0,
            received: 0,
            now,
        };
        stage.reconnect();
        stage
    }

    /// Connects both ends from the start, as after a recovery.
    fn reconnect(&mut self) {
        connect(&mut self.core, self.node_qp, self.client_qp, Access::REMOTE);
        connect(&mut self.core, self.client_qp, self.node_qp, Access::empty());
        self.receives.reset();
    }

    /// Writes a request with a valid lap and any words.
    fn post(&mut self, input: &mut Input<'_>) {
        let opcode =
            u64::from(input.byte() % 13) | u64::from(input.byte()) << 8 | u64::from(input.byte()) << 16;
        let words = [
            opcode | input.number(&self.keys) << 32,
            input.number(&ADDRESSES),
            input.number(&LENGTHS) & 0xffff_ffff | input.number(&self.keys) << 32,
            input.number(&ADDRESSES),
            input.number(&LENGTHS),
            // The region of a bind: the index of a key; and sometimes the queue pair that it is for.
            input.number(&self.keys) >> 8 | u64::from(input.byte() % 4) << 32,
            self.posted,
            self.posted / u64::from(DEPTH) + 1,
        ];
        let at = SENDS + self.posted % u64::from(DEPTH) * 64;
        for (offset, word) in (at..).step_by(8).zip(words) {
            self.client.store(offset, word);
        }
        if opcode & 0xff == 7 {
            // The window of a bind.
            self.client.store(at + 8, input.number(&self.keys) >> 8);
        }
        self.posted += 1;
    }

    /// Writes a receive with a valid lap and any words.
    fn receive(&mut self, input: &mut Input<'_>) {
        let at = RECEIVES + self.received % u64::from(DEPTH) * 32;
        self.client.store(at, input.number(&ADDRESSES));
        self.client.store(at + 8, input.number(&LENGTHS) & 0xffff_ffff | input.number(&self.keys) << 32);
        self.client.store(at + 24, self.received / u64::from(DEPTH) + 1);
        self.received += 1;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.choice(8) {
            0 => self.receive(input),
            1 => {
                let (at, bytes) = (u64::from(input.short()) % (ARENA + ARENA_BYTES), input.byte());
                let room = usize::try_from(ARENA + ARENA_BYTES - at).unwrap_or(0);
                self.client.write(at, input.bytes(usize::from(bytes).min(room)));
            }
            2 => self.reconnect(),
            3 => {
                self.receives.post(&[ReceiveRequest {
                    id: 0,
                    local: LocalSpan { address: 0, length: 0, lkey: Lkey(0) },
                }]);
            }
            4 => self.now = Moment(self.now.0 + u64::from(input.short())),
            _ => self.post(input),
        }
        if input.byte().is_multiple_of(2) {
            self.core.turn(self.now);
        }
    }

    /// Fills the pool with secret words: one word inside the window, its complement outside.
    fn hide(&self, secret: u64) {
        for offset in (0..POOL_BYTES).step_by(8) {
            self.pool.store(offset, if OPEN.contains(&offset) { !secret } else { secret });
        }
    }

    fn check(&mut self, secret: u64, access: Access) {
        for region in self.regions {
            self.core.deregister_region(region.id).expect_err("its window is still bound");
        }
        let (inside, outside) = ((!secret).to_le_bytes(), secret.to_le_bytes());
        let open = OPEN.start as usize..OPEN.end as usize;
        let pool = self.pool.snapshot();
        let intact = |bytes: &[u8], word| bytes.chunks(8).all(|bytes| bytes == word);
        let untouched = intact(&pool[..open.start], outside) && intact(&pool[open.end..], outside);
        assert!(untouched, "a byte outside the window changed");
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        assert!(
            access.intersects(writes) || intact(&pool[open], inside),
            "a window without the right was written"
        );
        let seen = |word| self.client.snapshot().windows(8).any(|bytes| bytes == word);
        assert!(!seen(outside), "a byte outside the window was read");
        // Atomics return the previous value, so they read as well.
        let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        assert!(access.intersects(reads) || !seen(inside), "a window without the right was read");
    }
}

/// Runs the steps that the bytes describe.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let access = Access::from_bits_truncate(input.byte()) & Access::REMOTE;
    let secret = secret(bytes);
    let mut stage = Stage::set(access);
    stage.hide(secret);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        stage.step(&mut input);
    }
    let mut turns = 0;
    while stage.core.turn_all(stage.now) {
        turns += 1;
        assert!(turns < TURNS_MAX, "the NIC never comes to an end");
    }
    stage.check(secret, access);
}
