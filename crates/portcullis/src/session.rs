//! A session with a node: the client library with calls that wait.

mod chunks;
mod directory;
mod event_loop;
mod together;
mod transfers;

pub use chunks::{Chunk, NotAllAllocated, NotAllFreed};

use crate::clock::{Clock, ProcessClock};
use crate::held::Dropped;
use crate::keeper::{Keeper, Kept};
use crate::names::{self, Candidates, FindError, Name, Names};
#[cfg(feature = "rdma")]
use crate::rdma::{self, RdmaAttachError, RdmaOptions};
#[cfg(feature = "udp")]
use crate::udp::{self, UdpError, UdpOptions};
use crate::{Address, Permission, SessionEndpoint, UnknownAddress};
use portcullis_client::{
    Acquire, Allocate, Answer, Buffer, Call, Client, ClientConfig, Effect, Error, Operation, Outcome,
    Permission as BarePermission, Rejected,
};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_host::software::{AttachError, attach};
use portcullis_nic::{GuaranteeSet, VerbsEndpoint};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Holders, Keep, Lifetime, Moment, ObjectRef};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a session's arena by default.
const ARENA_BYTES: u64 = 4 << 20;
/// Default time that an attach, an operation or a call may take.
const WITHIN: Lifetime = Lifetime::seconds(5);
/// The longest time that an attach may take, whatever the options set.
const ATTACH_MAX: Lifetime = Lifetime::seconds(86_400);
/// Time for which a wait yields before it sleeps. The limit is a time and not a count, because one yield can take
/// milliseconds on a busy machine.
const YIELD_FOR: Lifetime = Lifetime::micros(500);
/// The longest sleep. It bounds the time until the session notices that the node has ended.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Time without a result after which a session that polls checks whether its node is still alive.
const LIFE_CHECKED_EVERY: Lifetime = Lifetime::millis(5);

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

/// A session with a node. Its calls wait for their answer: they spin, then yield, then sleep.
///
/// Only one thread uses a session at a time; each thread can have its own. Permissions that are dropped with the
/// session end with it.
///
/// Programs write `Session`: it uses the ends that [`connect`] makes and the clock of the process. Simulations supply
/// their own ends and clocks.
pub struct Session<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    client: Client<E>,
    clock: C,
    dropped: Dropped,
    number: u64,
    unenforced: GuaranteeSet,
    opener: Option<Opener>,
    keeper: Option<Keeper>,
    looks: u32,
    /// The moment at which the present wait began to yield.
    yielding_since: Moment,
    /// The moment at which the session last knew that the node was alive.
    heard: Moment,
    quiet: Quiet,
    // This field is last: the node is notified of the session's end only after the session's other fields are dropped.
    _departure: Option<Departure>,
}

/// The time for which no operation or call has ended in the present wait.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    /// Number of operations and calls that had ended by `since`.
    ended: u64,
    since: Moment,
    /// Whether nothing has ended for longer than the session's limit.
    for_too_long: bool,
}

