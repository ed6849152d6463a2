//! The state of the nodes, as a handle knows it.

use super::link::{Link, LinkState};
use crate::Counters;

/// The state of a node, as a handle knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStatus {
    /// The name by which keys are ranked: the node's name in the directory, or its address.
    pub name: String,
    /// The part of the blocks that the node should have: MiB of memory, or 1 for each address.
    pub weight: u32,
    /// Whether the node is on this machine.
    pub is_near: bool,
    /// The reason why the node is not reached now. `None`: it is.
    pub lost: Option<String>,
    /// Counts of this handle's operations on the node.
    pub counters: Counters,
}

impl NodeStatus {
    pub(super) fn of(link: &Link, weight: u32) -> Self {
        let lost = match link.state() {
            LinkState::Open => None,
            LinkState::Lost(reason) => Some(reason.text),
            LinkState::Closed => Some("the handle is closed".to_owned()),
        };
        Self { name: link.name.clone(), weight, is_near: link.is_near(), lost, counters: link.counters() }
    }
}
