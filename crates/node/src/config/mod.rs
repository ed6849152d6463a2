//! The configuration of a node: all its limits, with their units.

mod limits;

pub use limits::{ChunkLimits, Quota, ViolationLimits};

use crate::audit::AuditEvents;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::{GROUP_QUEUE_PAIRS_MAX, Header, Lifetime, Mechanism};

/// Bytes of a page. The pool is divided into pages.
pub(crate) const PAGE_BYTES: u64 = 64 << 10;

/// The longest time to keep objects that lets them stay for as long as the node runs.
pub(crate) const FOR_EVER: Lifetime = Lifetime(u64::MAX);

/// The techniques that save window operations (Patronus §5.4). The protection is the same with and without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reductions {
    /// Windows stay bound while their memory is not used again.
    pub delayed_unbinding: bool,
    /// One window covers a new object's lifetime word and its buffer.
    pub contiguity: bool,
    /// The window of a permission that ends is bound again for a permission that starts.
    pub handover: bool,
}

impl Reductions {
    /// No technique: the naive use of windows in Patronus §7.
    #[must_use]
    pub const fn none() -> Self {
        Self { delayed_unbinding: false, contiguity: false, handover: false }
    }
}

impl Default for Reductions {
    fn default() -> Self {
        Self { delayed_unbinding: true, contiguity: true, handover: true }
    }
}

/// The configuration of a node. [`validate`](Self::validate) checks whether it makes sense.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// The mechanism that enforces permissions.
    pub mechanism: Mechanism,
    /// The techniques that save window operations.
    pub reductions: Reductions,
    /// Memory for clients' objects, in bytes; whole pages of 64 KiB are used.
    pub pool_bytes: u64,
    /// Whether the node takes all memory at its start. Otherwise a page is allocated at its first use, and the
    /// operation that uses it, and all after it, wait until the kernel has found one.
    pub fill_memory: bool,
    /// Headers of 32 bytes in the header pool: for permissions whose header does not lie before the object.
    pub headers: u32,
    /// The longest lifetime of a permission, including extensions (Patronus §5.3).
    pub longest_lifetime: Lifetime,
    /// The longest that a request may wait for conflicting holders.
    pub longest_wait: Lifetime,
    /// The longest time that an object may stay after its tenant's last client has left. [`Lifetime`]'s largest value:
    /// for as long as the node runs.
    pub longest_keep: Lifetime,
    /// The most objects of all tenants together. Each takes about 200 bytes of the node's own memory.
    pub objects_max: u32,
    /// The most that each tenant may hold.
    pub quota: Quota,
    /// The cost of violations.
    pub violations: ViolationLimits,
    /// The most queue pairs that are rebuilt at the same time. Further ones wait.
    pub recoveries_max: u32,
    /// Number of queue pairs that a client has besides the one in use (Patronus §5.5).
    pub spare_queue_pairs: u32,
    /// Number of ready windows up to which a tenant's pool is filled, off the critical path (Patronus §5.6).
    pub windows_ready: u32,
    /// The most windows of a tenant, used or not.
    pub windows_max: u32,
    /// Time for which a window whose keys are used up rests before it is deallocated.
    pub window_rest: Lifetime,
    /// The longest time that an ended permission's window stays bound under delayed unbinding.
    pub linger_max: Lifetime,
    /// The most requests of all clients that wait for an object or for memory. One tenant gets at most half of them.
    pub postponed_max: u32,
    /// The most attached clients.
    pub clients_max: u32,
    /// The most requests that one turn of the node receives: the largest batch in which windows are handed over.
    pub requests_per_turn: u32,
    /// The most steps of one turn, for work that the next turn can continue: permissions that end, waiting requests
    /// that are granted, objects and windows that are removed. Other clients' operations wait for no more than these,
    /// however much a client leaves behind.
    pub steps_per_turn: u32,
    /// The chunks that clients allocate and free. `None`: the node has no chunks.
    pub chunks: Option<ChunkLimits>,
    /// Whether the node uses the NIC's features for chains, if the NIC has all of them: the NIC hands the chunks out,
    /// and one queue pair binds the windows of groups for others. Otherwise the node's CPU hands the chunks out, as
    /// objects of a pool that is larger by their size, and each window of a group is bound on its own queue pair.
    pub chains: bool,
    /// The least number of free chunks that the node keeps ready; it keeps at most twice as many. It holds the others
    /// itself, and their memory is given back to the machine. `None`: all chunks are ready, and the node holds none.
    pub chunks_ready: Option<u64>,
    /// The most places of the table of regions for a tenant's clients without queue pairs.
    pub tenant_regions_max: u32,
    /// Whether the node makes audit records.
    pub audit: bool,
    /// The events for which it makes them.
    pub audit_events: AuditEvents,
    /// The most audit records that wait to be written. Further ones are lost, and counted.
    pub audit_records_max: u32,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            mechanism: Mechanism::MemoryWindow,
            reductions: Reductions::default(),
            pool_bytes: 256 << 20,
            fill_memory: false,
            headers: 65_536,
            longest_lifetime: Lifetime::seconds(10),
            longest_wait: Lifetime::seconds(10),
            longest_keep: Lifetime::seconds(60 * 60),
            objects_max: 1 << 19,
            quota: Quota::default(),
            violations: ViolationLimits::default(),
            recoveries_max: 8,
            spare_queue_pairs: 2,
            windows_ready: 256,
            windows_max: 262_144,
            window_rest: Lifetime::seconds(1),
            linger_max: Lifetime::millis(1),
            postponed_max: 4096,
            clients_max: 1024,
            requests_per_turn: 16,
            steps_per_turn: 512,
            chunks: None,
            chains: true,
            chunks_ready: None,
            tenant_regions_max: 1 << 14,
            audit: false,
            audit_events: AuditEvents::all(),
            audit_records_max: 65_536,
        }
    }
}

