//! Tables of keys and values.

use crate::border::{Source, Target, Text, call, given, list};
use crate::handles::{self, Session, SessionState, TableHandle};
use crate::permissions::{Object, keep};
use portcullis::{DirectoryName, Error, Keep, Lifetime};
use portcullis_foreign::{Driven, Failure, Misuse, StructureAddress};
use portcullis_structures::table::{Access, Condition, Stored, Table, TableOptions as Options};
use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;

/// Options with which a table is made. All zeros: the defaults.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TableOptions {
    /// Lease, in microseconds: a client's death can hold up other clients that change the same keys for at most twice
    /// this time. Zero: a second.
    pub lease: u64,
    /// Time for which the table is kept while no client has a permission on it: `PORTCULLIS_KEEP_...`, or microseconds
    /// after the tenant's last client has left. Zero: `PORTCULLIS_KEEP_ATTACHED`.
    pub keep: u64,
    /// Number of groups of buckets of a subtable. Each group has room for 21 keys. Zero: 256.
    pub groups: u32,
    /// Exponent of the largest number of subtables: the table has at most two to this power subtables. Zero: 14.
    pub depth_max: u32,
}

impl TableOptions {
    fn options(given: Option<&Self>) -> Options {
        let (given, usual) = (given.copied().unwrap_or_default(), Options::default());
        let or = |given, usual| if given == 0 { usual } else { given };
        Options {
            lease: Lifetime(or(given.lease, usual.lease.0)),
            keep: if given.keep == 0 { Keep::Attached } else { keep(given.keep) },
            groups: if given.groups == 0 { usual.groups } else { given.groups },
            depth_max: if given.depth_max == 0 { usual.depth_max } else { given.depth_max },
            ..usual
        }
    }
}

/// A sequence of bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bytes {
    /// Pointer to the first byte. It may be null if `length` is zero.
    pub data: *const c_void,
    /// Number of bytes.
    pub length: usize,
}

impl Bytes {
    fn of(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr().cast(), length: bytes.len() }
    }
}

/// Stores the value whether the key is in the table or not.
pub const PORTCULLIS_STORE_ALWAYS: u32 = 0;
/// Stores the value if the key is not in the table.
pub const PORTCULLIS_STORE_IF_ABSENT: u32 = 1;
/// Stores the value if the key is in the table.
pub const PORTCULLIS_STORE_IF_PRESENT: u32 = 2;
/// Stores the value if the key is in the table with the value `expected`.
pub const PORTCULLIS_STORE_IF_EQUAL: u32 = 3;

/// Condition on which a value is stored, and its time to live. All zeros: the value is always stored, and never
/// expires.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StoreOptions {
    /// The condition: one of `PORTCULLIS_STORE_...`.
    pub condition: u32,
    /// Reserved: zero.
    pub reserved: u32,
    /// Value that `PORTCULLIS_STORE_IF_EQUAL` expects.
    pub expected: Bytes,
    /// Time after which the key expires, in microseconds. Zero: the key never expires.
    pub live: u64,
}

/// The condition did not hold, and nothing was changed.
pub const PORTCULLIS_STORED_UNCHANGED: u32 = 0;
/// The key was not in the table, and is now.
pub const PORTCULLIS_STORED_INSERTED: u32 = 1;
/// The key has a new value.
pub const PORTCULLIS_STORED_REPLACED: u32 = 2;

/// Callback that receives the result for one of several keys: the number of the key in the call, from zero, and its
/// value, or null if the key is not in the table. It returns whether it wants the next one.
pub type ValueVisitor =
    Option<unsafe extern "C" fn(context: *mut c_void, number: usize, value: *const Bytes) -> bool>;
/// Callback that receives one entry of a table. It returns whether it wants another one.
pub type EntryVisitor = Option<unsafe extern "C" fn(context: *mut c_void, key: Bytes, value: Bytes) -> bool>;

