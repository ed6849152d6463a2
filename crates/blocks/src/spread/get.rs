//! Gets of blocks that lie on several nodes.

use super::{NodeNumber, NodeRequest, Nodes, by_node};

/// A block that is to be copied to nodes that should have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The place of the block's key in the batch.
    pub place: usize,
    /// The node that has it.
    pub from: NodeNumber,
    /// The nodes that have answered that they do not have it.
    pub to: Vec<NodeNumber>,
    /// Young nodes that were not asked. It is copied there if they do not have it.
    pub unasked: Vec<NodeNumber>,
}

/// One key of a get.
#[derive(Debug)]
struct Wanted {
    /// The nodes to ask, in their order.
    nodes: Vec<NodeNumber>,
    /// The nodes that should have the block.
    home: Vec<NodeNumber>,
    /// The nodes of `home` that are young and can be reached.
    young: Vec<NodeNumber>,
    /// Number of nodes that were asked.
    asked: usize,
    is_under_way: bool,
    /// Nodes that have answered that they do not have the block.
    missed: Vec<NodeNumber>,
    found: Option<NodeNumber>,
}

/// A get of a batch of keys.
#[derive(Debug)]
pub struct SpreadGet {
    wanted: Vec<Wanted>,
    nodes: usize,
}

impl SpreadGet {
    /// Begins a get of keys whose blocks have `copies` copies.
    #[must_use]
    pub fn new<'k>(nodes: &Nodes, copies: usize, keys: impl IntoIterator<Item = &'k [u8]>) -> Self {
        let wanted = |key| {
            let home = nodes.home(key, copies);
            let young = home.iter().copied().filter(|node| nodes.young[*node] && nodes.is_there(*node));
            Wanted {
                nodes: nodes.to_read(key, copies),
                young: young.collect(),
                home,
                asked: 0,
                is_under_way: false,
                missed: Vec::new(),
                found: None,
            }
        };
        Self { wanted: keys.into_iter().map(wanted).collect(), nodes: nodes.names().len() }
    }

    /// Returns the requests to make now, at most one a key. An empty list, while no request is under way: the get has
    /// ended.
    pub fn requests(&mut self) -> Vec<NodeRequest> {
        let next = |(place, wanted): (usize, &mut Wanted)| {
            if wanted.is_under_way || wanted.found.is_some() {
                return None;
            }
            let node = *wanted.nodes.get(wanted.asked)?;
            wanted.asked += 1;
            wanted.is_under_way = true;
            Some((node, place))
        };
        by_node(self.nodes, self.wanted.iter_mut().enumerate().filter_map(next))
    }

    /// Notes that a node has the block of a key, and that the caller has it as a whole.
    ///
    /// # Panics
    /// No request for the key is under way.
    pub fn hit(&mut self, node: NodeNumber, place: usize) {
        self.answered(place).found = Some(node);
    }

    /// Notes that a node does not have the block of a key.
    ///
    /// # Panics
    /// No request for the key is under way.
    pub fn missed(&mut self, node: NodeNumber, place: usize) {
        self.answered(place).missed.push(node);
    }

    /// Notes that a node was lost, or could not read the block. Nothing is copied there.
    ///
    /// # Panics
    /// No request for the key is under way.
    pub fn failed(&mut self, place: usize) {
        self.answered(place);
    }

    fn answered(&mut self, place: usize) -> &mut Wanted {
        let wanted = &mut self.wanted[place];
        assert!(std::mem::take(&mut wanted.is_under_way), "a request for the key is under way");
        wanted
    }

    /// Returns the node on which the block of a key was found. `None`: a miss, so far.
    #[must_use]
    pub fn found(&self, place: usize) -> Option<NodeNumber> {
        self.wanted[place].found
    }

    /// Returns the blocks that were found and are to be copied to nodes that should have them, or may have to be.
    #[must_use]
    pub fn forwards(&self) -> Vec<Forward> {
        let forward = |(place, wanted): (usize, &Wanted)| {
            let from = wanted.found?;
            let to: Vec<_> =
                wanted.missed.iter().copied().filter(|node| wanted.home.contains(node)).collect();
            let asked = &wanted.nodes[..wanted.asked];
            let unasked: Vec<_> = wanted.young.iter().copied().filter(|node| !asked.contains(node)).collect();
            (!to.is_empty() || !unasked.is_empty()).then_some(Forward { place, from, to, unasked })
        };
        self.wanted.iter().enumerate().filter_map(forward).collect()
    }
}
