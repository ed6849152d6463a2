//! The machines of a cluster: nodes and clients, each with its NIC, its clock and its troubles.

use crate::application::Application;
use crate::clock::{Clock, Nanos};
use crate::dice::Dice;
use crate::endpoint::{SharedNic, Switch};
use crate::hostile::Hostile;
use crate::memory::Touch;
use crate::nic::NodeNic;
use crate::oracle::SessionId;
use crate::scene::SimClient;
use crate::worker::Worker;
use portcullis_node::{ClientEnds, Node};
use portcullis_protocol::ClientId;
use std::collections::HashMap;

/// When something is to happen, with at most one such event waiting.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alarm {
    at: Option<Nanos>,
}

impl Alarm {
    /// Sets it, if it is not set for an earlier moment. Returns whether an event is needed.
    pub fn set(&mut self, at: Nanos) -> bool {
        let sooner = self.at.is_none_or(|set| at < set);
        if sooner {
            self.at = Some(at);
        }
        sooner
    }

    /// An event says that its moment has come: whether it is the one that counts.
    pub fn ring(&mut self, at: Nanos) -> bool {
        let rings = self.at == Some(at);
        if rings {
            self.at = None;
        }
        rings
    }
}

/// A memory node while it lives.
#[derive(Debug)]
pub(crate) struct Life {
    pub nic: NodeNic,
    pub node: Node<NodeNic>,
    /// Who is attached, by the node's number.
    pub clients: HashMap<ClientId, (SessionId, ClientEnds)>,
}

impl Life {
    /// Accesses to the pool since the last time this was asked.
    pub fn take_touches(&self) -> Vec<Touch> {
        self.nic.hook.pool.as_ref().map(|(_, touches)| touches.take()).unwrap_or_default()
    }
}

/// The machine of a node.
#[derive(Debug)]
pub(crate) struct NodeHost {
    pub clock: Clock,
    pub dice: Dice,
    pub life: Option<Life>,
    pub paused_until: Nanos,
    /// Its clock has been disturbed.
    pub clock_off: bool,
    /// Its NIC fails until then.
    pub nic_sound_from: Nanos,
    pub turn: Alarm,
    pub nic_turn: Alarm,
}

/// What a client does.
#[derive(Debug)]
pub(crate) enum Work {
    Honest(Worker),
    Hostile(Hostile),
    /// On the paved path: the client library is in its sessions.
    Application(Application),
}

impl Work {
    /// The session of its keeper, if it has one.
    pub fn keeper(&self) -> Option<SessionId> {
        match self {
            Self::Application(application) => application.keeper(),
            Self::Honest(_) | Self::Hostile(_) => None,
        }
    }

    /// What is under way, for reports.
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

/// A client's stay with a node.
#[derive(Debug)]
pub(crate) struct Stay {
    pub session: SessionId,
    pub node: usize,
    /// The client library; none where sessions have it.
    pub client: Option<SimClient>,
    pub work: Work,
    /// Its completions arrive late while the first is set; the second tells it that its node is gone.
    pub switches: (Switch, Switch),
}

/// The machine of a client.
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
    /// Its clock has been disturbed.
    pub clock_off: bool,
    /// Until then its operations may be interrupted by faults.
    pub excused_until: Nanos,
    /// The same for as long as it stays: its node, or its node's NIC, has let it down.
    pub let_down: bool,
    pub next_action: Nanos,
    /// It does not come back.
    pub gone: bool,
    pub turn: Alarm,
    pub nic_turn: Alarm,
    /// Stays so far.
    pub stays: u64,
}
