//! Names for objects, and objects that are shared with other tenants.

use super::Session;
use crate::Clock;
use portcullis_client::{Answer, Call, Error};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::{DirectoryName, Entry, ObjectRef, Rights, TenantName};

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Gives an object of this tenant a name: 1 to 48 bytes without control characters, which no other object of the
    /// tenant has. An object has one name at the most. The name goes with its object, which it does not keep.
    ///
    /// Of several clients that publish one name at once, one succeeds. So they can agree on one object.
    ///
    /// # Errors
    /// [`Error::Name`]: the text is no name. The name is taken, the object has another, the object is gone, the tenant's
    /// quota of names is used up, or the node is gone.
    pub fn publish(&mut self, name: &str, object: ObjectRef) -> Result<(), Error> {
        let name = DirectoryName::new(name)?;
        let call = self.begin(|client, _| client.publish(name, object))?;
        self.wait_call(call).map(|_| ())
    }

    /// Removes a name of this tenant. The object stays, and what this tenant holds of it. What other tenants hold of it
    /// ends: when this returns, no access of theirs can succeed any more.
    ///
    /// # Errors
    /// There is no such name, or the node is gone.
    pub fn unpublish(&mut self, name: &str) -> Result<(), Error> {
        let name = DirectoryName::new(name)?;
        let call = self.begin(|client, _| client.unpublish(name))?;
        self.wait_call(call).map(|_| ())
    }

    /// The object of this tenant that has a name.
    ///
    /// # Errors
    /// There is no such name, or the node is gone.
    pub fn lookup(&mut self, name: &str) -> Result<Entry, Error> {
        self.find(None, name)
    }

    /// The object that has a name with another tenant, which shares it with this one. [`Acquire::object`] takes its
    /// reference.
    ///
    /// [`Acquire::object`]: crate::Acquire::object
    ///
    /// # Errors
    /// There is no such name, or it is not shared with this tenant: the two look the same. Or the node is gone.
    pub fn lookup_of(&mut self, tenant: &str, name: &str) -> Result<Entry, Error> {
        self.find(Some(TenantName::new(tenant)?), name)
    }

    fn find(&mut self, owner: Option<TenantName>, name: &str) -> Result<Entry, Error> {
        let name = DirectoryName::new(name)?;
        let call = self.begin(|client, _| client.lookup(owner, name))?;
        self.entry(call)?.ok_or(Error::SessionLost)
    }

    /// All names of this tenant, in the order of their bytes. Names that come or go meanwhile may be in the list or not.
    ///
    /// # Errors
    /// The node is gone.
    pub fn list(&mut self) -> Result<Vec<Entry>, Error> {
        self.list_all(None)
    }

    /// The names that another tenant shares with this one.
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
            let call = self.begin(|client, _| client.list_behind(owner, after))?;
            match self.entry(call)? {
                // A node that goes back would make this list endless.
                Some(entry) if after.is_some_and(|after| entry.name <= after) => {
                    return Err(Error::SessionLost);
                }
                Some(entry) => entries.push(entry),
                None => return Ok(entries),
            }
        }
    }

    fn entry(&mut self, call: Call) -> Result<Option<Entry>, Error> {
        match self.wait_call(call)? {
            Answer::Entry(entry) => Ok(Some(entry)),
            Answer::EndOfList => Ok(None),
            Answer::Granted(_) | Answer::Extended(_) | Answer::Done | Answer::Chunks(_) => {
                Err(Error::SessionLost)
            }
        }
    }

    /// Lets another tenant acquire permissions over a named object, with at most these rights. The tenant need not be
    /// attached. Without the right to write its permissions are shared, never exclusive. Sharing the name again can add
    /// rights.
    ///
    /// The other tenant reads what the object holds now, too: an object holds what its own tenant left in its memory
    /// before, until something is written there.
    ///
    /// # Errors
    /// There is no such name, the name is shared with that tenant already and would lose a right, it is shared with as
    /// many tenants as it may be, or the node is gone.
    pub fn share(&mut self, name: &str, tenant: &str, rights: Rights) -> Result<(), Error> {
        let (name, tenant) = (DirectoryName::new(name)?, TenantName::new(tenant)?);
        let call = self.begin(|client, _| client.share(name, tenant, rights))?;
        self.wait_call(call).map(|_| ())
    }

    /// Shares a named object with another tenant no more. What that tenant holds of it ends: when this returns, no
    /// access of that tenant's can succeed any more.
    ///
    /// # Errors
    /// There is no such name, it is not shared with that tenant, or the node is gone.
    pub fn unshare(&mut self, name: &str, tenant: &str) -> Result<(), Error> {
        let (name, tenant) = (DirectoryName::new(name)?, TenantName::new(tenant)?);
        let call = self.begin(|client, _| client.unshare(name, tenant))?;
        self.wait_call(call).map(|_| ())
    }

    /// Has an object of this tenant belong to another one, its head: whoever the head is shared with, now or later, has the
    /// same rights over the member. This ends with either of them. A structure of several objects is shared by one name
    /// in this way.
    ///
    /// # Errors
    /// One of them is gone or another tenant's; the member has a name, members or another head; the head is a member
    /// itself; or the node is gone.
    pub fn include(&mut self, member: ObjectRef, head: ObjectRef) -> Result<(), Error> {
        let call = self.begin(|client, _| client.include(member, head))?;
        self.wait_call(call).map(|_| ())
    }
}
