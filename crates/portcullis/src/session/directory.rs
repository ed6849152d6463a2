//! Names for objects, and objects that are shared with other tenants.

use super::Session;
use crate::Clock;
use portcullis_client::{Answer, ControlRequest, Error};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::{DirectoryName, Entry, NamedRequest, ObjectRef, Rights, TenantName};

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Gives an object of this tenant a name: 1 to 48 bytes without control characters, which no other object of the
    /// tenant has. An object has at most one name. The name does not keep the object, and is removed when the object is
    /// freed.
    ///
    /// If several clients publish one name at once, exactly one succeeds. So they can agree on one object.
    ///
    /// # Errors
    /// [`Error::Name`]: the text is no name. The name is taken, the object has another name, the object is gone, the
    /// tenant's quota of names is used up, or the node is gone.
    pub fn publish(&mut self, name: &str, object: ObjectRef) -> Result<(), Error> {
        let name = DirectoryName::new(name)?;
        self.call(NamedRequest::Publish { name, object }.into()).map(|_| ())
    }

    /// Removes a name of this tenant. The object and this tenant's permissions over it stay. Other tenants' permissions
    /// over it end: when this returns, no access of theirs can succeed any more.
    ///
    /// # Errors
    /// There is no such name, or the node is gone.
    pub fn unpublish(&mut self, name: &str) -> Result<(), Error> {
        let name = DirectoryName::new(name)?;
        self.call(NamedRequest::Unpublish { name }.into()).map(|_| ())
    }

    /// Looks up the object of this tenant that has a name.
    ///
    /// # Errors
    /// There is no such name, or the node is gone.
    pub fn lookup(&mut self, name: &str) -> Result<Entry, Error> {
        self.find(None, name)
    }

    /// Looks up the object that has a name of another tenant, which shares it with this one. [`Acquire::object`] takes
    /// the reference of the object.
    ///
    /// [`Acquire::object`]: crate::Acquire::object
    ///
    /// # Errors
    /// There is no such name, or it is not shared with this tenant: the error does not distinguish the two. Or the node
    /// is gone.
    pub fn lookup_of(&mut self, tenant: &str, name: &str) -> Result<Entry, Error> {
        self.find(Some(TenantName::new(tenant)?), name)
    }

    fn find(&mut self, owner: Option<TenantName>, name: &str) -> Result<Entry, Error> {
        let name = DirectoryName::new(name)?;
        match self.call(NamedRequest::Lookup { owner, name }.into())? {
            Answer::Entry(entry) => Ok(entry),
            other => unreachable!("a look-up is not answered by {other:?}"),
        }
    }

    /// Lists all names of this tenant, in the order of their bytes. Names that are published or removed meanwhile may
    /// be in the list or not.
    ///
    /// # Errors
    /// The node is gone.
    pub fn list(&mut self) -> Result<Vec<Entry>, Error> {
        self.list_all(None)
    }

    /// Lists the names that another tenant shares with this one.
    ///
    /// # Errors
    /// [`Error::Name`]: the text is no tenant's name. Or the node is gone.
    pub fn list_of(&mut self, tenant: &str) -> Result<Vec<Entry>, Error> {
        self.list_all(Some(TenantName::new(tenant)?))
    }

    fn list_all(&mut self, owner: Option<TenantName>) -> Result<Vec<Entry>, Error> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let after = entries.last().map(|entry| entry.name);
            match self.call(NamedRequest::List { owner, after }.into())? {
                // A node that repeats earlier names would make this list endless.
                Answer::Entry(entry) if after.is_some_and(|after| entry.name <= after) => {
                    return Err(Error::SessionLost);
                }
                Answer::Entry(entry) => entries.push(entry),
                Answer::EndOfList => return Ok(entries),
                other => unreachable!("a request for the next name is not answered by {other:?}"),
            }
        }
    }

    /// Lets another tenant acquire permissions over a named object, with at most these rights. The tenant need not be
    /// attached. If the rights do not include writing, that tenant's permissions are shared, never exclusive. Sharing
    /// the name again can add rights.
    ///
    /// The other tenant can also read what the object holds now: until new bytes are written, an object may hold bytes
    /// that its own tenant left in that memory before.
    ///
    /// # Errors
    /// There is no such name, the name is shared with that tenant already and would lose a right, it is shared with as
    /// many tenants as it may be, or the node is gone.
    pub fn share(&mut self, name: &str, tenant: &str, rights: Rights) -> Result<(), Error> {
        let (name, tenant) = (DirectoryName::new(name)?, TenantName::new(tenant)?);
        self.call(NamedRequest::Share { name, tenant, rights }.into()).map(|_| ())
    }

    /// Stops sharing a named object with another tenant. That tenant's permissions over the object end: when this
    /// returns, no access of that tenant can succeed any more.
    ///
    /// # Errors
    /// There is no such name, it is not shared with that tenant, or the node is gone.
    pub fn unshare(&mut self, name: &str, tenant: &str) -> Result<(), Error> {
        let (name, tenant) = (DirectoryName::new(name)?, TenantName::new(tenant)?);
        self.call(NamedRequest::Unshare { name, tenant }.into()).map(|_| ())
    }

    /// Makes an object of this tenant a member of another one, its head: tenants with which the head is shared, now or
    /// later, have the same rights over the member. The membership ends with either object. A structure of several
    /// objects is shared by one name in this way.
    ///
    /// # Errors
    /// One of the objects is gone or belongs to another tenant; the member has a name, members or another head; the
    /// head is a member itself; or the node is gone.
    pub fn include(&mut self, member: ObjectRef, head: ObjectRef) -> Result<(), Error> {
        self.call(ControlRequest::Include { member, head }).map(|_| ())
    }
}
