//! Clients of a pool: the state of each, and the ends at which they send requests.

use super::Case;
use super::arena::ArenaMemory;
use crate::asking::AskingEnd;
use portcullis_nic::{Nic, PdId, QpId};
use portcullis_offload::{ChunkPool, ClientNumber, Reclaim, Reserve, Workers};
use portcullis_softnic::SoftNic;
use std::collections::{BTreeSet, VecDeque};

/// State of a member of the pool.
#[derive(Clone, Debug)]
pub(super) enum Life<const G: usize> {
    /// The client lives, and has these workers.
    Alive(Vec<Workers<G>>),
    /// The client is gone, and the node frees its chunks.
    Gone(Vec<Reclaim<ArenaMemory, G>>),
    /// The member is the node itself.
    Node(Box<Reserve<ArenaMemory, G>>),
    /// Nothing of the member is left.
    Forgotten,
}

/// Required content of a reply, as the chain's effects on the table show it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Due {
    Allocated(Option<u64>),
    Freed(bool),
}

/// A client of the pool.
#[derive(Clone, Debug)]
pub(super) struct Member<const G: usize> {
    pub number: ClientNumber,
    pub group: Vec<QpId>,
    pub life: Life<G>,
    /// Ends at which the client sends requests: two for each pair of workers.
    pub asks: Vec<Asks>,
    /// The domain of the client's ends.
    pd: Option<PdId>,
    /// Chunks that the client knows to hold. Used in cases in which workers may break.
    pub known: BTreeSet<u64>,
    /// Chunks whose freeing the client has requested, without knowing whether they were freed.
    pub unsure: BTreeSet<u64>,
}

impl<const G: usize> Life<G> {
    /// Whether it uses the pool.
    pub fn is_alive(&self) -> bool {
        matches!(self, Self::Alive(_) | Self::Node(_))
    }
}

/// An end at which a client sends requests, and what it waits for there.
#[derive(Clone, Debug)]
pub(super) struct Asks {
    pub end: AskingEnd<ArenaMemory>,
    /// Requests without a reply.
    pub waiting: u32,
    /// Required contents of the replies under way.
    pub due: VecDeque<Due>,
    /// For each request without a reply, the chunk that it names, if the client held that chunk.
    pub named: VecDeque<Option<u64>>,
}

impl<const G: usize> Member<G> {
    pub fn new(
        nic: &mut SoftNic<ArenaMemory>,
        pool: &mut ChunkPool<ArenaMemory, G>,
        case: &Case,
        place: u64,
    ) -> Self {
        let number = ClientNumber::new(place + 1).expect("a small number");
        let group = AskingEnd::group(nic, pool);
        let pd = nic.allocate_pd().expect("a domain");
        let (known, unsure) = (BTreeSet::new(), BTreeSet::new());
        let life = Life::Alive(Vec::new());
        let mut member = Self { number, group, life, asks: Vec::new(), pd: Some(pd), known, unsure };
        member.join(nic, pool, case);
        member
    }

    /// Creates the member that is the node itself. It takes chunks and gives them back, each time with new windows.
    pub fn node(nic: &mut SoftNic<ArenaMemory>, pool: &mut ChunkPool<ArenaMemory, G>, place: u64) -> Self {
        let number = ClientNumber::new(place + 1).expect("a small number");
        let reserve = Reserve::with_uses(pool, nic, number, 0).expect("a reserve");
        let group = vec![reserve.anchor()];
        let (known, unsure) = (BTreeSet::new(), BTreeSet::new());
        let life = Life::Node(Box::new(reserve));
        Self { number, group, life, asks: Vec::new(), pd: None, known, unsure }
    }

    /// Gives a client workers, and ends at which it sends them requests.
    pub fn join(
        &mut self,
        nic: &mut SoftNic<ArenaMemory>,
        pool: &mut ChunkPool<ArenaMemory, G>,
        case: &Case,
    ) {
        let pd = self.pd.expect("a client has a domain");
        let held = pool.chunks_of(self.number).len() as u64;
        let quota = case.quota.unwrap_or(case.chunks + 2) - held;
        let (mut asks, mut pairs) = (Vec::new(), Vec::new());
        for _ in 0..case.pairs {
            let (workers, ends) = AskingEnd::attach(nic, pool, (self.number, &self.group, quota), pd);
            asks.extend(ends.map(|end| Asks {
                end,
                waiting: 0,
                due: VecDeque::new(),
                named: VecDeque::new(),
            }));
            pairs.push(workers);
        }
        (self.life, self.asks) = (Life::Alive(pairs), asks);
    }
}
