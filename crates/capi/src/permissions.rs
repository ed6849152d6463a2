//! Objects, and permissions over them.

use crate::border::{Target, Text, call, given};
use crate::handles::{self, KeeperHandle, PermissionHandle, Session, SessionState};
use portcullis::{Acquire, Allocate, Error, Keep, Lifetime, ObjectRef, Permission, Rights, Sharing};
use portcullis_foreign::{Failure, Misuse};
use std::ffi::{c_char, c_int};

/// Reference to an object, which names this one object for ever. Programs pass it on as its 24 bytes, or as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Object {
    /// Bytes of the reference.
    pub bytes: [u8; 24],
}

impl From<ObjectRef> for Object {
    fn from(object: ObjectRef) -> Self {
        Self { bytes: object.to_bytes() }
    }
}

impl Object {
    pub(crate) fn reference(self) -> ObjectRef {
        ObjectRef::from_bytes(self.bytes)
    }
}

/// The right to read.
pub const PORTCULLIS_READ: u8 = 1;
/// The right to write.
pub const PORTCULLIS_WRITE: u8 = 2;
/// The right to COMPARE_AND_SWAP and FETCH_AND_ADD.
pub const PORTCULLIS_ATOMIC: u8 = 4;
/// An object is freed when its last permission ends.
pub const PORTCULLIS_KEEP_NO: u64 = 0;
/// An object stays until it is freed, or until its tenant's last client has left.
pub const PORTCULLIS_KEEP_ATTACHED: u64 = u64::MAX - 1;
/// An object stays until it is freed, or until the node ends.
pub const PORTCULLIS_KEEP_PINNED: u64 = u64::MAX;

/// Options of `portcullis_allocate`. All zeros but `size`: an exclusive permission with all rights for a second, over
/// an object that is freed when the permission ends.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AllocateOptions {
    /// Number of bytes.
    pub size: u64,
    /// Alignment of the first byte: a power of two up to 2 MiB. Zero: no alignment.
    pub alignment: u64,
    /// Lifetime of the permission, in microseconds. Zero: a second.
    pub lifetime: u64,
    /// Time for which the object stays while it has no permission: `PORTCULLIS_KEEP_...`, or microseconds after the
    /// tenant's last client has left.
    pub keep: u64,
    /// Rights of the permission: `PORTCULLIS_READ`, `PORTCULLIS_WRITE`, `PORTCULLIS_ATOMIC`, added up. Zero: all.
    pub rights: u8,
    /// Whether other clients may have permissions over the object at the same time.
    pub is_shared: bool,
    /// Reserved: zeros.
    pub reserved: [u8; 6],
}

/// Options of `portcullis_acquire`. All zeros but `object`: an exclusive permission with all rights over the whole
/// object for a second. The request then waits for other holders for at most a second.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AcquireOptions {
    /// The object.
    pub object: Object,
    /// Offset in the object at which the permission's bytes start. Offsets of accesses count from there.
    pub offset: u64,
    /// Number of bytes. Zero: all bytes from `offset` to the object's end.
    pub length: u64,
    /// Lifetime of the permission, in microseconds. Zero: a second.
    pub lifetime: u64,
    /// Longest time that the request waits for other holders of the bytes, in microseconds. Zero: a second.
    /// `UINT64_MAX`: the request does not wait.
    pub wait: u64,
    /// Rights of the permission: `PORTCULLIS_READ`, `PORTCULLIS_WRITE`, `PORTCULLIS_ATOMIC`, added up. Zero: all.
    pub rights: u8,
    /// Whether other clients may have permissions over the bytes at the same time.
    pub is_shared: bool,
    /// Reserved: zeros.
    pub reserved: [u8; 6],
}

/// Properties of a permission.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PermissionInfo {
    /// The object.
    pub object: Object,
    /// Offset in the object at which the permission's bytes start.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Time until the permission's deadline, in microseconds. The node may end the permission earlier. Zero: the
    /// deadline has passed.
    pub remaining: u64,
    /// Rights of the permission, added up.
    pub rights: u8,
    /// Whether other clients may have permissions over the bytes at the same time.
    pub is_shared: bool,
    /// Reserved: zeros.
    pub reserved: [u8; 6],
}

fn rights(given: u8) -> Result<Rights, Misuse> {
    if given == 0 {
        return Ok(Rights::all());
    }
    let wrong =
        "has bits that are not rights: add up PORTCULLIS_READ, PORTCULLIS_WRITE and PORTCULLIS_ATOMIC";
    Rights::from_bits(given).ok_or(Misuse::Argument { argument: "rights", wrong })
}

fn sharing(is_shared: bool) -> Sharing {
    if is_shared { Sharing::Shared } else { Sharing::Exclusive }
}

/// Converts the time for which an object is kept.
pub(crate) fn keep(given: u64) -> Keep {
    match given {
        PORTCULLIS_KEEP_NO => Keep::No,
        PORTCULLIS_KEEP_ATTACHED => Keep::Attached,
        PORTCULLIS_KEEP_PINNED => Keep::Pinned,
        micros => Keep::For(Lifetime(micros)),
    }
}

