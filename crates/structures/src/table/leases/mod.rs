//! The permissions that a handle holds on a table's parts, each shared by many operations (Patronus §6.1).
//!
//! A permission is never extended. A new one replaces it in time, so no permission lives longer than a quarter of the
//! table's lease. Much of what makes a client's death harmless rests on that: each access that a client began under a
//! permission has ended, with or without success, soon after the permission's grant.
//!
//! [`Leases`] keeps the permissions, and does not know where a part lies: a part that is [`Leased`] finds its own object.

mod leased;
mod permissions;

pub(super) use leased::Leased;
pub(super) use permissions::Part;

use super::shape::SPLIT_BYTES;
use super::words::BlockId;
use super::{Access, TableError, TableOptions};
use crate::Pipeline;
use permissions::Permissions;
use portcullis::{Acquire, BarePermission, Clock, Error, Lifetime, ObjectRef, Rights, VerbsEndpoint};
use std::cell::RefCell;
use std::rc::Rc;

/// The permissions of a handle on a table, and the terms on which it acquires them.
pub(super) struct Leases<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    options: TableOptions,
    access: Access,
    permissions: RefCell<Permissions>,
}

impl<E: VerbsEndpoint, C: Clock> Leases<E, C> {
    pub fn new(pipeline: &Rc<Pipeline<E, C>>, options: TableOptions, access: Access) -> Self {
        Self { pipeline: Rc::clone(pipeline), options, access, permissions: RefCell::default() }
    }

    /// Checks that the handle may write.
    ///
    /// # Errors
    /// [`TableError::ReadOnly`].
    pub fn check_writable(&self) -> Result<(), TableError> {
        if self.access == Access::Write { Ok(()) } else { Err(TableError::ReadOnly) }
    }

    /// Returns the permission over a part, if it can be used as it is.
    #[inline]
    pub fn fresh(&self, part: Part) -> Option<Rc<BarePermission>> {
        self.permissions.borrow_mut().fresh(part, self.pipeline.now())
    }

    /// Keeps a permission over a part for further operations.
    pub fn keep(&self, part: Part, permission: &Rc<BarePermission>) {
        self.permissions.borrow_mut().keep(part, permission);
    }

    /// Forgets the permission over a part, which lies in another object now.
    pub fn forget(&self, part: Part) {
        self.permissions.borrow_mut().held(part).permission = None;
    }

    /// Whether the handle has another permission over a part by now. If many operations fail under one permission, the
    /// first of them acquires a new one, and the others must not replace that one too.
    fn is_replaced(&self, part: Part, permission: &Rc<BarePermission>) -> bool {
        let mut permissions = self.permissions.borrow_mut();
        permissions.held(part).permission.as_ref().is_some_and(|held| !Rc::ptr_eq(held, permission))
    }

    /// Makes room for permissions. An object has a limited number of holders, and a tenant of permissions, and this
    /// client may be or have most of them: it ends the permissions over blocks that none of its operations uses, and
    /// waits a little for other clients to do the same.
    async fn make_way(&self, extent: u32) -> Result<(), TableError> {
        self.let_go(extent);
        Ok(self.pipeline.sleep(Lifetime(self.options.hold().0 / 16)).await?)
    }

    /// Ends the permission to read a block, if no operation uses it: the next client that gets the block waits for its
    /// readers.
    pub fn let_go_of_block(&self, block_id: BlockId) {
        let idle = self.permissions.borrow_mut().take_idle_block(block_id);
        idle.into_iter().for_each(|permission| self.pipeline.end(permission));
    }

    /// Ends the permissions over an extent's single blocks that no operation uses, or over all such blocks if the extent
    /// has none.
    pub fn let_go(&self, extent: u32) {
        let mut idle = self.permissions.borrow_mut().take_idle_blocks(extent);
        // The order is the same in each run of a test.
        idle.sort_unstable_by_key(|(block_id, _)| *block_id);
        idle.into_iter().for_each(|(_, permission)| self.pipeline.end(permission));
    }

    /// Ends the older half of the permissions over single blocks that no operation uses, if there are too many.
    fn let_surplus_go(&self) {
        let surplus = self.permissions.borrow_mut().take_surplus_blocks(self.pipeline.now());
        surplus.into_iter().for_each(|permission| self.pipeline.end(permission));
    }

    /// Ends the permissions over an extent that is gone, and over its parts. Permissions that operations still use end
    /// with those operations.
    pub fn end_extent(&self, extent: u32) {
        let held = self.permissions.borrow_mut().take_extent(extent);
        held.into_iter().for_each(|permission| self.pipeline.end(permission));
    }

    /// Makes a request for a shared permission over a part of an object.
    pub fn ask(&self, object: ObjectRef, (offset, length): (u64, u64), rights: Rights) -> Acquire {
        let wait = Lifetime(self.options.lease.0 * 3);
        let ask = Acquire::object(object).part(offset, length).rights(rights);
        ask.shared().lifetime(self.options.hold()).wait(wait)
    }

    /// Makes a request for a shared permission over the head.
    pub fn ask_for_head(&self, head: ObjectRef) -> Acquire {
        self.ask(head, (0, 0), self.access.rights_on_head())
    }

    /// Makes a request for a shared permission over words that clients change by atomics.
    pub fn ask_for_words(&self, object: ObjectRef, part: (u64, u64)) -> Acquire {
        self.ask(object, part, self.access.rights_on_words())
    }

    /// Makes a request for the right to split a subtable.
    pub fn ask_for_split(&self, object: ObjectRef) -> Acquire {
        let lease = self.options.lease;
        Acquire::object(object)
            .part(0, SPLIT_BYTES)
            .rights(Rights::READ | Rights::WRITE)
            .lifetime(lease)
            .wait(Lifetime(lease.0 * 3))
    }

    /// Returns if the caller can try again: after an error that new permissions mend, or at the end of a pause of the
    /// tenant.
    ///
    /// # Errors
    /// Any other error.
    pub async fn mend(&self, error: TableError) -> Result<(), TableError> {
        if let TableError::Session(Error::Paused { wait }) = error {
            self.pipeline.sit_out(wait).await?;
            return Ok(());
        }
        if !error.wants_permission() {
            return Err(error);
        }
        // A permission that has expired is not used again. The handle's other permissions are as good as before.
        if error == TableError::Session(Error::Revoked) {
            self.permissions.borrow_mut().forget();
        }
        Ok(())
    }
}

impl Access {
    fn rights_on_head(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::all(),
        }
    }

    fn rights_on_words(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::READ | Rights::ATOMIC,
        }
    }
}