/// The most bytes of a pool. With the headers beside it, such a pool stays within the 48 bits of an address in a
/// header.
const POOL_BYTES_MAX: u64 = 1 << 47;

/// The longest time that can be configured: a day. A longer lease would not be a lease any more.
const LIFETIME_MAX: Lifetime = Lifetime::seconds(24 * 60 * 60);

/// The most windows. A NIC names regions and windows in the 24 upper bits of an rkey.
const WINDOWS_MAX: u64 = (1 << 24) - 1;

/// The most spare queue pairs. More do not help: a NIC has few, and a client breaks one at a time.
const SPARE_QUEUE_PAIRS_MAX: u64 = 64;

/// The least number of steps of a turn. With fewer a turn might receive no request.
const STEPS_MIN: u64 = 2;

/// The most chunks: the number of chunks for which the table of a pool has records.
const CHUNKS_MAX: u64 =
    portcullis_offload::record::Layout::<{ portcullis_protocol::CHUNK_QUEUE_PAIRS }>::CHUNKS_MAX;
/// The most bytes of a chunk. A chunk is zeroed by one WRITE.
const CHUNK_BYTES_MAX: u64 = u32::MAX as u64;

/// The most of all other counts.
const COUNT_MAX: u64 = 1 << 24;

impl NodeConfig {
    /// Returns this configuration with more room in the pool, as much as chunks take there, if the node's CPU hands
    /// them out.
    pub(crate) fn with_room_for_chunks(self) -> Self {
        let of_chunks = self.chunks.filter(|_| !self.chains).map_or(0, |limits| limits.bytes_in_pool());
        Self { pool_bytes: self.pool_bytes.saturating_add(of_chunks), ..self }
    }

