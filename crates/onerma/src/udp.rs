//! A socket that carries datagrams in batches: what goes to one destination leaves with one system call (segmentation
//! offload), and so does what arrives (receive offload). It knows nothing of what it carries.
//!
//! It never waits. Whoever drives it polls, yields or sleeps.

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

/// Bytes that one system call may hand over for one destination: the most that an IP packet can say.
const BURST_BYTES_MAX: usize = 65_000;
/// Datagrams that one system call hands over, and that one call of [`UdpSocket::receive`] does. More would save few system
/// calls more, and the other end would have nothing to do until the last of them is ready: with many datagrams between two
/// ends both are to work at once.
const BURST_DATAGRAMS_MAX: usize = 32;
/// Senders whose address of this machine is remembered: more than one call of [`UdpSocket::receive`] hands over, so that
/// whoever answers after each call answers from the right one.
const CALLED_MAX: usize = 1024;
/// Room for what arrives together from one sender.
const ARRIVAL_BYTES_MAX: usize = 1 << 16;

/// Room for datagrams that a socket asks for, in bytes.
const ROOM_WISHED: usize = 4 << 20;

/// Senders whose datagrams arrive together and that a socket for one sender takes over with one call.
const ROOMS_FOR_ONE: usize = 4;

/// A UDP socket, and what it could not send yet.
#[derive(Debug)]
pub struct UdpSocket {
    socket: std::net::UdpSocket,
    state: UdpSocketState,
    arrivals: Arrivals,
    burst: Burst,
    /// Where the latest datagram of each sender came to, if the socket has all of the machine's addresses: answers leave from
    /// there, since their receivers know the other end by it.
    called: Option<HashMap<SocketAddr, IpAddr>>,
}

/// What has arrived and has not been handed over yet.
#[derive(Debug)]
struct Arrivals {
    bytes: Box<[u8]>,
    /// What the system says of the rooms that these are divided into.
    metas: [RecvMeta; BATCH_SIZE],
    /// The rooms that have been handed over, and those that are full.
    taken: (usize, usize),
}

impl Arrivals {
    fn new(rooms: usize) -> Self {
        let bytes = vec![0; rooms.min(BATCH_SIZE) * ARRIVAL_BYTES_MAX].into_boxed_slice();
        Self { bytes, metas: [RecvMeta::default(); BATCH_SIZE], taken: (0, 0) }
    }

    /// Hands over up to a burst, room by room: the datagrams of a room have one sender. Returns how many datagrams that were.
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
            // An empty datagram is nothing to hand over, but what has come behind it is still to be asked for.
            count += usize::from(meta.len == 0);
            self.taken.0 += 1;
        }
        count
    }

    /// Takes over what the system has, if everything before it was handed over.
    fn take_in(&mut self, socket: &std::net::UdpSocket, state: &UdpSocketState) -> io::Result<()> {
        if self.taken.0 < self.taken.1 {
            return Ok(());
        }
        self.taken = (0, 0);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let rooms = self.bytes.chunks_exact_mut(ARRIVAL_BYTES_MAX);
        let count = slices.iter_mut().zip(rooms).map(|(slice, room)| *slice = IoSliceMut::new(room)).count();
        match state.recv(UdpSockRef::from(socket), &mut slices[..count], &mut self.metas[..count]) {
            // A port that nobody has any more: whoever waits for its answer hears a time-out.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) => {}
            batch => self.taken.1 = batch?,
        }
        Ok(())
    }
}

/// Datagrams that the system has not taken.
#[derive(Debug, thiserror::Error)]
#[error("datagrams of {bytes} bytes to {to} were not sent: {source}")]
pub struct NotSent {
    /// Where they were to go.
    pub to: SocketAddr,
    /// Bytes of the longest.
    pub bytes: usize,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

impl Coded for NotSent {
    fn code(&self) -> ErrorCode {
        ErrorCode::Machine
    }
}

impl NotSent {
    /// Whether they are too long for this machine's link to the destination.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        quinn_udp::is_msg_size_err(&self.source)
    }
}

