//! A socket that carries datagrams in batches: one system call sends the datagrams for one destination (segmentation
//! offload), and one call receives those that have arrived (receive offload). The socket does not interpret the
//! datagrams.
//!
//! The socket never waits on its own. The caller polls, yields or sleeps.

use crate::lane_sockets;
use portcullis_errors::{Coded, ErrorCode};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Maximum number of bytes that one system call sends to one destination: the limit of an IP packet.
const BURST_BYTES_MAX: usize = 65_000;
/// Maximum number of datagrams that one system call sends, and that one call of [`UdpSocket::receive`] hands over. More
/// would save few further system calls, and the other end would be idle until the last of them is ready: with many
/// datagrams between two ends both must work at once.
const BURST_DATAGRAMS_MAX: usize = 32;
/// Number of senders whose destination address on this machine is remembered: more than one call of
/// [`UdpSocket::receive`] hands over, so that a caller that answers after each call answers from the right address.
const CALLED_MAX: usize = 1024;
/// Size of a room: a buffer for datagrams that arrive together from one sender.
const ARRIVAL_BYTES_MAX: usize = 1 << 16;

/// Size of the kernel buffers that a socket requests, in bytes.
const ROOM_WISHED: usize = 4 << 20;

/// Number of rooms that a socket for one sender fills with one call.
const ROOMS_FOR_ONE: usize = 4;

/// A UDP socket, and the datagrams that it could not send yet.
#[derive(Debug)]
pub struct UdpSocket {
    socket: std::net::UdpSocket,
    state: UdpSocketState,
    arrivals: Arrivals,
    burst: Burst,
    /// The local address to which each sender sent its latest datagram, if the socket has all of the machine's
    /// addresses. Answers are sent from there, since their receivers know the other end by that address.
    called: Option<HashMap<SocketAddr, IpAddr>>,
    /// Whether other sockets of this process, those of other lanes, have the same address.
    is_lane: bool,
}

/// Datagrams that have arrived and have not been handed over yet.
#[derive(Debug)]
struct Arrivals {
    bytes: Box<[u8]>,
    /// The system's metadata about the rooms into which the bytes are divided.
    metas: [RecvMeta; BATCH_SIZE],
    /// Number of rooms that have been handed over, and number of filled rooms.
    taken: (usize, usize),
}

impl Arrivals {
    fn new(rooms: usize) -> Self {
        let bytes = vec![0; rooms.min(BATCH_SIZE) * ARRIVAL_BYTES_MAX].into_boxed_slice();
        Self { bytes, metas: [RecvMeta::default(); BATCH_SIZE], taken: (0, 0) }
    }

    /// Hands over up to a burst, room by room: the datagrams of a room have one sender. Returns the number of
    /// datagrams.
    fn hand_over(&mut self, mut each: impl FnMut(&RecvMeta, &mut [u8])) -> usize {
        let (first, last) = self.taken;
        let rooms = self.bytes.chunks_exact_mut(ARRIVAL_BYTES_MAX);
        let mut count = 0;
        for (meta, room) in self.metas.iter().zip(rooms).take(last).skip(first) {
            if count >= BURST_DATAGRAMS_MAX {
                break;
            }
            for datagram in room[..meta.len].chunks_mut(meta.stride.max(1)) {
                each(meta, datagram);
                count += 1;
            }
            // An empty datagram is not handed over, but the caller must call again for the datagrams behind it.
            count += usize::from(meta.len == 0);
            self.taken.0 += 1;
        }
        count
    }

    /// Receives datagrams from the system, if all earlier ones were handed over.
    fn take_in(&mut self, socket: &std::net::UdpSocket, state: &UdpSocketState) -> io::Result<()> {
        if self.taken.0 < self.taken.1 {
            return Ok(());
        }
        self.taken = (0, 0);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let rooms = self.bytes.chunks_exact_mut(ARRIVAL_BYTES_MAX);
        let count = slices.iter_mut().zip(rooms).map(|(slice, room)| *slice = IoSliceMut::new(room)).count();
        match state.recv(UdpSockRef::from(socket), &mut slices[..count], &mut self.metas[..count]) {
            // No process has the destination's port any more: the operation that waits for its answer times out.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) => {}
            batch => self.taken.1 = batch?,
        }
        Ok(())
    }
}

/// Datagrams that the system has refused.
#[derive(Debug, thiserror::Error)]
#[error("datagrams of {bytes} bytes to {to} were not sent: {source}")]
pub struct NotSent {
    /// The destination.
    pub to: SocketAddr,
    /// Bytes of the longest datagram.
    pub bytes: usize,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl Coded for NotSent {
    fn code(&self) -> ErrorCode {
        ErrorCode::Machine
    }
}

impl NotSent {
    /// Whether the datagrams are too long for this machine's link to the destination.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        quinn_udp::is_msg_size_err(&self.source)
    }
}

