//! One-sided operations: each becomes an [`AddressedAccess`], which is checked, gets a slot and is handed to its carrier.

use crate::access::{Action, AddressedAccess};
use crate::carrier::{Outgoing, Posting};
use crate::operations::{Owner, WORD_BYTES};
use crate::{Access, Buffer, Client, Error, NotBegun, Operation, Permission, Rejected};
use portcullis_nic::{Endpoint, Status, VerbsEndpoint};
use portcullis_protocol::{Credential, Moment, RemoteAddress};

/// Target of an operation.
pub(crate) enum Target<'a> {
    /// Bytes of a permission, from this offset on. The client makes all checks.
    Permission(&'a Permission, u64),
    /// An address and a credential. The client checks nothing.
    Unchecked(RemoteAddress, Credential),
}

/// The buffer that comes with an operation, if one does.
pub(crate) type MaybeBuffer<E> = Option<Buffer<<E as Endpoint>::Memory>>;

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
        let operation = match self.operations.begin(owner, access.action, buffer) {
            Ok(operation) => operation,
            Err(buffer) => return Err(Rejected { buffer, error: self.operations.full() }),
        };
        let local = span.unwrap_or_else(|| self.operations.word(operation));
        match self.hand_over(posting, Outgoing { operation, local, access: &access }) {
            Ok(()) => Ok(Operation { id: operation }),
            Err(error) => Err(Rejected { buffer: self.operations.cancel(operation), error }),
        }
    }

    /// Hands an access to the carrier for its credential.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self, posting: Posting, outgoing: Outgoing<'_>) -> Result<(), Error> {
        let (routes, mut link) = self.routes();
        routes.take_in(&mut link, outgoing, posting)
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
        if let Some(error) = self.over {
            return Err(error);
        }
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
