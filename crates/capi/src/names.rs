//! Names of objects, and objects that are shared with other tenants.

use crate::border::{Text, call, given};
use crate::handles::{self, Session, SessionState};
use crate::permissions::Object;
use portcullis::{Entry, Rights};
use portcullis_foreign::Misuse;
use std::ffi::{c_char, c_int, c_void};

/// Bytes of the longest name, with the zero at its end.
pub const PORTCULLIS_NAME_BYTES: usize = 49;

/// A name, and the object that has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NameEntry {
    /// The name, with a zero at its end.
    pub name: [c_char; PORTCULLIS_NAME_BYTES],
    /// What this tenant's permissions over the object may allow, added up.
    pub rights: u8,
    /// Zeros.
    pub reserved: [u8; 6],
    /// The object.
    pub object: Object,
    /// Its bytes.
    pub size: u64,
}

impl From<&Entry> for NameEntry {
    fn from(entry: &Entry) -> Self {
        let mut name = [0; PORTCULLIS_NAME_BYTES];
        for (to, from) in name[..PORTCULLIS_NAME_BYTES - 1].iter_mut().zip(entry.name.as_str().bytes()) {
            *to = from.cast_signed() as c_char;
        }
        let rights = entry.rights.bits();
        Self { name, rights, reserved: [0; 6], object: entry.object.into(), size: entry.size }
    }
}

/// Takes one name of a list. Returns whether it wants more.
pub type NameVisitor = Option<unsafe extern "C" fn(context: *mut c_void, entry: *const NameEntry) -> bool>;

/// Gives an object of this tenant a name: 1 to 48 bytes. Of several clients that publish one name at once, one succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_publish(session: Session, name: Text, object: Option<&Object>) -> c_int {
    call(|| {
        let object = given("object", object)?.reference();
        let name = name.read("name")?;
        handles::enter::<SessionState>(session.id)?.attached.session.publish(name, object)?;
        Ok(())
    })
}

/// Removes a name of this tenant. The object stays. What other tenants hold of it ends before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_unpublish(session: Session, name: Text) -> c_int {
    call(|| {
        let name = name.read("name")?;
        handles::enter::<SessionState>(session.id)?.attached.session.unpublish(name)?;
        Ok(())
    })
}

/// The object that has a name: with this tenant if `tenant` is null, otherwise with another that shares it with this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_lookup(
    session: Session,
    tenant: Text,
    name: Text,
    entry: Option<&mut NameEntry>,
) -> c_int {
    call(|| {
        let to = given("entry", entry)?;
        let (tenant, name) = (tenant.read_or_none("tenant")?, name.read("name")?);
        let mut state = handles::enter::<SessionState>(session.id)?;
        let session = &mut state.attached.session;
        let found = match tenant {
            Some(tenant) => session.lookup_of(tenant, name)?,
            None => session.lookup(name)?,
        };
        *to = NameEntry::from(&found);
        Ok(())
    })
}

/// Calls `visitor` for each name of this tenant, in the order of their bytes, until it returns false; or for each that another
/// `tenant` shares with this one. The visitor may use any handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_names(
    session: Session,
    tenant: Text,
    visitor: NameVisitor,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let visitor = given("visitor", visitor)?;
        let tenant = tenant.read_or_none("tenant")?;
        let entries = {
            let mut state = handles::enter::<SessionState>(session.id)?;
            match tenant {
                Some(tenant) => state.attached.session.list_of(tenant)?,
                None => state.attached.session.list()?,
            }
        };
        for entry in &entries {
            let entry = NameEntry::from(entry);
            // SAFETY: it is the caller's function, which the header asks to return and not to throw.
            let wants_more = unsafe { visitor(context, &raw const entry) };
            if !wants_more {
                break;
            }
        }
        Ok(())
    })
}

/// Lets another tenant acquire permissions over a named object, with at most these rights, added up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_share(session: Session, name: Text, tenant: Text, rights: u8) -> c_int {
    call(|| {
        let wrong = "has bits that are no rights";
        let rights = Rights::from_bits(rights).ok_or(Misuse::Argument { argument: "rights", wrong })?;
        let (name, tenant) = (name.read("name")?, tenant.read("tenant")?);
        handles::enter::<SessionState>(session.id)?.attached.session.share(name, tenant, rights)?;
        Ok(())
    })
}

/// Shares a named object with another tenant no more. When this returns, no access of that tenant's can succeed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_unshare(session: Session, name: Text, tenant: Text) -> c_int {
    call(|| {
        let (name, tenant) = (name.read("name")?, tenant.read("tenant")?);
        handles::enter::<SessionState>(session.id)?.attached.session.unshare(name, tenant)?;
        Ok(())
    })
}

/// Has an object belong to another one, its head: whoever the head is shared with has the same rights over the member.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_include(
    session: Session,
    member: Option<&Object>,
    head: Option<&Object>,
) -> c_int {
    call(|| {
        let (member, head) = (given("member", member)?.reference(), given("head", head)?.reference());
        handles::enter::<SessionState>(session.id)?.attached.session.include(member, head)?;
        Ok(())
    })
}