    /// Returns the number of bytes of memory that a node of this configuration lends, including its header pool.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.header_bytes() + self.pool_bytes
    }

    /// Returns the number of bytes before the pool, in whole pages.
    pub(crate) fn header_bytes(&self) -> u64 {
        (u64::from(self.headers) * Header::BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Checks that a node can be started with this configuration.
    ///
    /// # Errors
    /// The first limit that is out of range, or the first two that contradict each other.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let violations = &self.violations;
        within("pool_bytes", "bytes", self.pool_bytes, PAGE_BYTES, POOL_BYTES_MAX)?;
        within("headers", "headers", self.headers.into(), 1, COUNT_MAX)?;
        within("longest_lifetime", "µs", self.longest_lifetime.0, 1, LIFETIME_MAX.0)?;
        within("longest_wait", "µs", self.longest_wait.0, 0, LIFETIME_MAX.0)?;
        if self.longest_keep != FOR_EVER {
            within("longest_keep", "µs", self.longest_keep.0, 0, LIFETIME_MAX.0)?;
        }
        within("quota.bytes_max", "bytes", self.quota.bytes_max, 1, u64::MAX)?;
        within("quota.objects_max", "objects", self.quota.objects_max, 1, u64::MAX)?;
        within("quota.permissions_max", "permissions", self.quota.permissions_max, 1, u64::MAX)?;
        within("quota.names_max", "names", self.quota.names_max, 0, u64::MAX)?;
        within("quota.shares_max", "tenants", self.quota.shares_max, 0, u64::MAX)?;
        within("quota.chunks_max", "chunks", self.quota.chunks_max, 0, u64::MAX)?;
        if let Some(ChunkLimits { chunks, chunk_bytes, client_max }) = self.chunks {
            within("chunks", "chunks", chunks, 1, CHUNKS_MAX)?;
            within("chunk_bytes", "bytes", chunk_bytes, 8, CHUNK_BYTES_MAX)?;
            within("chunks_per_client", "chunks", client_max, 1, u64::MAX)?;
        }
        if let Some(ready) = self.chunks_ready {
            within("chunks_ready", "chunks", ready, 1, u64::MAX)?;
        }
        within("violations.free_again", "µs", violations.free_again.0, 1, LIFETIME_MAX.0)?;
        within("violations.pause_max", "µs", violations.pause_max.0, 1, LIFETIME_MAX.0)?;
        within("violations.bar_for", "µs", violations.bar_for.0, 1, LIFETIME_MAX.0)?;
        within("violations.late_grace", "µs", violations.late_grace.0, 0, LIFETIME_MAX.0)?;
        within("violations.excuse_again", "µs", violations.excuse_again.0, 1, LIFETIME_MAX.0)?;
        within("window_rest", "µs", self.window_rest.0, 0, LIFETIME_MAX.0)?;
        within("linger_max", "µs", self.linger_max.0, 0, LIFETIME_MAX.0)?;
        let spares_max = match self.mechanism {
            Mechanism::WindowGroup => GROUP_QUEUE_PAIRS_MAX as u64 - 1,
            _ => SPARE_QUEUE_PAIRS_MAX,
        };
        within("spare_queue_pairs", "queue pairs", self.spare_queue_pairs.into(), 0, spares_max)?;
        within("windows_max", "windows", self.windows_max.into(), 1, WINDOWS_MAX)?;
        for (limit, unit, value) in [
            ("violations.bar_after", "violations", violations.bar_after),
            ("violations.keys_remembered", "permissions", violations.keys_remembered),
            ("recoveries_max", "queue pairs", self.recoveries_max),
            ("postponed_max", "requests", self.postponed_max),
            ("clients_max", "clients", self.clients_max),
            ("objects_max", "objects", self.objects_max),
            ("requests_per_turn", "requests", self.requests_per_turn),
            ("audit_records_max", "records", self.audit_records_max),
        ] {
            within(limit, unit, value.into(), 1, COUNT_MAX)?;
        }
        within("steps_per_turn", "steps", self.steps_per_turn.into(), STEPS_MIN, COUNT_MAX)?;
        let windows = (u64::from(self.windows_ready), u64::from(self.windows_max));
        in_order("windows_ready", "windows_max", windows)?;
        let pauses = (violations.pause_min.0, violations.pause_max.0);
        in_order("violations.pause_min", "violations.pause_max", pauses)?;
        Ok(())
    }
}

fn within(
    limit: &'static str,
    unit: &'static str,
    value: u64,
    least: u64,
    most: u64,
) -> Result<(), ConfigError> {
    match value {
        _ if value < least => Err(ConfigError::TooSmall { limit, unit, value, least }),
        _ if value > most => Err(ConfigError::TooLarge { limit, unit, value, most }),
        _ => Ok(()),
    }
}

fn in_order(lower: &'static str, upper: &'static str, values: (u64, u64)) -> Result<(), ConfigError> {
    let (low, high) = values;
    if low > high { Err(ConfigError::Contradiction { lower, low, upper, high }) } else { Ok(()) }
}

