//! Channels that are found by their names in a directory. Their heaps have addresses that no other heap of the cluster
//! has (RPCool §4.1, §4.2).
//!
//! The server registers the channel's name with a lease, and the directory assigns the addresses of each connection's
//! heap. A client looks the name up and becomes a holder of its heap. The last holder of a heap gives its addresses
//! back. A process that dies holds no heaps any more when its lease has ended.

use super::admission::{PLACES_MAX, ServerMappings, mappings_at};
use super::one_shot::OneShotLimits;
use super::{Channel, Connection, ConnectionError, ConnectionOptions, ServeError};
use crate::heap::HeapPlace;
use portcullis_attach::unix::Peer;
use portcullis_attach::{Errand, Reason};
pub use portcullis_directory::{Access, Directory, DirectoryError, Name, Who};
use portcullis_directory::{
    Address, Entry, Holding, Lease, NotHere, Registration, ScopedAddress, StartError, Target,
};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::TenantName;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// The name of a channel, and the directory that it is in.
#[derive(Clone, Debug)]
pub struct Naming {
    /// The directory.
    pub directory: Arc<dyn Directory>,
    /// The channel's name. Its first part is the server's tenant.
    pub name: Name,
    /// The other tenants that can find the channel and may connect. The kernel identifies the user of a client: the
    /// user with number N is tenant `uid:N`. The server's own user may always connect.
    /// [`ServerOptions::access`](super::ServerOptions::access) sets whether other users may open the socket.
    pub access: Access,
    /// How long the name and the heaps stay registered after the server has ended.
    pub time_to_live: Duration,
}

impl Naming {
    /// Names a channel in a directory, for its own tenant alone. The name ends ten seconds after the server.
    #[must_use]
    pub fn new(directory: Arc<dyn Directory>, name: Name) -> Self {
        let time_to_live = Duration::from_secs(10);
        Self { directory, name, access: Access::private(), time_to_live }
    }

    /// Sets the access list, so that other tenants may connect too.
    #[must_use]
    pub fn with_access(self, access: Access) -> Self {
        Self { access, ..self }
    }
}

impl Channel {
    /// Gives the channel a name in a directory, under which [`find`] finds it. The directory assigns the addresses of
    /// its connections' heaps.
    ///
    /// ```
    /// use portcullis_directory::{Embedded, Name, Space};
    /// use portcullis_rpc::channel::{ConnectionOptions, Copied, Naming, find, serve};
    /// use portcullis_rpc::{Boxed, Text};
    /// use std::sync::Arc;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let directory = Arc::new(Embedded::new(Space::usual()));
    /// let name = Name::new("bank/greetings")?;
    /// let server = serve(folder.path().join("greetings.sock"))
    ///     .named(Naming::new(directory.clone(), name.clone()))
    ///     .copied(1, |name: Copied<'_, Text>, reply| {
    ///         reply.set_word(name.get()?.get(name.view())?.len() as u64);
    ///         Ok(())
    ///     })
    ///     .start()?;
    /// let mut connection = find(directory, &name.tenant(), &name, ConnectionOptions::default())?;
    /// let scope = connection.scope(4096)?;
    /// let name = Boxed::new(&scope, Text::new(&scope, "Ada")?)?;
    /// assert_eq!(connection.call(1, &scope, name)?.word(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn named(mut self, naming: Naming) -> Self {
        self.naming = Some(naming);
        self
    }
}

/// A named server's state in its directory: its lease, its name, and its heaps' addresses.
#[derive(Debug)]
pub(super) struct HeapSource {
    directory: Arc<dyn Directory>,
    registration: Arc<Kept>,
    tenant: TenantName,
    look_up: Who,
    released: Sender<u64>,
}

/// The server's registration. The thread that gives heaps back uses it too, until the server ends.
#[derive(Debug)]
struct Kept(RwLock<Option<Registration>>);

