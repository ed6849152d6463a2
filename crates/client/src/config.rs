//! A client's limits and choices.

use crate::Error;

/// Operations that a client may have begun and not taken yet, by default.
pub const OPERATIONS_MAX: u32 = 1024;

/// Operations that may wait for room on a queue pair, by default.
pub const BACKLOG_MAX: usize = 1024;

/// Calls of the control path that may have begun and not been taken yet.
pub const CALLS_MAX: u32 = 1024;

/// Calls of one pipeline, or of one session that acquires many permissions, that may wait at the node for what others
/// hold. The node has places for a few thousand such requests of all clients.
pub const WAITING_CALLS_MAX: usize = 128;

/// The configuration of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// Whether another queue pair replaces a broken one at once (Patronus §5.5). Otherwise everything waits until the
    /// node has rebuilt the broken one: the other half of Table 5.
    pub use_spares: bool,
    /// Operations that may have begun and not been taken yet; each costs 8 bytes of the arena.
    pub operations_max: u32,
    /// Operations that may wait for room on a queue pair.
    pub backlog_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { use_spares: true, operations_max: OPERATIONS_MAX, backlog_max: BACKLOG_MAX }
    }
}

impl ClientConfig {
    /// The error for a full backlog.
    pub(crate) fn backlog_full(&self) -> Error {
        Error::QueueFull { limit: u64::try_from(self.backlog_max).unwrap_or(u64::MAX) }
    }
}
