//! A session with a node: a client with calls that wait, and the permissions, names and chunks that it gets.

mod chunks;
mod directory;
mod together;

pub use chunks::{Chunk, NotAllAllocated, NotAllFreed};

use crate::clock::{Clock, ProcessClock};
use crate::held::Dropped;
use crate::keeper::{Keeper, Kept};
use crate::names::{self, Candidates, FindError, Name, Names};
#[cfg(feature = "rdma")]
use crate::rdma::{self, RdmaAttachError, RdmaOptions};
#[cfg(feature = "udp")]
use crate::udp::{self, UdpError, UdpOptions};
use crate::waiting::WaitingClient;
use crate::{Address, Permission, SessionEndpoint, UnknownAddress};
use portcullis_client::{
    Acquire, Allocate, Answer, Client, ClientConfig, ControlRequest, Error, Permission as BarePermission,
    Until,
};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_host::software::{AttachError, attach};
use portcullis_nic::{GuaranteeSet, VerbsEndpoint};
use portcullis_protocol::{Holders, Keep, Lifetime, Moment, ObjectRef};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a session's arena by default.
const ARENA_BYTES: u64 = 4 << 20;
/// Default time that an attach, an operation or a call may take.
const WITHIN: Lifetime = Lifetime::seconds(5);
/// The longest time that an attach may take, whatever the options set.
const ATTACH_MAX: Lifetime = Lifetime::seconds(86_400);

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Bytes of the arena that holds the buffers.
    pub arena_bytes: u64,
    /// The client's limits.
    pub client: ClientConfig,
    /// For how long the attach, and each operation and call of the session, may wait for the node. Then it ends with
    /// [`Error::TimedOut`], and the session continues. A request that may wait at the node for other holders has that
    /// waiting time besides ([`Acquire::wait`]); a long transfer has the limit for each of its pieces. 5 s by default.
    pub within: Lifetime,
    /// The directory in which the names of nodes are looked up.
    pub names: Names,
    /// Options for nodes that are reached over RDMA.
    #[cfg(feature = "rdma")]
    pub rdma: RdmaOptions,
    /// Options for nodes that are reached over UDP.
    #[cfg(feature = "udp")]
    pub udp: UdpOptions,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            arena_bytes: ARENA_BYTES,
            client: ClientConfig::default(),
            within: WITHIN,
            names: Names::default(),
            #[cfg(feature = "rdma")]
            rdma: RdmaOptions::default(),
            #[cfg(feature = "udp")]
            udp: UdpOptions::default(),
        }
    }
}

/// The reason why a session could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is no address.
    #[error(transparent)]
    Address(#[from] UnknownAddress),
    /// No node was found by its name.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The node gave the client no port.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No control connection to the node could be made.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Rdma(#[from] RdmaAttachError),
    /// No session over UDP could be made.
    #[cfg(feature = "udp")]
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The RDMA device could not connect its queue pairs to the node's.
    #[cfg(feature = "rdma")]
    #[error("the RDMA device fails: {0}")]
    Device(#[from] portcullis_nic::VerbsError),
    /// The arena is too small for the client's own messages and words.
    #[error(transparent)]
    Client(#[from] Error),
    /// The node in this process has ended, or refuses the client.
    #[error("{0}")]
    Host(String),
}

impl Coded for ConnectError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Address(error) => error.code(),
            Self::Find(error) => error.code(),
            Self::Attach(error) => error.code(),
            #[cfg(feature = "rdma")]
            Self::Rdma(error) => error.code(),
            #[cfg(feature = "udp")]
            Self::Udp(error) => error.code(),
            #[cfg(feature = "rdma")]
            Self::Device(error) => error.code(),
            Self::Client(error) => error.code(),
            Self::Host(_) => ErrorCode::AttachRefused,
        }
    }
}

/// Connects to the node at `address`, for example `shm:/run/portcullis.sock`; or to the node with a name, for example
/// `name:bank/node1`, which is looked up in the directory of [`SessionOptions::names`].
///
/// If a node has several addresses, this function tries them in order of distance and uses the first that works: shared
/// memory before RDMA before UDP. The name is looked up once: connections that the session opens later use the same
/// address.
///
/// # Errors
/// The address is unknown, no node answers at it, or the node refuses.
pub fn connect(address: &str) -> Result<Session, ConnectError> {
    connect_with(address, SessionOptions::default())
}

