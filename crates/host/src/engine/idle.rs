//! The time that an engine sleeps when there is nothing to do.

use portcullis_protocol::Moment;
use std::time::Duration;

/// The longest sleep: it bounds the cost of a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// The longest sleep while a request waits for a peer that does not ring.
const SLEEP_BLOCKED_MAX: Duration = Duration::from_millis(2);

/// Returns how long to sleep, if the next thing to do is due at `wake`.
pub(super) fn sleep_for(now: Moment, wake: Option<Moment>, blocked: bool) -> Duration {
    let longest = if blocked { SLEEP_BLOCKED_MAX } else { SLEEP_MAX };
    wake.map_or(longest, |wake| Duration::from(wake.since(now)).min(longest))
}
