//! The client's end, on any kind of NIC.

#[cfg(feature = "rdma")]
use portcullis_ibverbs::IbEndpoint;
use portcullis_memory::ArenaMemory;
#[cfg(feature = "udp")]
use portcullis_nic::OneShotOperations;
use portcullis_nic::{
    AskingQueuePairs, Completion, DataQueuePairs, Endpoint, EndpointSize, Lkey, Pollable, ReceiveRequest,
    VerbsEndpoint, WorkRequest,
};
#[cfg(feature = "udp")]
use portcullis_onerma::UdpEndpoint;
use portcullis_softnic::PortEndpoint;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A session's end: a port of the software NIC, an end on an RDMA device, or an end over UDP.
#[derive(Debug)]
#[cfg_attr(
    any(feature = "rdma", feature = "udp"),
    expect(
        clippy::large_enum_variant,
        reason = "there is one a session, and it is on the path of each operation"
    )
)]
pub enum SessionEndpoint {
    /// A port of the software NIC.
    Port(PortEndpoint),
    /// An end on an RDMA device.
    #[cfg(feature = "rdma")]
    Rdma(IbEndpoint),
    /// An end over UDP.
    #[cfg(feature = "udp")]
    Udp(UdpEndpoint),
}

impl SessionEndpoint {
    /// The port, if this is an end on the software NIC.
    #[must_use]
    pub fn port(&self) -> Option<&PortEndpoint> {
        match self {
            Self::Port(port) => Some(port),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => None,
            #[cfg(feature = "udp")]
            Self::Udp(_) => None,
        }
    }

    /// The end on an RDMA device, if this is one.
    #[cfg(feature = "rdma")]
    pub fn rdma(&mut self) -> Option<&mut IbEndpoint> {
        match self {
            Self::Rdma(rdma) => Some(rdma),
            _ => None,
        }
    }
}

/// Forwards a call to the end inside.
macro_rules! forward {
    ($self:ident.$call:ident($($argument:expr),*)) => {
        match $self {
            Self::Port(port) => port.$call($($argument),*),
            #[cfg(feature = "rdma")]
            Self::Rdma(rdma) => rdma.$call($($argument),*),
            #[cfg(feature = "udp")]
            Self::Udp(udp) => udp.$call($($argument),*),
        }
    };
}

impl Endpoint for SessionEndpoint {
    type Memory = ArenaMemory;

    fn arena(&self) -> &ArenaMemory {
        forward!(self.arena())
    }

    fn wait(&mut self, at_most: Duration) {
        forward!(self.wait(at_most));
    }

    fn node_alive(&mut self) -> bool {
        forward!(self.node_alive())
    }
}

impl Pollable for SessionEndpoint {
    fn descriptor(&self) -> BorrowedFd<'_> {
        forward!(self.descriptor())
    }

    fn arm(&mut self) -> bool {
        forward!(self.arm())
    }
}

impl VerbsEndpoint for SessionEndpoint {
    fn size(&self) -> EndpointSize {
        forward!(self.size())
    }

    fn arena_key(&self) -> Lkey {
        forward!(self.arena_key())
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        forward!(self.post_control(requests))
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        forward!(self.post_control_receive(requests))
    }

    #[inline]
    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        forward!(self.poll(most, into))
    }

    #[inline]
    fn data_queue_pairs(&mut self) -> Option<impl DataQueuePairs> {
        match self {
            Self::Port(port) => Some(SessionQueuePairs::Port(port)),
            #[cfg(feature = "rdma")]
            Self::Rdma(rdma) => Some(SessionQueuePairs::Rdma(rdma)),
            #[cfg(feature = "udp")]
            Self::Udp(_) => None,
        }
    }

    fn asking_queue_pairs(&mut self) -> Option<impl AskingQueuePairs> {
        match self {
            Self::Port(port) => port.asking_queue_pairs(),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => None,
            #[cfg(feature = "udp")]
            Self::Udp(_) => None,
        }
    }

    #[cfg(feature = "udp")]
    fn one_shots(&mut self) -> Option<impl OneShotOperations> {
        match self {
            Self::Udp(udp) => Some(udp),
            _ => None,
        }
    }
}

/// The data queue pairs of a session's end.
enum SessionQueuePairs<'a> {
    Port(&'a mut PortEndpoint),
    #[cfg(feature = "rdma")]
    Rdma(&'a mut IbEndpoint),
}

impl DataQueuePairs for SessionQueuePairs<'_> {
    #[inline]
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        match self {
            Self::Port(port) => port.post(queue_pair, requests),
            #[cfg(feature = "rdma")]
            Self::Rdma(rdma) => rdma.post(queue_pair, requests),
        }
    }

    fn rebuilt(&mut self, queue_pair: u32) {
        match self {
            Self::Port(port) => port.rebuilt(queue_pair),
            #[cfg(feature = "rdma")]
            Self::Rdma(rdma) => rdma.rebuilt(queue_pair),
        }
    }
}
