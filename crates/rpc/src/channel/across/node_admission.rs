//! Admission of clients of other machines: a thread of the server searches a node for their hellos, makes a mailbox for
//! each, and frees the mailbox when its client has left.

use super::mailbox::{HELLO_BYTES, HeapHalves, Hello, NAME, REPLIES_AT, TERMS_BYTES, Terms};
use super::permissions::{acquire, allocate};
use super::server::{Founded, ServerMailbox};
use crate::channel::admission::{Carried, News, SERVER, find_place};
use crate::channel::ends::RING_BYTES;
use crate::channel::shards::ServerShards;
use crate::channel::{Channel, now};
use crate::heap::{HEAP_BYTES_MIN, HeapPlace, PAGE_BYTES};
use portcullis::host::{Host, LentMemory};
use portcullis::{
    Acquire, Allocate, ConnectError, DirectoryName, Entry, Error, Lifetime, ObjectRef, Permission, Refusal,
    Rights, Session, SessionOptions, TenantName,
};
use portcullis_attach::Reason;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Mapping, Memory};
use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between two searches for clients.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The time within which a client must acquire its mailbox.
const COMES_WITHIN: Duration = Duration::from_secs(3);
/// Pause between two checks whether a client still holds its mailbox.
const LOOK_AFTER_EVERY: Duration = Duration::from_millis(100);
/// Lifetime of permissions that this thread needs only for a moment.
const FOR_A_MOMENT: Lifetime = Lifetime::seconds(1);
/// How long the node keeps a mailbox after it has lost the server's session: threads that still write there detect the
/// loss earlier.
const KEPT_FOR: Lifetime = Lifetime::seconds(60);
/// Number of places that are tried for a heap.
const PLACES_MAX: u32 = 16;

/// Options of a channel at a node, for clients of other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtNode {
    channel: String,
    tenants: Vec<String>,
    /// Bytes of a connection's heap, if its client does not request another size. Half of them are for arguments, and
    /// half for results. The node lends the channel that much of its pool for each connection. Results that a client
    /// has dropped are freed when its next requests arrive, each of which names up to eight of them.
    pub heap_bytes: u64,
    /// The most bytes that a client may request.
    pub heap_bytes_max: u64,
    /// The most connections that a tenant may have.
    pub connections_max: usize,
}

impl AtNode {
    /// Options for a channel of this name, which is that of the channel's tenant on the node: no client is this tenant.
    #[must_use]
    pub fn channel(name: &str) -> Self {
        let (channel, tenants) = (name.to_owned(), Vec::new());
        Self { channel, tenants, heap_bytes: 2 << 20, heap_bytes_max: 64 << 20, connections_max: 64 }
    }

    /// Lets clients of another tenant of the node connect. Clients of one tenant can access each other's connections.
    #[must_use]
    pub fn admit(mut self, tenant: &str) -> Self {
        self.tenants.push(tenant.to_owned());
        self
    }
}

/// Error of adding a channel to a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The channel admits itself as a client.
    #[error("the channel {0:?} cannot admit itself: clients are other tenants of the node")]
    Itself(String),
    /// A name is no valid name of a tenant.
    #[error(transparent)]
    Name(#[from] portcullis::BadName),
    /// The node refuses the channel, or has ended.
    #[error(transparent)]
    Node(#[from] ConnectError),
    /// The node has ended.
    #[error("the node has ended")]
    NodeGone,
}

impl Coded for NodeError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Itself(_) => ErrorCode::Configuration,
            Self::Name(error) => error.code(),
            Self::Node(error) => error.code(),
            Self::NodeGone => ErrorCode::NodeGone,
        }
    }
}

/// A channel's resources on a node before the channel starts.
#[derive(Debug)]
pub(in crate::channel) struct ChannelAtNode {
    at: AtNode,
    session: Session,
    memory: LentMemory,
}

