//! A client's one-shot scopes: the client fills them, seals them, and passes them to calls.

use super::super::connection::{Connection, Link};
use super::super::ends::{Answer, CallError};
use super::super::messages::{Asked, TOLD_BYTES, Told};
use super::Reserve;
use crate::scope::Filling;
use crate::{Boxed, HeapFull, PointerError, Room, ScopeRef, Source, View};
use portcullis_attach::unix::MessageSocket;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Mapping, MappingError, Memory, SealError, SealedBytes, SealedFile};
use rustix::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long sealing is tried again while something can still write to the scope. The kernel itself waits 0.2 s for
/// operations that are under way.
const SEAL_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two tries: no event reports that a mapping of another process has ended.
const SEAL_AGAIN: Duration = Duration::from_millis(5);

/// Error of making or sealing a one-shot scope.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OneShotError {
    /// The server refuses the scope: the connection has reached its limits, or no method reads one-shot scopes.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// Something could still write to the scope when the time for sealing was over.
    #[error("not sealed within {within:?}: {source}")]
    Busy {
        /// How long the client tried.
        within: Duration,
        /// The error of the kernel.
        source: SealError,
    },
    /// The machine refuses to seal the scope.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The machine refuses to map memory.
    #[error(transparent)]
    Memory(#[from] MappingError),
    /// The server has ended, or does not answer.
    #[error("the server is gone")]
    ServerGone,
    /// The server's answer is invalid.
    #[error("the server's answer about a one-shot scope is malformed")]
    Nonsense,
}

impl Coded for OneShotError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(_) => ErrorCode::OneShotRefused,
            Self::Busy { source, .. } | Self::Seal(source) => source.code(),
            Self::Memory(error) => error.code(),
            Self::ServerGone => ErrorCode::ServerGone,
            Self::Nonsense => ErrorCode::NonsenseReply,
        }
    }
}

/// A scope's number at the server. Dropping it sends the server a release.
#[derive(Debug)]
struct Number {
    number: u64,
    /// The reference is weak, so that a scope does not keep its connection from ending.
    socket: Weak<MessageSocket>,
}

impl Drop for Number {
    fn drop(&mut self) {
        // If the server does not receive the message, it keeps the scope until the connection ends.
        let socket = self.socket.upgrade();
        let _ = socket.map(|it| it.say_at_once(&Asked::Release { number: self.number }.encode()));
    }
}

/// A scope in a file of its own, into which values are put one behind another before it is sealed ([`Connection::seal`]).
#[derive(Debug)]
pub struct OneShotScope {
    number: Number,
    file: SealedFile,
    filling: Filling,
    memory: Mapping,
}

impl OneShotScope {
    /// The address of the scope's first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.filling.address
    }

    /// The scope's length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.filling.length
    }

    /// Number of bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.filling.used()
    }
}

impl Source for OneShotScope {
    fn copy(&self, address: u64, into: &mut [u8]) -> Result<(), PointerError> {
        self.memory.read(self.filling.check(address, into.len() as u64)?, into);
        Ok(())
    }

    fn check(&self, address: u64, length: u64) -> Result<(), PointerError> {
        self.filling.check(address, length).map(|_| ())
    }
}

impl Room for OneShotScope {
    fn reserve(&self, bytes: u64, align: u64) -> Result<u64, HeapFull> {
        self.filling.reserve(bytes, align)
    }

    fn release(&self, address: u64, bytes: u64) {
        self.filling.release(address, bytes);
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        let offset = self.filling.offset(address, bytes.len() as u64);
        let offset = offset.unwrap_or_else(|| panic!("{address:#x} lies outside a one-shot scope"));
        self.memory.write(offset, bytes);
    }
}

/// A scope that is sealed for good: any number of calls read it in place, and no process writes it any more, this one
/// included.
///
/// Dropping it makes the server release the scope. That must not happen before the calls that read it have ended. After
/// its connection has ended, the scope can still be read, but not be passed to a call.
#[derive(Debug)]
pub struct Sealed {
    number: Number,
    address: u64,
    used: u64,
    bytes: SealedBytes,
}

impl Sealed {
    /// The reference by which a call names the scope ([`Connection::begin`]). It contains the scope's number, and not
    /// its address.
    #[must_use]
    pub fn reference(&self) -> ScopeRef {
        ScopeRef { address: self.number.number, length: self.used }
    }

    /// The address of the scope's first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// A view of the scope's bytes that are in use.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        let used = usize::try_from(self.used).unwrap_or(usize::MAX);
        View::new(self.address, &self.bytes.bytes()[..used], self.used)
    }
}

