//! TCP settings of both ends: short messages are sent at once, and a machine that vanishes is noticed.

use rustix::fd::AsFd;
use std::time::Duration;

/// Time that a connection is silent before TCP sends a probe.
const IDLE: Duration = Duration::from_secs(2);
/// The time between probes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of unanswered probes that end the connection.
const PROBES: u32 = 3;
/// Milliseconds within which probes and messages have to be acknowledged.
const UNCONFIRMED_MS: u32 = 5_000;

/// Sets up a connection so that it breaks within seconds when the other machine has vanished.
pub(crate) fn keep_watch(stream: &impl AsFd) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, UNCONFIRMED_MS)?;
    Ok(())
}
