//! Removals of blocks from several nodes.

use super::{NodeRequest, Nodes};

/// A removal of a batch of keys. It reaches all nodes, since a copy may be left on a node that no get asks any more.
/// A copy on a node that the client cannot reach stays: the same bytes may be found again.
#[derive(Debug)]
pub struct SpreadRemoval {
    requests: Vec<NodeRequest>,
    has_nodes: bool,
    copies: Vec<usize>,
}

impl SpreadRemoval {
    /// Begins a removal of this many keys.
    #[must_use]
    pub fn new(nodes: &Nodes, keys: usize) -> Self {
        let there = (0..nodes.names().len()).filter(|node| nodes.is_there(*node));
        let requests: Vec<_> = there.map(|node| NodeRequest { node, places: (0..keys).collect() }).collect();
        Self { has_nodes: !requests.is_empty(), requests, copies: vec![0; keys] }
    }

    /// Returns the requests to make now: all of them at the first call.
    pub fn requests(&mut self) -> Vec<NodeRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Whether the removal reaches a node.
    #[must_use]
    pub fn has_nodes(&self) -> bool {
        self.has_nodes
    }

    /// Notes that a node has removed its copy of a block.
    pub fn removed(&mut self, place: usize) {
        self.copies[place] += 1;
    }

    /// Returns the number of copies that were removed.
    #[must_use]
    pub fn copies(&self, place: usize) -> usize {
        self.copies[place]
    }
}
