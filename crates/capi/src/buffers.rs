//! Buffers in a session's arena: operations read into them and write from them without a copy.

use crate::border::{call, given};
use crate::handles::{self, BufferHandle, BufferState, PermissionHandle, Session, SessionState};
use crate::permissions::NO_PERMISSION;
use portcullis::Access;
use portcullis_foreign::{ArenaBuffer, Failure, Misuse};
use std::ffi::{c_int, c_void};

const NO_BUFFER: Misuse = Misuse::Closed { what: "the buffer" };

impl SessionState {
    /// Takes an idle buffer out of the session, for an operation. The caller gives it back with
    /// [`SessionState::return_buffer`].
    pub(crate) fn borrow_buffer(&mut self, handle: BufferHandle) -> Result<ArenaBuffer, Misuse> {
        let state = self.buffers.get_mut(handle.id).ok_or(NO_BUFFER)?;
        match std::mem::replace(state, BufferState::UnderWay) {
            BufferState::Idle(buffer) => Ok(buffer),
            BufferState::UnderWay => Err(Misuse::UnderWay),
        }
    }

    /// Puts a buffer back after an operation. If the operation has lost the buffer, the handle is closed.
    pub(crate) fn return_buffer(&mut self, handle: BufferHandle, buffer: Option<ArenaBuffer>) {
        match (buffer, self.buffers.get_mut(handle.id)) {
            (Some(buffer), Some(state)) => *state = BufferState::Idle(buffer),
            _ => drop(self.buffers.remove(handle.id)),
        }
    }
}

/// Takes a buffer of `length` bytes from the session's arena. `data` becomes the address of its bytes. The program may
/// read and write the bytes while no operation uses the buffer. The address stays the same until
/// `portcullis_buffer_release` or the session's end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_buffer_take(
    session: Session,
    length: u32,
    buffer: Option<&mut BufferHandle>,
    data: Option<&mut *mut c_void>,
) -> c_int {
    call(|| {
        let (handle, data) = (given("buffer", buffer)?, given("data", data)?);
        (*handle, *data) = (BufferHandle::default(), std::ptr::null_mut());
        let mut state = handles::enter::<SessionState>(session.id)?;
        let mut taken = state.attached.session.buffer(length)?;
        // The memory is mapped for as long as the session lives. The mutable borrow ends here: from now on the header's
        // rules determine who uses the bytes at which time.
        *data = taken.bytes_mut().as_mut_ptr().cast();
        *handle = BufferHandle { session: session.id, id: state.buffers.insert(BufferState::Idle(taken)) };
        Ok(())
    })
}

/// Gives a buffer back to the arena.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_buffer_release(buffer: BufferHandle) -> c_int {
    call(|| {
        let mut state = handles::enter::<SessionState>(buffer.session)?;
        drop(state.borrow_buffer(buffer)?);
        state.buffers.remove(buffer.id);
        Ok(())
    })
}

/// Reads as many bytes as the buffer has into the buffer, without a copy, and waits for the end of the read.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_read_buffer(
    permission: PermissionHandle,
    offset: u64,
    buffer: BufferHandle,
) -> c_int {
    call(|| transfer(permission, offset, buffer, true))
}

/// Writes all bytes of the buffer, without a copy, and waits for the end of the write.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_write_buffer(
    permission: PermissionHandle,
    offset: u64,
    buffer: BufferHandle,
) -> c_int {
    call(|| transfer(permission, offset, buffer, false))
}

fn transfer(
    permission: PermissionHandle,
    offset: u64,
    buffer: BufferHandle,
    reads: bool,
) -> Result<(), Failure> {
    let mut state = handles::enter::<SessionState>(permission.session)?;
    if buffer.session != permission.session {
        return Err(portcullis::Error::ForeignBuffer.into());
    }
    if state.permissions.get(permission.id).is_none() {
        return Err(NO_PERMISSION.into());
    }
    let taken = state.borrow_buffer(buffer)?;
    let SessionState { attached, permissions, .. } = &mut *state;
    let held = permissions.get(permission.id).expect("it was there just now");
    let session = &mut attached.session;
    let access = if reads { Access::read(held, offset, taken) } else { Access::write(held, offset, taken) };
    let outcome = session.complete(access);
    state.return_buffer(buffer, outcome.buffer);
    outcome.result?;
    Ok(())
}
