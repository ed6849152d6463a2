//! Calls about names: the directory of the client's tenant, and what other tenants share with it.

use crate::calls::Awaited;
use crate::{Call, Client, Error};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::{DirectoryName, ObjectRef, RequestBody, Rights, TenantName};

impl<E: VerbsEndpoint> Client<E> {
    /// Gives an object of the tenant a name. Two clients that publish the same name at once agree on one of them: the
    /// other is refused. The name goes with its object, which it does not keep. Answered with
    /// [`Answer::Done`](crate::Answer::Done).
    ///
    /// # Errors
    /// [`Error::QueueFull`], or what ended the session. Nothing was begun.
    pub fn publish(&mut self, name: DirectoryName, object: ObjectRef) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Publish { name, object })
    }

    /// Removes a name. What other tenants hold of its object ends. Answered with [`Answer::Done`](crate::Answer::Done)
    /// when no access of theirs can succeed any more.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn unpublish(&mut self, name: DirectoryName) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Unpublish { name })
    }

    /// Asks for the object with a name. `owner`: the tenant that shares it; `None`: the client's own. Answered with
    /// [`Answer::Entry`](crate::Answer::Entry).
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn lookup(&mut self, owner: Option<TenantName>, name: DirectoryName) -> Result<Call, Error> {
        self.call(Awaited::Entry, RequestBody::Lookup { owner, name })
    }

    /// Asks for the first entry behind the name `after`, or of all. `owner`: the tenant that shares the names; `None`:
    /// the client's own. Answered with [`Answer::Entry`](crate::Answer::Entry) or
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

    /// Lets another tenant acquire permissions over a named object, with at most these rights. Without the right to
    /// write they are shared, never exclusive. Answered with [`Answer::Done`](crate::Answer::Done).
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn share(&mut self, name: DirectoryName, tenant: TenantName, rights: Rights) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Share { name, tenant, rights })
    }

    /// Shares a named object with another tenant no more. What that tenant holds of it ends. Answered with
    /// [`Answer::Done`](crate::Answer::Done) when no access of that tenant's can succeed any more.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn unshare(&mut self, name: DirectoryName, tenant: TenantName) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Unshare { name, tenant })
    }

    /// Has an object of the tenant belong to another one, its head: whoever the head is shared with, now or later, has the
    /// same rights over the member. It ends with either of them. Answered with [`Answer::Done`](crate::Answer::Done).
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn include(&mut self, member: ObjectRef, head: ObjectRef) -> Result<Call, Error> {
        self.call(Awaited::Done, RequestBody::Include { member, head })
    }
}
