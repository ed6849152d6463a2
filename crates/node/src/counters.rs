//! The counters of a node.

use serde::{Deserialize, Serialize};

/// Counts of events since a node started, and of what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Control messages received.
    pub control_messages: u64,
    /// Binds, rebinds and unbinds posted.
    pub window_operations: u64,
    /// Permissions granted.
    pub grants: u64,
    /// Permissions that the holder or the node ended early.
    pub revokes: u64,
    /// Permissions that ended at their deadline.
    pub expiries: u64,
    /// Extensions that the node saw.
    pub extensions: u64,
    /// Accesses that the NIC refused.
    pub violations: u64,
    /// Queue pairs rebuilt.
    pub recoveries: u64,
    /// Attached clients.
    pub clients: u64,
    /// Tenants with attached clients or with objects that stay.
    pub tenants: u64,
    /// Permissions in any stage.
    pub permissions: u64,
    /// Objects, including those that are going.
    pub objects: u64,
    /// Bytes of the pool that objects take, including headers and rounding.
    pub bytes_used: u64,
    /// Headers of the header pool in use.
    pub headers_used: u64,
    /// Windows in any state.
    pub windows: u64,
    /// Names in the directory.
    pub names: u64,
    /// Turns of the node's own: the CPU's part, beside the NIC's.
    pub turns: u64,
    /// Chunks of the pool that the NIC hands out without the CPU.
    pub chunks: u64,
    /// Chunks that clients hold, as far as the node has recorded it.
    pub chunks_held: u64,
    /// Allocations of chunks, as far as the node has recorded them.
    pub chunk_allocations: u64,
    /// Chunks that the node holds itself. Their memory was given back to the machine.
    pub chunks_set_aside: u64,
    /// Rebuilds of the pool because a worker had broken.
    pub chunk_rebuilds: u64,
    /// Requests that wait for an object or for memory.
    pub postponed: u64,
    /// Audit records that were lost because they were not taken in time.
    pub audit_lost: u64,
}
