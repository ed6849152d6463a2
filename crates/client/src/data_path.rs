//! The data path: each one-sided access becomes an [`AddressedAccess`], which is checked, gets a slot and is handed to
//! its carrier.

use crate::access::{Action, AddressedAccess};
use crate::buffer::Blocks;
use crate::carrier::{Link, Outgoing, Posting};
use crate::control::Control;
use crate::limit::Limit;
use crate::operations::{Operations, Owner, WORD_BYTES};
use crate::permission::Mark;
use crate::routes::Routes;
use crate::{Access, Buffer, Client, ClientConfig, Error, NotBegun, Operation, Permission, Rejected};
use portcullis_nic::{Endpoint, Status, VerbsEndpoint};
use portcullis_protocol::{Credential, Moment, RemoteAddress};
use std::sync::Arc;

/// Target of an operation.
pub(crate) enum Target<'a> {
    /// Bytes of a permission, from this offset on. The client makes all checks.
    Permission(&'a Permission, u64),
    /// An address and a credential. The client checks nothing.
    Unchecked(RemoteAddress, Credential),
}

/// The buffer that comes with an operation, if one does.
pub(crate) type MaybeBuffer<E> = Option<Buffer<<E as Endpoint>::Memory>>;

/// The accesses of a client. Each operation that is under way has a slot, and is with exactly one carrier.
pub(crate) struct DataPath<E: VerbsEndpoint> {
    pub(crate) link: Link<E>,
    pub(crate) routes: Routes,
    /// The client's identity, which its permissions carry.
    mark: Mark,
    /// The buffers that the NIC may read and write for this client.
    blocks: Arc<Blocks<E::Memory>>,
}

impl<E: VerbsEndpoint> DataPath<E> {
    /// Makes the data path of a client. The words of its operations lie in the arena from `words` on, and its buffers
    /// from `buffers` on.
    pub(crate) fn new(
        mut endpoint: E,
        control: Control,
        (words, buffers): (u64, u64),
        config: ClientConfig,
        mark: Mark,
    ) -> Self {
        let (memory, key) = (endpoint.arena().clone(), endpoint.arena_key());
        let blocks = Arc::new(Blocks::new(memory.clone(), key, buffers, control.arena_bytes()));
        let operations = Operations::new(memory, key, words, config.operations_max);
        let routes = Routes::new(&mut endpoint, config);
        Self { link: Link { endpoint, operations, control, limit: Limit::NONE }, routes, mark, blocks }
    }

    /// Returns a buffer of `length` bytes in the arena.
    ///
    /// # Errors
    /// [`Error::ArenaFull`].
    pub(crate) fn buffer(&self, length: u32) -> Result<Buffer<E::Memory>, Error> {
        self.blocks.buffer(length)
    }

    /// Checks an operation, gives it a slot and hands it to its carrier.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        posting: Posting,
        now: Moment,
        target: Target<'_>,
        buffer: MaybeBuffer<E>,
        action: Action,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let length = u64::from(buffer.as_ref().map_or(WORD_BYTES, Buffer::len));
        let (owner, access) = match self.admit(now, &target, length, action) {
            Ok(admitted) => admitted,
            Err(error) => return Err(Rejected { buffer, error }),
        };
        self.begin_checked(posting, (owner, access), buffer)
    }

    /// Gives a checked access a slot and hands it to its carrier.
    #[inline(always)]
    pub(crate) fn begin_checked(
        &mut self,
        posting: Posting,
        (owner, access): (Owner, AddressedAccess),
        buffer: MaybeBuffer<E>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        if buffer.as_ref().is_some_and(|buffer| !buffer.is_of(&self.blocks)) {
            return Err(Rejected { buffer, error: Error::ForeignBuffer });
        }
        let span = buffer.as_ref().map(Buffer::span);
        let operation = match self.link.operations.begin(owner, access.action, buffer) {
            Ok(operation) => operation,
            Err(buffer) => return Err(Rejected { buffer, error: self.link.operations.full() }),
        };
        let local = span.unwrap_or_else(|| self.link.operations.word(operation));
        match self.hand_over(posting, Outgoing { operation, local, access: &access }) {
            Ok(()) => Ok(Operation { id: operation }),
            Err(error) => Err(Rejected { buffer: self.link.operations.cancel(operation), error }),
        }
    }

    /// Hands an access to the carrier for its credential.
    #[inline(always)]
    fn hand_over(&mut self, posting: Posting, outgoing: Outgoing<'_>) -> Result<(), Error> {
        self.routes.take_in(&mut self.link, outgoing, posting)
    }

    /// Returns whether accesses, rebuilds, messages or receives wait that may be possible by now.
    #[inline]
    pub(crate) fn is_backed_up(&self) -> bool {
        self.routes.next_rebuild().is_some()
            || self.routes.is_backed_up::<E>()
            || self.link.control.is_behind()
    }

    /// Checks whether an operation may begin, and returns its owner and its access.
    #[inline]
    fn admit(
        &self,
        now: Moment,
        target: &Target<'_>,
        length: u64,
        action: Action,
    ) -> Result<(Owner, AddressedAccess), Error> {
        match *target {
            Target::Permission(permission, offset) => {
                if permission.lease().is_of_another(&self.mark) {
                    return Err(Error::ForeignPermission);
                }
                let (access, deadline) = AddressedAccess::checked(now, permission, offset, length, action)?;
                Ok((Owner::Checked { deadline }, access))
            }
            Target::Unchecked(_, credential) if !self.routes.can_carry(&credential) => {
                Err(Error::LocalFault(Status::LocalQpOperationError))
            }
            Target::Unchecked(address, credential) => {
                Ok((Owner::Unchecked, AddressedAccess::unchecked(address, credential, length, action)))
            }
        }
    }
}

