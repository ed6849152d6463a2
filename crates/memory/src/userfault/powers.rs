//! Abilities of this kernel within this process's rights: the features of userfaultfd to request, and those that are
//! missing.

use super::UserfaultError;

/// The required features, each with the Linux version that introduced it.
const NEEDED: [(u64, &str); 3] = [
    (1 << 0, "write protection (Linux 5.7)"),
    (1 << 2, "messages of moved mappings (Linux 4.11)"),
    (1 << 6, "messages of ended mappings (Linux 4.11)"),
];
const EVENT_FORK: u64 = 1 << 1;
const EVENT_REMOVE: u64 = 1 << 3;
const MOVE: u64 = 1 << 16;

/// Optional abilities of the kernel for a watched range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Powers {
    /// Pages can be moved ([`super::Userfault::move_out`]): the kernel refuses that for pages that it or a device has
    /// pinned. Only with this ability are pages reported that the process drops by `madvise`.
    pub moves: bool,
    /// A forked child's memory is watched too ([`super::Event::Forked`]). It needs CAP_SYS_PTRACE.
    pub forks: bool,
}

impl Powers {
    /// Returns the abilities of a kernel with these features.
    ///
    /// # Errors
    /// [`UserfaultError::Feature`]: a required feature is missing.
    pub(super) fn of(features: u64) -> Result<Self, UserfaultError> {
        match NEEDED.iter().find(|(bit, _)| features & bit == 0) {
            Some((_, name)) => Err(UserfaultError::Feature(name)),
            None => Ok(Self { moves: features & MOVE != 0, forks: features & EVENT_FORK != 0 }),
        }
    }

    /// The features to request.
    pub(super) fn features(self) -> u64 {
        let needed = NEEDED.iter().fold(0, |all, (bit, _)| all | bit);
        // Without moves the owner of the range takes pages out by `madvise` itself, and would receive events of its own
        // calls.
        let moves = if self.moves { MOVE | EVENT_REMOVE } else { 0 };
        needed | moves | if self.forks { EVENT_FORK } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_moves_is_recognised_and_not_asked_for_messages_of_removed_pages() {
        let before_6_8 = MOVE - 1;
        let powers = Powers::of(before_6_8).unwrap();
        assert_eq!(powers, Powers { moves: false, forks: true });
        assert_eq!(powers.features() & (MOVE | EVENT_REMOVE), 0);
        assert_eq!(Powers::of(before_6_8 | MOVE).unwrap(), Powers { moves: true, forks: true });
    }

    #[test]
    fn a_kernel_without_write_protection_is_refused_with_the_version_that_has_it() {
        let error = Powers::of(MOVE | EVENT_REMOVE | (1 << 2) | (1 << 6)).unwrap_err();
        assert!(error.to_string().contains("Linux 5.7"), "{error}");
    }
}
