//! Probes of a path: whether the node's UDP port answers, the round trip, and the size of the datagrams that the path
//! carries in both directions. [`find_path`] probes before a client has a key. [`PathMtu`](crate::PathMtu) probes again
//! later.
//!
//! A probe is not sealed. Its answer has as many bytes, so no client can make a node send more bytes than it received;
//! the answer contains no data. An attacker on the path can forge answers, as it could drop all datagrams: then
//! operations run into their time-outs.

use crate::packet::{self, VERSION};
use crate::{HEADER_BYTES, OPERATION_MAX, TAG_BYTES, UdpSocket};
use portcullis_errors::{Coded, ErrorCode};
use ring::rand::{SecureRandom, SystemRandom};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a probe.
pub(crate) const PROBE: [u8; 4] = [VERSION, 0xF0, 0, 0];
/// The first bytes of a probe's answer.
const ANSWER: [u8; 4] = [VERSION, 0xF1, 0, 0];

/// Payload in bytes that every IPv6 path carries, beside the headers of IPv6 and UDP.
pub(crate) const EVERY_PATH: usize = 1280 - 48;
/// Payload in bytes that an Ethernet path carries, beside the headers of IPv6 and UDP.
const ETHERNET: usize = 1500 - 48;
/// The longest useful datagram: one that holds a whole operation. It is a multiple of the unit in which requests state
/// the size of answers.
const LONGEST: usize =
    (OPERATION_MAX as usize + HEADER_BYTES + TAG_BYTES).next_multiple_of(packet::ANSWER_UNIT);
/// The size of the datagrams of a largest operation in two parts: a step between [`ETHERNET`] and [`LONGEST`].
const HALF: usize =
    (OPERATION_MAX as usize / 2 + HEADER_BYTES + TAG_BYTES).next_multiple_of(packet::ANSWER_UNIT);
/// Time to wait for answers before the path is probed again.
pub(crate) const PROBE_ROUND: Duration = Duration::from_millis(50);
/// Time to wait for answers to larger datagrams after a smaller one was answered.
const LINGER: Duration = Duration::from_millis(5);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    head: [u8; 4],
    token: U64,
}

/// Turns a probe into its answer. Returns whether the packet was a probe.
pub(crate) fn answer(packet: &mut [u8]) -> bool {
    match Layout::mut_from_prefix(packet) {
        Ok((layout, rest)) if layout.head == PROBE => {
            layout.head = ANSWER;
            rest.fill(0);
            true
        }
        _ => false,
    }
}

/// Appends a probe of `bytes` bytes with this token.
pub(crate) fn append(packet: &mut Vec<u8>, bytes: usize, token: u64) {
    let layout = Layout { head: PROBE, token: U64::new(token) };
    packet.extend_from_slice(layout.as_bytes());
    packet.resize(packet.len() + bytes.saturating_sub(size_of::<Layout>()), 0);
}

/// Returns the token of a probe's answer. `None`: the packet is not an answer.
pub(crate) fn token_of_answer(packet: &[u8]) -> Option<u64> {
    let (layout, _) = Layout::ref_from_prefix(packet).ok()?;
    (layout.head == ANSWER).then(|| layout.token.get())
}

/// Returns the sizes of datagrams to probe, at most `most` bytes each, the smallest first.
pub(crate) fn sizes(most: usize) -> Vec<usize> {
    let most = most.min(LONGEST);
    let mut sizes: Vec<usize> =
        [EVERY_PATH, ETHERNET, HALF].into_iter().filter(|&size| size < most).collect();
    sizes.push(most);
    sizes
}

/// Properties of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Bytes of the largest datagram that was observed to pass in both directions.
    pub datagram_max: u32,
    /// The shortest round trip.
    pub round_trip: Duration,
}

/// Reason for which no path was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// No answer arrived.
    #[error(
        "the node's UDP port {to} does not answer within {within:?}, although its TCP port does: check that \
         nothing between them, such as a firewall, drops UDP datagrams of {bytes} bytes"
    )]
    Silent {
        /// The node's address.
        to: SocketAddr,
        /// Time that the client waited.
        within: Duration,
        /// Bytes of the smallest datagram that was tried.
        bytes: usize,
    },
    /// Answers arrive, but too late for operations.
    #[error(
        "a datagram to the node's UDP port {to} and back takes {round_trip:?}: operations need a path that takes less than {most:?}"
    )]
    TooSlow {
        /// The node's address.
        to: SocketAddr,
        /// The shortest round trip measured.
        round_trip: Duration,
        /// The longest round trip that operations tolerate.
        most: Duration,
    },
    /// The largest datagram was configured, and it is too short for an operation.
    #[error("datagrams of {0} bytes have no room for operations: {EVERY_PATH} bytes are the least")]
    TooShort(u32),
    /// The machine refuses.
    #[error("this machine's UDP socket fails: {0}")]
    Machine(#[from] std::io::Error),
}