impl Channel {
    /// Serves clients of other machines too, over a node that this process runs. They connect to an address of the
    /// node, with the channel's name behind a `#` ([`ChannelAddress`](super::ChannelAddress)). Each connection has a
    /// piece of the node's pool.
    ///
    /// Methods are the same for all clients, with two exceptions: [`one_shot`](Channel::one_shot) methods have no
    /// callers on other machines, and these clients have no [`shared_heap`](Channel::shared_heap). A
    /// [`Trusted`](crate::channel::Trusted) method of such a client reads the client's half of the heap, as it was when
    /// the client sent it.
    ///
    /// ```
    /// use portcullis::host::{Host, HostConfig, Listen};
    /// use portcullis_rpc::channel::{AtNode, Connection, Copied, serve};
    /// use portcullis_rpc::{Boxed, Text};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("node.sock");
    /// let listen = vec![Listen { path: path.clone(), tenant: Some("red".to_owned()) }];
    /// let node = Host::start(HostConfig { listen, ..HostConfig::default() })?;
    /// let server = serve(folder.path().join("greetings.sock"))
    ///     .copied(1, |name: Copied<'_, Text>, reply| {
    ///         reply.set_word(name.get()?.get(name.view())?.len() as u64);
    ///         Ok(())
    ///     })
    ///     .at_node(&node, AtNode::channel("greetings").admit("red"))?
    ///     .start()?;
    ///
    /// // Over a network it would be udp:HOST:PORT#greetings or rdma:HOST:PORT#greetings.
    /// let mut connection = Connection::open(format!("shm:{}#greetings", path.display()))?;
    /// let scope = connection.scope(4096)?;
    /// let name = Boxed::new(&scope, Text::new(&scope, "Ada")?)?;
    /// assert_eq!(connection.call(1, &scope, name)?.word(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The channel admits itself, a name is invalid, or the node refuses.
    pub fn at_node(mut self, node: &Host, at: AtNode) -> Result<Self, NodeError> {
        if at.tenants.contains(&at.channel) {
            return Err(NodeError::Itself(at.channel));
        }
        at.tenants.iter().chain([&at.channel]).try_for_each(|name| TenantName::new(name).map(|_| ()))?;
        let session = node.connect(&at.channel, SessionOptions::default())?;
        let memory = node.lent_memory().ok_or(NodeError::NodeGone)?;
        self.nodes.push(ChannelAtNode { at, session, memory });
        Ok(self)
    }
}

/// An answer to a hello: a mailbox or a refusal.
#[derive(Debug)]
struct Given {
    tenant: usize,
    name: DirectoryName,
    object: ObjectRef,
    /// The client's number, if this is a client's mailbox.
    client: Option<u64>,
    /// Time of the next check whether a client holds the object.
    look_at: Instant,
    /// Token that the connection's thread also holds, for as long as it uses the memory.
    lent: Arc<()>,
}

/// Admission to a channel at a node.
#[derive(Debug)]
pub(in crate::channel) struct NodeAdmission {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<Keeper>>,
    /// State of the thread, after it has ended. Only one thread at a time can use a session, but several can have a
    /// server.
    keeper: Mutex<Option<Keeper>>,
}

impl NodeAdmission {
    /// Starts the thread.
    pub fn start(node: ChannelAtNode, shards: ServerShards) -> std::io::Result<Self> {
        let ChannelAtNode { at, session, memory } = node;
        let keeper =
            Keeper { at, session, memory, shards, seen: HashSet::new(), given: Vec::new(), left: Vec::new() };
        let (ends, receiver) = channel();
        let run = move || keeper.run(&receiver);
        let thread = std::thread::Builder::new().name("portcullis-door".to_owned()).spawn(run)?;
        Ok(Self { ends: Some(ends), thread: Some(thread), keeper: Mutex::default() })
    }

    /// Ends the thread: from here on the node refuses the clients. The connections' threads still have their memory.
    pub fn close(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            self.keeper = Mutex::new(thread.join().ok());
        }
    }
}

impl Drop for NodeAdmission {
    fn drop(&mut self) {
        self.close();
        // The connections' threads have ended, so their memory can be freed.
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Keeper { session, left, .. }) = keeper {
            for given in left.drain(..) {
                let _ = session.free(given.object);
            }
        }
    }
}

