//! Names of objects, and sharing of objects with other tenants.

use crate::border::{Text, call, given};
use crate::handles::{self, Session, SessionState};
use crate::permissions::Object;
use portcullis::{Entry, Rights};
use portcullis_foreign::Misuse;
use std::ffi::{c_char, c_int, c_void};

/// Size in bytes of the longest name, including the zero at its end.
pub const PORTCULLIS_NAME_BYTES: usize = 49;

/// A name, and the object that has this name.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NameEntry {
    /// The name, with a zero at its end.
    pub name: [c_char; PORTCULLIS_NAME_BYTES],
    /// Rights that this tenant's permissions over the object may have, added up.
    pub rights: u8,
    /// Reserved: zeros.
    pub reserved: [u8; 6],
    /// The object.
    pub object: Object,
    /// Number of bytes of the object.
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

/// Callback that receives one name of a list. It returns whether it wants another one.
pub type NameVisitor = Option<unsafe extern "C" fn(context: *mut c_void, entry: *const NameEntry) -> bool>;

/// Gives an object of this tenant a name of 1 to 48 bytes. If several clients publish one name at once, exactly one
/// succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_publish(session: Session, name: Text, object: Option<&Object>) -> c_int {
    call(|| {
        let object = given("object", object)?.reference();
        let name = name.read("name")?;
        handles::enter::<SessionState>(session.id)?.attached.session.publish(name, object)?;
        Ok(())
    })
}

/// Removes a name of this tenant. The object stays. Other tenants' permissions over the object end before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_unpublish(session: Session, name: Text) -> c_int {
    call(|| {
        let name = name.read("name")?;
        handles::enter::<SessionState>(session.id)?.attached.session.unpublish(name)?;
        Ok(())
    })
}

/// Looks up the object that has a name. If `tenant` is null, the name is one of this tenant. Otherwise the name is one
/// of the other tenant `tenant`, which shares it with this tenant.
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

/// Calls `visitor` for each name of this tenant or, if `tenant` is not null, for each name that the other tenant
/// `tenant` shares with this one. The names are in the order of their bytes. The calls stop when the visitor returns
/// false. The visitor may use any handle.
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
            // SAFETY: `visitor` is the caller's function, and the header requires that it returns and does not throw.
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
        let wrong = "has bits that are not rights";
        let rights = Rights::from_bits(rights).ok_or(Misuse::Argument { argument: "rights", wrong })?;
        let (name, tenant) = (name.read("name")?, tenant.read("tenant")?);
        handles::enter::<SessionState>(session.id)?.attached.session.share(name, tenant, rights)?;
        Ok(())
    })
}

/// Stops sharing a named object with another tenant. When this returns, no access of that tenant to the object can
/// succeed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_unshare(session: Session, name: Text, tenant: Text) -> c_int {
    call(|| {
        let (name, tenant) = (name.read("name")?, tenant.read("tenant")?);
        handles::enter::<SessionState>(session.id)?.attached.session.unshare(name, tenant)?;
        Ok(())
    })
}

/// Makes an object a member of another one, its head. Tenants with which the head is shared have the same rights over
/// the member.
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
