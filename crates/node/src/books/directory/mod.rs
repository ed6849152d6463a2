//! The directory: the names of objects, and the tenants with which each name is shared.
//!
//! A directory is state and does no I/O. It identifies tenants by their names only, and also serves the names of
//! tenants that have no clients now. The caller has checked that the object belongs to the tenant.

mod embedded;

pub(crate) use embedded::EmbeddedDirectory;

use portcullis_protocol::{DirectoryName, ObjectRef, Refusal, Rights, TenantName};

/// The names of one node's objects. The books keep the directory in step with the objects: they remove a name before
/// its object.
pub(crate) trait Directory {
    /// Enters a name of `owner` for an object.
    ///
    /// # Errors
    /// [`Refusal::NameTaken`], or [`Refusal::Quota`] in names. Nothing was changed.
    fn publish(&mut self, owner: &str, name: DirectoryName, object: ObjectRef) -> Result<(), Refusal>;

    /// Removes a name of `owner`, with all its shares. Does nothing if `owner` has no such name.
    fn unpublish(&mut self, owner: &str, name: &DirectoryName);

    /// Returns the object that has this name with `owner`.
    fn find(&self, owner: &str, name: &DirectoryName) -> Option<ObjectRef>;

    /// Shares the object that has this name with `owner`: gives the tenant `with` the rights `rights` over it.
    ///
    /// # Errors
    /// [`Refusal::NoSuchName`]; [`Refusal::AlreadyShared`] if the tenant would lose a right; [`Refusal::Quota`] in
    /// tenants. Nothing was changed.
    fn share(
        &mut self,
        owner: &str,
        name: &DirectoryName,
        with: TenantName,
        rights: Rights,
    ) -> Result<(), Refusal>;

    /// Ends the sharing of a name with a tenant.
    ///
    /// # Errors
    /// [`Refusal::NoSuchName`], or [`Refusal::NotShared`].
    fn unshare(&mut self, owner: &str, name: &DirectoryName, with: &TenantName) -> Result<(), Refusal>;

    /// Returns a tenant's rights over the object that has this name with `owner`. `None`: the object is not shared with
    /// the tenant.
    fn shared(&self, owner: &str, name: &DirectoryName, with: &TenantName) -> Option<Rights>;

    /// Returns the first name of `owner` behind `after`, or of all, that `reader` may see.
    fn next(&self, owner: &str, after: Option<&DirectoryName>, reader: Reader<'_>) -> Option<DirectoryName>;

    /// Returns the number of names of all tenants.
    fn names(&self) -> u64;
}

/// The reader of a list of names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader<'a> {
    /// The tenant that owns the names. It sees all.
    Owner,
    /// Another tenant. It sees the names that are shared with it.
    Other(&'a TenantName),
}