impl AllocateOptions {
    pub(crate) fn ask(&self) -> Result<Allocate, Misuse> {
        let usual = Allocate::bytes(self.size);
        Ok(Allocate {
            alignment: self.alignment.max(1),
            lifetime: if self.lifetime == 0 { usual.lifetime } else { Lifetime(self.lifetime) },
            rights: rights(self.rights)?,
            sharing: sharing(self.is_shared),
            keep: keep(self.keep),
            ..usual
        })
    }
}

impl AcquireOptions {
    pub(crate) fn ask(&self) -> Result<Acquire, Misuse> {
        let usual = Acquire::object(self.object.reference()).part(self.offset, self.length);
        Ok(Acquire {
            lifetime: if self.lifetime == 0 { usual.lifetime } else { Lifetime(self.lifetime) },
            rights: rights(self.rights)?,
            sharing: sharing(self.is_shared),
            wait: match self.wait {
                0 => usual.wait,
                u64::MAX => Lifetime(0),
                micros => Lifetime(micros),
            },
            ..usual
        })
    }
}

impl SessionState {
    /// Gives a permission a handle, and keeps it in the session.
    pub(crate) fn admit(&mut self, session: u64, permission: Permission) -> PermissionHandle {
        PermissionHandle { session, id: self.permissions.insert(permission) }
    }

    /// Takes a permission out of the session. Its handle is closed.
    pub(crate) fn take_permission(&mut self, handle: PermissionHandle) -> Result<Permission, Misuse> {
        self.permissions.remove(handle.id).ok_or(NO_PERMISSION)
    }
}

/// Error for a handle that stands for no permission.
pub(crate) const NO_PERMISSION: Misuse = Misuse::Closed { what: "the permission" };

/// Calls `act` with the session of a permission, and the permission.
#[inline]
pub(crate) fn under<T>(
    permission: PermissionHandle,
    act: impl FnOnce(&mut portcullis::Session, &Permission) -> Result<T, Error>,
) -> Result<T, Failure> {
    let mut state = handles::enter::<SessionState>(permission.session)?;
    let SessionState { attached, permissions, .. } = &mut *state;
    let held = permissions.get(permission.id).ok_or(NO_PERMISSION)?;
    Ok(act(&mut attached.session, held)?)
}

/// Allocates memory of the node as a new object, with a permission over it.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_allocate(
    session: Session,
    options: Option<&AllocateOptions>,
    permission: Option<&mut PermissionHandle>,
) -> c_int {
    call(|| {
        let permission = given("permission", permission)?;
        *permission = PermissionHandle::default();
        let ask = given("options", options)?.ask()?;
        let mut state = handles::enter::<SessionState>(session.id)?;
        let granted = state.attached.session.allocate(ask)?;
        *permission = state.admit(session.id, granted);
        Ok(())
    })
}

/// Acquires a permission over an object that exists.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_acquire(
    session: Session,
    options: Option<&AcquireOptions>,
    permission: Option<&mut PermissionHandle>,
) -> c_int {
    call(|| {
        let permission = given("permission", permission)?;
        *permission = PermissionHandle::default();
        let ask = given("options", options)?.ask()?;
        let mut state = handles::enter::<SessionState>(session.id)?;
        let granted = state.attached.session.acquire(ask)?;
        *permission = state.admit(session.id, granted);
        Ok(())
    })
}

/// Extends a permission so that it ends `microseconds` from now. The node's CPU has no part in this.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_extend(permission: PermissionHandle, microseconds: u64) -> c_int {
    call(|| {
        under(permission, |session, held| session.extend(held, Lifetime(microseconds)))?;
        Ok(())
    })
}

/// Ends a permission. If `frees` is true, the node also frees the permission's object once no other client holds it.
/// The handle is closed whatever the result of the revocation is. An error of the revocation means that the permission
/// had ended before, or that the session is over.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_revoke(permission: PermissionHandle, frees: bool) -> c_int {
    call(|| {
        let mut state = handles::enter::<SessionState>(permission.session)?;
        let held = state.take_permission(permission)?;
        let session = &mut state.attached.session;
        if frees {
            session.revoke_and_free(held)?
        } else {
            session.revoke(held)?
        }
        Ok(())
    })
}

/// Gets the properties of a permission.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_info(permission: PermissionHandle, info: Option<&mut PermissionInfo>) -> c_int {
    call(|| {
        let info = given("info", info)?;
        let state = handles::enter::<SessionState>(permission.session)?;
        let held = state.permissions.get(permission.id).ok_or(NO_PERMISSION)?;
        *info = PermissionInfo {
            object: held.object().into(),
            offset: held.offset(),
            length: held.length(),
            remaining: held.lease().deadline().since(state.attached.session.now()).0,
            rights: held.rights().bits(),
            is_shared: held.sharing() == Sharing::Shared,
            reserved: [0; 6],
        };
        Ok(())
    })
}