/// State of the thread that serves the clients of a channel at a node.
#[derive(Debug)]
struct Keeper {
    at: AtNode,
    session: Session,
    memory: LentMemory,
    shards: ServerShards,
    /// Hellos that were answered, by tenant.
    seen: HashSet<(usize, DirectoryName)>,
    given: Vec<Given>,
    /// Mailboxes whose clients have left: their memory is freed when no thread uses it any more.
    left: Vec<Given>,
}

impl Keeper {
    fn run(mut self, ends: &Receiver<()>) -> Self {
        while matches!(ends.recv_timeout(LOOK_EVERY), Err(RecvTimeoutError::Timeout)) {
            let is_over = self.turn().is_err();
            if is_over || self.shards.iter().any(|shard| shard.is_stopped()) {
                break;
            }
        }
        // The clients' permissions are ended first, so that each client detects the end.
        for given in std::mem::take(&mut self.given) {
            self.end(given);
        }
        self
    }

    /// Runs one round of the thread.
    ///
    /// # Errors
    /// The node has ended.
    fn turn(&mut self) -> Result<(), Error> {
        for tenant in 0..self.at.tenants.len() {
            self.look_for_hellos(tenant)?;
        }
        self.look_after_clients()?;
        let Self { session, left, .. } = self;
        left.retain(|given| Arc::strong_count(&given.lent) > 1 || session.free(given.object).is_err());
        session.client().over().map_or(Ok(()), Err)
    }