/// Connects with options.
///
/// # Errors
/// As [`connect`].
pub fn connect_with(address: &str, options: SessionOptions) -> Result<Session, ConnectError> {
    match names::name_in(address) {
        Some(name) => connect_by_name(&name?, &options),
        None => connect_at(address.parse()?, options),
    }
}

/// Connects to the first address registered under a name that works.
fn connect_by_name(name: &Name, options: &SessionOptions) -> Result<Session, ConnectError> {
    let Candidates { addresses, left_out: mut tried } = options.names.find(name)?;
    for address in addresses {
        match connect_at(address.clone(), options.clone()) {
            Ok(session) => return Ok(session),
            Err(error) => tried.push((address.to_string(), error.to_string())),
        }
    }
    Err(FindError::Nowhere { name: name.clone(), tried }.into())
}

fn connect_at(address: Address, options: SessionOptions) -> Result<Session, ConnectError> {
    let within = options.within.min(ATTACH_MAX).into();
    let (endpoint, number, unenforced) = match &address {
        Address::Shm(path) => {
            let attached = attach(path, options.arena_bytes, within)?;
            (SessionEndpoint::Port(attached.endpoint), attached.client, GuaranteeSet::NONE)
        }
        #[cfg(feature = "rdma")]
        Address::Rdma(place) => {
            let (endpoint, number, unenforced) = rdma::connect(place, &options, within)?;
            (SessionEndpoint::Rdma(endpoint), number, unenforced)
        }
        #[cfg(feature = "udp")]
        Address::Udp(place) => {
            let (endpoint, number) = udp::connect(place, &options, within)?;
            (SessionEndpoint::Udp(endpoint), number, GuaranteeSet::NONE)
        }
    };
    let (client, within) = (options.client, options.within);
    let opener: Opener = Box::new(move || connect_at(address.clone(), options.clone()));
    Ok(Session::new(endpoint, number, client, opener, None)?.limited_to(within).without(unenforced))
}

/// A guard that ends a client of a node in the same process when it is dropped.
pub(crate) type Departure = Box<dyn Send>;

/// Opens another session of the same tenant on the same node.
pub(crate) type Opener = Box<dyn Fn() -> Result<Session, ConnectError> + Send>;

/// A session with a node. Its calls wait for their answer: they spin, then yield, then sleep. Accesses, waits and the
/// client library underneath are methods of the [`WaitingClient`] that it has: `session.read(…)`, `session.wait(…)`.
///
/// Only one thread uses a session at a time; each thread can have its own. Permissions that are dropped with the
/// session end with it.
///
/// Programs write `Session`: it uses the ends that [`connect`] makes and the clock of the process. Simulations supply
/// their own ends and clocks.
pub struct Session<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    waiting: WaitingClient<E, C>,
    /// Permissions that were dropped and that the session has to revoke.
    dropped: Dropped,
    number: u64,
    unenforced: GuaranteeSet,
    opener: Option<Opener>,
    keeper: Option<Keeper>,
    // This field is last: the node is notified of the session's end only after the session's other fields are dropped.
    _departure: Option<Departure>,
}

impl<E: VerbsEndpoint, C: Clock> std::fmt::Debug for Session<E, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("client", &self.waiting).finish_non_exhaustive()
    }
}

/// Gives access to the part of a session that makes accesses and waits.
impl<E: VerbsEndpoint, C: Clock> Deref for Session<E, C> {
    type Target = WaitingClient<E, C>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.waiting
    }
}

impl<E: VerbsEndpoint, C: Clock> DerefMut for Session<E, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.waiting
    }
}

/// The methods that only sessions of programs have: such a session has an address, at which it can open more sessions.
impl Session {
    pub(crate) fn new(
        endpoint: SessionEndpoint,
        number: u64,
        config: ClientConfig,
        opener: Opener,
        departure: Option<Departure>,
    ) -> Result<Self, ConnectError> {
        let session = Self::over(endpoint, number, config, ProcessClock::start())?;
        Ok(Self { opener: Some(opener), _departure: departure, ..session })
    }