/// Makes an empty table. If `name` is not null, the table gets this name in the tenant. `options` may be null. The
/// handle has a session of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_table_create(
    session: Session,
    name: Text,
    options: Option<&TableOptions>,
    table: Option<&mut TableHandle>,
) -> c_int {
    call(|| {
        let table = given("table", table)?;
        *table = TableHandle::default();
        let name = name_of(name)?;
        let options = TableOptions::options(options);
        let another = handles::enter::<SessionState>(session.id)?.attached.session.another()?;
        table.id = handles::open(Driven::<Table>::create(another, &options, name)?)?;
        Ok(())
    })
}

/// Opens a table that exists. The caller gives either its name in the tenant or the object that is its head; the other
/// argument is null. The handle has a session of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_table_open(
    session: Session,
    name: Text,
    head: Option<&Object>,
    is_read_only: bool,
    table: Option<&mut TableHandle>,
) -> c_int {
    call(|| {
        let table = given("table", table)?;
        *table = TableHandle::default();
        let address = address_of(name, head)?;
        let access = if is_read_only { Access::Read } else { Access::Write };
        let another = handles::enter::<SessionState>(session.id)?.attached.session.another()?;
        table.id = handles::open(Driven::<Table>::open(another, address, access)?)?;
        Ok(())
    })
}

pub(crate) fn name_of(name: Text) -> Result<Option<DirectoryName>, Failure> {
    let name = name.read_or_none("name")?.map(DirectoryName::new).transpose();
    Ok(name.map_err(Error::from)?)
}

pub(crate) fn address_of(name: Text, head: Option<&Object>) -> Result<StructureAddress, Failure> {
    match (name_of(name)?, head) {
        (Some(name), None) => Ok(StructureAddress::Name(name)),
        (None, Some(head)) => Ok(StructureAddress::Object(head.reference())),
        _ => {
            let wrong = "and head: one of them says what to open, and the other is null";
            Err(Misuse::Argument { argument: "name", wrong }.into())
        }
    }
}

/// Gets the object that names the table. Other clients can open the table by this object.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_table_head(table: TableHandle, head: Option<&mut Object>) -> c_int {
    call(|| {
        let head = given("head", head)?;
        *head = handles::enter::<Driven<Table>>(table.id)?.run(async |table| table.head()).into();
        Ok(())
    })
}

/// Gets the value of a key. `length` becomes the length of the value, even if `room` is too short for the value, which
/// is an error. `is_found` becomes true if the key is in the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_table_get(
    table: TableHandle,
    key: *const c_void,
    key_length: usize,
    value: *mut c_void,
    room: usize,
    length: Option<&mut usize>,
    is_found: Option<&mut bool>,
) -> c_int {
    call(|| {
        let (length, is_found) = (given("length", length)?, given("is_found", is_found)?);
        (*length, *is_found) = (0, false);
        let key = Source(key).bytes("key", key_length)?;
        let found = handles::enter::<Driven<Table>>(table.id)?.run(async |table| table.get(key).await)?;
        if let Some(found) = found {
            *is_found = true;
            Target(value).put(&found, room, length)?;
        }
        Ok(())
    })
}

/// Looks up the values of several keys at once, and calls `visitor` for each key, in the keys' order, until it returns
/// false. The visitor may use any handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_table_get_many(
    table: TableHandle,
    keys: Option<&Bytes>,
    count: usize,
    visitor: ValueVisitor,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let visitor = given("visitor", visitor)?;
        let keys = list("keys", keys, count)?;
        let keys: Result<Vec<&[u8]>, Misuse> =
            keys.iter().map(|key| Source(key.data).bytes("keys", key.length)).collect();
        let keys = keys?;
        let found =
            handles::enter::<Driven<Table>>(table.id)?.run(async |table| table.get_many(&keys).await)?;
        for (number, value) in found.iter().enumerate() {
            let value = value.as_deref().map(Bytes::of);
            let pointer = value.as_ref().map_or(std::ptr::null(), |value| &raw const *value);
            // SAFETY: `visitor` is the caller's function, and the header requires that it returns and does not throw.
            let wants_more = unsafe { visitor(context, number, pointer) };
            if !wants_more {
                break;
            }
        }
        Ok(())
    })
}

