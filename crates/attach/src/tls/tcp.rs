//! What both ends want of TCP: short messages at once, and to notice a machine that has vanished without a word.

use rustix::fd::AsFd;
use std::time::Duration;

/// Silence after which TCP asks whether the other machine is still there.
const IDLE: Duration = Duration::from_secs(2);
/// Between questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// Questions without an answer that are enough.
const PROBES: u32 = 3;
/// Milliseconds after which what was sent, question or message, must have been confirmed.
const UNCONFIRMED_MS: u32 = 5_000;

/// Sets a connection up so that it breaks within seconds when the other machine is gone.
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