/// Datagrams for one destination that leave together. All are as long as the first, but for the last.
#[derive(Debug, Default)]
struct Burst {
    to: Option<SocketAddr>,
    segment: usize,
    count: usize,
    /// Bytes of the burst's datagrams.
    length: usize,
    /// These bytes, and behind them those of the datagram that did not fit.
    bytes: Vec<u8>,
    /// Where that one goes.
    next: Option<SocketAddr>,
}

impl Burst {
    /// Fills the burst with what `poll` appends.
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

    /// Whether another datagram can leave with those that are there.
    fn has_room_for(&self, to: SocketAddr, datagram: usize, most: usize) -> bool {
        let is_last_full = self.length == self.count * self.segment;
        self.count == 0
            || self.to == Some(to)
                && self.count < most
                && is_last_full
                && datagram <= self.segment
                && self.length + datagram <= BURST_BYTES_MAX
    }

    /// Bytes of its longest datagram.
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
    /// A socket at an address. Port 0: the system chooses one.
    ///
    /// # Errors
    /// The system refuses the address, or what the socket needs of it.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let called = address.ip().is_unspecified().then(HashMap::new);
        Self::over(std::net::UdpSocket::bind(address)?, BATCH_SIZE, called)
    }

    /// Another socket at the address of this one, where everything arrives from now on that `sender` sends. What others send
    /// has no part in its room. Answers may leave from either. `others` are all sockets that were made by this call before.
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
        // They share the address while the new one joins. After that another program of this user would be refused.
        let joined = share(true)
            .and_then(|()| net::bind(&socket, &address))
            .and_then(|()| net::connect(&socket, &sender));
        share(false)?;
        joined?;
        Self::over(socket, ROOMS_FOR_ONE, None)
    }

    fn over(
        socket: std::net::UdpSocket,
        rooms: usize,
        called: Option<HashMap<SocketAddr, IpAddr>>,
    ) -> io::Result<Self> {
        // As much as the machine lets have: what finds no room when it arrives is lost.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, ROOM_WISHED);
        let _ = sockopt::set_socket_send_buffer_size(&socket, ROOM_WISHED);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self { socket, state, arrivals: Arrivals::new(rooms), burst: Burst::default(), called })
    }

    /// Has answers to a sender leave from this address of the machine, if the socket has all of them.
    pub fn answer_from(&mut self, own: IpAddr, sender: SocketAddr) {
        if let Some(called) = &mut self.called {
            remember(called, sender, own);
        }
    }

    /// Datagrams that one system call sends to one destination.
    #[must_use]
    pub fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Bytes of datagrams that may have arrived and not been received. A part of it is used up by what the system keeps beside
    /// them.
    #[must_use]
    pub fn room(&self) -> usize {
        // The system says twice what it was asked for, since it counts its own as well.
        sockopt::socket_recv_buffer_size(&self.socket).map_or(0, |bytes| bytes / 2)
    }

    /// Its own address.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends datagrams until there are no more, or the system has no room: then the next call goes on. Each call of `poll`
    /// appends one datagram to the bytes that it is given, and returns where that goes. Returns how many have left.
    ///
    /// # Errors
    /// The system refuses a datagram, for instance because it is too long for this machine's link ([`NotSent::is_too_long`]). It
    /// is lost, and those of its burst with it: the next call goes on behind them.
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

    /// Waits until something has arrived, or `at_most` is over.
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

    /// Hands over what has arrived, up to a burst; the next call goes on. Returns how many datagrams that were, empty ones
    /// included, which are not handed over: zero means that nothing is left.
    ///
    /// # Errors
    /// The system reports an error of the socket. What the path says of single datagrams is none.
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

/// Why a burst was refused. Some kernels say of datagrams that leave together and are too long that an argument is invalid, as where
/// a link has no segmentation offload, and then the state gives offload up for all destinations. So the first of them is sent alone.
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
