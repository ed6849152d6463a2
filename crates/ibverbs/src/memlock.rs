//! The limit on locked memory: registered memory is locked, and without the right to lock it nothing works.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// The limit on locked memory is too low for what is to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} bytes of memory are to be registered, and this process may lock {limit}. Raise the limit: `ulimit -l \
     unlimited` in the shell that starts it, LimitMEMLOCK=infinity in a systemd unit, or memlock in \
     /etc/security/limits.conf; or give it CAP_IPC_LOCK"
)]
pub struct MemlockTooLow {
    /// Bytes to be locked.
    pub needed: u64,
    /// Bytes that may be.
    pub limit: u64,
}

/// Checks, before anything fails, that `needed` bytes can be registered. The kernel counts a region's bytes again for
/// each time that they are registered.
///
/// # Errors
/// They cannot, as far as this process can tell.
pub fn check_memlock(needed: u64) -> Result<(), MemlockTooLow> {
    let locks_freely = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    judge(needed, locks_freely, getrlimit(Resource::Memlock).current)
}

fn judge(needed: u64, locks_freely: bool, limit: Option<u64>) -> Result<(), MemlockTooLow> {
    match limit {
        Some(limit) if !locks_freely && needed > limit => Err(MemlockTooLow { needed, limit }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_binds_who_may_not_lock_freely() {
        assert_eq!(
            judge(9 << 20, false, Some(8 << 20)),
            Err(MemlockTooLow { needed: 9 << 20, limit: 8 << 20 })
        );
        assert_eq!(judge(8 << 20, false, Some(8 << 20)), Ok(()));
        assert_eq!(judge(9 << 20, true, Some(8 << 20)), Ok(()));
        assert_eq!(judge(9 << 20, false, None), Ok(()));
    }

    #[test]
    fn the_error_says_what_to_do() {
        let text = MemlockTooLow { needed: 2, limit: 1 }.to_string();
        assert!(text.contains("ulimit -l") && text.contains("LimitMEMLOCK"), "{text}");
    }
}