/// Datagrams for one destination that are sent together. All are as long as the first, except the last, which may be
/// shorter.
#[derive(Debug, Default)]
struct Burst {
    to: Option<SocketAddr>,
    segment: usize,
    count: usize,
    /// Bytes of the burst's datagrams.
    length: usize,
    /// The burst's bytes, and behind them those of the datagram that did not fit.
    bytes: Vec<u8>,
    /// The destination of the datagram that did not fit.
    next: Option<SocketAddr>,
}

impl Burst {
    /// Fills the burst with the datagrams that `poll` appends.
    fn fill(&mut self, most: usize, mut poll: impl FnMut(&mut Vec<u8>) -> Option<SocketAddr>) {
        while let Some(to) = self.next.take().or_else(|| poll(&mut self.bytes)) {
            let datagram = self.bytes.len() - self.length;
            if !self.has_room_for(to, datagram, most) {
                self.next = Some(to);
                return;
            }
            if self.count == 0 {
                (self.to, self.segment) = (Some(to), datagram);
            }
            self.length += datagram;
            self.count += 1;
        }
    }

    /// Whether another datagram can be sent with those of the burst.
    fn has_room_for(&self, to: SocketAddr, datagram: usize, most: usize) -> bool {
        let is_last_full = self.length == self.count * self.segment;
        self.count == 0
            || self.to == Some(to)
                && self.count < most
                && is_last_full
                && datagram <= self.segment
                && self.length + datagram <= BURST_BYTES_MAX
    }

    /// Returns the bytes of the burst's longest datagram.
    fn longest(&self) -> usize {
        self.segment.min(self.length)
    }

    fn clear(&mut self) {
        self.bytes.drain(..self.length);
        (self.to, self.count, self.length) = (None, 0, 0);
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl UdpSocket {
    /// Creates a socket at an address. With port 0 the system chooses one.
    ///
    /// # Errors
    /// The system refuses the address, or a feature that the socket needs.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let called = address.ip().is_unspecified().then(HashMap::new);
        Self::over(std::net::UdpSocket::bind(address)?, BATCH_SIZE, called, false)
    }

    /// Creates `lanes` sockets at one address, among which the system divides what arrives by the number of the client
    /// that a packet names. With port 0 the system chooses one.
    ///
    /// # Errors
    /// The system refuses the address, or a feature that the sockets need.
    pub fn bind_lanes(address: SocketAddr, lanes: u32) -> io::Result<Vec<Self>> {
        let called = address.ip().is_unspecified().then(HashMap::new);
        let sockets = lane_sockets::bind(address, lanes)?.into_iter();
        sockets.map(|socket| Self::over(socket, BATCH_SIZE, called.clone(), true)).collect()
    }

    /// Creates another socket at the address of this one, which receives from now on everything that `sender` sends.
    /// Datagrams of other senders take none of its room. Answers may be sent from either socket. `others` are all
    /// sockets that were made by earlier calls.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn for_sender<'a>(
        &'a self,
        sender: SocketAddr,
        others: impl Iterator<Item = &'a Self>,
    ) -> io::Result<Self> {
        let local = self.local_address()?;
        let called = self.called.as_ref().and_then(|called| called.get(&sender).copied());
        let called = called.filter(|it| it.is_ipv4() == sender.is_ipv4());
        let address = SocketAddr::new(called.unwrap_or(local.ip()), local.port());
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?.into();
        let sharing: Vec<&std::net::UdpSocket> =
            others.chain([self]).map(|it| &it.socket).chain([&socket]).collect();
        let share = |is_shared| {
            sharing.iter().try_for_each(|socket| sockopt::set_socket_reuseport(socket, is_shared))
        };
        // The sockets share the address while the new one joins. After that another program of this user would be
        // refused. Lanes always share it; what is not steered to them another program of this user could receive.
        let joined = share(true)
            .and_then(|()| net::bind(&socket, &address))
            .and_then(|()| net::connect(&socket, &sender));
        if !self.is_lane {
            share(false)?;
        }
        joined?;
        Self::over(socket, ROOMS_FOR_ONE, None, self.is_lane)
    }

