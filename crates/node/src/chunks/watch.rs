//! Detects that the lock of the free list is stuck: that a worker has it, and stands still.

use portcullis_protocol::{Lifetime, Moment};

/// The longest time that chains may wait for the lock without any release. A chain has the lock for five requests.
pub(crate) const LOCK_HELD_MAX: Lifetime = Lifetime::millis(100);
/// The least number of checks in that time. A machine that stood still has not run its NIC either.
pub(crate) const LOOKS_MIN: u32 = 16;

/// Watches the lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockWatch {
    /// `None`: no chain waits for the lock.
    wanted: Option<Wanted>,
}

/// A wait for the lock since its last release.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    since: Moment,
    /// Number of releases before the wait.
    releases: u32,
    looks: u32,
}

impl LockWatch {
    /// Checks the counts of tickets and of releases. Returns whether the lock is stuck.
    pub fn look(&mut self, (tickets, releases): (u32, u32), now: Moment) -> bool {
        if tickets == releases {
            self.wanted = None;
            return false;
        }
        match &mut self.wanted {
            Some(wanted) if wanted.releases == releases => {
                wanted.looks = wanted.looks.saturating_add(1);
                wanted.looks >= LOOKS_MIN && now >= wanted.since.after(LOCK_HELD_MAX)
            }
            other => {
                *other = Some(Wanted { since: now, releases, looks: 0 });
                false
            }
        }
    }

    /// Returns the time of the next check.
    pub fn next_look(&self) -> Option<Moment> {
        self.wanted.map(|wanted| wanted.since.after(LOCK_HELD_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck_after(watch: &mut LockWatch, counts: (u32, u32), looks: u32, from: Moment) -> bool {
        (0..looks).any(|look| watch.look(counts, from.after(Lifetime::millis(u64::from(look) * 10))))
    }

    #[test]
    fn a_lock_that_nobody_releases_is_stuck_after_the_limit() {
        let (mut watch, start) = (LockWatch::default(), Moment(5));
        assert!(!stuck_after(&mut watch, (7, 5), LOOKS_MIN, start));
        assert!(watch.look((7, 5), start.after(Lifetime::millis(1000))));
        assert_eq!(watch.next_look(), Some(start.after(LOCK_HELD_MAX)));
    }

    #[test]
    fn a_lock_that_is_released_now_and_then_is_not_stuck() {
        let (mut watch, start) = (LockWatch::default(), Moment(0));
        for release in 0..1000 {
            let now = start.after(Lifetime::millis(u64::from(release) * 90));
            assert!(!watch.look((release + 1, release), now));
        }
        assert!(!watch.look((1000, 1000), start.after(Lifetime::seconds(1000))));
        assert_eq!(watch.next_look(), None);
    }

    #[test]
    fn a_machine_that_stood_still_does_not_look_like_a_stuck_lock() {
        let mut watch = LockWatch::default();
        assert!(!watch.look((1, 0), Moment(0)));
        let much_later = Moment(0).after(Lifetime::seconds(10));
        assert!(!stuck_after(&mut watch, (1, 0), LOOKS_MIN - 1, much_later));
    }
}
