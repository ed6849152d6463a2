//! Blocks on several nodes: which node is to do what next.
//!
//! These are state machines without I/O. A driver carries the requests to the nodes, each to the node's
//! [`Store`](crate::Store), and brings the answers back. So threads, an event loop and the simulator run the same code.
//!
//! - A put stores a block on the first R nodes of its key's ranks. If one of them is lost or refuses, the next rank takes
//!   its place, and no rank after that: a get could not know how far to look.
//! - A get asks the first R + 1 ranks in their order, and one more for each young node, since each may have moved the
//!   copies down by one rank. A hit is copied to the nodes that should have the block and do not. If a young node should
//!   have it and was not asked, it is asked afterwards.
//! - A removal reaches all nodes.
//!
//! No node and no client coordinates: bytes under a key never change, so any copy is as good as another.

mod get;
mod put;
mod removal;

pub use get::{Forward, SpreadGet};
pub use put::SpreadPut;
pub use removal::SpreadRemoval;

use crate::rank::{Candidate, ranked};
use portcullis_planted::planted;

/// The number of a node among those of a [`Nodes`].
pub type NodeNumber = usize;

/// A request to one node, for the keys at these places of the caller's batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRequest {
    /// The node.
    pub node: NodeNumber,
    /// The places of the keys.
    pub places: Vec<usize>,
}

/// The nodes among which a client spreads blocks, and what it knows of them.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    names: Vec<String>,
    candidates: Vec<Candidate>,
    lost: Vec<bool>,
    near: Vec<bool>,
    young: Vec<bool>,
}

impl Nodes {
    /// Makes the nodes of these names and weights.
    #[must_use]
    pub fn new<'n>(members: impl IntoIterator<Item = (&'n str, u32)>) -> Self {
        let mut nodes = Self::default();
        for (name, weight) in members {
            nodes.names.push(name.to_owned());
            nodes.candidates.push(Candidate::new(name, weight));
            nodes.lost.push(false);
            nodes.near.push(false);
            nodes.young.push(false);
        }
        nodes
    }

    /// Returns the names of the nodes, in the order of their numbers.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Notes whether the client has lost a node. A lost node keeps its rank until the directory no longer names it:
    /// else blocks would move for each short pause.
    ///
    /// # Panics
    /// There is no such node.
    pub fn set_lost(&mut self, node: NodeNumber, is_lost: bool) {
        self.lost[node] = is_lost;
    }

    /// Notes whether a node is on this machine.
    ///
    /// # Panics
    /// There is no such node.
    pub fn set_near(&mut self, node: NodeNumber, is_near: bool) {
        self.near[node] = is_near;
    }

    /// Notes whether a node has joined, or has lost its blocks, after the oldest block that gets should find was stored.
    /// Such a node may have moved copies down by one rank, and lacks copies that it should have.
    ///
    /// # Panics
    /// There is no such node.
    pub fn set_young(&mut self, node: NodeNumber, is_young: bool) {
        self.young[node] = is_young;
    }

    /// Returns whether the client can reach a node.
    fn is_there(&self, node: NodeNumber) -> bool {
        !self.lost[node]
    }

    /// Returns the nodes that should have the copies of a key, by rank.
    #[must_use]
    pub fn home(&self, key: &[u8], copies: usize) -> Vec<NodeNumber> {
        ranked(&self.candidates, key, copies)
    }

    /// Returns the nodes that a put can ask for a key with this many copies, by rank.
    fn to_write(&self, key: &[u8], copies: usize) -> Vec<NodeNumber> {
        let mut nodes = ranked(&self.candidates, key, copies.saturating_add(1));
        nodes.retain(|node| self.is_there(*node));
        nodes
    }

    /// Returns the nodes that a get asks for a key with this many copies, in their order: by rank, but those on this
    /// machine first.
    fn to_read(&self, key: &[u8], copies: usize) -> Vec<NodeNumber> {
        let young = self.young.iter().filter(|is_young| **is_young).count();
        let further = if planted!(JoinedNodesForgotten) { 1 } else { 1 + young };
        let mut nodes = ranked(&self.candidates, key, copies.saturating_add(further));
        nodes.retain(|node| self.is_there(*node));
        nodes.sort_by_key(|node| !self.near[*node]);
        nodes
    }
}

/// Groups places by the nodes that are to do something for them.
fn by_node(nodes: usize, wanted: impl Iterator<Item = (NodeNumber, usize)>) -> Vec<NodeRequest> {
    let mut places = vec![Vec::new(); nodes];
    for (node, place) in wanted {
        places[node].push(place);
    }
    let requests = places.into_iter().enumerate().map(|(node, places)| NodeRequest { node, places });
    requests.filter(|request| !request.places.is_empty()).collect()
}
