//! Decides which clients get a port, and of what size.

use super::ports::{PortMemory, PortShare};
use super::{Software, WatchedEvent};
use crate::PortLimits;
use crate::fabric::NodeEngine;
use portcullis_attach::unix::{AdmissionPolicy, Admitted, Peer, PortOffer};
use portcullis_attach::{Errand, Reason, RefusedPeer};
use portcullis_memory::{Alarm, Mapping, MappingError, Ringer, Waker};
use portcullis_nic::EndpointSize;
use portcullis_node::NodeConfig;
use portcullis_protocol::ClientId;
use portcullis_softnic::PortLayout;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Makes ports for clients.
#[derive(Debug)]
pub(super) struct Offers {
    /// The size of a port, without its buffers.
    size: EndpointSize,
    arena_bytes_max: u64,
    memory: Arc<PortMemory>,
    waker: Waker,
    /// The ringer threads, by tenant: if a tenant's clients make ringing slow, only that tenant waits.
    ringers: Mutex<HashMap<String, Weak<Ringer>>>,
}

/// Error of a client that is not offered a port.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoOffer {
    #[error(
        "an arena of {asked} bytes exceeds this node's limit of {most}: request a smaller one, or start the \
         node with a greater --arena-max"
    )]
    ArenaTooLong { asked: u64, most: u64 },
    #[error("the node's limits allow no port: {0:?}")]
    Unsound(EndpointSize),
    #[error(transparent)]
    NoMemory(#[from] super::ports::NoMemory),
    #[error(transparent)]
    Mapping(#[from] MappingError),
    #[error(transparent)]
    Machine(#[from] std::io::Error),
}

/// The memory of a port, and the objects that wake the engine for it. Dropped in this order.
#[derive(Debug)]
pub(super) struct OfferedPort {
    /// The event with which the client wakes the engine. `None`: it was taken, or the client does not wake the engine any
    /// more.
    event: Option<WatchedEvent>,
    /// The node's end of the alarm, until the client is admitted.
    alarm: Option<Alarm>,
    /// The client's end of the alarm, until it is sent.
    watched: Option<OwnedFd>,
    page: Mapping,
    pub memory: Mapping,
    pub size: EndpointSize,
    pub share: PortShare,
}

impl OfferedPort {
    /// Takes the objects that the client shares beside the memory: the page that shows whether the engine sleeps, and
    /// the event.
    pub fn take_event(&mut self) -> (Mapping, WatchedEvent) {
        (self.page.clone(), self.event.take().expect("an event is taken once"))
    }

    /// Takes the two ends of the alarm, for a client in this process.
    pub fn take_alarm(&mut self) -> (Alarm, OwnedFd) {
        self.alarm.take().zip(self.watched.take()).expect("an alarm is taken once")
    }
}

impl Offers {
    pub fn new(config: &NodeConfig, limits: PortLimits, waker: Waker) -> Self {
        Self {
            size: limits.size(config),
            arena_bytes_max: limits.arena_bytes_max,
            memory: PortMemory::new(limits.ports_bytes_max),
            waker,
            ringers: Mutex::default(),
        }
    }

    /// Returns the thread that rings for a tenant. The thread ends with the last of the tenant's ports.
    fn ringer(&self, tenant: &str) -> std::io::Result<Arc<Ringer>> {
        let mut ringers = self.ringers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ringer) = ringers.get(tenant).and_then(Weak::upgrade) {
            return Ok(ringer);
        }
        ringers.retain(|_, ringer| ringer.strong_count() > 0);
        let ringer = Ringer::start()?;
        ringers.insert(tenant.to_owned(), Arc::downgrade(&ringer));
        Ok(ringer)
    }

    /// Makes a port for a client of `tenant` with an arena of `arena_bytes`. Room for messages is added.
    pub fn offer(&self, tenant: &str, arena_bytes: u64) -> Result<OfferedPort, NoOffer> {
        let most = self.arena_bytes_max;
        if arena_bytes > most {
            return Err(NoOffer::ArenaTooLong { asked: arena_bytes, most });
        }
        let size = self.size.with_buffers(arena_bytes);
        if !size.is_sound() {
            return Err(NoOffer::Unsound(size));
        }
        let bytes = PortLayout::new(size).bytes();
        let share = self.memory.take(tenant, bytes)?;
        let memory = Mapping::shareable("portcullis-port", bytes)?;
        let event = Some(WatchedEvent::new(&self.waker)?);
        let (alarm, watched) = Alarm::pair(&self.ringer(tenant)?)?;
        let (alarm, watched) = (Some(alarm), Some(watched));
        Ok(OfferedPort { event, alarm, watched, page: self.waker.page().clone(), memory, size, share })
    }
}

impl PortOffer for OfferedPort {
    fn size(&self) -> EndpointSize {
        self.size
    }

    fn memory_bytes(&self) -> u64 {
        PortLayout::new(self.size).bytes()
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        let [memory, page] =
            [&self.memory, &self.page].map(|shared| shared.file().expect("shareable memory has a file"));
        let event = self.event.as_ref().expect("it is offered before it is given up").as_fd();
        [memory, page, event, self.watched.as_ref().expect("it is offered once").as_fd()]
    }

    fn was_offered(&mut self) {
        self.watched = None;
    }

    fn preparation(&self) -> Errand {
        let memory = self.memory.clone();
        Box::new(move || {
            memory.seal_future_writes()?;
            Ok(memory.make_resident()?)
        })
    }

    fn give_up(&mut self) {
        self.event = None;
        self.alarm = None;
    }
}

/// Admits clients that attach at sockets.
#[derive(Debug)]
pub(super) struct SocketPolicy {
    pub engine: NodeEngine<Software>,
    pub offers: Arc<Offers>,
    /// The tenant that clients of each listener act for.
    pub tenants: Vec<Option<String>>,
}

/// The kernel cannot name the client's user. All users of other user namespaces look the same here: they would be one
/// tenant.
#[derive(Debug, thiserror::Error)]
#[error(
    "this socket is for users that the kernel can name here, and yours has no number (another user \
     namespace, or nobody): use a socket with ?tenant=NAME"
)]
struct NamelessUser;

impl SocketPolicy {
    /// Returns the tenant that a client in another process acts for.
    fn tenant_of(&self, peer: &Peer) -> Result<String, NamelessUser> {
        match (&self.tenants[peer.listener], peer.user) {
            (Some(tenant), _) => Ok(tenant.clone()),
            (None, Some(user)) => Ok(format!("uid:{user}")),
            (None, None) => Err(NamelessUser),
        }
    }
}

impl AdmissionPolicy for SocketPolicy {
    type Offer = OfferedPort;

    fn offer(&self, peer: &Peer, arena_bytes: u64) -> Result<OfferedPort, Reason> {
        Ok(self.offers.offer(&self.tenant_of(peer)?, arena_bytes)?)
    }

    fn admit(&self, peer: &Peer, offer: &mut OfferedPort) -> Result<Admitted, Reason> {
        let alarm = offer.alarm.take().expect("a client is admitted once");
        let request = (offer.memory.clone(), offer.size, alarm);
        let (client, key) = self.engine.admit(&self.tenant_of(peer)?, peer.process, request)?;
        Ok(Admitted { client: client.0, arena_key: key.0 })
    }

    fn depart(&self, client: u64) {
        self.engine.depart(ClientId(client));
    }

    fn report(&self, refused: RefusedPeer) {
        self.engine.report(refused);
    }
}
