//! Calls about names: in the directory of the client's tenant, and names that other tenants share with it.

use crate::calls::Awaited;
use crate::{Call, Client, Error};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::{DirectoryName, ObjectRef, RequestBody, Rights, TenantName};

impl<E: VerbsEndpoint> Client<E> {
    /// Gives an object of the tenant a name. If two clients publish the same name at once, one succeeds and the other
    /// is refused. The name does not keep the object, and is removed when the object is freed. The answer is
    /// [`Answer::Done`](crate::Answer::Done).
    ///
    /// # Errors
    /// [`Error::QueueFull`], or the error that ended the session. Nothing was begun.
    pub fn publish(&mut self, name: DirectoryName, object: ObjectRef) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Publish { name, object })
    }

    /// Removes a name. Other tenants' permissions over its object end. The answer,
    /// [`Answer::Done`](crate::Answer::Done), arrives when no access of theirs can succeed any more.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn unpublish(&mut self, name: DirectoryName) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Unpublish { name })
    }

    /// Requests the object with a name. `owner`: the tenant that shares it; `None`: the client's own. The answer is
    /// [`Answer::Entry`](crate::Answer::Entry).
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn lookup(&mut self, owner: Option<TenantName>, name: DirectoryName) -> Result<Call, Error> {
        self.call(Awaited::Entry, RequestBody::Lookup { owner, name })
    }

    /// Requests the first entry behind the name `after`, or the first of all if it is `None`. `owner`: the tenant that
    /// shares the names; `None`: the client's own. The answer is [`Answer::Entry`](crate::Answer::Entry) or
    /// [`Answer::EndOfList`](crate::Answer::EndOfList).
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn list_behind(
        &mut self,
        owner: Option<TenantName>,
        after: Option<DirectoryName>,
    ) -> Result<Call, Error> {
        self.call(Awaited::NextEntry, RequestBody::List { owner, after })
    }

    /// Lets another tenant acquire permissions over a named object, with at most these rights. If the rights do not
    /// include writing, these permissions are shared, never exclusive. The answer is
    /// [`Answer::Done`](crate::Answer::Done).
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn share(&mut self, name: DirectoryName, tenant: TenantName, rights: Rights) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Share { name, tenant, rights })
    }

    /// Stops sharing a named object with another tenant. That tenant's permissions over the object end. The answer,
    /// [`Answer::Done`](crate::Answer::Done), arrives when no access of that tenant can succeed any more.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn unshare(&mut self, name: DirectoryName, tenant: TenantName) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Unshare { name, tenant })
    }

    /// Makes an object of the tenant a member of another one, its head: tenants with which the head is shared, now or
    /// later, have the same rights over the member. The membership ends with either object. The answer is
    /// [`Answer::Done`](crate::Answer::Done).
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn include(&mut self, member: ObjectRef, head: ObjectRef) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Include { member, head })
    }
}
