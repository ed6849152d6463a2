//! Channels: a server's methods, called by processes of the same machine through a heap of each connection.
//!
//! A request is one line of a cache in the connection's ring, and so is its reply. Arguments and results stay where they are: the
//! line says which scope of the heap they are in. What the receiver does with the scope is the method's choice, and its signature
//! says it: [`Copied`] or [`Trusted`].
//!
//! Both ends distrust each other. What a ring says is read once, by value, and checked; a peer that writes nonsense has its own
//! calls go wrong.

mod admission;
mod connection;
mod lines;
mod messages;
mod method;
mod server;
#[cfg(test)]
mod tests;

pub use connection::{Answer, CallError, CallId, Connection, ConnectionError, ConnectionOptions};
pub use method::{Copied, Failure, Reply, Trusted};
pub use server::{Channel, ServeError, Server, ServerCounters, ServerOptions, serve};

pub use portcullis_attach::unix::SocketAccess;

use portcullis_memory::{Mapping, MappingError, Memory};

/// Calls that a connection may have under way.
pub const DEPTH: u32 = 64;
/// Where the half word is that says whether the client sleeps.
const CLIENT_SLEEPS: u64 = 0;
/// Where the requests are.
const REQUESTS: u64 = 4096;
/// Where the replies are.
const REPLIES: u64 = REQUESTS + lines::LINE_BYTES * DEPTH as u64;
/// Bytes of a connection's ring.
const RING_BYTES: u64 = REPLIES + lines::LINE_BYTES * DEPTH as u64;

/// What a reply begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Status {
    /// The method has done what it was to do.
    Done = 0,
    /// The server has no such method.
    NoSuchMethod = 1,
    /// The request's scope is not one of the heap's, or is larger than the method takes.
    NoArguments = 2,
    /// The method followed a pointer that it should not have.
    WildPointer = 3,
    /// The method panicked.
    Panicked = 4,
    /// The method says that it failed.
    Failed = 5,
    /// The deadline had passed before the call began.
    Late = 6,
    /// The call was cancelled before it began.
    Cancelled = 7,
    /// There is no room in the heap for the result.
    NoRoom = 8,
}

impl Status {
    const ALL: [Self; 9] = [
        Self::Done,
        Self::NoSuchMethod,
        Self::NoArguments,
        Self::WildPointer,
        Self::Panicked,
        Self::Failed,
        Self::Late,
        Self::Cancelled,
        Self::NoRoom,
    ];

    fn read(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// A request, as its line says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RequestLine {
    method: u32,
    call: u64,
    root: u64,
    scope: crate::ScopeRef,
    /// In nanoseconds of the machine's monotonic clock. Zero: there is none.
    deadline: u64,
    word: u64,
}

/// A reply, as its line says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReplyLine {
    status: u32,
    call: u64,
    root: u64,
    scope: crate::ScopeRef,
    word: u64,
}

impl RequestLine {
    fn words(self) -> [u64; 6] {
        [self.call, self.root, self.scope.address, self.scope.length, self.deadline, self.word]
    }

    fn read(method: u32, [call, root, address, length, deadline, word]: [u64; 6]) -> Self {
        Self { method, call, root, scope: crate::ScopeRef { address, length }, deadline, word }
    }
}

impl ReplyLine {
    fn words(self) -> [u64; 6] {
        [self.call, self.root, self.scope.address, self.scope.length, self.word, 0]
    }

    fn read(status: u32, [call, root, address, length, word, _]: [u64; 6]) -> Self {
        Self { status, call, root, scope: crate::ScopeRef { address, length }, word }
    }
}

/// The memory of a new ring.
fn make_ring() -> Result<Mapping, MappingError> {
    let ring = Mapping::shareable("portcullis-calls", RING_BYTES)?;
    debug_assert!(ring.length() >= RING_BYTES);
    Ok(ring)
}

/// The machine's monotonic clock in nanoseconds: the same for all processes of the machine.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
