//! A node's end of operations, in lanes, and its table of regions as the node fills it.
//!
//! A lane may be carrying out a write at the moment at which the node closes the write's region. Then the end takes no
//! other step until the write arrives in memory, some turns later.

use super::label::Label;
use crate::dice::Dice;
use crate::memory::{SimMemory, Touch, Touches, Words, index};
use crate::oracle::SessionId;
use portcullis_node::{OpenRegion, Regions};
use portcullis_onerma::{HostAddress, Refused, Region, RegionKey, RegionTable, Responder, ResponderLimits};
use portcullis_planted::planted;
use portcullis_protocol::{ClientId, HolderKey, Incarnation, RegionName, RemoteAddress};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most lanes of a node.
const LANES_MAX: u64 = 3;
/// The most turns in which a write is on its way to memory.
const TURNS_MAX: u64 = 12;

/// A datagram with the address of its sender.
type Datagram = (SocketAddr, Vec<u8>);

/// A write that a lane was carrying out when its region was closed.
#[derive(Debug)]
struct SlowWrite {
    region: RegionName,
    datagram: Datagram,
    touches: Vec<Touch>,
    turns_left: u64,
}

/// State that the node and its end share.
#[derive(Debug)]
struct Shared {
    table: RegionTable,
    lanes: Vec<Responder<SimMemory>>,
    /// The lane that sends the next packet.
    next_lane: usize,
    touches: Touches,
    /// The node's pool. Accesses through this value are not recorded.
    pool: SimMemory,
    /// The regions that are open.
    open: BTreeSet<RegionName>,
    arrived: VecDeque<Datagram>,
    slow_write: Option<SlowWrite>,
    /// The time of the latest step.
    now: Duration,
    dice: Dice,
}

/// The table of regions, for the node.
#[derive(Clone, Debug)]
struct SimRegions(Arc<Mutex<Shared>>);

/// A node's end for clients over UDP.
#[derive(Debug)]
pub(crate) struct NodeEnd {
    shared: Arc<Mutex<Shared>>,
    /// The node's pool. Accesses through this value are not recorded.
    pool: SimMemory,
    /// The clients of this life of the node, including those that have left.
    pub clients: HashMap<ClientId, SessionId>,
}

/// The effect of a datagram.
#[derive(Debug)]
pub(crate) struct Effect {
    pub touches: Vec<Touch>,
    pub refused: Vec<Refused>,
}

impl Shared {
    /// Has a lane process a datagram. Some datagrams arrive in another lane than the one that they are steered to.
    fn process(&mut self, (from, bytes): &Datagram) {
        let steered = bytes.get(8).map_or(0, |&byte| u64::from(byte));
        let number = if self.dice.per_mille(300) { self.dice.any() } else { steered };
        let lanes = self.lanes.len() as u64;
        let lane = &mut self.lanes[index(number % lanes)];
        lane.handle_packet(*from, &mut bytes.clone(), self.now);
    }

    fn refusals(&mut self) -> Vec<Refused> {
        let lanes = self.lanes.iter_mut();
        lanes.flat_map(|lane| std::iter::from_fn(|| lane.poll_refusal())).collect()
    }

    /// Lets a lane carry out a write in a region up to its last step, if the data of one has arrived.
    fn begin_slow_write(&mut self, region: RegionName) {
        if self.slow_write.is_some() || self.dice.per_mille(100) {
            return;
        }
        let is_its_data = |(_, bytes): &Datagram| {
            Label::read(bytes).is_some_and(|label| label.region == region && label.is_data_of_write())
        };
        let Some(datagram) = self.arrived.iter().position(is_its_data).and_then(|at| self.arrived.remove(at))
        else {
            return;
        };
        let label = Label::read(&datagram.1).expect("it has a label");
        let before = self.bytes_of(&label);
        self.process(&datagram);
        let touches = self.touches.take();
        if let Some(Touch::Write { offset, .. }) = touches.first() {
            let (_, bytes) = before.expect("a write is in the pool");
            self.pool.poke(*offset, &bytes);
            let turns_left = self.dice.of(1..TURNS_MAX);
            self.slow_write = Some(SlowWrite { region, datagram, touches, turns_left });
        }
    }

    /// Returns the place and the bytes of the pool that an operation names.
    fn bytes_of(&self, label: &Label) -> Option<(u64, Vec<u8>)> {
        use portcullis_nic::Memory;
        let offset = label.address.checked_sub(portcullis_node::POOL_BASE.0)?;
        let end = offset.checked_add(label.length.into())?;
        let mut bytes = vec![0; label.length as usize];
        (end <= self.pool.length()).then(|| self.pool.peek(offset, &mut bytes))?;
        Some((offset, bytes))
    }
}

