//! The choice of refused peers to report. A refusal costs a peer nothing, so only the first of each second are
//! reported.

use crate::handshake::RefusedPeer;
use std::time::{Duration, Instant};

/// Refused peers that are reported in a second.
const EACH_SECOND: u32 = 100;
const SECOND: Duration = Duration::from_secs(1);

/// The refused peers of the present second.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    reported: u32,
    /// Refused peers that were not reported since the last report.
    further: u64,
}

impl Refusals {
    /// Counts a refused peer. Returns the report to make, if this peer is to be reported.
    pub fn note(&mut self, peer: String, reason: String, now: Instant) -> Option<RefusedPeer> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND) {
            self.since = Some(now);
            self.reported = 0;
        }
        if self.reported == EACH_SECOND {
            self.further += 1;
            return None;
        }
        self.reported += 1;
        Some(RefusedPeer { peer, reason, further: std::mem::take(&mut self.further) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_the_next_report_has_the_number() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let mut note = |after_ms| {
            let now = start + Duration::from_millis(after_ms);
            refusals.note("a peer".to_owned(), "a reason".to_owned(), now).map(|refused| refused.further)
        };
        for _ in 0..EACH_SECOND {
            assert_eq!(note(0), Some(0));
        }
        assert_eq!((note(1), note(999)), (None, None));
        assert_eq!((note(1000), note(1001)), (Some(2), Some(0)));
    }
}
