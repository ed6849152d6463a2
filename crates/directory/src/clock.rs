//! The only place that reads a clock.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "this is where the time of all others comes from")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
