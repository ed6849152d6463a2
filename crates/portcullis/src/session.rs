//! A session with a node: the client library with calls that wait.

mod together;
mod transfers;

use crate::clock::{Clock, ProcessClock};
use crate::held::Dropped;
use crate::keeper::{Keeper, Kept};
#[cfg(feature = "rdma")]
use crate::rdma::{self, RdmaAttachError, RdmaOptions};
use crate::{Address, Permission, SessionEndpoint, UnknownAddress};
use portcullis_client::{
    Acquire, Allocate, Answer, Buffer, Call, Client, ClientConfig, Error, Operation, Outcome, Rejected,
};
use portcullis_host::software::{AttachError, attach};
use portcullis_nic::{GuaranteeSet, VerbsEndpoint};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Lifetime, Moment, ObjectRef};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a session's arena, unless told otherwise.
const ARENA_BYTES: u64 = 4 << 20;
/// How long an attach may take.
const ATTACH_WITHIN: Duration = Duration::from_secs(5);
/// How long it yields before it sleeps. On a busy machine one yield can take milliseconds: time counts, not how often.
const YIELD_FOR: Lifetime = Lifetime::micros(500);
/// The longest sleep: a bound on how long the node's end can go unnoticed.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// How long a session that polls goes without hearing of its node before it asks whether that is still there.
const LIFE_CHECKED_EVERY: Lifetime = Lifetime::millis(5);

/// How a session is set up.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Bytes of the arena that buffers come from.
    pub arena_bytes: u64,
    /// The client's limits.
    pub client: ClientConfig,
    /// For nodes of other machines.
    #[cfg(feature = "rdma")]
    pub rdma: RdmaOptions,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            arena_bytes: ARENA_BYTES,
            client: ClientConfig::default(),
            #[cfg(feature = "rdma")]
            rdma: RdmaOptions::default(),
        }
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is none.
    #[error(transparent)]
    Address(#[from] UnknownAddress),
    /// No port on the node.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No control connection to the node.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Rdma(#[from] RdmaAttachError),
    /// The RDMA device does not connect to the node's.
    #[cfg(feature = "rdma")]
    #[error("the RDMA device fails: {0}")]
    Device(#[from] portcullis_nic::VerbsError),
    /// The arena is too short for the client's own needs.
    #[error(transparent)]
    Client(#[from] Error),
    /// The node in this process has ended, or refuses.
    #[error("{0}")]
    Host(String),
}

/// Connects to the node at `address`, for example `shm:/run/portcullis.sock`.
///
/// # Errors
/// No such address, no node there, or the node refuses.
pub fn connect(address: &str) -> Result<Session, ConnectError> {
    connect_with(address, SessionOptions::default())
}

/// Connects with options.
///
/// # Errors
/// As [`connect`].
pub fn connect_with(address: &str, options: SessionOptions) -> Result<Session, ConnectError> {
    let (endpoint, number, unenforced) = match address.parse()? {
        Address::Shm(path) => {
            let attached = attach(&path, options.arena_bytes, ATTACH_WITHIN)?;
            (SessionEndpoint::Port(attached.endpoint), attached.client, GuaranteeSet::NONE)
        }
        #[cfg(feature = "rdma")]
        Address::Rdma(place) => {
            let (endpoint, number, unenforced) = rdma::connect(&place, &options, ATTACH_WITHIN)?;
            (SessionEndpoint::Rdma(endpoint), number, unenforced)
        }
    };
    let (address, client) = (address.to_owned(), options.client);
    let opener: Opener = Box::new(move || connect_with(&address, options.clone()));
    Ok(Session::new(endpoint, number, client, opener, None)?.without(unenforced))
}

/// What ends a client of a node in the same process.
pub(crate) type Departure = Box<dyn Send>;

/// Opens another session of the same tenant on the same node.
pub(crate) type Opener = Box<dyn Fn() -> Result<Session, ConnectError> + Send>;

/// A session with a node. Its calls wait for their answer: they spin, then yield, then sleep.
///
/// One thread uses it at a time; each thread has its own. What is dropped with it is revoked by its end.
///
/// Programs write `Session`: over the ends that [`connect`] makes, and on the clock of their process. Simulations have
/// ends and clocks of their own.
pub struct Session<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    client: Client<E>,
    clock: C,
    dropped: Dropped,
    number: u64,
    unenforced: GuaranteeSet,
    opener: Option<Opener>,
    keeper: Option<Keeper>,
    looks: u32,
    /// Since when the present wait yields.
    yielding_since: Moment,
    /// When the node was last known to be there.
    heard: Moment,
    // Last: the node hears of the end when nothing of it is used any more.
    _departure: Option<Departure>,
}

impl<E: VerbsEndpoint, C: Clock> std::fmt::Debug for Session<E, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("client", &self.client).finish_non_exhaustive()
    }
}