impl<E: VerbsEndpoint> Client<E> {
    /// Begins an access: [`Client::read`] and its like, as a value.
    ///
    /// # Errors
    /// [`NotBegun`] with the access, for a reason of [`Client::read`] or [`Client::compare_and_swap`].
    #[inline]
    pub fn access<P: AsRef<Permission>>(
        &mut self,
        now: Moment,
        access: Access<P, E::Memory>,
    ) -> Result<Operation, NotBegun<Access<P, E::Memory>>> {
        self.begin_access(Posting::AtOnce, now, access)
    }

    #[inline(always)]
    pub(crate) fn begin_access<P: AsRef<Permission>>(
        &mut self,
        posting: Posting,
        now: Moment,
        access: Access<P, E::Memory>,
    ) -> Result<Operation, NotBegun<Access<P, E::Memory>>> {
        let Access { permission, offset, action, buffer } = access;
        let target = Target::Permission(permission.as_ref(), offset);
        match self.begin(posting, now, target, buffer, action) {
            Ok(operation) => Ok(operation),
            Err(Rejected { buffer, error }) => {
                Err(NotBegun { ask: Access { permission, offset, action, buffer }, error })
            }
        }
    }

    /// Reads the permission's bytes from `offset` on into the whole of `buffer`.
    ///
    /// # Errors
    /// [`Rejected`] with the buffer: [`Error::Expired`], [`Error::OutsideRange`], [`Error::WrongRight`],
    /// [`Error::QueueFull`], or the error that ended the session. Nothing was begun.
    #[inline]
    pub fn read(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.begin(Posting::AtOnce, now, Target::Permission(permission, offset), Some(buffer), Action::Read)
    }

    /// Writes the whole of `buffer` to the permission's bytes from `offset` on.
    ///
    /// # Errors
    /// As [`Client::read`].
    #[inline]
    pub fn write(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.begin(Posting::AtOnce, now, Target::Permission(permission, offset), Some(buffer), Action::Write)
    }

    /// Writes `swap` into the 8-byte word at `offset` if it holds `compare`. The outcome is the word's old value.
    ///
    /// # Errors
    /// As [`Client::read`], and [`Error::Misaligned`].
    #[inline]
    pub fn compare_and_swap(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let action = Action::CompareAndSwap { compare, swap };
        self.begin(Posting::AtOnce, now, Target::Permission(permission, offset), None, action)
    }

    /// Adds `add` to the 8-byte word at `offset`, wrapping. The outcome is the word's old value.
    ///
    /// # Errors
    /// As [`Client::read`], and [`Error::Misaligned`].
    #[inline]
    pub fn fetch_and_add(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        add: u64,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.begin(
            Posting::AtOnce,
            now,
            Target::Permission(permission, offset),
            None,
            Action::FetchAndAdd { add },
        )
    }

    /// Reads without checks by the client: for demonstrations and hostile tests. If the node's NIC refuses the read, it
    /// ends with [`Error::Violation`], costs this client a queue pair, and is charged to the client or its tenant.
    ///
    /// # Errors
    /// [`Error::QueueFull`], or the error that ended the session.
    pub fn dangerous_read(
        &mut self,
        now: Moment,
        address: RemoteAddress,
        credential: impl Into<Credential>,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.begin(
            Posting::AtOnce,
            now,
            Target::Unchecked(address, credential.into()),
            Some(buffer),
            Action::Read,
        )
    }

    /// Writes without checks by the client. See [`Client::dangerous_read`].
    ///
    /// # Errors
    /// As [`Client::dangerous_read`].
    pub fn dangerous_write(
        &mut self,
        now: Moment,
        address: RemoteAddress,
        credential: impl Into<Credential>,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.begin(
            Posting::AtOnce,
            now,
            Target::Unchecked(address, credential.into()),
            Some(buffer),
            Action::Write,
        )
    }

    /// Compares and swaps without checks by the client. See [`Client::dangerous_read`].
    ///
    /// # Errors
    /// As [`Client::dangerous_read`].
    pub fn dangerous_compare_and_swap(
        &mut self,
        now: Moment,
        address: RemoteAddress,
        credential: impl Into<Credential>,
        compare: u64,
        swap: u64,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let action = Action::CompareAndSwap { compare, swap };
        self.begin(Posting::AtOnce, now, Target::Unchecked(address, credential.into()), None, action)
    }

    /// Begins an operation, unless the session is over.
    #[inline(always)]
    fn begin(
        &mut self,
        posting: Posting,
        now: Moment,
        target: Target<'_>,
        buffer: MaybeBuffer<E>,
        action: Action,
    ) -> Result<Operation, Rejected<E::Memory>> {
        match self.over {
            Some(error) => Err(Rejected { buffer, error }),
            None => self.data.begin(posting, now, target, buffer, action),
        }
    }
}