impl Connection {
    /// Makes a scope for arguments that are sealed once and read often (RPCool §5.3), by methods that are
    /// [`one_shot`](super::super::Channel::one_shot).
    ///
    /// Such a scope costs two exchanges with the server, a file, and mappings at both ends. So it pays off if many
    /// calls read it.
    ///
    /// ```
    /// use portcullis_rpc::channel::{Connection, OneShot, serve};
    /// use portcullis_rpc::{Boxed, Text};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("greetings.sock");
    /// let server = serve(&path)
    ///     .one_shot(1, |name: OneShot<'_, Text>, reply| {
    ///         reply.set_word(name.get()?.get(name.view())?.len() as u64);
    ///         Ok(())
    ///     })
    ///     .start()?;
    /// let mut connection = Connection::open(&path)?;
    /// let scope = connection.one_shot(4096)?;
    /// let name = Boxed::new(&scope, Text::new(&scope, "Ada")?)?;
    /// let sealed = connection.seal(scope)?;
    /// for _ in 0..3 {
    ///     assert_eq!(connection.call_sealed(1, &sealed, name)?.word(), 3);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`OneShotError`].
    pub fn one_shot(&mut self, bytes: u64) -> Result<OneShotScope, OneShotError> {
        let socket = Arc::downgrade(&self.socket()?);
        let (told, descriptors) = self.ask(Asked::File { bytes })?;
        let Told::File { number, address, length } = told else { return Err(self.no_file(told)) };
        let number = Number { number, socket };
        let [descriptor]: [OwnedFd; 1] = descriptors.try_into().map_err(|_| OneShotError::Nonsense)?;
        let file = SealedFile::of_peer(descriptor, length)?;
        let reserve = self.reserve()?;
        let claim = reserve.offset(address).and_then(|offset| reserve.range.claim_at(offset, length));
        let memory = claim.filter(|_| length >= bytes).ok_or(OneShotError::Nonsense)?.map_writable(&file)?;
        Ok(OneShotScope { number, file, filling: Filling::new(address, length), memory })
    }

    /// Seals a scope for good. From then on it can be read, but not written:
    ///
    /// ```compile_fail,E0382
    /// # use portcullis_rpc::{Boxed, channel::{Connection, OneShotError}};
    /// # fn fails(connection: &mut Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// let scope = connection.one_shot(4096)?;
    /// let sealed = connection.seal(scope)?;
    /// Boxed::new(&scope, 5_u64)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`OneShotError`]. If sealing fails, the scope is released.
    pub fn seal(&mut self, scope: OneShotScope) -> Result<Sealed, OneShotError> {
        let OneShotScope { number, file, filling, memory } = scope;
        // The kernel does not seal a file that has a writable mapping, this one included.
        drop(memory);
        file.allocate()?;
        seal_within(&file, SEAL_WITHIN)?;
        let reserve = self.reserve()?;
        let claim = reserve
            .offset(filling.address)
            .and_then(|offset| reserve.range.claim_at(offset, filling.length))
            .ok_or(OneShotError::Nonsense)?;
        let bytes = claim.map_sealed(&file)?;
        match self.ask(Asked::Sealed { number: number.number })?.0 {
            Told::Held => Ok(Sealed { number, address: filling.address, used: filling.used(), bytes }),
            told => Err(self.no_file(told)),
        }
    }

    /// Calls a method with a sealed scope and a pointer into it, and waits for the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_sealed<T>(
        &mut self,
        method: u32,
        scope: &Sealed,
        root: Boxed<T>,
    ) -> Result<Answer, CallError> {
        let call = self.begin(method, scope.reference(), root, 0, None)?;
        self.wait(call)
    }

    fn reserve(&self) -> Result<&Reserve, OneShotError> {
        let none = || OneShotError::Refused("no method of this server reads sealed scopes".to_owned());
        self.one_shots.as_ref().ok_or_else(none)
    }

    /// The socket of a server on this machine.
    fn socket(&self) -> Result<Arc<MessageSocket>, OneShotError> {
        match &self.link {
            Link::Shared { socket, .. } => Ok(Arc::clone(socket)),
            Link::Carried(_) => Err(OneShotError::Refused(
                "one-shot scopes are for clients of the server's machine: pass a scope of the heap (Connection::scope) to a \
                 method that copies"
                    .to_owned(),
            )),
        }
    }

    fn ask(&mut self, asked: Asked) -> Result<(Told, Vec<OwnedFd>), OneShotError> {
        let socket = self.socket()?;
        self.reserve()?;
        if self.end.is_gone() {
            return Err(OneShotError::ServerGone);
        }
        let until = Instant::now() + self.within;
        let said = socket.say(&asked.encode());
        match said.and_then(|()| socket.hear_until(TOLD_BYTES, until)) {
            Ok((bytes, descriptors)) if !bytes.is_empty() => match Told::parse(&bytes) {
                Some(told) => Ok((told, descriptors)),
                None => Err(self.no_sense()),
            },
            // An answer that arrives later would be taken for that of another request.
            _ => {
                self.end.give_up();
                Err(OneShotError::ServerGone)
            }
        }
    }

    fn no_file(&mut self, told: Told) -> OneShotError {
        if let Told::Refused(reason) = told { OneShotError::Refused(reason) } else { self.no_sense() }
    }

    fn no_sense(&mut self) -> OneShotError {
        self.end.give_up();
        OneShotError::Nonsense
    }
}

/// Seals a file, and tries again while something can still write to it.
fn seal_within(file: &SealedFile, within: Duration) -> Result<(), OneShotError> {
    let until = Instant::now() + within;
    loop {
        match file.seal() {
            Ok(()) => return Ok(()),
            Err(SealError::Busy) if Instant::now() < until => std::thread::park_timeout(SEAL_AGAIN),
            Err(source @ SealError::Busy) => return Err(OneShotError::Busy { within, source }),
            Err(error) => return Err(error.into()),
        }
    }
}
