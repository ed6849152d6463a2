//! Clients of a pool: what each is doing, and the ends at which they ask.

use super::Case;
use super::arena::ArenaMemory;
use crate::asking::{AskingEnd, access_end, attach};
use portcullis_nic::{Nic, QpId};
use portcullis_offload::{ChunkPool, ClientNumber, Reclaim, Workers};
use portcullis_softnic::SoftNic;
use std::collections::VecDeque;

/// What a client of the pool is doing.
#[derive(Clone, Debug)]
pub(super) enum Life<const G: usize> {
    /// It lives, and has these workers.
    Alive(Vec<Workers<G>>),
    /// It is gone, and the node frees its chunks.
    Gone(Vec<Reclaim<ArenaMemory, G>>),
    /// Nothing of it is left.
    Forgotten,
}

/// What a reply will have to say, as the chain's effects on the table show it.
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
    /// Where it asks: two for each pair of workers.
    pub asks: Vec<Asks>,
}

/// An end at which a client asks, and what it waits for there.
#[derive(Clone, Debug)]
pub(super) struct Asks {
    pub end: AskingEnd<ArenaMemory>,
    /// Requests without a reply.
    pub waiting: u32,
    /// What the replies under way have to say.
    pub due: VecDeque<Due>,
}

impl<const G: usize> Member<G> {
    pub fn new(
        nic: &mut SoftNic<ArenaMemory>,
        pool: &mut ChunkPool<ArenaMemory, G>,
        case: &Case,
        place: u64,
    ) -> Self {
        let number = ClientNumber::new(place + 1).expect("a small number");
        let group: Vec<_> = (0..G).map(|_| access_end(nic, pool.domains().access)).collect();
        let pd = nic.allocate_pd().expect("a domain");
        let mut asks = Vec::new();
        let mut pairs = Vec::new();
        for _ in 0..case.pairs {
            let quota = case.quota.unwrap_or(case.chunks + 2);
            let (workers, ends) = attach(nic, pool, (number, &group, quota), pd);
            asks.extend(ends.map(|end| Asks { end, waiting: 0, due: VecDeque::new() }));
            pairs.push(workers);
        }
        Self { number, group, life: Life::Alive(pairs), asks }
    }
}
