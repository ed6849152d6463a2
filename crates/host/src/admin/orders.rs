//! An operator's orders and their results, on the node and as text on the socket.

use super::reports::{Bar, ClientReport, CopyUnitLoad, Counted, EngineReport, Turns, UdpLaneLoad, clock};
use crate::AuditStatus;
use crate::engine::TurnCounts;
use crate::fabric::ThreadLoads;
use portcullis_nic::Nic;
use portcullis_node::{Counters, Node};
use portcullis_protocol::Moment;
use serde::{Deserialize, Serialize};

/// An order. On the socket it is one packet of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Lists the barred and paused tenants and clients.
    List,
    /// Lifts the bars and pauses of a tenant and of its clients.
    Unbar {
        /// The tenant's name.
        tenant: String,
    },
    /// Lists the attached clients.
    Clients,
    /// Reports the node's counters.
    Counters,
}

/// The result of an order. On the socket it is JSON in packets, until the node closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Told {
    Bars(Vec<Bar>),
    Unbarred(bool),
    Clients(Vec<ClientReport>),
    Counted(Box<Counted>),
    /// The reason for which the order was not carried out.
    Refused(String),
}

/// The result of an order as the node gives it, with the moment at which it was true.
#[derive(Debug)]
pub(crate) struct OrderOutcome {
    now: Moment,
    what: What,
}

#[derive(Debug)]
enum What {
    Bars(Vec<portcullis_node::Bar>),
    Unbarred(bool),
    Clients(Vec<portcullis_node::ClientReport>),
    Counters(Box<(Counters, NodeLoad)>),
}

/// The work of a node's threads so far.
#[derive(Debug)]
pub(crate) struct NodeLoad {
    /// Durations of the turns of the node's thread.
    pub turns: TurnCounts,
    /// The work of the threads that work for the NIC.
    pub of_nic: ThreadLoads,
    /// The work of each lane of clients over UDP.
    pub udp_lanes: Vec<UdpLaneLoad>,
}

impl Order {
    /// Carries the order out on the node's thread. Formatting the result is left to other threads.
    pub fn carry_out<N: Nic>(&self, node: &mut Node<N>, load: NodeLoad, now: Moment) -> OrderOutcome {
        let what = match self {
            Self::List => What::Bars(node.bars(now)),
            Self::Unbar { tenant } => What::Unbarred(node.unbar(tenant, now)),
            Self::Clients => What::Clients(node.clients(now)),
            Self::Counters => What::Counters(Box::new((node.counters(), load))),
        };
        OrderOutcome { now, what }
    }
}

impl OrderOutcome {
    /// Converts the result for people, with times of the machine's clock.
    pub(super) fn told(self, audit: Option<AuditStatus>) -> Told {
        let clock = clock(self.now);
        match self.what {
            What::Bars(bars) => Told::Bars(bars.iter().map(|bar| Bar::new(bar, clock)).collect()),
            What::Unbarred(lifted) => Told::Unbarred(lifted),
            What::Clients(clients) => {
                Told::Clients(clients.iter().map(|client| ClientReport::new(client, clock)).collect())
            }
            What::Counters(counted) => {
                let (counters, NodeLoad { turns, of_nic, udp_lanes }) = *counted;
                let copy_units = of_nic.copy_units.into_iter().map(CopyUnitLoad::from).collect();
                let engines = of_nic.engines.into_iter().map(EngineReport::from).collect();
                let turns = Turns::new(&turns);
                Told::Counted(Box::new(Counted { counters, turns, copy_units, engines, udp_lanes, audit }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_json_that_people_can_write() {
        for (order, text) in [
            (Order::List, r#"{"command":"list"}"#),
            (Order::Unbar { tenant: "orange".to_owned() }, r#"{"command":"unbar","tenant":"orange"}"#),
            (Order::Clients, r#"{"command":"clients"}"#),
            (Order::Counters, r#"{"command":"counters"}"#),
        ] {
            assert_eq!(serde_json::to_string(&order).expect("a text"), text);
            assert_eq!(serde_json::from_str::<Order>(text).expect("an order"), order);
        }
    }
}
