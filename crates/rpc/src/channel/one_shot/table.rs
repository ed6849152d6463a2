//! A server's list of the one-shot scopes of a connection.

use super::super::ends::Status;
use super::Reserve;
use crate::heap::{HEAP_ADDRESSES, PAGE_BYTES};
use crate::{ScopeRef, View};
use portcullis_attach::Reason;
use portcullis_memory::{Claim, SealedBytes, SealedFile};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of files that a connection may have before they are sealed. The server keeps a descriptor for each.
pub(in crate::channel) const OPEN_MAX: u32 = 4;
/// Ratio of the addresses that are reserved to the bytes that a connection may have: with twice the addresses, there is
/// nearly always a piece that fits.
const ADDRESSES_FOR_EACH: u64 = 2;

/// Limits of a connection's one-shot scopes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::channel) struct OneShotLimits {
    pub scopes: u32,
    pub bytes: u64,
}

impl OneShotLimits {
    /// Number of bytes of addresses that a connection reserves for its one-shot scopes.
    pub fn addresses(self) -> u64 {
        (self.bytes * ADDRESSES_FOR_EACH).next_multiple_of(PAGE_BYTES)
    }
}

/// The one-shot scopes of a connection. The acceptor's thread and the threads of users change the list; the server's
/// thread looks numbers up.
#[derive(Debug)]
pub(in crate::channel) struct OneShotTable {
    reserve: Reserve,
    limits: OneShotLimits,
    entries: Mutex<BTreeMap<u64, Entry>>,
}

#[derive(Debug)]
struct Entry {
    length: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Open(Arc<SealedFile>, Claim),
    /// A thread is mapping the file.
    Mapping,
    Sealed(Arc<SealedBytes>),
}

/// A file that is handed to a client.
#[derive(Debug)]
pub(in crate::channel) struct OpenFile {
    pub file: Arc<SealedFile>,
    pub address: u64,
}

impl OneShotTable {
    pub fn new(reserve: Reserve, limits: OneShotLimits) -> Self {
        Self { reserve, limits, entries: Mutex::default() }
    }

    /// Creates a file under a number that was never used before.
    ///
    /// # Errors
    /// The connection has reached its limits, or the machine refuses.
    pub fn open(&self, number: u64, bytes: u64) -> Result<OpenFile, Reason> {
        let OneShotLimits { scopes, bytes: most } = self.limits;
        if bytes > most {
            return Err(format!(
                "a one-shot scope of {bytes} bytes, but a connection has {most} \
                (ServerOptions::one_shot_bytes)"
            )
            .into());
        }
        let length = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let file = Arc::new(SealedFile::new("portcullis-scope", length)?);
        let mut entries = self.entries();
        if entries.len() as u64 >= u64::from(scopes) {
            return Err(format!(
                "the connection has {scopes} one-shot scopes already (ServerOptions::one_shot_scopes): drop some"
            )
            .into());
        }
        let open = entries.values().filter(|it| matches!(it.state, State::Open(..))).count();
        if open as u64 >= u64::from(OPEN_MAX) {
            return Err(format!("{OPEN_MAX} one-shot scopes are not sealed yet: seal or drop one").into());
        }
        let taken: u64 = entries.values().map(|it| it.length).sum();
        let claim = self.reserve.range.claim(length).filter(|_| length <= most.saturating_sub(taken));
        let Some(claim) = claim else {
            return Err(format!(
                "no room for {length} bytes beside {taken} of {most} (ServerOptions::one_shot_bytes): drop some one-shot scopes"
            )
            .into());
        };
        let address = self.reserve.address(claim.offset());
        entries.insert(number, Entry { length, state: State::Open(Arc::clone(&file), claim) });
        Ok(OpenFile { file, address })
    }

    /// Checks that a file is sealed, and maps it. That may take milliseconds: no thread that serves others calls this.
    ///
    /// # Errors
    /// There is no such file in this connection, or it is not sealed; or the machine refuses.
    pub fn take_in(&self, number: u64) -> Result<(), Reason> {
        let unknown = || Reason::from(format!("the connection has no one-shot scope {number}"));
        let file = match &self.entries().get(&number).ok_or_else(unknown)?.state {
            State::Open(file, _) => Arc::clone(file),
            State::Sealed(_) => return Ok(()),
            State::Mapping => return Err(unknown()),
        };
        // Seals are never removed: a file that is sealed now is still sealed when it is mapped.
        file.check_sealed()?;
        let claim = {
            let mut entries = self.entries();
            let state = &mut entries.get_mut(&number).ok_or_else(unknown)?.state;
            match std::mem::replace(state, State::Mapping) {
                State::Open(_, claim) => claim,
                other => {
                    *state = other;
                    return Ok(());
                }
            }
        };
        let mapped = claim.map_sealed(&file).and_then(|bytes| {
            bytes.fill()?;
            Ok(bytes)
        });
        let mut entries = self.entries();
        match mapped {
            Ok(bytes) => {
                let entry = entries.get_mut(&number).ok_or_else(unknown)?;
                entry.state = State::Sealed(Arc::new(bytes));
                Ok(())
            }
            Err(error) => {
                entries.remove(&number);
                Err(error.into())
            }
        }
    }

    /// Removes a scope, and returns its mapping, so that it can be unmapped on a thread that may take time. A method
    /// that reads the scope keeps the mapping until the method has ended.
    pub fn release(&self, number: u64) -> Option<Arc<SealedBytes>> {
        match self.entries().remove(&number)?.state {
            State::Sealed(bytes) => Some(bytes),
            State::Open(..) | State::Mapping => None,
        }
    }

    /// Calls a method with the scope that a request names by its number.
    ///
    /// # Errors
    /// The scope was not found sealed in this connection, or is shorter than the request states.
    pub fn look<R>(&self, scope: ScopeRef, method: impl FnOnce(View<'_>) -> R) -> Result<R, Status> {
        let ScopeRef { address: number, length } = scope;
        let bytes = self.sealed(number).ok_or(Status::NotSealed)?;
        let used = usize::try_from(length).ok().and_then(|length| bytes.bytes().get(..length));
        let address = self.reserve.address(bytes.offset());
        // Code that reads every byte once takes no more steps than the scope has bytes.
        Ok(method(View::new(address, used.ok_or(Status::NoArguments)?, length)))
    }

    /// Whether a request names one of these scopes, and not one of the heap.
    pub fn has(&self, scope: ScopeRef) -> bool {
        // Numbers start at one, and heaps begin far above all of them.
        (1..HEAP_ADDRESSES.start).contains(&scope.address) && self.entries().contains_key(&scope.address)
    }

    fn sealed(&self, number: u64) -> Option<Arc<SealedBytes>> {
        match &self.entries().get(&number)?.state {
            State::Sealed(bytes) => Some(Arc::clone(bytes)),
            State::Open(..) | State::Mapping => None,
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
