//! One-sided operations: checked here first, so that a polite mistake never reaches the node's NIC.

use crate::messages::Job;
use crate::operations::{Owner, WORD_BYTES};
use crate::{Buffer, Client, Error, Operation, Permission, Rejected};
use portcullis_nic::{Endpoint, LocalSpan, Operation as Action, RemoteSpan, Status, WorkRequest};
use portcullis_protocol::{Credential, Moment, PermissionId, RemoteAddress, Rights, Rkey};

/// What an operation does, without where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Read,
    Write,
    CompareAndSwap { compare: u64, swap: u64 },
    FetchAndAdd { add: u64 },
}

impl Shape {
    fn needs(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
            Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. } => Rights::ATOMIC,
        }
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. })
    }

    fn action(self, local: LocalSpan, remote: RemoteSpan) -> Action {
        match self {
            Self::Read => Action::Read { local, remote },
            Self::Write => Action::Write { local, remote },
            Self::CompareAndSwap { compare, swap } => Action::CompareAndSwap { local, remote, compare, swap },
            Self::FetchAndAdd { add } => Action::FetchAndAdd { local, remote, add },
        }
    }
}

/// Where an operation goes.
pub(crate) enum Target<'a> {
    /// Bytes of a permission, with all checks.
    Permission(&'a Permission, u64),
    /// An address and a key, with none.
    Raw(RemoteSpan),
}

/// The way there.
enum Way {
    /// One-sided, under a key.
    Nic(RemoteSpan),
    /// By messages, under a permission's name.
    Node(PermissionId, u64),
}

/// An operation that has its slot and is ready to go.
pub(crate) enum Ready {
    Request(WorkRequest),
    Job(Job),
}

/// The buffer that comes with an operation, if one does.
pub(crate) type MaybeBuffer<E> = Option<Buffer<<E as Endpoint>::Memory>>;

impl<E: Endpoint> Client<E> {
    /// Reads the permission's bytes from `offset` on into the whole of `buffer`.
    ///
    /// # Errors
    /// [`Rejected`] with the buffer: [`Error::Expired`], [`Error::OutsideRange`], [`Error::WrongRight`],
    /// [`Error::QueueFull`], or what ended the session. Nothing was begun.
    #[inline]
    pub fn read(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.go(now, Target::Permission(permission, offset), Some(buffer), Shape::Read)
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
        self.go(now, Target::Permission(permission, offset), Some(buffer), Shape::Write)
    }

    /// Puts `swap` into the 8-byte word at `offset` if it holds `compare`. The outcome is its value before.
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
        let shape = Shape::CompareAndSwap { compare, swap };
        self.go(now, Target::Permission(permission, offset), None, shape)
    }

    /// Adds `add` to the 8-byte word at `offset`, wrapping. The outcome is its value before.
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
        self.go(now, Target::Permission(permission, offset), None, Shape::FetchAndAdd { add })
    }

    /// A read that nothing checks on this side: for demonstrations and hostile tests. Refused by the node's NIC,
    /// it ends with [`Error::Violation`], costs this client a queue pair, and counts against its tenant.
    ///
    /// # Errors
    /// [`Error::QueueFull`], or what ended the session.
    pub fn dangerous_read(
        &mut self,
        now: Moment,
        address: RemoteAddress,
        rkey: Rkey,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.go(now, Target::Raw(RemoteSpan { address, rkey }), Some(buffer), Shape::Read)
    }

    /// A write that nothing checks on this side. See [`Client::dangerous_read`].
    ///
    /// # Errors
    /// As [`Client::dangerous_read`].
    pub fn dangerous_write(
        &mut self,
        now: Moment,
        address: RemoteAddress,
        rkey: Rkey,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.go(now, Target::Raw(RemoteSpan { address, rkey }), Some(buffer), Shape::Write)
    }

    /// A compare and swap that nothing checks on this side. See [`Client::dangerous_read`].
    ///
    /// # Errors
    /// As [`Client::dangerous_read`].
    pub fn dangerous_compare_and_swap(
        &mut self,
        now: Moment,
        address: RemoteAddress,
        rkey: Rkey,
        compare: u64,
        swap: u64,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let shape = Shape::CompareAndSwap { compare, swap };
        self.go(now, Target::Raw(RemoteSpan { address, rkey }), None, shape)
    }

    #[inline]
    fn go(
        &mut self,
        now: Moment,
        target: Target<'_>,
        buffer: MaybeBuffer<E>,
        shape: Shape,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let (operation, ready) = self.prepare(now, target, buffer, shape)?;
        let submitted = match ready {
            Ready::Request(request) => self.queue_pairs.submit(&mut self.endpoint, request),
            Ready::Job(_) if self.messages.room() == 0 => Err(self.queue_pairs.backlog_full()),
            Ready::Job(job) => {
                self.messages.push(job);
                self.send_pieces();
                Ok(())
            }
        };
        match submitted {
            Ok(()) => Ok(operation),
            Err(error) => Err(Rejected { buffer: self.operations.cancel(operation.id), error }),
        }
    }

    /// Checks an operation and gives it a slot.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        now: Moment,
        target: Target<'_>,
        buffer: MaybeBuffer<E>,
        shape: Shape,
    ) -> Result<(Operation, Ready), Rejected<E::Memory>> {
        let length = buffer.as_ref().map_or(WORD_BYTES, Buffer::len);
        let (owner, way) = match self.admit(now, &target, u64::from(length), shape) {
            Ok(admitted) => admitted,
            Err(error) => return Err(Rejected { buffer, error }),
        };
        let span = buffer.as_ref().map(Buffer::span);
        let id = match self.operations.begin(owner, buffer) {
            Ok(id) => id,
            Err(buffer) => return Err(Rejected { buffer, error: self.operations.full() }),
        };
        let ready = match way {
            Way::Nic(remote) => {
                let local = span.unwrap_or_else(|| self.operations.word(id));
                let operation = shape.action(local, remote);
                Ready::Request(WorkRequest { id, signalled: true, operation })
            }
            Way::Node(permission, offset) => {
                let length = u64::from(length);
                Ready::Job(Job { operation: id, permission, shape, offset, length, sent: 0 })
            }
        };
        Ok((Operation { id }, ready))
    }

    /// Whether an operation may go, for whom, and which way.
    #[inline]
    fn admit(
        &self,
        now: Moment,
        target: &Target<'_>,
        length: u64,
        shape: Shape,
    ) -> Result<(Owner, Way), Error> {
        if let Some(error) = self.over {
            return Err(error);
        }
        let (permission, offset) = match *target {
            Target::Permission(permission, offset) => (permission, offset),
            Target::Raw(remote) => return Ok((Owner::Unchecked, Way::Nic(remote))),
        };
        let deadline = permission.check(now, offset, length, shape.needs())?;
        if shape.is_atomic() && !permission.at(offset).0.is_multiple_of(u64::from(WORD_BYTES)) {
            return Err(Error::Misaligned);
        }
        let way = match permission.credential() {
            Credential::Keys { buffer: rkey, .. } => {
                Way::Nic(RemoteSpan { address: permission.at(offset), rkey })
            }
            Credential::Node if !shape.is_atomic() && self.piece_bytes() == 0 => {
                return Err(Error::LocalFault(Status::LocalLengthError));
            }
            Credential::Node => Way::Node(permission.id(), offset),
        };
        Ok((Owner::Checked { deadline }, way))
    }
}