    /// Records the guarantees that permissions need and the node's device does not give.
    pub(crate) fn without(mut self, unenforced: GuaranteeSet) -> Self {
        self.unenforced = unenforced;
        self
    }

    /// Opens another session of the same tenant with the same node, for a user that cannot share this one, such as
    /// another thread or a structure.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn another(&self) -> Result<Self, ConnectError> {
        self.opener.as_ref().ok_or_else(|| ConnectError::Host("no opener".to_owned()))?()
    }

    /// Keeps a permission extended, `by` at a time, until the returned value is dropped, the node refuses, or the
    /// node's longest lifetime is reached. A separate thread extends the permission through a second session. That
    /// session extends by the lifetime word if its queue pairs open the word, and by a message otherwise.
    ///
    /// # Errors
    /// The second session could not be opened.
    pub fn keep(&mut self, permission: &Permission, by: Lifetime) -> Result<Kept, ConnectError> {
        if self.keeper.is_none() {
            let mut session = self.another()?;
            session.set_clock(*self.clock());
            self.keeper = Some(Keeper::start(session));
        }
        let keeper = self.keeper.as_ref().ok_or_else(|| ConnectError::Host("no keeper".to_owned()))?;
        Ok(keeper.keep(Arc::clone(permission.lease()), by))
    }
}

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Makes a session over a new, unused endpoint. `number` is the client's number on its node.
    ///
    /// # Errors
    /// [`Error::ArenaFull`]: the arena is too small for the client's own messages and words.
    pub fn over(endpoint: E, number: u64, config: ClientConfig, clock: C) -> Result<Self, Error> {
        Ok(Self {
            waiting: WaitingClient::new(Client::new(endpoint, config)?, clock),
            dropped: Arc::new(Mutex::new(Vec::new())),
            number,
            unenforced: GuaranteeSet::NONE,
            opener: None,
            keeper: None,
            _departure: None,
        })
    }

    /// Sets for how long an operation or a call may wait for the node. See [`SessionOptions::within`]. A session of
    /// [`Session::over`] has no limit at first.
    #[must_use]
    pub fn limited_to(mut self, within: Lifetime) -> Self {
        self.client().limit_to(Some(within));
        self
    }

    /// Returns the client's number on its node. The audit log names the client by it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The list of the session's dropped permissions. Each session has a list of its own.
    pub(crate) fn dropped(&self) -> Dropped {
        Arc::clone(&self.dropped)
    }

    /// Allocates memory and returns a permission over it.
    ///
    /// # Errors
    /// The node refuses, or is gone.
    pub fn allocate(&mut self, ask: Allocate) -> Result<Permission, Error> {
        self.revoke_dropped()?;
        self.call(ask.into()).map(|answer| self.granted(answer))
    }

    /// Acquires a permission over an existing object.
    ///
    /// # Errors
    /// The node refuses, other clients hold the object for longer than the request waits, or the node is gone.
    pub fn acquire(&mut self, ask: Acquire) -> Result<Permission, Error> {
        self.revoke_dropped()?;
        self.call(ask.into()).map(|answer| self.granted(answer))
    }

    /// Returns the permission that answers a request for one.
    fn granted(&self, answer: Answer) -> Permission {
        match answer {
            Answer::Granted(bare) => self.hold(bare),
            other => unreachable!("a request for a permission is not answered by {other:?}"),
        }
    }

    /// Converts a bare permission that this session's client was granted into one that the session revokes when it is
    /// dropped.
    #[must_use]
    pub fn hold(&self, bare: BarePermission) -> Permission {
        Permission::new(bare, Arc::clone(&self.dropped)).without(self.unenforced)
    }

    /// Extends a permission so that it ends `time` from now. This takes one atomic on the node's memory and none of the
    /// node's CPU. Returns the new end on the session's clock.
    ///
    /// # Errors
    /// The permission has ended, ends later already, or cannot be extended (by this much, or at all).
    pub fn extend(&mut self, permission: &Permission, time: Lifetime) -> Result<Moment, Error> {
        self.extend_until(permission, Until::After(time))
    }

    /// Extends a permission until a moment on the session's clock.
    ///
    /// # Errors
    /// As [`Session::extend`].
    pub fn extend_to(&mut self, permission: &Permission, deadline: Moment) -> Result<Moment, Error> {
        self.extend_until(permission, Until::Deadline(deadline))
    }

    fn extend_until(&mut self, permission: &Permission, until: Until) -> Result<Moment, Error> {
        let lease = Arc::clone(permission.lease());
        self.call(ControlRequest::Extend { lease, until })?;
        Ok(permission.lease().deadline())
    }

    /// Ends a permission. When this returns, the node has withdrawn it, or withdraws it before its memory is used
    /// again.
    ///
    /// # Errors
    /// The permission had ended already, or the node is gone.
    pub fn revoke(&mut self, permission: Permission) -> Result<(), Error> {
        self.end(permission, false)
    }

    /// Ends a permission, and frees its object once no other client holds it.
    ///
    /// # Errors
    /// As [`Session::revoke`].
    pub fn revoke_and_free(&mut self, permission: Permission) -> Result<(), Error> {
        self.end(permission, true)
    }

    fn end(&mut self, permission: Permission, free: bool) -> Result<(), Error> {
        let Some(bare) = permission.into_bare() else { return Ok(()) };
        self.call(ControlRequest::Revoke { permission: bare, free }).map(|_| ())
    }

    /// Frees an object with its members, whether it was kept or not. After the return the node grants no permission
    /// over them, no name and no share to any client. Existing permissions stay, and the memory is freed when the last
    /// of them ends.
    ///
    /// # Errors
    /// The object is gone, the object belongs to another node, or the node is gone.
    pub fn free(&mut self, object: ObjectRef) -> Result<(), Error> {
        self.free_with(object, Holders::Stay)
    }

    /// Frees an object as [`Session::free`] does, and ends all permissions over it. When this returns, no access reaches the
    /// memory any more, and the memory is free.
    ///
    /// # Errors
    /// As [`Session::free`].
    pub fn free_now(&mut self, object: ObjectRef) -> Result<(), Error> {
        self.free_with(object, Holders::End)
    }

    /// Frees an object as [`Session::free`] does, and waits until the last permission over it has ended. When this
    /// returns, the memory is free. A permission of this session counts as well: end it before the call.
    ///
    /// # Errors
    /// As [`Session::free`], and [`Error::TimedOut`]: the object is freed, but still has a holder. The call may be
    /// repeated.
    pub fn free_and_wait(&mut self, object: ObjectRef) -> Result<(), Error> {
        self.free_with(object, Holders::Await)
    }

    fn free_with(&mut self, object: ObjectRef, holders: Holders) -> Result<(), Error> {
        self.call(ControlRequest::Free { object: object.into(), holders }).map(|_| ())
    }

    /// Changes for how long the node keeps an object. [`Keep::No`]: the object is freed once its last permission has
    /// ended.
    ///
    /// A program can allocate without [`Allocate::keep`], store the reference and only then keep the object. If the
    /// program dies in between, the node does not keep an object whose reference is lost.
    ///
    /// # Errors
    /// The node keeps no object for that long, the object is gone, or the node is gone.
    pub fn set_keep(&mut self, object: ObjectRef, keep: Keep) -> Result<(), Error> {
        self.call(ControlRequest::Keep { object: object.into(), keep }).map(|_| ())
    }

    /// Takes the permissions that were dropped and are not revoked yet. The next [`Session::allocate`] or
    /// [`Session::acquire`] would have revoked them, so the caller must revoke them instead.
    #[must_use = "a permission that nobody revokes lives until its deadline"]
    pub fn take_dropped(&mut self) -> Vec<BarePermission> {
        std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn revoke_dropped(&mut self) -> Result<(), Error> {
        let mut dropped = self.take_dropped().into_iter();
        while let Some(bare) = dropped.next() {
            let permission = Permission::new(bare, Arc::clone(&self.dropped));
            match self.revoke(permission) {
                // A refusal means that the permission had ended already, which is what the caller wanted.
                Ok(()) | Err(Error::Refused(_)) => {}
                Err(error) => {
                    // The remaining permissions are revoked by the next call.
                    self.dropped.lock().unwrap_or_else(PoisonError::into_inner).extend(dropped);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
