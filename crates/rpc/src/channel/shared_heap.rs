//! A heap that all clients of a channel have, beside those of their connections (RPCool §4.1).
//!
//! Every process that has the heap may write anywhere in it, its allocator included: clients that share a heap trust
//! each other. The server does not trust them: it copies the contents or reads them by value, as in any other heap.

use super::admission::{SERVER, find_place};
use super::connection::view_for;
use super::ends::Copies;
use super::named::{Given, HeapSource};
use super::{CallError, Channel, Connection, ConnectionError, Copied, Server};
use crate::heap::{HEAP_BYTES_MAX, HEAP_BYTES_MIN, Heap, HeapPlace, Owner, PAGE_BYTES};
use crate::plain::Plain;
use crate::{Boxed, ScopeRef};
use portcullis_attach::Reason;
use portcullis_memory::PrivateView;
use rustix::fd::OwnedFd;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The heap, and the owner numbers of the processes that have it.
#[derive(Debug)]
pub(super) struct SharedHeap {
    pub heap: Heap,
    owners: Mutex<Owners>,
    /// The heap's addresses, if a directory has assigned them.
    _given: Option<Given>,
}

/// Owner numbers in use. A number is used again as late as possible: a client whose connection was closed may still
/// write.
#[derive(Debug)]
struct Owners {
    used: HashSet<u16>,
    next: u16,
}

/// A client's membership in the heap. Dropping it reclaims what the client had allocated.
#[derive(Debug)]
pub(super) struct Member {
    of: Arc<SharedHeap>,
    owner: Owner,
}

impl SharedHeap {
    /// Creates a heap of at least `bytes` bytes, and maps the addresses that one thread copies it to.
    pub fn create(bytes: u64, source: Option<&HeapSource>) -> Result<(Arc<Self>, PrivateView), Reason> {
        if bytes > HEAP_BYTES_MAX {
            return Err(format!("no heap has more than {HEAP_BYTES_MAX} bytes").into());
        }
        let length = bytes.max(HEAP_BYTES_MIN).next_multiple_of(PAGE_BYTES);
        let ((place, view, _), _given) = match source {
            None => (find_place(length, None)?, None),
            Some(source) => source.place(length, None).map(|(places, given)| (places, Some(given)))?,
        };
        let heap = Heap::create(place, SERVER)?;
        let owners = Owners { used: HashSet::from([SERVER.0]), next: SERVER.0 };
        Ok((Arc::new(Self { heap, owners: Mutex::new(owners), _given }), view))
    }

    /// Makes a client a member of the heap. `None`: all owner numbers are in use.
    pub fn join(self: &Arc<Self>) -> Option<Member> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = (0..=u16::MAX).find_map(|_| {
            owners.next = owners.next.wrapping_add(1);
            let number = owners.next;
            // Zero is no owner: it stands in the words of pages that no process has.
            (number != 0 && owners.used.insert(number)).then_some(Owner(number))
        })?;
        Some(Member { of: Arc::clone(self), owner })
    }
}

impl Member {
    /// The heap.
    pub fn heap(&self) -> &Heap {
        &self.of.heap
    }

    /// The client's owner number in the heap.
    pub fn owner(&self) -> Owner {
        self.owner
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.of.heap.reclaim(self.owner);
        self.of.owners.lock().unwrap_or_else(PoisonError::into_inner).used.remove(&self.owner.0);
    }
}

/// A client's mapping of the heap that all clients of a channel have.
#[derive(Debug)]
pub(super) struct ToAll {
    heap: Heap,
    copies: Copies,
}

impl ToAll {
    pub fn open(
        file: OwnedFd,
        place: HeapPlace,
        owner: Owner,
        server: Option<u32>,
    ) -> Result<Self, ConnectionError> {
        let taken = ConnectionError::SharedHeapTaken { address: place.start() };
        let copies = Copies::new(view_for(place, server)?.ok_or(taken)?);
        Ok(Self { heap: Heap::join(file, place, owner)?, copies })
    }
}

impl Channel {
    /// Adds one heap that all clients have, at the same addresses, beside those of their connections (RPCool §4.1). It
    /// takes memory only where it is used. The arguments of a call may be in either heap, but must not lead from one to
    /// the other.
    ///
    /// **Its clients can read and overwrite each other's data in it**, and each of them can use it up or damage its
    /// allocator: it is for clients that trust each other. The server still trusts none of them. When a client has
    /// left, its allocations are freed, except its small values ([`Heap::reclaim`]).
    ///
    /// ```
    /// use portcullis_rpc::channel::{Connection, Copied, serve};
    /// use portcullis_rpc::{Boxed, Text};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("notes.sock");
    /// let length = |note: Copied<'_, Text>, reply: &mut portcullis_rpc::channel::Reply<'_>| {
    ///     reply.set_word(note.get()?.get(note.view())?.len() as u64);
    ///     Ok(())
    /// };
    /// let server = serve(&path).shared_heap(1 << 20).copied(1, length).start()?;
    ///
    /// let (one, mut other) = (Connection::open(&path)?, Connection::open(&path)?);
    /// let scope = one.shared_heap().expect("the channel has one").scope(4096)?;
    /// let note = Boxed::new(&scope, Text::new(&scope, "for all")?)?;
    /// // The other client has it at the same address, and passes it on.
    /// let looked = other.look_shared(scope.reference(), note)?;
    /// assert_eq!(looked.get()?.get(looked.view())?, "for all");
    /// assert_eq!(other.call(1, &scope, note)?.word(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shared_heap(mut self, bytes: u64) -> Self {
        self.shared_bytes = Some(bytes);
        self
    }
}

impl Server {
    /// The heap that all clients have, if there is one: [`Channel::shared_heap`].
    #[must_use]
    pub fn shared_heap(&self) -> Option<&Heap> {
        self.shared.as_ref().map(|shared| &shared.heap)
    }
}

impl Connection {
    /// The heap that all clients of the channel have, if there is one. Each of them can read and overwrite its
    /// contents.
    #[must_use]
    pub fn shared_heap(&self) -> Option<&Heap> {
        self.to_all.as_ref().map(|it| &it.heap)
    }

    /// Copies a scope of the shared heap, so that no other client can change it any more. Returns the copy.
    ///
    /// # Errors
    /// [`CallError::Nonsense`]: it is no scope of the shared heap. [`CallError::ResultTooLong`]: see
    /// [`ConnectionOptions::results_max`](super::ConnectionOptions::results_max).
    pub fn look_shared<T: Plain>(
        &mut self,
        scope: ScopeRef,
        root: Boxed<T>,
    ) -> Result<Copied<'_, T>, CallError> {
        let ToAll { heap, copies } = self.to_all.as_mut().ok_or(CallError::Nonsense)?;
        Ok(Copied::new(copies.look(heap, scope, self.results_max)?, root.address(), 0))
    }
}

#[cfg(test)]
mod tests;