    fn over(
        socket: std::net::UdpSocket,
        rooms: usize,
        called: Option<HashMap<SocketAddr, IpAddr>>,
        is_lane: bool,
    ) -> io::Result<Self> {
        // Requests as much as the machine grants: datagrams that find no room when they arrive are lost.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, ROOM_WISHED);
        let _ = sockopt::set_socket_send_buffer_size(&socket, ROOM_WISHED);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self { socket, state, arrivals: Arrivals::new(rooms), burst: Burst::default(), called, is_lane })
    }

    /// Makes answers to a sender leave from this address of the machine, if the socket has all of the machine's
    /// addresses.
    pub fn answer_from(&mut self, own: IpAddr, sender: SocketAddr) {
        if let Some(called) = &mut self.called {
            remember(called, sender, own);
        }
    }

    /// Maximum number of datagrams that one system call sends to one destination.
    #[must_use]
    pub fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Bytes of datagrams that may have arrived and not been received. The system's own data beside them uses a part of
    /// this.
    #[must_use]
    pub fn room(&self) -> usize {
        // The system returns twice the requested size, since it counts its own data as well.
        sockopt::socket_recv_buffer_size(&self.socket).map_or(0, |bytes| bytes / 2)
    }

    /// Returns the socket's address.
    ///
    /// # Errors
    /// The system does not report the address.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends datagrams until there are no more, or the system has no room; then the next call continues. Each call of
    /// `poll` appends one datagram to the given buffer, and returns its destination. Returns the number of datagrams
    /// sent.
    ///
    /// # Errors
    /// The system refuses a datagram, for instance because it is too long for this machine's link
    /// ([`NotSent::is_too_long`]). The datagram and the rest of its burst are lost: the next call continues after them.
    pub fn send(
        &mut self,
        mut poll: impl FnMut(&mut Vec<u8>) -> Option<SocketAddr>,
    ) -> Result<usize, NotSent> {
        let most = self.state.max_gso_segments().min(BURST_DATAGRAMS_MAX);
        let mut sent = 0;
        loop {
            self.burst.fill(most, &mut poll);
            let Some(destination) = self.burst.to else { return Ok(sent) };
            let segment_size = (self.burst.count > 1).then_some(self.burst.segment);
            let contents = &self.burst.bytes[..self.burst.length];
            let src_ip = self.called.as_ref().and_then(|called| called.get(&destination).copied());
            let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip };
            match self.state.try_send(UdpSockRef::from(&self.socket), &transmit) {
                Ok(()) => {
                    sent += self.burst.count;
                    self.burst.clear();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(sent),
                Err(error) => {
                    let source = reason(&mut self.state, &self.socket, error, &transmit);
                    let bytes = self.burst.longest();
                    self.burst.clear();
                    return Err(NotSent { to: destination, bytes, source });
                }
            }
        }
    }

    /// Whether datagrams wait until the system has room for them.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.burst.to.is_some() || self.burst.next.is_some()
    }

    /// Waits until a datagram has arrived, or `at_most` is over.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn wait(&self, at_most: Duration) -> io::Result<()> {
        let mut arrivals = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        match poll(&mut arrivals, Timespec::try_from(at_most).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands over the datagrams that have arrived, up to a burst; the next call continues. Returns their number,
    /// including empty datagrams, which are not handed over: zero means that no datagram is left.
    ///
    /// # Errors
    /// The system reports an error of the socket. Errors that the path reports about single datagrams are not included.
    pub fn receive(&mut self, mut each: impl FnMut(SocketAddr, &mut [u8])) -> io::Result<usize> {
        let Self { socket, state, arrivals, called, .. } = self;
        arrivals.take_in(socket, state)?;
        let mut latest = None;
        Ok(arrivals.hand_over(|meta, datagram| {
            if let (Some(called), Some(own)) = (called.as_mut(), meta.dst_ip)
                && latest != Some((meta.addr, own))
            {
                remember(called, meta.addr, own);
                latest = Some((meta.addr, own));
            }
            each(meta.addr, datagram);
        }))
    }
}

/// Returns the reason for which a burst was refused. For datagrams that are sent together and are too long, some
/// kernels report an invalid argument, as they do if a link has no segmentation offload; then the state disables
/// offload for all destinations. So the first datagram is sent alone.
fn reason(
    state: &mut UdpSocketState,
    socket: &std::net::UdpSocket,
    error: io::Error,
    burst: &Transmit<'_>,
) -> io::Error {
    let is_doubtful = matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::IO));
    let Some(segment) = burst.segment_size.filter(|_| is_doubtful) else { return error };
    let first = Transmit { contents: &burst.contents[..segment], segment_size: None, ..burst.clone() };
    let alone = state.try_send(UdpSockRef::from(socket), &first);
    let Some(too_long) = alone.err().filter(quinn_udp::is_msg_size_err) else { return error };
    if let Ok(with_offload) = UdpSocketState::new(UdpSockRef::from(socket)) {
        *state = with_offload;
    }
    too_long
}

fn remember(called: &mut HashMap<SocketAddr, IpAddr>, sender: SocketAddr, own: IpAddr) {
    if called.len() >= CALLED_MAX {
        called.clear();
    }
    called.insert(sender, own);
}
