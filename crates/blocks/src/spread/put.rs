//! Puts of blocks on several nodes.

use super::{NodeNumber, NodeRequest, Nodes, by_node};
use portcullis_planted::planted;

/// One key of a put.
#[derive(Debug)]
struct Block {
    /// The nodes that can be asked, in the order of the key's ranks.
    ranks: Vec<NodeNumber>,
    asked: usize,
    under_way: usize,
    copies: usize,
}

/// A put of a batch of blocks.
#[derive(Debug)]
pub struct SpreadPut {
    blocks: Vec<Block>,
    copies: usize,
    nodes: usize,
}

impl SpreadPut {
    /// Begins a put of blocks with these keys on `copies` nodes each.
    #[must_use]
    pub fn new<'k>(nodes: &Nodes, copies: usize, keys: impl IntoIterator<Item = &'k [u8]>) -> Self {
        let block = |key| Block { ranks: nodes.to_write(key, copies), asked: 0, under_way: 0, copies: 0 };
        Self { blocks: keys.into_iter().map(block).collect(), copies, nodes: nodes.names().len() }
    }

    /// Returns the requests to make now: as many nodes a key as copies are missing. An empty list, while no request
    /// is under way: the put has ended.
    pub fn requests(&mut self) -> Vec<NodeRequest> {
        let mut wanted = Vec::new();
        for (place, block) in self.blocks.iter_mut().enumerate() {
            while block.copies + block.under_way < self.copies
                && let Some(node) = block.ranks.get(block.asked)
            {
                block.asked += 1;
                block.under_way += 1;
                wanted.push((*node, place));
            }
        }
        by_node(self.nodes, wanted.into_iter())
    }

    /// Notes that a node has a block as a whole: it was stored, or was there already. A block that is busy counts as
    /// refused.
    ///
    /// # Panics
    /// No request for the key is under way.
    pub fn stored(&mut self, place: usize) {
        self.answered(place).copies += 1;
    }

    /// Notes that a node was lost, or has refused a block.
    ///
    /// # Panics
    /// No request for the key is under way.
    pub fn refused(&mut self, place: usize) {
        self.answered(place).copies += usize::from(planted!(RefusalCounted));
    }

    fn answered(&mut self, place: usize) -> &mut Block {
        let block = &mut self.blocks[place];
        block.under_way = block.under_way.checked_sub(1).expect("a request for the key is under way");
        block
    }

    /// Whether as many nodes as wanted have a block.
    #[must_use]
    pub fn is_whole(&self, place: usize) -> bool {
        self.copies(place) >= self.copies
    }

    /// Returns the number of nodes that have a block. If it is N at the end, N − 1 of these nodes may die, and a get
    /// still finds the block, evictions apart, if it knows the same nodes and counts those that have joined.
    #[must_use]
    pub fn copies(&self, place: usize) -> usize {
        self.blocks[place].copies
    }
}