/// What only programs' sessions have: they come from an address, and others like them can be opened.
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

    /// The same, with a node whose device does not keep all that its permissions rest on.
    pub(crate) fn without(mut self, unenforced: GuaranteeSet) -> Self {
        self.unenforced = unenforced;
        self
    }

    /// An instant on the session's clock, for callers who have looked at a clock already.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Moment {
        self.clock.at(instant)
    }

    /// Keeps a permission extended, `by` at a time, until what is returned is dropped, the node says no, or the
    /// node's longest lifetime is reached. A thread of its own does it, through a session of its own, since a
    /// permission works on every queue pair of its tenant.
    ///
    /// # Errors
    /// The second session cannot be had.
    pub fn keep(&mut self, permission: &Permission, by: Lifetime) -> Result<Kept, ConnectError> {
        if self.keeper.is_none() {
            let opener = self.opener.as_ref().ok_or_else(|| ConnectError::Host("no opener".to_owned()))?;
            let mut session = opener()?;
            session.clock = self.clock;
            self.keeper = Some(Keeper::start(session));
        }
        let keeper = self.keeper.as_ref().ok_or_else(|| ConnectError::Host("no keeper".to_owned()))?;
        Ok(keeper.keep(Arc::clone(permission.lease()), by))
    }
}

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// A session over an end that nobody has used yet, which is client `number` on its node.
    ///
    /// # Errors
    /// [`Error::ArenaFull`]: the arena is too short for the client's own needs.
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
            _departure: None,
        })
    }

    /// The session's number on its node: what the audit log calls its client.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The time on the session's clock, which its leases are told on.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The client library underneath: for operations that do not wait, and for batches. Between its calls,
    /// [`Session::wait`] and [`Session::wait_call`] take outcomes.
    pub fn client(&mut self) -> &mut Client<E> {
        &mut self.client
    }

    /// A buffer of the arena, for operations that do not wait.
    ///
    /// # Errors
    /// [`Error::ArenaFull`].
    pub fn buffer(&self, length: u32) -> Result<Buffer<E::Memory>, Error> {
        self.client.buffer(length)
    }

    /// Memory, and a permission over it.
    ///
    /// # Errors
    /// The node refuses, or is gone.
    pub fn allocate(&mut self, ask: Allocate) -> Result<Permission, Error> {
        self.revoke_dropped()?;
        let call = self.begin(|client, now| client.allocate(now, ask))?;
        self.granted(call)
    }

    /// A permission over an object that exists.
    ///
    /// # Errors
    /// The node refuses, others hold the object for longer than the request waits, or the node is gone.
    pub fn acquire(&mut self, ask: Acquire) -> Result<Permission, Error> {
        self.revoke_dropped()?;
        let call = self.begin(|client, now| client.acquire(now, ask))?;
        self.granted(call)
    }

    fn granted(&mut self, call: Call) -> Result<Permission, Error> {
        let answer = self.wait_call(call)?;
        self.permission(answer)
    }

    fn permission(&self, answer: Answer) -> Result<Permission, Error> {
        match answer {
            Answer::Granted(bare) => {
                Ok(Permission::new(bare, Arc::clone(&self.dropped)).without(self.unenforced))
            }
            Answer::Extended(_) | Answer::Done => Err(Error::SessionLost),
        }
    }

    /// A longer life for a permission: it lives for `time` from now. One atomic on the node's memory, without its CPU.
    /// Returns when it ends now, on the session's clock.
    ///
    /// # Errors
    /// The permission has ended, lives longer already, or cannot be extended (so far, or at all any more).
    pub fn extend(&mut self, permission: &Permission, time: Lifetime) -> Result<Moment, Error> {
        let call = self.begin(|client, now| client.extend(now, permission, time))?;
        self.extended(call, permission)
    }

    /// The same until a moment on the session's clock.
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
            Answer::Granted(_) | Answer::Done => Err(Error::SessionLost),
        }
    }

    /// Ends a permission. When this returns, the node has taken it down or will before its memory is used again.
    ///
    /// # Errors
    /// It had ended already, or the node is gone.
    pub fn revoke(&mut self, permission: Permission) -> Result<(), Error> {
        self.end(permission, false)
    }

    /// Ends a permission, and lets its object go once nobody else holds it.
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
                bare = Some(refused.permission);
                refused.error
            })
        })?;
        self.wait_call(call).map(|_| ())
    }

    /// Lets a kept object go once its last permission has ended.
    ///
    /// # Errors
    /// The object is gone, or not this node's; or the node is gone.
    pub fn free(&mut self, object: ObjectRef) -> Result<(), Error> {
        let call = self.begin(|client, _| client.free(object))?;
        self.wait_call(call).map(|_| ())
    }

    /// Puts `swap` into the 8-byte word at `offset` if it holds `compare`. Returns its value before.
    ///
    /// # Errors
    /// As [`Session::read`]; the word is unchanged then.
    pub fn compare_and_swap(
        &mut self,
        permission: &Permission,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Error> {
        let now = self.now();
        let begun = self.client.compare_and_swap(now, permission, offset, compare, swap);
        let operation = begun.map_err(|rejected| rejected.error)?;
        self.wait(operation)?.result
    }

    /// Adds `add` to the 8-byte word at `offset`, wrapping. Returns its value before.
    ///
    /// # Errors
    /// As [`Session::compare_and_swap`].
    pub fn fetch_and_add(&mut self, permission: &Permission, offset: u64, add: u64) -> Result<u64, Error> {
        let now = self.now();
        let begun = self.client.fetch_and_add(now, permission, offset, add);
        let operation = begun.map_err(|rejected| rejected.error)?;
        self.wait(operation)?.result
    }

    fn revoke_dropped(&mut self) -> Result<(), Error> {
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for bare in dropped {
            let permission = Permission::new(bare, Arc::clone(&self.dropped));
            match self.revoke(permission) {
                // It has ended by itself: that is what was wanted.
                Ok(()) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Begins something that a full queue may keep waiting.
    fn begin<T>(
        &mut self,
        mut begin: impl FnMut(&mut Client<E>, Moment) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let clock = self.clock.clone();
        // Each attempt goes by its own time: one that waited may come too late.
        self.wait_until(|client| match begin(client, clock.now()) {
            Err(Error::QueueFull { .. }) => None,
            begun => Some(begun),
        })?
    }

    fn begin_operation(
        &mut self,
        buffer: Buffer<E::Memory>,
        mut begin: impl FnMut(&mut Client<E>, Moment, Buffer<E::Memory>) -> Result<Operation, Rejected<E::Memory>>,
    ) -> Result<Operation, Error> {
        let mut buffer = Some(buffer);
        self.begin(|client, now| {
            let Some(given) = buffer.take() else { return Err(Error::SessionLost) };
            begin(client, now, given).map_err(|rejected| {
                buffer = rejected.buffer;
                rejected.error
            })
        })
    }

    /// Waits for an operation's outcome.
    ///
    /// # Errors
    /// The node is gone; the outcome's own error is in the outcome.
    #[inline]
    pub fn wait(&mut self, operation: Operation) -> Result<Outcome<E::Memory>, Error> {
        self.wait_until(|client| client.take(operation))
    }

    /// Waits for a call's answer.
    ///
    /// # Errors
    /// The node refuses, or is gone.
    pub fn wait_call(&mut self, call: Call) -> Result<Answer, Error> {
        self.wait_until(|client| client.take_call(call))?
    }

    /// Polls until `done` has something: spins, then yields, then sleeps, and notices when the node is gone.
    ///
    /// # Errors
    /// The node is gone, and `done` has nothing even so.
    #[inline]
    pub fn wait_until<T>(&mut self, mut done: impl FnMut(&mut Client<E>) -> Option<T>) -> Result<T, Error> {
        self.looks = 0;
        loop {
            if let Some(result) = done(&mut self.client) {
                return Ok(result);
            }
            if let Some(error) = self.client.over() {
                return Err(error);
            }
            if self.looks > 0 {
                self.pause();
            }
            self.looks += 1;
            // The clock is read when what it decides about has come in, and not before.
            if self.client.take_in() {
                let now = self.time_to_judge_by();
                self.client.judge(now);
            }
        }
    }

    /// The time, for what has just come in.
    #[inline]
    fn time_to_judge_by(&mut self) -> Moment {
        if !planted::is(Fault::WaitJudgesByOldTime) || self.looks.is_multiple_of(64) {
            self.heard = self.clock.now();
        }
        self.heard
    }

    /// Passes a little time between two looks.
    fn pause(&mut self) {
        if self.looks < C::SPINS {
            self.clock.spin();
            return;
        }
        let now = self.clock.now();
        if self.looks == C::SPINS {
            self.yielding_since = now;
        }
        if now.since(self.yielding_since) < YIELD_FOR {
            self.clock.yield_now();
        } else {
            let timer = self.client.next_wake().map_or(SLEEP_MAX, |wake| wake.since(now).into());
            self.client.endpoint().wait(timer.min(SLEEP_MAX));
            if !self.client.endpoint().node_alive() {
                self.client.node_gone();
            }
        }
    }

    /// Takes in what has happened, without waiting. Returns how many operations and calls ended.
    pub fn poll(&mut self) -> usize {
        self.client.take_in();
        let now = self.clock.now();
        let ended = self.client.judge(now);
        if ended > 0 {
            self.heard = now;
        } else if now.since(self.heard) > LIFE_CHECKED_EVERY {
            // Asking the kernel costs as much as several operations: not at each look.
            self.heard = now;
            if !self.client.endpoint().node_alive() {
                self.client.node_gone();
            }
        }
        ended
    }
}
