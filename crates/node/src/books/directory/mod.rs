//! The directory: the names of objects, and the tenants that each name is shared with.
//!
//! A directory is state and does no I/O. It knows tenants by their names only: it answers for those too that have no
//! clients now. Whoever asks has checked that the object belongs to the tenant.

mod embedded;

pub(crate) use embedded::EmbeddedDirectory;

use portcullis_protocol::{DirectoryName, ObjectRef, Refusal, Rights, TenantName};

/// The names of one node's objects. The books keep it in step with the objects: a name goes before its object does.
pub(crate) trait Directory {
    /// Enters a name of `owner` for an object.
    ///
    /// # Errors
    /// [`Refusal::NameTaken`], or [`Refusal::Quota`] in names. Nothing was changed.
    fn publish(&mut self, owner: &str, name: DirectoryName, object: ObjectRef) -> Result<(), Refusal>;

    /// Removes a name of `owner`, with all that it is shared with. Does nothing if there is none.
    fn unpublish(&mut self, owner: &str, name: &DirectoryName);

    /// The object that has this name with `owner`.
    fn find(&self, owner: &str, name: &DirectoryName) -> Option<ObjectRef>;

    /// Lets a tenant have `rights` over the object that has this name with `owner`.
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

    /// Takes that back.
    ///
    /// # Errors
    /// [`Refusal::NoSuchName`], or [`Refusal::NotShared`].
    fn unshare(&mut self, owner: &str, name: &DirectoryName, with: &TenantName) -> Result<(), Refusal>;

    /// What a tenant may do with the object that has this name with `owner`. `None`: it is not shared with the tenant.
    fn shared(&self, owner: &str, name: &DirectoryName, with: &TenantName) -> Option<Rights>;

    /// The first name of `owner` behind `after`, or of all, that `reader` may see.
    fn next(&self, owner: &str, after: Option<&DirectoryName>, reader: Reader<'_>) -> Option<DirectoryName>;

    /// How many names there are, of all tenants.
    fn names(&self) -> u64;
}

/// Who reads a list of names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader<'a> {
    /// The tenant that has the names: it sees all.
    Owner,
    /// Another tenant: it sees those that are shared with it.
    Other(&'a TenantName),
}