impl Coded for PathError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Silent { .. } | Self::TooSlow { .. } => ErrorCode::NoPath,
            Self::TooShort(_) => ErrorCode::InvalidArgument,
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

/// Measures the path to a node's end, with datagrams of at most `most` bytes. Waits for at most `within`.
///
/// # Errors
/// No answer arrives, or the machine refuses.
pub fn find_path(
    socket: &mut UdpSocket,
    to: SocketAddr,
    most: u32,
    within: Duration,
) -> Result<Path, PathError> {
    let most_bytes = usize::try_from(most).unwrap_or(usize::MAX).min(LONGEST);
    if most_bytes < EVERY_PATH {
        return Err(PathError::TooShort(most));
    }
    let sizes = sizes(most_bytes);
    let began = Instant::now();
    let (mut rounds, mut shortest) = (Vec::new(), None);
    while began.elapsed() < within {
        rounds.push(Round { token: random()?, began: Instant::now() });
        let Some(path) = ask(socket, to, &sizes, &rounds)? else { continue };
        if path.round_trip <= PROBE_ROUND {
            return Ok(path);
        }
        // The path is too slow, or this process was for a while.
        shortest = shortest.into_iter().chain([path.round_trip]).min();
    }
    Err(match shortest {
        Some(round_trip) => PathError::TooSlow { to, round_trip, most: PROBE_ROUND },
        None => PathError::Silent { to, within, bytes: EVERY_PATH },
    })
}

/// Probes that were sent at the same time.
struct Round {
    token: u64,
    began: Instant,
}

/// Returns a random token: a party that does not see the probe cannot guess it.
pub(crate) fn random() -> std::io::Result<u64> {
    let mut token = [0; 8];
    SystemRandom::new().fill(&mut token).map_err(|_| std::io::Error::other("no random numbers"))?;
    Ok(u64::from_le_bytes(token))
}

/// Sends one probe of each size, for the latest of these rounds, and waits for a while for answers. If only earlier
/// rounds are answered, the round trip is longer than this wait.
fn ask(
    socket: &mut UdpSocket,
    to: SocketAddr,
    sizes: &[usize],
    rounds: &[Round],
) -> Result<Option<Path>, PathError> {
    let [.., Round { token, began }] = rounds else { return Ok(None) };
    let mut left = sizes.iter();
    let mut probe = |packet: &mut Vec<u8>| {
        let &bytes = left.next()?;
        append(packet, bytes, *token);
        Some(to)
    };
    // Probes that are too long for this machine's own link are refused here.
    while socket.send(&mut probe).is_err() {}
    let (mut longest, mut round_trip, mut until) = (0, Duration::MAX, PROBE_ROUND);
    while began.elapsed() < until && longest < sizes[sizes.len() - 1] {
        socket.wait(until.saturating_sub(began.elapsed()))?;
        socket.receive(|from, packet| {
            let Some(token) = token_of_answer(packet) else { return };
            let asked = rounds.iter().rev().find(|round| round.token == token);
            if let Some(round) = asked
                && from == to
                && sizes.contains(&packet.len())
            {
                longest = longest.max(packet.len());
                round_trip = round_trip.min(round.began.elapsed());
                until = began.elapsed() + LINGER;
            }
        })?;
    }
    let datagram_max = u32::try_from(longest).expect("no datagram is longer");
    Ok((longest > 0).then_some(Path { datagram_max, round_trip }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{AnswerSize, parts};

    #[test]
    fn the_longest_datagram_holds_a_whole_operation() {
        let answers = AnswerSize::of(LONGEST).bytes();
        assert_eq!(answers, LONGEST);
        assert_eq!(parts(OPERATION_MAX, answers).collect::<Vec<_>>(), [(0, OPERATION_MAX)]);
    }
}