impl NodeEnd {
    /// Creates an end over a node's pool, and the table of regions for the node.
    pub fn new(
        pool: &SimMemory,
        incarnation: Incarnation,
        (limits, regions_max): (ResponderLimits, u32),
        mut dice: Dice,
    ) -> (Self, Box<dyn Regions>) {
        let (noted, touches) = pool.noted();
        let table = RegionTable::new(incarnation.0, regions_max);
        let lanes = Responder::lanes(&noted, &table, limits, index(1 + dice.of(0..LANES_MAX)));
        let (pool, clients) = (pool.unnoted(), HashMap::new());
        let shared = Arc::new(Mutex::new(Shared {
            table,
            lanes,
            next_lane: 0,
            touches,
            pool: pool.clone(),
            open: BTreeSet::new(),
            arrived: VecDeque::new(),
            slow_write: None,
            now: Duration::ZERO,
            dice,
        }));
        let regions = Box::new(SimRegions(Arc::clone(&shared)));
        (Self { shared, pool, clients }, regions)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of regions that are open.
    pub fn open_regions(&self) -> usize {
        self.lock().open.len()
    }

    /// Returns the pool. Accesses through this value are not recorded.
    pub fn pool(&self) -> &SimMemory {
        &self.pool
    }

    /// Takes in a datagram, to be processed later.
    pub fn receive(&self, from: SocketAddr, bytes: Vec<u8>) {
        self.lock().arrived.push_back((from, bytes));
    }

    /// Whether datagrams wait to be processed.
    pub fn has_arrived(&self) -> bool {
        let shared = self.lock();
        !shared.arrived.is_empty() || shared.slow_write.is_some()
    }

    /// Whether a write is on its way to memory, so that the end takes no other step.
    pub fn is_writing(&self) -> bool {
        self.lock().slow_write.is_some()
    }

    /// Takes a step of the write that is on its way to memory. Returns the write's datagram and its effect if it has
    /// arrived there.
    pub fn go_on_writing(&self) -> Option<(Datagram, Effect)> {
        let mut shared = self.lock();
        let write = shared.slow_write.as_mut()?;
        write.turns_left -= 1;
        if write.turns_left > 0 {
            return None;
        }
        let SlowWrite { datagram, touches, .. } = shared.slow_write.take()?;
        for touch in &touches {
            if let Touch::Write { offset, bytes } = touch {
                shared.pool.poke(*offset, bytes);
            }
        }
        Some((datagram, Effect { touches, refused: Vec::new() }))
    }

    /// Processes the datagram that arrived first. Returns it with its effect.
    pub fn take_in(&self, now: Duration) -> Option<(Datagram, Effect)> {
        let mut shared = self.lock();
        let datagram = shared.arrived.pop_front()?;
        shared.now = now;
        shared.process(&datagram);
        let effect = Effect { touches: shared.touches.take(), refused: shared.refusals() };
        Some((datagram, effect))
    }

    /// Returns the next packet to send, and the accesses to memory that it took.
    pub fn transmit(&self) -> Option<(SocketAddr, Vec<u8>, Vec<Touch>)> {
        let mut shared = self.lock();
        let mut packet = Vec::new();
        for _ in 0..shared.lanes.len() {
            let lane = shared.next_lane;
            shared.next_lane = (lane + 1) % shared.lanes.len();
            if let Some(to) = shared.lanes[lane].poll_transmit(&mut packet) {
                return Some((to, packet, shared.touches.take()));
            }
        }
        None
    }

    /// Returns the refusals of operations that have waited.
    pub fn refusals(&self) -> Vec<Refused> {
        self.lock().refusals()
    }

    /// Drops what has run out of time. Returns the time of the next call.
    pub fn look_at_time(&self, now: Duration) -> Option<Duration> {
        let mut shared = self.lock();
        shared.now = now;
        shared.lanes.iter_mut().for_each(|lane| lane.handle_timeout(now));
        shared.lanes.iter().filter_map(Responder::next_timeout).min()
    }
}

impl Regions for SimRegions {
    fn open(&mut self, region: OpenRegion) -> Option<(RegionName, HolderKey)> {
        let OpenRegion { client, host, address, offset, length, lifetime_word, rights } = region;
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = [0; 32];
        for part in key.chunks_exact_mut(8) {
            part.copy_from_slice(&shared.dice.any().to_le_bytes());
        }
        let RemoteAddress(address) = address;
        let lifetime_word = Some(lifetime_word.0);
        let region = Region {
            key: RegionKey::new(key),
            address,
            length,
            offset,
            lifetime_word,
            allowed: rights.into(),
        };
        let id = shared.table.insert(region).ok()?;
        let key = shared.table.derive(id, HostAddress(host), client.0)?;
        let name = RegionName::from(id);
        shared.open.insert(name);
        Some((name, HolderKey(key.to_bytes())))
    }

    fn close(&mut self, region: RegionName) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.begin_slow_write(region);
        assert!(shared.table.remove(region.into()), "a region is closed once");
        shared.open.remove(&region);
    }

    fn has_ended(&mut self, region: RegionName) -> bool {
        let shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let writes = shared.slow_write.as_ref().is_some_and(|write| write.region == region);
        !writes || planted!(EndedRegionNotAwaited)
    }
}
