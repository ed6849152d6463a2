//! A node's end of operations, and its table of regions as the node fills it.

use crate::dice::Dice;
use crate::memory::{SimMemory, Touch, Touches};
use crate::oracle::SessionId;
use portcullis_node::{OpenRegion, Regions};
use portcullis_onerma::{
    Allowed, HostAddress, OperationType, Refused, Region, RegionId, RegionKey, RegionTable, Responder,
    ResponderLimits,
};
use portcullis_protocol::{ClientId, HolderKey, Incarnation, RegionName, RemoteAddress, Rights};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// State that the node and its end share.
#[derive(Debug)]
struct Shared {
    responder: Responder<SimMemory>,
    /// The regions that are open.
    open: BTreeSet<RegionName>,
    dice: Dice,
}

/// The table of regions, for the node.
#[derive(Clone, Debug)]
struct SimRegions(Arc<Mutex<Shared>>);

/// A node's end for clients over UDP.
#[derive(Debug)]
pub(crate) struct NodeEnd {
    shared: Arc<Mutex<Shared>>,
    touches: Touches,
    /// The node's pool. Accesses through this value are not recorded.
    pool: SimMemory,
    /// Datagrams that have arrived.
    pub arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    /// The clients of this life of the node, including those that have left.
    pub clients: HashMap<ClientId, SessionId>,
}

/// The effect of a datagram.
#[derive(Debug)]
pub(crate) struct Effect {
    pub touches: Vec<Touch>,
    /// The word at the label's address before the datagram.
    pub before: Option<u64>,
    /// Whether an atomic was executed, even if it did not change the word.
    pub is_atomic: bool,
    pub refused: Vec<Refused>,
}

impl NodeEnd {
    /// Creates an end over a node's pool, and the table of regions for the node.
    pub fn new(
        pool: &SimMemory,
        incarnation: Incarnation,
        (limits, regions_max): (ResponderLimits, u32),
        dice: Dice,
    ) -> (Self, Box<dyn Regions>) {
        let (noted, touches) = pool.noted();
        let table = RegionTable::new(incarnation.0, regions_max);
        let responder = Responder::new(noted, table, limits);
        let shared = Arc::new(Mutex::new(Shared { responder, open: BTreeSet::new(), dice }));
        let regions = Box::new(SimRegions(Arc::clone(&shared)));
        let (arrived, pool, clients) = (VecDeque::new(), pool.unnoted(), HashMap::new());
        (Self { shared, touches, pool, arrived, clients }, regions)
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

    /// Processes a datagram. Returns its effect.
    pub fn take_in(&self, from: SocketAddr, packet: &[u8], word: Option<u64>, now: Duration) -> Effect {
        use portcullis_nic::Memory;
        let fits =
            |at: u64| at.is_multiple_of(8) && at.checked_add(8).is_some_and(|end| end <= self.pool.length());
        let before = word.filter(|&at| fits(at)).map(|at| self.pool.load(at));
        let mut shared = self.lock();
        let atomics = shared.responder.counters().atomics;
        shared.responder.handle_packet(from, &mut packet.to_vec(), now);
        let is_atomic = shared.responder.counters().atomics > atomics;
        let refused = std::iter::from_fn(|| shared.responder.poll_refusal()).collect();
        Effect { touches: self.touches.take(), before, is_atomic, refused }
    }

    /// Returns the next packet to send, and the accesses to memory that it took.
    pub fn transmit(&self) -> Option<(SocketAddr, Vec<u8>, Vec<Touch>)> {
        let mut packet = Vec::new();
        let to = self.lock().responder.poll_transmit(&mut packet);
        let touches = self.touches.take();
        Some((to?, packet, touches))
    }

    /// Returns the refusals of operations that have waited.
    pub fn refusals(&self) -> Vec<Refused> {
        let mut shared = self.lock();
        std::iter::from_fn(|| shared.responder.poll_refusal()).collect()
    }

    /// Drops what has run out of time. Returns the time of the next call.
    pub fn look_at_time(&self, now: Duration) -> Option<Duration> {
        let mut shared = self.lock();
        shared.responder.handle_timeout(now);
        shared.responder.next_timeout()
    }
}

fn allowed(rights: Rights) -> Allowed {
    let of = [
        (Rights::READ, OperationType::Read),
        (Rights::WRITE, OperationType::Write),
        (Rights::ATOMIC, OperationType::Atomic),
    ];
    let types: Vec<OperationType> =
        of.into_iter().filter(|(right, _)| rights.contains(*right)).map(|(_, it)| it).collect();
    Allowed::these(&types)
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
            allowed: allowed(rights),
        };
        let id = shared.responder.regions().insert(region).ok()?;
        let key = shared.responder.regions().derive(id, HostAddress(host), client.0)?;
        let name = RegionName { index: id.index, generation: id.generation };
        shared.open.insert(name);
        Some((name, HolderKey(key.to_bytes())))
    }

    fn close(&mut self, region: RegionName) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = RegionId { index: region.index, generation: region.generation };
        assert!(shared.responder.regions().remove(id), "a region is closed once");
        shared.open.remove(&region);
    }
}