/// Reason that no node can be started with a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A limit is below the least value that makes sense.
    #[error("{limit} is {value} {unit}: it must be at least {least}")]
    TooSmall {
        /// The limit.
        limit: &'static str,
        /// The limit's unit.
        unit: &'static str,
        /// The limit's value.
        value: u64,
        /// The least value.
        least: u64,
    },
    /// A limit is above the largest value that the node can keep.
    #[error("{limit} is {value} {unit}: it can be {most} at most")]
    TooLarge {
        /// The limit.
        limit: &'static str,
        /// The limit's unit.
        unit: &'static str,
        /// The limit's value.
        value: u64,
        /// The largest value.
        most: u64,
    },
    /// Two limits contradict each other.
    #[error("{lower} is {low}, above {upper}, which is {high}: lower the one or raise the other")]
    Contradiction {
        /// The limit that must not be above the other.
        lower: &'static str,
        /// The limit's value.
        low: u64,
        /// The other limit.
        upper: &'static str,
        /// The limit's value.
        high: u64,
    },
}

impl Coded for ConfigError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::TooSmall { .. } => ErrorCode::LimitTooSmall,
            Self::TooLarge { .. } => ErrorCode::LimitTooLarge,
            Self::Contradiction { .. } => ErrorCode::LimitsContradict,
        }
    }
}

impl ConfigError {
    /// Returns this error with the limits renamed by `name`, to the names that a program's users know.
    #[must_use]
    pub fn renamed(self, name: impl Fn(&'static str) -> &'static str) -> Self {
        match self {
            Self::TooSmall { limit, unit, value, least } => {
                Self::TooSmall { limit: name(limit), unit, value, least }
            }
            Self::TooLarge { limit, unit, value, most } => {
                Self::TooLarge { limit: name(limit), unit, value, most }
            }
            Self::Contradiction { lower, low, upper, high } => {
                Self::Contradiction { lower: name(lower), low, upper: name(upper), high }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut NodeConfig)) -> String {
        let mut config = NodeConfig::default();
        change(&mut config);
        config.validate().expect_err("the configuration makes no sense").to_string()
    }

    #[test]
    fn a_node_starts_with_the_defaults() {
        assert_eq!(NodeConfig::default().validate(), Ok(()));
        let bare = NodeConfig { reductions: Reductions::none(), windows_ready: 0, ..NodeConfig::default() };
        assert_eq!(bare.validate(), Ok(()));
    }

    #[test]
    fn limits_out_of_range_are_told_with_their_number() {
        assert_eq!(
            refused(|config| config.pool_bytes = 4096),
            "pool_bytes is 4096 bytes: it must be at least 65536"
        );
        assert_eq!(
            refused(|config| config.spare_queue_pairs = 65),
            "spare_queue_pairs is 65 queue pairs: it can be 64 at most"
        );
        for told in [
            refused(|config| config.pool_bytes = u64::MAX),
            refused(|config| config.headers = 0),
            refused(|config| config.headers = u32::MAX),
            refused(|config| config.longest_lifetime = Lifetime(0)),
            refused(|config| config.longest_wait = Lifetime(u64::MAX)),
            refused(|config| config.quota.bytes_max = 0),
            refused(|config| config.quota.permissions_max = 0),
            refused(|config| config.quota.objects_max = 0),
            refused(|config| config.objects_max = 0),
            refused(|config| config.violations.free_again = Lifetime(0)),
            refused(|config| config.violations.bar_after = 0),
            refused(|config| config.violations.bar_for = Lifetime(0)),
            refused(|config| config.violations.keys_remembered = 0),
            refused(|config| config.violations.excuse_again = Lifetime(0)),
            refused(|config| config.recoveries_max = 0),
            refused(|config| config.windows_max = u32::MAX),
            refused(|config| config.clients_max = 0),
            refused(|config| config.requests_per_turn = 0),
            refused(|config| config.steps_per_turn = 1),
            refused(|config| config.audit_records_max = 0),
        ] {
            assert!(told.contains(" is ") && told.contains(": it "), "{told}");
        }
    }

    #[test]
    fn limits_that_contradict_each_other_are_told_both() {
        assert_eq!(
            refused(|config| config.windows_max = 100),
            "windows_ready is 256, above windows_max, which is 100: lower the one or raise the other"
        );
        assert_eq!(
            refused(|config| config.violations.pause_max = Lifetime(5)),
            "violations.pause_min is 1000, above violations.pause_max, which is 5: lower the one or raise the other"
        );
    }

    #[test]
    fn no_time_is_longer_than_a_day() {
        let day = Lifetime::seconds(86_400);
        let with = |longest| NodeConfig { longest_lifetime: longest, ..NodeConfig::default() };
        assert_eq!(with(day).validate(), Ok(()));
        assert!(with(Lifetime(day.0 + 1)).validate().is_err());
    }
}