impl Kept {
    fn with<T>(&self, act: impl FnOnce(&Registration) -> T) -> Option<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(act)
    }

    /// Ends the registration. When this returns, no client finds the server any more, if the directory can be reached.
    fn end(&self) {
        drop(self.0.write().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Addresses from a directory. Dropping this gives them back.
#[derive(Debug)]
pub(super) struct Given {
    address: u64,
    released: Sender<u64>,
}

impl Drop for Given {
    fn drop(&mut self) {
        // If the server has ended, it has given back all addresses already.
        let _ = self.released.send(self.address);
    }
}

/// Place for the result of an errand.
pub(super) type Slot = Arc<Mutex<Option<(ServerMappings, Given)>>>;

impl HeapSource {
    /// Registers a channel whose socket is at this path.
    pub fn start(naming: Naming, path: &Path) -> Result<Arc<Self>, ServeError> {
        let Naming { directory, name, access, time_to_live } = naming;
        let socket = |source| ServeError::Socket { path: path.to_owned(), source };
        let address = ScopedAddress::of_socket(path).map_err(socket)?.to_address();
        let address = address.map_err(|error| ServeError::Directory(error.into()))?;
        let (tenant, look_up) = (name.tenant(), access.look_up.clone());
        let entry = Some((name, Entry { target: Target::Channel { address }, access }));
        let holding = Holding { tenant, time_to_live, entry };
        let registration = Registration::start_now(holding, Arc::clone(&directory))?;
        let registration = Arc::new(Kept(RwLock::new(Some(registration))));
        let (released, receiver) = channel();
        let give_back = {
            let (directory, registration) = (Arc::clone(&directory), Arc::clone(&registration));
            move || give_back(&*directory, &registration, &receiver)
        };
        std::thread::Builder::new()
            .name("portcullis-heaps".to_owned())
            .spawn(give_back)
            .map_err(ServeError::Machine)?;
        Ok(Arc::new(Self { directory, registration, tenant, look_up, released }))
    }

    /// Whether a process may connect.
    pub fn may_connect(&self, peer: &Peer) -> bool {
        let Some(user) = peer.user else { return matches!(self.look_up, Who::Everybody) };
        if user == rustix::process::geteuid().as_raw() {
            return true;
        }
        let tenant = TenantName::new(&format!("uid:{user}"));
        tenant.is_ok_and(|tenant| tenant == self.tenant || self.look_up.includes(&tenant))
    }

    /// Requests addresses from the directory, until it assigns some that nothing else in this process uses.
    pub fn place(
        &self,
        length: u64,
        one_shots: Option<OneShotLimits>,
    ) -> Result<(ServerMappings, Given), Reason> {
        let lease = self.registration.with(Registration::lease).flatten();
        let lease = lease.ok_or("the server's lease with its directory has ended")?;
        let all = length + one_shots.map_or(0, OneShotLimits::addresses);
        // Addresses that cannot be used here are given back last, so that they are not assigned again.
        let (mut in_vain, mut last) = (Vec::new(), None);
        for _ in 0..PLACES_MAX {
            let range = self.directory.create_heap(&lease, all, &self.look_up)?;
            self.registration.with(|it| it.keep_heap(range.address));
            let given = Given { address: range.address, released: self.released.clone() };
            match mappings_at(HeapPlace::new(range.address, length)?, one_shots) {
                Ok(mappings) => return Ok((mappings, given)),
                Err(error) => last = Some(error),
            }
            in_vain.push(given);
        }
        Err(last.map_or_else(|| "no addresses are free".into(), Into::into))
    }

    /// Returns an errand that calls [`place`](Self::place) on a thread that may wait for the directory.
    pub fn errand(self: &Arc<Self>, length: u64, one_shots: Option<OneShotLimits>, slot: &Slot) -> Errand {
        let (source, slot) = (Arc::clone(self), Arc::clone(slot));
        Box::new(move || {
            let placed = source.place(length, one_shots)?;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(placed);
            Ok(())
        })
    }
}

impl Drop for HeapSource {
    fn drop(&mut self) {
        self.registration.end();
    }
}

impl From<StartError> for ServeError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Directory(error) => Self::Directory(error),
            refused => Self::Machine(std::io::Error::other(refused)),
        }
    }
}

