//! What can happen next on the stage, and what commutes.

/// Data queue pairs of a client: the one in use and a spare.
pub(super) const DATA_QUEUE_PAIRS: usize = 2;
/// Queue pairs of a client: for control messages, then for data.
pub(super) const QUEUE_PAIRS: usize = 1 + DATA_QUEUE_PAIRS;

/// A step of the whole. `timeless`: what comes of it does not depend on the time at which it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Move {
    /// The oldest packet that a queue pair of a client has on its way reaches the node's NIC.
    ToNode { client: usize, queue_pair: usize },
    /// The oldest packet that is on its way to a queue pair of a client reaches it, and the client looks at it.
    ToClient { client: usize, queue_pair: usize, timeless: bool },
    /// A client does the next thing that it wants to do.
    Act { client: usize },
    /// The node's processor has a turn.
    NodeTurn,
    /// The node's NIC carries out what was posted to it.
    NodeNic,
    /// The node hears that a client's process has ended.
    Farewell { client: usize },
    /// Time goes on to the next moment that matters.
    Clock,
}

/// Where a move happens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Node,
    Client(usize),
    Everywhere,
}

impl Move {
    fn place(self) -> Place {
        match self {
            Self::ToNode { .. } | Self::NodeTurn | Self::NodeNic | Self::Farewell { .. } => Place::Node,
            Self::ToClient { client, .. } | Self::Act { client } => Place::Client(client),
            Self::Clock => Place::Everywhere,
        }
    }

    /// Whether it is the same at another time. No NIC on the stage looks at the time.
    fn is_timeless(self) -> bool {
        match self {
            Self::ToNode { .. } => true,
            Self::ToClient { timeless, .. } => timeless,
            Self::Act { .. } | Self::NodeTurn | Self::NodeNic | Self::Farewell { .. } | Self::Clock => false,
        }
    }

    /// Whether two moves lead to the same state in either order.
    ///
    /// What happens at a client touches that client's NIC, library and script, its own entries at the checkers, the
    /// ends of the queues towards the node and the heads of those from it; what happens at the node touches the node
    /// and its NIC, and the other ends of the queues. So moves at different places do not conflict. At the node, a
    /// message that arrives fills a receive, and an access of a data queue pair touches the pool: not they either.
    ///
    /// The checkers read the time and the order of what they see. Of two orders the one must be tried in which they
    /// ask for more: [`super::stage::Stage::moves`] gives accesses before messages, and both before the clock, since
    /// a permission's holder must be served as long as it has not asked for its end and time has not run out.
    pub fn commutes(self, other: Self) -> bool {
        if self == Self::Clock || other == Self::Clock {
            return self.is_timeless() || other.is_timeless();
        }
        match (self, other) {
            (Self::ToNode { queue_pair: one, .. }, Self::ToNode { queue_pair: other, .. }) => {
                (one == 0) != (other == 0)
            }
            _ => self.place() != other.place(),
        }
    }

    /// The same where all clients are threads of one process, which shares leases.
    pub fn commutes_in_one_process(self, other: Self) -> bool {
        let of_client = |it: Self| matches!(it.place(), Place::Client(_));
        self.commutes(other) && !(of_client(self) && of_client(other))
    }
}
