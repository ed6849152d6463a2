//! A node's end of operations without queue pairs: one lane on the node's own thread, or several lanes on threads of
//! their own. Refused operations are reported to the node.

use super::lane::Lane;
use super::lane_threads::LaneThreads;
use portcullis_nic::Nic;
use portcullis_node::Node;
use portcullis_onerma::{Refused, ResponderCounters};
use portcullis_protocol::Moment;
use std::time::Duration;

/// A node's end.
#[derive(Debug)]
pub(crate) enum UdpEnd {
    /// The node's thread does all work.
    OnNode(Box<Lane>),
    /// Each lane has a thread.
    OnThreads(LaneThreads),
}

impl UdpEnd {
    /// Does the work of a lane of the node's own thread, and reports refused operations to the node. Returns whether there
    /// was anything to do.
    pub fn turn<N: Nic + 'static>(&mut self, node: &mut Node<N>, now: Moment) -> bool {
        match self {
            Self::OnNode(lane) => {
                let worked = lane.turn(Duration::from_micros(now.0));
                while let Some(refused) = lane.poll_refusal() {
                    charge(node, &refused, now);
                }
                worked
            }
            Self::OnThreads(threads) => {
                let refusals = threads.take_refusals();
                refusals.iter().for_each(|refused| charge(node, refused, now));
                !refusals.is_empty()
            }
        }
    }

    /// Returns the next moment at which this end needs a turn without being called.
    pub fn next_wake(&self) -> Option<Moment> {
        let Self::OnNode(lane) = self else { return None };
        let due = lane.next_wake()?;
        Some(Moment(u64::try_from(due.as_micros()).unwrap_or(u64::MAX).saturating_add(1)))
    }

    /// Returns the counters of each lane.
    pub fn counters(&self) -> Vec<ResponderCounters> {
        match self {
            Self::OnNode(lane) => vec![lane.counters()],
            Self::OnThreads(threads) => threads.counters(),
        }
    }
}

/// Makes the node charge a refused operation. An operation that no key has sealed is dropped without a report.
fn charge<N: Nic + 'static>(node: &mut Node<N>, refused: &Refused, now: Moment) {
    if let Some((client, packet, access)) = refused.to_charge() {
        node.handle_refused_operation(client, packet, access, now);
    }
}
