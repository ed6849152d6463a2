//! The requests that an operation of a structure can make.

use super::Pipeline;
use super::awaited::{Asked, Awaited, WriteAndSwap, Yield};
use super::core::Core;
use super::requests::Request;
use portcullis::{
    Access, Acquire, Allocate, BarePermission, Buffer, ChunkTerms, Clock, ControlRequest, DirectoryName,
    Entry as NamedObject, Error, Keep, Lifetime, NamedRequest, ObjectRef, Rights, TenantName, VerbsEndpoint,
};
use std::rc::Rc;

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// Reads `length` bytes of a permission from `offset` on.
    #[inline]
    pub fn read(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        length: u32,
    ) -> Awaited<'_, E, C, Buffer<E::Memory>> {
        let core = &mut *self.core.borrow_mut();
        let asked = match core.buffers.take_kept(length) {
            Some(buffer) => core.begin(Access::read(permission, offset, buffer)),
            None => Self::begin_with_new_buffer(core, permission, offset, length),
        };
        Awaited::new(self, asked)
    }

    #[cold]
    fn begin_with_new_buffer(
        core: &mut Core<E, C>,
        permission: &Rc<BarePermission>,
        offset: u64,
        length: u32,
    ) -> Asked {
        match core.buffer(length) {
            Ok(buffer) => core.begin(Access::read(permission, offset, buffer)),
            Err(error) => core.enter_failed(error),
        }
    }

    /// Waits until all accesses that were requested before have ended, including those that no task awaits: reads a
    /// word behind a fence.
    pub(crate) async fn all_before(&self, permission: &Rc<BarePermission>) -> Result<(), Error> {
        let asked = {
            let core = &mut *self.core.borrow_mut();
            let read = Access::read(Rc::clone(permission), 0, core.buffer(8)?);
            Asked::Entered(core.enter(Request { is_fenced: true, ..Request::new(read) }))
        };
        let word: Buffer<E::Memory> = Awaited::new(self, asked).await?;
        self.look(word, |_| ());
        Ok(())
    }

    /// Writes `bytes` to a permission from `offset` on.
    #[inline]
    pub fn write(&self, permission: &Rc<BarePermission>, offset: u64, bytes: &[u8]) -> Awaited<'_, E, C, ()> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let core = &mut *self.core.borrow_mut();
        let asked = match core.buffer(length) {
            Ok(mut buffer) => {
                buffer.write(0, bytes);
                core.begin(Access::write(permission, offset, buffer))
            }
            Err(error) => core.enter_failed(error),
        };
        Awaited::new(self, asked)
    }

    /// Writes `bytes` to a permission, and then `swap` to a word of another one if it holds `compare`, in one round trip.
    /// The word is changed only if the bytes are written. `None`: the word is not changed in any case, since there is no
    /// room, or since the accesses go no way on which one can depend on another.
    pub(crate) fn write_and_swap(
        &self,
        (permission, offset, bytes): (&Rc<BarePermission>, u64, &[u8]),
        (words, at, [compare, swap]): (&Rc<BarePermission>, u64, [u64; 2]),
    ) -> WriteAndSwap<'_, E, C> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let core = &mut *self.core.borrow_mut();
        let (written, swapped) = match core.buffer(length) {
            Ok(mut buffer) => {
                buffer.write(0, bytes);
                let write = Access::write(permission, offset, buffer);
                core.begin_linked(write, Access::compare_and_swap(words, at, compare, swap))
            }
            Err(error) => (core.enter_failed(error), None),
        };
        (Awaited::new(self, written), swapped.map(|asked| Awaited::new(self, asked)))
    }

    /// Writes `swap` to an 8-byte word if it holds `compare`. Returns the word's old value.
    #[inline]
    pub fn compare_and_swap(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Awaited<'_, E, C, u64> {
        self.atomic(Access::compare_and_swap(permission, offset, compare, swap))
    }

    /// Adds to an 8-byte word, wrapping. Returns the word's old value.
    #[inline]
    pub fn fetch_and_add(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        add: u64,
    ) -> Awaited<'_, E, C, u64> {
        self.atomic(Access::fetch_and_add(permission, offset, add))
    }

    fn atomic(&self, access: Access<&Rc<BarePermission>, E::Memory>) -> Awaited<'_, E, C, u64> {
        Awaited::new(self, self.core.borrow_mut().begin(access))
    }

    /// Allocates memory.
    pub fn allocate(&self, ask: Allocate) -> Awaited<'_, E, C, BarePermission> {
        self.ask(ControlRequest::Allocate(ask))
    }

    /// Acquires a permission over an object that exists.
    pub fn acquire(&self, ask: Acquire) -> Awaited<'_, E, C, BarePermission> {
        self.ask(ControlRequest::Acquire(ask))
    }

    /// Acquires a permission that other clients may share by turns, so that only a request that waits ever gets it. The
    /// request waits even if the client then has no room for another call: it would wait in vain for what this client
    /// itself holds and gives back by a call.
    pub fn acquire_in_any_case(&self, ask: Acquire) -> Awaited<'_, E, C, BarePermission> {
        self.enter(Request { waits_in_any_case: true, ..Request::new(ask) })
    }

    /// Extends a permission so that it ends `time` from now.
    pub fn extend(&self, permission: &Rc<BarePermission>, time: Lifetime) -> Awaited<'_, E, C, ()> {
        self.ask(ControlRequest::extend(permission, time))
    }

    /// Ends a permission. `free` also frees its object.
    pub fn revoke(&self, permission: BarePermission, free: bool) -> Awaited<'_, E, C, ()> {
        self.ask(ControlRequest::Revoke { permission, free })
    }

    /// Frees a kept object once its last permission has ended.
    pub fn free(&self, object: ObjectRef) -> Awaited<'_, E, C, ()> {
        self.ask(ControlRequest::free(object))
    }

    /// Changes the time for which an object is kept, from now on.
    pub fn keep_object(&self, object: ObjectRef, keep: Keep) -> Awaited<'_, E, C, ()> {
        self.ask(ControlRequest::Keep { object: object.into(), keep })
    }

    /// Gives an object of the tenant a name.
    pub fn publish(&self, name: DirectoryName, object: ObjectRef) -> Awaited<'_, E, C, ()> {
        self.ask(NamedRequest::Publish { name, object })
    }

    /// Removes a name of the tenant. The object stays.
    pub fn unpublish(&self, name: DirectoryName) -> Awaited<'_, E, C, ()> {
        self.ask(NamedRequest::Unpublish { name })
    }

    /// Lets another tenant acquire permissions over a named object, with at most these rights.
    pub fn share(&self, name: DirectoryName, tenant: TenantName, rights: Rights) -> Awaited<'_, E, C, ()> {
        self.ask(NamedRequest::Share { name, tenant, rights })
    }

    /// Ends the sharing of a named object with another tenant. When this has ended, that tenant's permissions on the
    /// object have ended too.
    pub fn unshare(&self, name: DirectoryName, tenant: TenantName) -> Awaited<'_, E, C, ()> {
        self.ask(NamedRequest::Unshare { name, tenant })
    }

    /// Makes an object belong to another one, its head: it is shared as the head is.
    pub fn include(&self, member: ObjectRef, head: ObjectRef) -> Awaited<'_, E, C, ()> {
        self.ask(ControlRequest::Include { member, head })
    }

    /// Looks up the object with a name. `owner`: the tenant that shares it; `None`: the client's own.
    pub fn lookup(&self, owner: Option<TenantName>, name: DirectoryName) -> Awaited<'_, E, C, NamedObject> {
        self.ask(NamedRequest::Lookup { owner, name })
    }

    /// Returns the node's terms for the session's chunks. At the first call, the node makes the session's workers.
    ///
    /// # Errors
    /// The node has no chunks, the tenant's quota is used up, or the node is gone.
    pub async fn chunk_terms(&self) -> Result<ChunkTerms, Error> {
        let known = self.core.borrow_mut().session.client().chunk_terms();
        match known {
            Some(terms) => Ok(terms),
            None => self.ask(ControlRequest::JoinChunks).await,
        }
    }

    /// Allocates a chunk, after [`Pipeline::chunk_terms`]. A worker on the node's NIC executes the allocation. If the
    /// future is dropped, the chunk stays allocated until the session ends.
    pub fn allocate_chunk(&self) -> Awaited<'_, E, C, BarePermission> {
        self.ask(ControlRequest::AllocateChunk)
    }

    /// Frees a chunk. Accesses to it that are under way race with this.
    pub fn free_chunk(&self, chunk: BarePermission) -> Awaited<'_, E, C, ()> {
        self.ask(ControlRequest::FreeChunk(chunk))
    }

    fn ask<T: Yield<E::Memory>>(&self, request: impl Into<ControlRequest>) -> Awaited<'_, E, C, T> {
        self.enter(Request::new(request.into()))
    }

    fn enter<T: Yield<E::Memory>>(&self, request: Request<E::Memory>) -> Awaited<'_, E, C, T> {
        Awaited::new(self, Asked::Entered(self.core.borrow_mut().enter(request)))
    }
}
