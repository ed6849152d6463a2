//! A session with a node over UDP: a control connection, and operations that are datagrams.

use crate::SessionOptions;
use crate::session::ConnectError;
use portcullis_attach::tls::{
    AttachError, AttachedWithoutQueuePairs, ClientSecurity, Talk, attach_without_queue_pairs,
};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_onerma::{
    ControlLink, ExecutorLimits, InitiatorLimits, NodeEnd, OPERATION_MAX, Pace, PathError, UdpEndpoint,
    UdpSocket, find_path,
};
use portcullis_protocol::MESSAGE_BYTES;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Operations that one session may have under way.
const SLOTS: u32 = 1024;
/// Bytes that may be on their way to a session, unless its socket has room for less.
const WINDOW_MAX: usize = 1 << 20;
/// The least number of bytes that may be on their way to a session.
const WINDOW_MIN: usize = 8 * OPERATION_MAX as usize;
/// Time for which an operation waits for its answer. It is longer than the time for which a node waits for the data of
/// a change, by more than the clocks of two machines drift apart in that time.
const TIMEOUT: Duration = Duration::from_millis(60);

/// Options of a session with a node at `udp:HOST:PORT`.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// The means by which this client and the node prove their identity.
    pub security: ClientSecurity,
    /// Bytes of the largest datagram that the client tries. `None`: as many as the node accepts. The client measures
    /// how many bytes the path carries, at the attach and again later.
    pub datagram_max: Option<u32>,
}

impl Default for UdpOptions {
    /// Selects no certificates, which is enough for nodes on this machine, and datagrams as large as the node and the
    /// path carry.
    fn default() -> Self {
        Self { security: ClientSecurity::Plain { anywhere: false }, datagram_max: None }
    }
}

/// The reason why a session over UDP could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// There is no control connection to the node.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The node's UDP port cannot be reached.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The machine has no socket or memory.
    #[error("this machine refuses an end over UDP: {0}")]
    Machine(#[from] std::io::Error),
}

impl Coded for UdpError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Attach(error) => error.code(),
            Self::Path(error) => error.code(),
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

#[derive(Debug)]
struct Link(Talk);

impl ControlLink for Link {
    fn say(&mut self, message: &[u8]) {
        self.0.say(message);
    }

    fn go_on(&mut self) {
        self.0.go_on();
    }

    fn is_behind(&self) -> bool {
        self.0.is_behind()
    }

    fn hear(&mut self) -> Option<Vec<u8>> {
        self.0.hear()
    }

    fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns how many datagrams one system call of this machine sends to one destination (segmentation offload).
///
/// # Errors
/// The machine refuses a socket.
pub fn udp_segments() -> std::io::Result<usize> {
    Ok(UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0).into())?.segments_max())
}

/// Attaches to the node at `HOST:PORT`. Returns the client's end and its number.
pub(crate) fn connect(
    place: &str,
    options: &SessionOptions,
    within: Duration,
) -> Result<(UdpEndpoint, u64), ConnectError> {
    Ok(open(place, options, within)?)
}

fn open(place: &str, options: &SessionOptions, within: Duration) -> Result<(UdpEndpoint, u64), UdpError> {
    let until = Instant::now() + within;
    let attached = attach_without_queue_pairs(place, &options.udp.security, within)?;
    let AttachedWithoutQueuePairs { client, terms, node: address, local, talk } = attached;
    let mut socket = UdpSocket::bind(SocketAddr::new(local, 0))?;
    let most = options.udp.datagram_max.unwrap_or(terms.datagram_max).min(terms.datagram_max);
    let path = find_path(&mut socket, address, most, until.saturating_duration_since(Instant::now()))?;
    let message_bytes = u32::try_from(MESSAGE_BYTES).expect("messages are short");
    let node = NodeEnd { address, client, control_depth: terms.control_depth, message_bytes };
    // This is longer than the session waits for the end of an operation, so that the session itself gives the operation
    // up and names it in its error.
    let patience = within + within / 2;
    let initiator = InitiatorLimits {
        slots: SLOTS,
        window: u32::try_from(socket.room().clamp(WINDOW_MIN, WINDOW_MAX)).expect("it is small"),
        packet_max: most as usize,
        dispatch_timeout: patience,
        timeout: TIMEOUT,
    };
    let executor = ExecutorLimits {
        transfers: SLOTS as usize,
        patience,
        ..ExecutorLimits::for_round_trip(path.round_trip)
    };
    let limits = (initiator, executor, Pace::for_shared_processors());
    let socket = (socket, path.datagram_max);
    let endpoint = UdpEndpoint::new(node, options.arena_bytes, socket, Box::new(Link(talk)), limits)?;
    Ok((endpoint, client))
}
