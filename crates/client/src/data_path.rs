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
use crate::{Access, Buffer, ClientConfig, Error, NotBegun, Operation, Permission, Unchecked};
use portcullis_nic::{Endpoint, Memory, Status, VerbsEndpoint};
use portcullis_protocol::{Moment, RemoteAddress};
use std::sync::Arc;

/// An access that the client does not check.
pub(crate) type UncheckedAccess<E> = Access<Unchecked, <E as Endpoint>::Memory>;

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

    /// Checks an access under a permission, gives it a slot and hands it to its carrier.
    ///
    /// # Errors
    /// As [`Client::access`](crate::Client::access). Nothing was begun.
    #[inline(always)]
    pub(crate) fn begin<P: AsRef<Permission>>(
        &mut self,
        posting: Posting,
        now: Moment,
        access: Access<P, E::Memory>,
    ) -> Result<Operation, NotBegun<Access<P, E::Memory>>> {
        let Access { permission, offset, action, buffer } = access;
        let admitted = self.admit(now, permission.as_ref(), offset, length_of(&buffer), action);
        let begun = match admitted {
            Ok(admitted) => self.begin_checked(posting, admitted, buffer),
            Err(error) => Err((buffer, error)),
        };
        begun
            .map_err(|(buffer, error)| NotBegun { ask: Access { permission, offset, action, buffer }, error })
    }

    /// Begins an access that the client does not check.
    ///
    /// # Errors
    /// As [`Client::dangerous_access`](crate::Client::dangerous_access). Nothing was begun.
    pub(crate) fn begin_unchecked(
        &mut self,
        access: UncheckedAccess<E>,
    ) -> Result<Operation, NotBegun<Box<UncheckedAccess<E>>>> {
        let Access { permission, offset, action, buffer } = access;
        let Unchecked { address, credential } = permission;
        let begun = if self.routes.can_carry(&credential) {
            let address = RemoteAddress(address.0.wrapping_add(offset));
            let access = AddressedAccess::unchecked(address, &credential, length_of(&buffer), action);
            self.begin_checked(Posting::AtOnce, (Owner::Unchecked, access), buffer)
        } else {
            Err((buffer, Error::LocalFault(Status::LocalQpOperationError)))
        };
        begun.map_err(|(buffer, error)| NotBegun {
            ask: Box::new(Access { permission, offset, action, buffer }),
            error,
        })
    }

    /// Gives a checked access a slot and hands it to its carrier.
    #[inline(always)]
    pub(crate) fn begin_checked(
        &mut self,
        posting: Posting,
        (owner, access): (Owner, AddressedAccess<'_>),
        buffer: MaybeBuffer<E>,
    ) -> Result<Operation, (MaybeBuffer<E>, Error)> {
        if buffer.as_ref().is_some_and(|buffer| !buffer.is_of(&self.blocks)) {
            return Err((buffer, Error::ForeignBuffer));
        }
        let span = buffer.as_ref().map(Buffer::span);
        let operation = match self.link.operations.begin(owner, access.action, buffer) {
            Ok(operation) => operation,
            Err(buffer) => return Err((buffer, self.link.operations.full())),
        };
        let local = span.unwrap_or_else(|| self.link.operations.word(operation));
        match self.hand_over(posting, Outgoing { operation, local, access: &access }) {
            Ok(()) => Ok(Operation { id: operation }),
            Err(error) => Err((self.link.operations.cancel(operation), error)),
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

    /// Checks whether an access may begin, and returns it with its owner.
    #[inline]
    fn admit<'a>(
        &self,
        now: Moment,
        permission: &'a Permission,
        offset: u64,
        length: u64,
        action: Action,
    ) -> Result<(Owner, AddressedAccess<'a>), Error> {
        if permission.lease().is_of_another(&self.mark) {
            return Err(Error::ForeignPermission);
        }
        let (access, deadline) = AddressedAccess::checked(now, permission, offset, length, action)?;
        Ok((Owner::Checked { deadline }, access))
    }
}

/// Number of bytes that an access moves.
#[inline]
fn length_of<M: Memory>(buffer: &Option<Buffer<M>>) -> u64 {
    u64::from(buffer.as_ref().map_or(WORD_BYTES, Buffer::len))
}