/// The permissions over a freed object stay, and the memory is freed when the last of them ends.
pub const PORTCULLIS_HOLDERS_STAY: u32 = 0;
/// The permissions over a freed object end. When the call returns, no access reaches the memory any more.
pub const PORTCULLIS_HOLDERS_END: u32 = 1;
/// The call waits until the last permission over the freed object has ended; a permission of this session counts as
/// well. `PORTCULLIS_ERROR_TIMED_OUT`: the object is freed, but still has a holder. The call may be repeated.
pub const PORTCULLIS_HOLDERS_AWAIT: u32 = 2;

/// Frees an object and its members, whether the object was kept or not. From then on the node grants no permission over
/// them, no name and no share to any client. `holders` is one of `PORTCULLIS_HOLDERS_...`. The object may be the head
/// of a table or a queue. Then all of the structure's memory and its name are freed with it, and the program can only
/// close the structure's handles.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_free_object(session: Session, object: Option<&Object>, holders: u32) -> c_int {
    call(|| {
        let object = given("object", object)?.reference();
        let session = &mut handles::enter::<SessionState>(session.id)?.attached.session;
        match holders {
            PORTCULLIS_HOLDERS_STAY => session.free(object)?,
            PORTCULLIS_HOLDERS_END => session.free_now(object)?,
            PORTCULLIS_HOLDERS_AWAIT => session.free_and_wait(object)?,
            _ => {
                let wrong =
                    "is none of PORTCULLIS_HOLDERS_STAY, PORTCULLIS_HOLDERS_END and PORTCULLIS_HOLDERS_AWAIT";
                return Err(Misuse::Argument { argument: "holders", wrong }.into());
            }
        }
        Ok(())
    })
}

/// Changes for how long the node keeps an object, from now on. `time` is one of `PORTCULLIS_KEEP_...`, or a number of
/// microseconds after the tenant's last client has left.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_keep_object(session: Session, object: Option<&Object>, time: u64) -> c_int {
    call(|| {
        let object = given("object", object)?.reference();
        handles::enter::<SessionState>(session.id)?.attached.session.set_keep(object, keep(time))?;
        Ok(())
    })
}

/// Keeps a permission extended, `microseconds` at a time, until `portcullis_keeper_stop`, until the session ends, or
/// until the node's longest lifetime is reached. A thread of the library extends the permission.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_keep(
    permission: PermissionHandle,
    microseconds: u64,
    keeper: Option<&mut KeeperHandle>,
) -> c_int {
    call(|| {
        let keeper = given("keeper", keeper)?;
        *keeper = KeeperHandle::default();
        let mut state = handles::enter::<SessionState>(permission.session)?;
        let SessionState { attached, permissions, keepers, .. } = &mut *state;
        let held = permissions.get(permission.id).ok_or(NO_PERMISSION)?;
        let kept = attached.session.keep(held, Lifetime(microseconds))?;
        *keeper = KeeperHandle { session: permission.session, id: keepers.insert(kept) };
        Ok(())
    })
}

/// Checks whether a keeper still extends its permission. A keeper stops when the node refuses, or when the permission
/// has ended.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_keeper_is_kept(keeper: KeeperHandle, is_kept: Option<&mut bool>) -> c_int {
    call(|| {
        let is_kept = given("is_kept", is_kept)?;
        let state = handles::enter::<SessionState>(keeper.session)?;
        let closed = Misuse::Closed { what: "the keeper" };
        *is_kept = state.keepers.get(keeper.id).ok_or(closed)?.is_kept();
        Ok(())
    })
}

/// Stops a keeper. The permission then lives until its deadline.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_keeper_stop(keeper: KeeperHandle) -> c_int {
    call(|| {
        let mut state = handles::enter::<SessionState>(keeper.session)?;
        let kept = state.keepers.remove(keeper.id);
        kept.map(drop).ok_or(Misuse::Closed { what: "the keeper" })?;
        Ok(())
    })
}

/// Writes an object's reference as text to `text`, with a zero at its end: at most `PORTCULLIS_OBJECT_TEXT_BYTES`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_object_to_text(
    object: Option<&Object>,
    text: *mut c_char,
    room: usize,
) -> c_int {
    call(|| {
        let mut bytes = given("object", object)?.reference().to_string().into_bytes();
        bytes.push(0);
        Target(text.cast()).put(&bytes, room, &mut 0)?;
        Ok(())
    })
}

/// Size in bytes of the longest text of a reference, including the zero at its end.
pub const PORTCULLIS_OBJECT_TEXT_BYTES: usize = 64;

/// Parses the text of a reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_object_from_text(text: Text, object: Option<&mut Object>) -> c_int {
    call(|| {
        let object = given("object", object)?;
        let reference: Result<ObjectRef, _> = text.read("text")?.parse();
        *object = reference.map_err(|error| Failure::lasting(&error))?.into();
        Ok(())
    })
}