/// Stores a value. `options` may be null: then the value is always stored, and never expires. `stored` may be null;
/// otherwise it becomes one of `PORTCULLIS_STORED_...`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_table_store(
    table: TableHandle,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    options: Option<&StoreOptions>,
    stored: Option<&mut u32>,
) -> c_int {
    call(|| {
        let key = Source(key).bytes("key", key_length)?;
        let value = Source(value).bytes("value", value_length)?;
        let (condition, live) = match options {
            None => (Condition::Always, None),
            Some(options) => (condition_of(options)?, (options.live > 0).then_some(Lifetime(options.live))),
        };
        let mut open = handles::enter::<Driven<Table>>(table.id)?;
        let done = open.run(async |table| table.store(key, value, condition, live).await)?;
        if let Some(stored) = stored {
            *stored = match done {
                Stored::Unchanged => PORTCULLIS_STORED_UNCHANGED,
                Stored::Inserted => PORTCULLIS_STORED_INSERTED,
                Stored::Replaced => PORTCULLIS_STORED_REPLACED,
            };
        }
        Ok(())
    })
}

fn condition_of(options: &StoreOptions) -> Result<Condition<'_>, Misuse> {
    match options.condition {
        PORTCULLIS_STORE_ALWAYS => Ok(Condition::Always),
        PORTCULLIS_STORE_IF_ABSENT => Ok(Condition::Absent),
        PORTCULLIS_STORE_IF_PRESENT => Ok(Condition::Present),
        PORTCULLIS_STORE_IF_EQUAL => {
            let expected = Source(options.expected.data).bytes("expected", options.expected.length)?;
            Ok(Condition::Equals(expected))
        }
        _ => Err(Misuse::Argument {
            argument: "condition",
            wrong: "is not a condition: it must be one of PORTCULLIS_STORE_...",
        }),
    }
}

/// Removes a key. `was_there` may be null; otherwise it becomes true if the key was in the table, and false if not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_table_remove(
    table: TableHandle,
    key: *const c_void,
    key_length: usize,
    was_there: Option<&mut bool>,
) -> c_int {
    call(|| {
        let key = Source(key).bytes("key", key_length)?;
        let removed =
            handles::enter::<Driven<Table>>(table.id)?.run(async |table| table.remove(key).await)?;
        if let Some(was_there) = was_there {
            *was_there = removed;
        }
        Ok(())
    })
}

/// Removes the keys whose time to live has ended. No client gets these keys any more, but their memory is freed only by
/// this call, or when the keys are stored again. The call reads the whole table. `removed` may be null; otherwise it
/// becomes the number of removed keys.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_table_remove_expired(table: TableHandle, removed: Option<&mut u64>) -> c_int {
    call(|| {
        let mut open = handles::enter::<Driven<Table>>(table.id)?;
        let count = open.run(async |table| table.remove_expired(|_| ()).await)?;
        if let Some(removed) = removed {
            *removed = count;
        }
        Ok(())
    })
}

/// Calls `visitor` for each entry of the table, in no particular order, until it returns false. Entries that are
/// inserted or removed meanwhile may be visited or not. The visitor may use any handle but this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_table_visit(
    table: TableHandle,
    visitor: EntryVisitor,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let visitor = given("visitor", visitor)?;
        let mut open = handles::enter::<Driven<Table>>(table.id)?;
        let each = |key: &[u8], value: &[u8]| {
            // SAFETY: `visitor` is the caller's function, and the header requires that it returns and does not throw.
            let wants_more = unsafe { visitor(context, Bytes::of(key), Bytes::of(value)) };
            if wants_more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        open.run(async |table| table.try_for_each(each).await)?;
        Ok(())
    })
}

/// Closes the handle. The table stays.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_table_close(table: TableHandle) -> c_int {
    call(|| {
        let open = handles::close::<Driven<Table>>(table.id)?;
        open.end(async |table| table.close().await)?;
        Ok(())
    })
}

/// Frees the table with all its keys. If `name` is not null, removes this name of the tenant as well. The handle is
/// closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_table_destroy(table: TableHandle, name: Text) -> c_int {
    call(|| {
        let name = name_of(name)?;
        let open = handles::close::<Driven<Table>>(table.id)?;
        open.end(async |table| table.destroy(name).await)?;
        Ok(())
    })
}
