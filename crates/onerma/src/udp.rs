//! A socket that carries datagrams in batches: what goes to one destination leaves with one system call (segmentation
//! offload), and so does what arrives (receive offload). It knows nothing of what it carries.
//!
//! It never waits. Whoever drives it polls, yields or sleeps.

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
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

/// A UDP socket, and what it could not send yet.
#[derive(Debug)]
pub struct UdpSocket {
    socket: std::net::UdpSocket,
    state: UdpSocketState,
    arrivals: Box<[u8]>,
    /// What the system says of these.
    metas: [RecvMeta; BATCH_SIZE],
    /// Those that have been handed over, and those that are there.
    taken: (usize, usize),
    burst: Burst,
    /// Where the latest datagram of each sender came to, if the socket has all of the machine's addresses: answers leave from
    /// there, since their receivers know the other end by it.
    called: Option<HashMap<SocketAddr, IpAddr>>,
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
        let socket = std::net::UdpSocket::bind(address)?;
        // As much as the machine lets have: what finds no room when it arrives is lost.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, ROOM_WISHED);
        let _ = sockopt::set_socket_send_buffer_size(&socket, ROOM_WISHED);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let arrivals = vec![0; BATCH_SIZE * ARRIVAL_BYTES_MAX].into_boxed_slice();
        let metas = [RecvMeta::default(); BATCH_SIZE];
        let called = address.ip().is_unspecified().then(HashMap::new);
        Ok(Self { socket, state, arrivals, metas, taken: (0, 0), burst: Burst::default(), called })
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
    /// The system refuses a datagram, for instance because it is too long for the path
    /// ([`quinn_udp::is_msg_size_err`]). It is lost, and those of its burst with it: the next call goes on behind them.
    pub fn send(&mut self, mut poll: impl FnMut(&mut Vec<u8>) -> Option<SocketAddr>) -> io::Result<usize> {
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
                    self.burst.clear();
                    return Err(error);
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
        if self.taken.0 == self.taken.1 {
            self.taken = (0, self.take_in()?);
        }
        let (first, last) = self.taken;
        let rooms = self.arrivals.chunks_exact_mut(ARRIVAL_BYTES_MAX);
        let mut count = 0;
        for (meta, room) in self.metas.iter().zip(rooms).take(last).skip(first) {
            if count >= BURST_DATAGRAMS_MAX {
                break;
            }
            if let (Some(called), Some(at)) = (&mut self.called, meta.dst_ip) {
                if called.len() >= CALLED_MAX {
                    called.clear();
                }
                called.insert(meta.addr, at);
            }
            for datagram in room[..meta.len].chunks_mut(meta.stride.max(1)) {
                each(meta.addr, datagram);
                count += 1;
            }
            // An empty datagram is nothing to hand over, but what has come behind it is still to be asked for.
            count += usize::from(meta.len == 0);
            self.taken.0 += 1;
        }
        Ok(count)
    }

    /// Takes over what the system has, and returns how many arrivals that are, each with one datagram or several.
    fn take_in(&mut self) -> io::Result<usize> {
        let mut rooms = self.arrivals.chunks_exact_mut(ARRIVAL_BYTES_MAX);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(rooms.next().expect("one for each")));
        match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut self.metas) {
            // A port that nobody has any more: whoever waits for its answer hears a time-out.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(0)
            }
            batch => batch,
        }
    }
}