    fn look_for_hellos(&mut self, tenant: usize) -> Result<(), Error> {
        let hellos = match self.session.list_of(&self.at.tenants[tenant]) {
            Ok(hellos) => hellos,
            Err(error) => return unless_over(error),
        };
        self.seen.retain(|(of, name)| *of != tenant || hellos.iter().any(|hello| hello.name == *name));
        for hello in hellos {
            if hello.name.as_str().starts_with(NAME) && self.seen.insert((tenant, hello.name)) {
                self.answer(tenant, hello).or_else(unless_over)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, tenant: usize, hello: Entry) -> Result<(), Error> {
        // A client has to let its hello be read at once. Otherwise it gets no answer, by its own fault.
        let ask = Acquire::object(hello.object).part(0, HELLO_BYTES as u64).read_only().shared();
        let permission = acquire(&mut self.session, ask.wait(Lifetime(0)).lifetime(FOR_A_MOMENT))?;
        let mut bytes = [0; HELLO_BYTES];
        self.session.read(&permission, 0, &mut bytes)?;
        self.session.revoke(permission)?;
        let made = match Hello::parse(bytes) {
            Some(hello) => self.make(tenant, hello.heap_bytes),
            None => Err("the client is of another version than the server".into()),
        };
        let (object, client, lent) = match made {
            Ok(made) => made,
            Err(reason) => self.refuse(&reason.to_string())?,
        };
        let look_at = Instant::now() + COMES_WITHIN;
        let given = Given { tenant, name: hello.name, object, client, look_at, lent };
        let published = self.publish(&given);
        self.given.push(given);
        published
    }

    fn publish(&mut self, given: &Given) -> Result<(), Error> {
        let (name, tenant) = (given.name.as_str(), &self.at.tenants[given.tenant]);
        self.session.publish(name, given.object)?;
        self.session.share(name, tenant, Rights::READ | Rights::WRITE)
    }

    /// Allocates memory of the channel, which is zeros.
    fn allocate(&mut self, bytes: u64) -> Result<(Permission, Mapping), Error> {
        let ask = Allocate::bytes(bytes).aligned(PAGE_BYTES).lifetime(FOR_A_MOMENT);
        let permission = match allocate(&mut self.session, ask.keep_for(KEPT_FOR)) {
            Err(Error::Refused(Refusal::KeptTooLong { .. })) => allocate(&mut self.session, ask.keep())?,
            other => other?,
        };
        let memory = self.memory.bytes(permission.address(), bytes).ok_or(Error::NodeGone)?;
        // Another client may have had this memory.
        memory.zero(0, bytes);
        Ok((permission, memory))
    }

    /// Makes a mailbox, and assigns it to one of the server's threads.
    fn make(&mut self, tenant: usize, heap_bytes: u64) -> Result<(ObjectRef, Option<u64>, Arc<()>), Reason> {
        let (halves, view) = self.find_places(tenant, heap_bytes)?;
        let (permission, memory) = self.allocate(halves.bytes())?;
        let object = permission.object();
        let (ring, lent) = (Mapping::private(RING_BYTES)?, Arc::new(()));
        let founded = ServerMailbox::found(&memory, halves, (SERVER, ring.clone()), Arc::clone(&lent));
        let Founded { mailbox, arguments } = founded.ok_or("the node lends less than was requested")?;
        memory.write(0, &Terms::Welcome(halves, now()).encode());
        self.session.revoke(permission)?;
        let seat = self.shards.deal();
        let client = seat.client();
        let carried = Carried { arguments, view, ring, carrier: Box::new(mailbox), seat };
        self.shards.of(client).tell(News::CameFromAfar(client, Box::new(carried)));
        Ok((object, Some(client), lent))
    }

    fn find_places(
        &self,
        tenant: usize,
        heap_bytes: u64,
    ) -> Result<(HeapHalves, portcullis_memory::PrivateView), Reason> {
        let AtNode { heap_bytes: usual, heap_bytes_max: most, connections_max, .. } = self.at;
        let has = self.given.iter().filter(|it| it.tenant == tenant && it.client.is_some()).count();
        if has >= connections_max {
            return Err(format!("the tenant has {has} connections already (AtNode::connections_max)").into());
        }
        let wanted = if heap_bytes == 0 { usual } else { heap_bytes };
        if wanted > most {
            return Err(format!("a heap of {wanted} bytes, but {most} are allowed (AtNode)").into());
        }
        let half = (wanted / 2).max(HEAP_BYTES_MIN).next_multiple_of(PAGE_BYTES);
        for _ in 0..PLACES_MAX {
            let (arguments, view, _) = find_place(half, None)?;
            // Results lie at these addresses only at the client.
            if let Ok(results) = HeapPlace::new(arguments.end(), half) {
                return Ok((HeapHalves { arguments, results }, view));
            }
        }
        Err("no addresses are free".into())
    }

    fn refuse(&mut self, reason: &str) -> Result<(ObjectRef, Option<u64>, Arc<()>), Error> {
        let (permission, memory) = self.allocate(TERMS_BYTES)?;
        memory.write(0, &Terms::Refused(reason.to_owned()).encode());
        let object = permission.object();
        self.session.revoke(permission)?;
        Ok((object, None, Arc::new(())))
    }

    fn look_after_clients(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let due: Vec<usize> =
            (0..self.given.len()).rev().filter(|&at| self.given[at].look_at <= now).collect();
        for at in due {
            self.given[at].look_at = now + LOOK_AFTER_EVERY;
            if self.is_held(self.given[at].object)? {
                continue;
            }
            let given = self.given.swap_remove(at);
            self.end(given);
        }
        Ok(())
    }

    /// Whether a client holds the terms of its mailbox: then no other holder can have them.
    fn is_held(&mut self, object: ObjectRef) -> Result<bool, Error> {
        let ask = Acquire::object(object).part(0, REPLIES_AT).wait(Lifetime(0)).lifetime(FOR_A_MOMENT);
        match acquire(&mut self.session, ask) {
            Ok(permission) => {
                // If revoking fails, the permission ends by itself.
                let _ = self.session.revoke(permission);
                Ok(false)
            }
            Err(Error::Refused(Refusal::Conflict)) => Ok(true),
            // It is unknown whether the client holds them.
            Err(error) => unless_over(error).map(|()| true),
        }
    }

    /// Ends a connection, or takes a refusal back. The client's permissions over it end here.
    fn end(&mut self, given: Given) {
        let _ = self.session.unpublish(given.name.as_str());
        if let Some(client) = given.client {
            self.shards.of(client).tell(News::Left(client));
        }
        self.left.push(given);
    }
}

/// Ignores the errors of one client: they are no reason to end.
fn unless_over(error: Error) -> Result<(), Error> {
    if matches!(error, Error::NodeGone | Error::SessionLost | Error::Barred) { Err(error) } else { Ok(()) }
}