/// Gives back the addresses of heaps whose connections have ended. A server that ends gives back all of its heaps.
fn give_back(directory: &dyn Directory, registration: &Kept, released: &Receiver<u64>) {
    for address in released {
        registration.with(|it| it.release_heap(directory, address));
    }
}

/// Error of finding a channel by its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The directory cannot be reached, has no such name for this tenant, or does not let it hold the heap.
    #[error("the channel {name}: {source}")]
    Directory {
        /// The name.
        name: Name,
        /// The error of the directory.
        source: DirectoryError,
    },
    /// The name stands for another kind of object.
    #[error("{name} is {kind}, not a channel of calls")]
    AnotherKind {
        /// The name.
        name: Name,
        /// The kind of object that it stands for.
        kind: &'static str,
    },
    /// The channel is not on this machine, or its socket does not exist any more.
    #[error("the channel {name} cannot be reached from here, at {address}: {why}")]
    NotHere {
        /// The name.
        name: Name,
        /// The address that is registered.
        address: Address,
        /// Why the address cannot be reached from here.
        why: String,
    },
    /// The connection could not be made.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The machine refuses a thread.
    #[error("this machine refuses a thread: {0}")]
    Machine(#[source] std::io::Error),
}

impl Coded for FindError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Directory { source, .. } => source.code(),
            Self::AnotherKind { .. } => ErrorCode::NameOfAnotherKind,
            Self::NotHere { .. } => ErrorCode::NameLeadsNowhere,
            Self::Connection(error) => error.code(),
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

/// A connection to a channel that was found by its name. It holds the heap in the directory for as long as it lives.
#[derive(Debug)]
pub struct Found {
    connection: Connection,
    // Dropped after the connection: from then on the addresses can be assigned to others.
    registration: Registration,
}

impl Found {
    /// The lease with which the heap is held. `None`: it has ended, as far as is known.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        self.registration.lease()
    }

    /// Whether this connection holds its heap in the directory, as far as is known. After a lost lease it holds the
    /// heap again, unless no process held the heap meanwhile: then its addresses may have been assigned to another
    /// heap, and no pointer to it should be passed on to other processes.
    #[must_use]
    pub fn holds_heap(&self) -> bool {
        self.registration.holds_heap(self.connection.heap().place().start())
    }
}

impl Deref for Found {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Found {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// How long a client's hold on its heap stays after the client has ended.
const HOLD: Duration = Duration::from_secs(10);

/// Connects to the channel with a name, on behalf of a tenant.
///
/// # Errors
/// There is no such channel for the tenant, it is not on this machine, or it does not admit the client.
pub fn find(
    directory: Arc<dyn Directory>,
    tenant: &TenantName,
    name: &Name,
    options: ConnectionOptions,
) -> Result<Found, FindError> {
    let of_name = |source| FindError::Directory { name: name.clone(), source };
    let found = directory.look_up(tenant, name).map_err(of_name)?;
    let Target::Channel { address } = found.target else {
        return Err(FindError::AnotherKind { name: name.clone(), kind: found.target.kind() });
    };
    let not_here = |why: String| FindError::NotHere { name: name.clone(), address: address.clone(), why };
    let scoped = ScopedAddress::parse(&address).ok_or_else(|| not_here("its scope is unknown".to_owned()))?;
    scoped.check().map_err(|why: NotHere| not_here(why.to_string()))?;
    let path = scoped.socket().ok_or_else(|| not_here("it is not a socket".to_owned()))?;
    let connection = Connection::open_with(path, options)?;
    let holding = Holding { tenant: *tenant, time_to_live: HOLD, entry: None };
    let registration = Registration::start_now(holding, Arc::clone(&directory));
    let registration = registration.map_err(|error| match error {
        StartError::Directory(source) => of_name(source),
        refused => FindError::Machine(std::io::Error::other(refused)),
    })?;
    registration.hold_heap(&*directory, connection.heap().place().start()).map_err(of_name)?;
    Ok(Found { connection, registration })
}
