//! The limit on locked memory. Registered memory is locked, so no registration works without the right to lock it.

use portcullis_errors::{Coded, ErrorCode};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// The limit on locked memory is too low for the memory that is to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} bytes of memory are to be registered{}, and this process may lock {limit}. Raise the limit: `ulimit -l \
     unlimited` in the shell that starts it, LimitMEMLOCK=infinity in a systemd unit, or memlock in \
     /etc/security/limits.conf; or give it CAP_IPC_LOCK", counted(*tenants)
)]
pub struct MemlockTooLow {
    /// Bytes that are to be locked.
    pub needed: u64,
    /// Bytes that may be locked.
    pub limit: u64,
    /// For a node's memory: the number of tenants for each of which it is registered.
    pub tenants: Option<u64>,
}

impl Coded for MemlockTooLow {
    fn code(&self) -> ErrorCode {
        ErrorCode::MemlockTooLow
    }
}

fn counted(tenants: Option<u64>) -> String {
    let said = |tenants| {
        format!(" (the node's memory once for each tenant, of which there will be {tenants} or more)")
    };
    tenants.map(said).unwrap_or_default()
}

/// Checks in advance that `needed` bytes can be registered.
///
/// # Errors
/// The bytes cannot be registered, as far as this process can determine.
pub fn check_memlock(needed: u64) -> Result<(), MemlockTooLow> {
    match limit() {
        Some(limit) if needed > limit => Err(MemlockTooLow { needed, limit, tenants: None }),
        _ => Ok(()),
    }
}

/// Checks in advance that a node's memory can be registered for at least `tenants` tenants: each has it in its own
/// domain, and the kernel counts bytes each time that they are registered. Returns the number of tenants for which the
/// limit is enough, if there is a limit.
///
/// # Errors
/// The limit is not enough for `tenants`, as far as this process can determine.
pub fn check_memlock_of_node(bytes: u64, tenants: u64) -> Result<Option<u64>, MemlockTooLow> {
    judge(bytes, tenants, limit())
}

fn judge(bytes: u64, tenants: u64, limit: Option<u64>) -> Result<Option<u64>, MemlockTooLow> {
    let needed = bytes.saturating_mul(tenants);
    match limit {
        Some(limit) if needed > limit => Err(MemlockTooLow { needed, limit, tenants: Some(tenants) }),
        limit => Ok(limit.map(|limit| limit / bytes.max(1))),
    }
}

/// Returns the number of bytes that this process may lock, if there is a limit.
fn limit() -> Option<u64> {
    let locks_freely = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !locks_freely)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_memory_counts_once_a_tenant() {
        let (memory, limit) = (3 << 20, Some(8 << 20));
        assert_eq!(judge(memory, 2, limit), Ok(Some(2)));
        let refused = MemlockTooLow { needed: 9 << 20, limit: 8 << 20, tenants: Some(3) };
        assert_eq!(judge(memory, 3, limit), Err(refused));
        assert_eq!(judge(memory, 3, None), Ok(None), "who may lock freely has no limit");
        assert_eq!(judge(1 << 63, 4, limit).map_err(|refused| refused.needed), Err(u64::MAX));
    }

    #[test]
    fn the_error_says_what_is_counted_and_what_to_do() {
        let text = MemlockTooLow { needed: 6, limit: 1, tenants: Some(3) }.to_string();
        for part in
            ["6 bytes", "may lock 1.", "once for each tenant", "3 or more", "ulimit -l", "LimitMEMLOCK"]
        {
            assert!(text.contains(part), "{text}");
        }
        let text = MemlockTooLow { needed: 2, limit: 1, tenants: None }.to_string();
        assert!(text.starts_with("2 bytes of memory are to be registered, and"), "{text}");
    }
}
