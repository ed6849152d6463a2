//! The moves of a race, and which of them commute.

/// Number of data queue pairs of a client: one in use and one spare.
pub(super) const DATA_QUEUE_PAIRS: usize = 2;
/// Queue pairs of a client: one for control messages, then those for data.
pub(super) const QUEUE_PAIRS: usize = 1 + DATA_QUEUE_PAIRS;

/// A step of the race. `timeless`: its result does not depend on the time at which it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Move {
    /// The oldest packet from a client's queue pair reaches the node's NIC.
    ToNode { client: usize, queue_pair: usize },
    /// The oldest packet for a client's queue pair reaches the client, and the client looks at it.
    ToClient { client: usize, queue_pair: usize, timeless: bool },
    /// A client takes the next action of its script.
    Act { client: usize },
    /// The node's processor has a turn.
    NodeTurn,
    /// The node's NIC carries out what was posted to it.
    NodeNic,
    /// The node learns that a client's process has ended.
    LetGo { client: usize },
    /// Time goes on to the next moment that matters.
    Clock,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MoveScope {
    Node,
    Client(usize),
    Everywhere,
}

impl Move {
    fn scope(self) -> MoveScope {
        match self {
            Self::ToNode { .. } | Self::NodeTurn | Self::NodeNic | Self::LetGo { .. } => MoveScope::Node,
            Self::ToClient { client, .. } | Self::Act { client } => MoveScope::Client(client),
            Self::Clock => MoveScope::Everywhere,
        }
    }

    /// Whether the move has the same result at another time. No NIC in a race reads the time.
    fn is_timeless(self) -> bool {
        match self {
            Self::ToNode { .. } => true,
            Self::ToClient { timeless, .. } => timeless,
            Self::Act { .. } | Self::NodeTurn | Self::NodeNic | Self::LetGo { .. } | Self::Clock => false,
        }
    }

    /// Whether two moves lead to the same state in either order.
    ///
    /// A move at a client touches that client's NIC, library and script, its own entries in the checkers, the tails of
    /// its queues to the node and the heads of those from it. A move at the node touches the node, its NIC, and the
    /// other ends of the queues. So moves with different scopes do not conflict. Nor do two arrivals at the node, if
    /// one is a message, which fills a receive, and the other an access, which touches the pool.
    ///
    /// The checkers read the time and the order of what they see. Of two equivalent orders, the search must try the one
    /// in which the checkers demand more. So [`super::world::World::moves`] lists accesses before messages, and both
    /// before the clock: a permission's holder must be served until it has requested the end or time has run out.
    pub fn commutes(self, other: Self) -> bool {
        if self == Self::Clock || other == Self::Clock {
            return self.is_timeless() || other.is_timeless();
        }
        match (self, other) {
            (Self::ToNode { queue_pair: one, .. }, Self::ToNode { queue_pair: other, .. }) => {
                (one == 0) != (other == 0)
            }
            _ => self.scope() != other.scope(),
        }
    }

    /// Whether two moves lead to the same state in either order, for clients that are threads of one process and
    /// share leases.
    pub fn commutes_in_one_process(self, other: Self) -> bool {
        let of_client = |it: Self| matches!(it.scope(), MoveScope::Client(_));
        self.commutes(other) && !(of_client(self) && of_client(other))
    }
}
