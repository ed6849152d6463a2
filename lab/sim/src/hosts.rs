//! The machines of a cluster: nodes and clients, each with its NIC, its clock and its faults.

use crate::alarm::Alarm;
use crate::application::Application;
use crate::clock::{Clock, Nanos};
use crate::dice::Dice;
use crate::endpoint::{SharedNic, Switch};
use crate::hostile::Hostile;
use crate::memory::Touch;
use crate::nic::NodeNic;
use crate::oracle::SessionId;
use crate::over_udp::NodeEnd;
use crate::scene::SimClient;
use crate::worker::Worker;
use portcullis_node::{ClientEnds, Node};
use portcullis_protocol::ClientId;
use portcullis_softnic::core::ObjectCounts;
use std::collections::HashMap;

/// A memory node while it runs.
#[derive(Debug)]
pub(crate) struct RunningNode {
    pub nic: NodeNic,
    pub node: Node<NodeNic>,
    /// The attached clients, by the node's id. Clients over UDP have no ends.
    pub clients: HashMap<ClientId, (SessionId, Option<ClientEnds>)>,
    /// The node's end for operations without queue pairs, if there are clients over UDP.
    pub over_udp: Option<NodeEnd>,
    /// The objects of the pool of chunks on the NIC, which stay.
    pub of_pool: ObjectCounts,
}

impl RunningNode {
    /// Returns the accesses to the pool since the previous call.
    pub fn take_touches(&self) -> Vec<Touch> {
        self.nic.hook.pool.as_ref().map(|(_, touches)| touches.take()).unwrap_or_default()
    }

    /// Returns the accesses of clients to chunks since the previous call.
    pub fn take_chunk_touches(&self) -> Vec<Touch> {
        self.nic.hook.chunks.as_ref().map(|(_, touches)| touches.take()).unwrap_or_default()
    }
}

#[derive(Debug)]
pub(crate) struct NodeHost {
    pub clock: Clock,
    pub dice: Dice,
    pub running: Option<RunningNode>,
    pub paused_until: Nanos,
    /// Whether the machine's clock has been disturbed.
    pub clock_off: bool,
    /// Its NIC has faults until this time.
    pub nic_sound_from: Nanos,
    pub turn: Alarm,
    pub nic_turn: Alarm,
}

#[derive(Debug)]
pub(crate) enum Work {
    Honest(Worker),
    Hostile(Hostile),
    /// A program with sessions. The client library is inside its sessions.
    Application(Application),
}

impl Work {
    /// The session of the program's keeper, if it has one.
    pub fn keeper(&self) -> Option<SessionId> {
        match self {
            Self::Application(application) => application.keeper(),
            Self::Honest(_) | Self::Hostile(_) => None,
        }
    }

    /// The pending work, for reports.
    pub fn summary(&self) -> String {
        match self {
            Self::Honest(worker) => format!("honest: {:?}", worker.under_way()),
            Self::Hostile(hostile) => format!("hostile: {:?}", hostile.under_way()),
            Self::Application(_) => "on the paved path".to_owned(),
        }
    }

    pub fn is_idle(&self) -> bool {
        match self {
            Self::Honest(worker) => worker.is_idle(),
            Self::Hostile(hostile) => hostile.is_idle(),
            Self::Application(_) => false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Stay {
    pub session: SessionId,
    pub node: usize,
    /// The client library. `None` if sessions have it.
    pub client: Option<SimClient>,
    pub work: Work,
    /// The first switch makes completions arrive late. The second informs the client that its node is gone.
    pub switches: (Switch, Switch),
}

impl Stay {
    /// Returns the sessions of the stay: the program's and, if it has one, its keeper's.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + use<> {
        std::iter::once(self.session).chain(self.work.keeper())
    }
}

#[derive(Debug)]
pub(crate) struct ClientHost {
    pub tenant: usize,
    pub hostile: bool,
    pub clock: Clock,
    pub dice: Dice,
    pub nic: SharedNic,
    pub stay: Option<Stay>,
    pub paused_until: Nanos,
    pub late_until: Nanos,
    /// Whether the machine's clock has been disturbed.
    pub clock_off: bool,
    /// Time until which faults may interrupt the client's operations.
    pub excused_until: Nanos,
    /// Whether faults may interrupt the operations of the whole stay, because its node, or the node's NIC, has
    /// failed.
    pub let_down: bool,
    pub next_action: Nanos,
    /// Whether the client does not return.
    pub gone: bool,
    pub turn: Alarm,
    pub nic_turn: Alarm,
    /// Number of stays so far.
    pub stays: u64,
}
