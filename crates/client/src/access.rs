//! An access as it is sent: its credential, its address and its action.
//!
//! The client checks each access here, once, so that an honest mistake never reaches the node. A
//! [`Carrier`](crate::carrier::Carrier) decides how the access travels.

use crate::operations::WORD_BYTES;
use crate::{Error, Lease, Permission};
use portcullis_protocol::{
    Credential, LIFETIME_OFFSET, Lifetime, Moment, PermissionId, RemoteAddress, Rights, Sharing,
};

/// Action of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Read,
    Write,
    CompareAndSwap { compare: u64, swap: u64 },
    FetchAndAdd { add: u64 },
}

impl Action {
    fn needs(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
            Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. } => Rights::ATOMIC,
        }
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. })
    }
}

/// One access to a node's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressedAccess<'a> {
    /// The permission that covers the access. `None`: the client does not check the access.
    pub(crate) permission: Option<PermissionId>,
    /// The credential that the access shows.
    pub(crate) credential: &'a Credential,
    /// The address of offset zero.
    pub(crate) base: RemoteAddress,
    /// Offset of the first byte, counted from `base`.
    pub(crate) offset: u64,
    /// Number of bytes.
    pub(crate) length: u64,
    pub(crate) action: Action,
    /// Whether no other client may write the bytes meanwhile.
    pub(crate) is_exclusive: bool,
}

impl<'a> AddressedAccess<'a> {
    /// Checks an access under a permission. Returns it with the moment on the client's clock from which the permission
    /// counts as dead.
    ///
    /// # Errors
    /// [`Error::WrongRight`], [`Error::OutsideRange`], [`Error::Expired`] or [`Error::Misaligned`].
    #[inline]
    pub(crate) fn checked(
        now: Moment,
        permission: &'a Permission,
        offset: u64,
        length: u64,
        action: Action,
    ) -> Result<(Self, Moment), Error> {
        let deadline = permission.lease().deadline();
        match Self::under(permission, offset, length, action) {
            // After the deadline the caller gets `Expired` even if the access is misaligned as well.
            Ok(_) | Err(Error::Misaligned) if now >= deadline => Err(Error::Expired),
            access => access.map(|access| (access, deadline)),
        }
    }

    /// Checks an access under a permission, except for the time.
    ///
    /// # Errors
    /// As [`AddressedAccess::checked`], except for [`Error::Expired`].
    #[inline]
    pub(crate) fn under(
        permission: &'a Permission,
        offset: u64,
        length: u64,
        action: Action,
    ) -> Result<Self, Error> {
        permission.check_span(offset, length, action.needs())?;
        let base = permission.address();
        if action.is_atomic() && !base.0.wrapping_add(offset).is_multiple_of(u64::from(WORD_BYTES)) {
            return Err(Error::Misaligned);
        }
        let credential = &permission.credential;
        let is_exclusive = permission.sharing() == Sharing::Exclusive;
        Ok(Self { permission: Some(permission.id()), credential, base, offset, length, action, is_exclusive })
    }

    /// Builds an access that the client does not check.
    pub(crate) fn unchecked(
        address: RemoteAddress,
        credential: &'a Credential,
        length: u64,
        action: Action,
    ) -> Self {
        let (permission, base, offset) = (None, address, 0);
        Self { permission, credential, base, offset, length, action, is_exclusive: false }
    }

    /// Builds the compare and swap that extends a lease.
    ///
    /// # Errors
    /// [`Error::Misaligned`]: the node named a header that has no lifetime word.
    pub(crate) fn of_lifetime(lease: &'a Lease, believed: Lifetime, asked: Lifetime) -> Result<Self, Error> {
        let base = lease.permission.header.checked_add(LIFETIME_OFFSET).ok_or(Error::Misaligned)?;
        let action = Action::CompareAndSwap { compare: believed.0, swap: asked.0 };
        let (permission, credential) = (Some(lease.permission), &lease.credential);
        let (length, is_exclusive) = (WORD_BYTES.into(), false);
        Ok(Self { permission, credential, base, offset: 0, length, action, is_exclusive })
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> RemoteAddress {
        RemoteAddress(self.base.0.wrapping_add(self.offset))
    }
}