impl<E: VerbsEndpoint, C: Clock> std::fmt::Debug for Session<E, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("client", &self.client).finish_non_exhaustive()
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

    /// Converts an instant to the session's clock, for callers that have read a clock already.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Moment {
        self.clock.at(instant)
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
            session.clock = self.clock;
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
        let now = clock.now();
        Ok(Self {
            client: Client::new(endpoint, config)?,
            clock,
            dropped: Arc::new(Mutex::new(Vec::new())),
            number,
            unenforced: GuaranteeSet::NONE,
            opener: None,
            keeper: None,
            looks: 0,
            yielding_since: now,
            heard: now,
            quiet: Quiet { ended: 0, since: now, for_too_long: false },
            _departure: None,
        })
    }

    /// Sets for how long an operation or a call may wait for the node. See [`SessionOptions::within`]. A session of
    /// [`Session::over`] has no limit at first.
    #[must_use]
    pub fn limited_to(mut self, within: Lifetime) -> Self {
        self.client.limit_to(Some(within));
        self
    }

    /// Returns for how long an operation or a call may wait for the node. `None`: there is no limit.
    #[must_use]
    pub fn within(&self) -> Option<Lifetime> {
        self.client.limit()
    }

    /// Returns the client's number on its node. The audit log names the client by it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the time on the session's clock, on which its leases are measured.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns the session's clock.
    #[must_use]
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The list of the session's dropped permissions. Each session has a list of its own.
    pub(crate) fn dropped(&self) -> Dropped {
        Arc::clone(&self.dropped)
    }

    /// Returns the client library underneath, for operations that do not wait and for batches. [`Session::wait`] and
    /// [`Session::wait_call`] wait for the outcomes of its operations and calls.
    pub fn client(&mut self) -> &mut Client<E> {
        &mut self.client
    }

    /// Takes a buffer from the arena, for operations that do not wait.
    ///
    /// # Errors
    /// [`Error::ArenaFull`].
    pub fn buffer(&self, length: u32) -> Result<Buffer<E::Memory>, Error> {
        self.client.buffer(length)
    }

    /// Allocates memory and returns a permission over it.
    ///
    /// # Errors
    /// The node refuses, or is gone.
    pub fn allocate(&mut self, ask: Allocate) -> Result<Permission, Error> {
        self.revoke_dropped()?;
        let call = self.begin(|client, now| client.allocate(now, ask))?;
        self.granted(call)
    }

    /// Acquires a permission over an existing object.
    ///
    /// # Errors
    /// The node refuses, other clients hold the object for longer than the request waits, or the node is gone.
    pub fn acquire(&mut self, ask: Acquire) -> Result<Permission, Error> {
        self.revoke_dropped()?;
        let call = self.begin(|client, now| client.acquire(now, ask))?;
        self.granted(call)
    }

    fn granted(&mut self, call: Call) -> Result<Permission, Error> {
        let answer = self.wait_call(call)?;
        self.permission(answer)
    }

    /// Converts a bare permission that this session's client was granted into one that the session revokes when it is
    /// dropped.
    #[must_use]
    pub fn hold(&self, bare: BarePermission) -> Permission {
        Permission::new(bare, Arc::clone(&self.dropped)).without(self.unenforced)
    }

    fn permission(&self, answer: Answer) -> Result<Permission, Error> {
        match answer {
            Answer::Granted(bare) => Ok(self.hold(bare)),
            Answer::Extended(_) | Answer::Done | Answer::Entry(_) | Answer::EndOfList | Answer::Chunks(_) => {
                Err(Error::SessionLost)
            }
        }
    }

    /// Extends a permission so that it ends `time` from now. This takes one atomic on the node's memory and none of the
    /// node's CPU. Returns the new end on the session's clock.
    ///
    /// # Errors
    /// The permission has ended, ends later already, or cannot be extended (by this much, or at all).
    pub fn extend(&mut self, permission: &Permission, time: Lifetime) -> Result<Moment, Error> {
        let call = self.begin(|client, now| client.extend(now, permission, time))?;
        self.extended(call, permission)
    }

    /// Extends a permission until a moment on the session's clock.
    ///
    /// # Errors
    /// As [`Session::extend`].
    pub fn extend_to(&mut self, permission: &Permission, deadline: Moment) -> Result<Moment, Error> {
        let call = self.begin(|client, now| client.extend_to(now, permission.lease(), deadline))?;
        self.extended(call, permission)
    }

    fn extended(&mut self, call: Call, permission: &Permission) -> Result<Moment, Error> {
        match self.wait_call(call)? {
            Answer::Extended(_) => Ok(permission.lease().deadline()),
            Answer::Granted(_) | Answer::Done | Answer::Entry(_) | Answer::EndOfList | Answer::Chunks(_) => {
                Err(Error::SessionLost)
            }
        }
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
        let mut bare = Some(bare);
        let call = self.begin(|client, now| {
            let Some(permission) = bare.take() else { return Err(Error::SessionLost) };
            client.revoke(now, permission, free).map_err(|refused| {
                bare = Some(*refused.permission);
                refused.error
            })
        })?;
        self.wait_call(call).map(|_| ())
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
        let call = self.begin(|client, _| client.free_with(object, holders))?;
        self.wait_call(call).map(|_| ())
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
        let call = self.begin(|client, _| client.keep_object(object, keep))?;
        self.wait_call(call).map(|_| ())
    }

    /// Writes `swap` to the 8-byte word at `offset` if the word equals `compare`. Returns the word's previous value.
    ///
    /// # Errors
    /// As [`Session::read`]. The word is unchanged then.
    pub fn compare_and_swap(
        &mut self,
        permission: &BarePermission,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Error> {
        let now = self.now();
        let begun = self.client.compare_and_swap(now, permission, offset, compare, swap);
        let operation = begun.map_err(|rejected| rejected.error)?;
        self.wait(operation)?.result
    }

    /// Adds `add` to the 8-byte word at `offset`, wrapping. Returns the word's previous value.
    ///
    /// # Errors
    /// As [`Session::compare_and_swap`].
    pub fn fetch_and_add(
        &mut self,
        permission: &BarePermission,
        offset: u64,
        add: u64,
    ) -> Result<u64, Error> {
        let now = self.now();
        let begun = self.client.fetch_and_add(now, permission, offset, add);
        let operation = begun.map_err(|rejected| rejected.error)?;
        self.wait(operation)?.result
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

    /// Begins an operation or a call, and waits while the queue is full.
    fn begin<T>(
        &mut self,
        mut begin: impl FnMut(&mut Client<E>, Moment) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let clock = self.clock.clone();
        // Each attempt reads the clock again: an attempt that had to wait may come too late.
        self.wait_while_something_ends("a wait for room in a queue", |client| {
            match begin(client, clock.now()) {
                Err(Error::QueueFull { .. }) => None,
                begun => Some(begun),
            }
        })?
    }

    fn begin_operation(
        &mut self,
        buffer: Buffer<E::Memory>,
        mut begin: impl FnMut(&mut Client<E>, Moment, Buffer<E::Memory>) -> Result<Operation, Rejected<E::Memory>>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let mut buffer = Some(buffer);
        let begun = self.begin(|client, now| {
            let Some(given) = buffer.take() else { return Err(Error::SessionLost) };
            begin(client, now, given).map_err(|rejected| {
                buffer = rejected.buffer;
                rejected.error
            })
        });
        begun.map_err(|error| Rejected { buffer, error })
    }

    /// Waits for an operation's outcome.
    ///
    /// # Errors
    /// The node is gone. An error of the operation itself is in the outcome, also [`Error::TimedOut`].
    #[inline]
    pub fn wait(&mut self, operation: Operation) -> Result<Outcome<E::Memory>, Error> {
        // No limit is needed here: the client ends the operation within the session's limit.
        self.wait_until_by(Moment(u64::MAX), |client| client.take(operation))
    }

    /// Waits for a call's answer.
    ///
    /// # Errors
    /// The node refuses, has not answered within the session's limit ([`Error::TimedOut`]), or is gone.
    pub fn wait_call(&mut self, call: Call) -> Result<Answer, Error> {
        // No limit is needed here: the client ends the call within the session's limit plus the time that the request
        // may wait at the node.
        self.wait_until_by(Moment(u64::MAX), |client| client.take_call(call))?
    }

    /// Polls until `done` returns a value: spins, then yields, then sleeps. Notices when the node is gone.
    ///
    /// # Errors
    /// `done` has returned nothing, and the node is gone, or no operation or call of the session has ended within its
    /// limit ([`Error::TimedOut`]; [`SessionOptions::within`]).
    #[inline]
    pub fn wait_until<T>(&mut self, done: impl FnMut(&mut Client<E>) -> Option<T>) -> Result<T, Error> {
        self.wait_while_something_ends("a wait for the session", done)
    }

    /// Polls until `done` returns a value, however long that takes. `done` is also called at `by`, on the session's
    /// clock, if nothing has happened until then; after `by` the times of its calls depend on the session's events.
    /// Otherwise like [`Session::wait_until`].
    ///
    /// # Errors
    /// The session is over.
    pub fn wait_until_by<T>(
        &mut self,
        by: Moment,
        done: impl FnMut(&mut Client<E>) -> Option<T>,
    ) -> Result<T, Error> {
        self.wait_for(by, |_| None, done)
    }

    fn wait_while_something_ends<T>(
        &mut self,
        what: &'static str,
        done: impl FnMut(&mut Client<E>) -> Option<T>,
    ) -> Result<T, Error> {
        let too_long = |session: &Self| {
            let within = session.client.limit().filter(|_| session.quiet.for_too_long)?;
            Some(Error::TimedOut { what, effect: Effect::Nothing, within })
        };
        self.wait_for(Moment(u64::MAX), too_long, done)
    }

    fn wait_for<T>(
        &mut self,
        by: Moment,
        given_up: impl Fn(&Self) -> Option<Error>,
        mut done: impl FnMut(&mut Client<E>) -> Option<T>,
    ) -> Result<T, Error> {
        self.looks = 0;
        self.quiet.for_too_long = false;
        loop {
            if let Some(result) = done(&mut self.client) {
                return Ok(result);
            }
            if let Some(error) = self.client.over().or_else(|| given_up(self)) {
                return Err(error);
            }
            if self.looks > 0 {
                self.pause(by);
            }
            self.looks += 1;
            // The clock is read only after a completion that depends on the time has arrived.
            if self.client.take_in() {
                let now = self.time_to_judge_by();
                self.client.judge(now);
            }
        }
    }

    /// Returns the time by which new completions are judged.
    #[inline]
    fn time_to_judge_by(&mut self) -> Moment {
        if !planted::is(Fault::WaitJudgesByOldTime) || self.looks.is_multiple_of(64) {
            self.heard = self.clock.now();
        }
        self.heard
    }

    /// Checks whether the node is gone, and ends the session if it is. A long wait checks this itself; a caller that
    /// polls must call this from time to time.
    pub fn look_for_node(&mut self) {
        if !self.client.endpoint().node_alive() {
            self.client.node_gone();
        }
    }

    /// Passes a little time between two polls, until `by` at the longest.
    fn pause(&mut self, by: Moment) {
        if self.looks < C::SPINS {
            self.clock.spin();
            return;
        }
        let now = self.clock.now();
        if self.looks == C::SPINS {
            self.yielding_since = now;
        }
        self.note_quiet(now);
        self.client.tick(now);
        if now.since(self.yielding_since) < YIELD_FOR {
            self.clock.yield_now();
        } else {
            let timer = self.client.next_wake().map_or(SLEEP_MAX, |wake| wake.since(now).into());
            let left = if by > now { by.since(now).into() } else { SLEEP_MAX };
            self.client.endpoint().wait(timer.min(left).min(SLEEP_MAX));
            self.look_for_node();
        }
    }

    /// Notes since when no operation or call has ended. A wait for room or for a condition may last a little longer
    /// than an operation or a call, so that these end first.
    fn note_quiet(&mut self, now: Moment) {
        let ended = self.client.ended();
        if self.looks == C::SPINS || ended != self.quiet.ended {
            self.quiet = Quiet { ended, since: now, for_too_long: false };
        } else if let Some(within) = self.client.limit() {
            self.quiet.for_too_long = now.since(self.quiet.since).0 > within.0.saturating_add(within.0 / 4);
        }
    }

    /// Handles new completions, without waiting. Returns how many operations and calls have ended.
    pub fn poll(&mut self) -> usize {
        self.client.take_in();
        let now = self.clock.now();
        let ended = self.client.judge(now);
        if ended > 0 {
            self.heard = now;
        } else if now.since(self.heard) > LIFE_CHECKED_EVERY {
            // A call to the kernel costs as much as several operations, so the session does not check at each poll.
            self.heard = now;
            if !self.client.endpoint().node_alive() {
                self.client.node_gone();
            }
        }
        ended
    }
}
