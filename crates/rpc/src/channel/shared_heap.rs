//! A heap that all clients of a channel have, beside those of their connections (RPCool §4.1).
//!
//! Whoever has it may write anywhere in it, its allocator included: clients that share a heap trust each other. The server does not
//! trust them: what is in the heap is copied or read by value as in any other heap.

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

/// The heap, and who has it.
#[derive(Debug)]
pub(super) struct SharedHeap {
    pub heap: Heap,
    owners: Mutex<Owners>,
    /// Its addresses, if a directory has given them.
    _given: Option<Given>,
}

/// Numbers of those who have the heap. They are used again as late as possible: a client that was hung up on may still write.
#[derive(Debug)]
struct Owners {
    used: HashSet<u16>,
    next: u16,
}

/// A client's part in the heap. Dropping it takes back what the client had allocated.
#[derive(Debug)]
pub(super) struct Member {
    of: Arc<SharedHeap>,
    owner: Owner,
}

impl SharedHeap {
    /// A new heap of at least so many bytes, and the addresses where one thread copies it to.
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

    /// A part in it. `None`: as many have it as there are numbers.
    pub fn join(self: &Arc<Self>) -> Option<Member> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = (0..=u16::MAX).find_map(|_| {
            owners.next = owners.next.wrapping_add(1);
            let number = owners.next;
            // A page that nobody has says zero.
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

    /// Who the client is in the heap.
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

/// The heap that all clients of a channel have, at a client.
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
    /// With one heap that all clients have, at the same addresses, beside those of their connections (RPCool §4.1). It takes memory
    /// only where it is used. The arguments of a call may be in either, and do not lead from one to the other.
    ///
    /// **Its clients can read and overwrite each other's data in it**, and each of them can use it up or spoil its allocator: it is
    /// for clients that trust each other. The server still trusts none of them. What a client has allocated is freed when it has
    /// gone, but for its small values ([`Heap::reclaim`]).
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
    /// The heap that all clients of the channel have, if there is one. Each of them can read and overwrite what is in it.
    #[must_use]
    pub fn shared_heap(&self) -> Option<&Heap> {
        self.to_all.as_ref().map(|it| &it.heap)
    }

    /// Looks at a scope of the shared heap in a copy, which no other client can change any more.
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
