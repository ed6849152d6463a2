//! Operations that do not wait: they are submitted in batches, and end as completions.

use crate::border::{Source, Target, call, given, list, list_to_fill};
use crate::handles::{self, BufferHandle, PermissionHandle, Session, SessionState};
use crate::permissions::{AcquireOptions, AllocateOptions, NO_PERMISSION};
use portcullis::{Access, ControlRequest, Error, Lifetime};
use portcullis_errors::Coded;
use portcullis_foreign::{ArenaAsk, ArenaBuffer, Completion as Finished, Ended, Failure, Misuse};
use std::ffi::{c_int, c_void};

/// A read into `data`, or into `buffer`.
pub const PORTCULLIS_OPERATION_READ: u32 = 1;
/// A write from `data`, or from `buffer`.
pub const PORTCULLIS_OPERATION_WRITE: u32 = 2;
/// Writes `value` to the word at `offset` if the word equals `compare`.
pub const PORTCULLIS_OPERATION_COMPARE_AND_SWAP: u32 = 3;
/// Adds `value` to the word at `offset`.
pub const PORTCULLIS_OPERATION_FETCH_AND_ADD: u32 = 4;
/// Allocates memory as `portcullis_allocate` does, with the options `allocate`.
pub const PORTCULLIS_OPERATION_ALLOCATE: u32 = 5;
/// Acquires a permission as `portcullis_acquire` does, with the options `acquire`.
pub const PORTCULLIS_OPERATION_ACQUIRE: u32 = 6;
/// Ends a permission as `portcullis_revoke` does without `frees`. The handle of the permission is closed at once.
pub const PORTCULLIS_OPERATION_REVOKE: u32 = 7;
/// Ends a permission and frees its object, as `portcullis_revoke` does with `frees`. The handle of the permission is
/// closed at once.
pub const PORTCULLIS_OPERATION_REVOKE_AND_FREE: u32 = 8;
/// Extends a permission as `portcullis_extend` does, so that it ends `value` microseconds after the operation begins.
pub const PORTCULLIS_OPERATION_EXTEND: u32 = 9;

/// One operation. Fields that its kind does not need are zero.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Operation {
    /// Kind of the operation: one of `PORTCULLIS_OPERATION_...`.
    pub kind: u32,
    /// Reserved: zero.
    pub reserved: u32,
    /// Number that the caller chooses. The operation's completion has the same number.
    pub tag: u64,
    /// Permission that the operation uses.
    pub permission: PermissionHandle,
    /// Offset in the permission's memory.
    pub offset: u64,
    /// Memory of the caller, for a read or a write without a `buffer`. `portcullis_submit` copies the bytes of a write
    /// before it returns. `portcullis_wait` copies the bytes of a read when it returns the completion: until then the
    /// memory must stay, and no other code may use it.
    pub data: *mut c_void,
    /// Number of bytes at `data`.
    pub length: u64,
    /// Buffer that a read fills or whose bytes a write writes, always all of it. It belongs to the operation until
    /// `portcullis_wait` returns the completion.
    pub buffer: BufferHandle,
    /// Value that a COMPARE_AND_SWAP expects.
    pub compare: u64,
    /// Value that a COMPARE_AND_SWAP writes or a FETCH_AND_ADD adds, or the microseconds of an extension.
    pub value: u64,
    /// Options of an allocation. The program may free them when `portcullis_submit` returns.
    pub allocate: *const AllocateOptions,
    /// Options of an acquisition. The program may free them when `portcullis_submit` returns.
    pub acquire: *const AcquireOptions,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Completion {
    /// Tag of the operation.
    pub tag: u64,
    /// Number of bytes that a read or a write moved, or the word's value before an atomic.
    pub value: u64,
    /// Permission that an allocation or an acquisition returned.
    pub permission: PermissionHandle,
    /// Zero, or the number of the error.
    pub error: i32,
    /// Party that is at fault for the error: one of `PORTCULLIS_FAULT_...`.
    pub fault: u8,
    /// Whether the same operation may succeed later although the caller changes nothing.
    pub is_retryable: bool,
    /// Reserved: zeros.
    pub reserved: [u8; 2],
}

/// The caller's tag of an operation, and the step that remains when the operation has ended.
pub(crate) struct Submitted {
    tag: u64,
    then: Then,
}

enum Then {
    Nothing,
    /// Copies the bytes that were read to the caller's memory.
    CopyOut {
        data: Target,
        length: usize,
    },
    /// Gives the buffer back to the caller.
    ReturnBuffer(BufferHandle),
}

// SAFETY: the pointer in CopyOut is used only by the thread that is inside the session, and the header requires the
// caller to leave the memory alone until the completion, whichever threads submit the operation and take its
// completion.
unsafe impl Send for Submitted {}

/// Submits operations, in order, with one doorbell. This call never waits: operations for which there is no room begin
/// when others have ended. Each operation gets one completion from `portcullis_wait`, even if it could not begin. If
/// this call itself returns an error, no operation was submitted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_submit(
    session: Session,
    operations: Option<&Operation>,
    count: usize,
) -> c_int {
    call(|| {
        let operations = list("operations", operations, count)?;
        let mut state = handles::enter::<SessionState>(session.id)?;
        for operation in operations {
            state.add(session, operation);
        }
        state.attached.post();
        Ok(())
    })
}

/// Waits until `at_least` operations have ended, until no operation is under way any more, or until `microseconds` have
/// passed (`UINT64_MAX`: without a time limit). Then returns up to `room` completions, in the order in which the
/// operations ended, and sets `count` to their number. If `at_least` is zero, the call does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_wait(
    session: Session,
    completions: Option<&mut Completion>,
    room: usize,
    at_least: usize,
    microseconds: u64,
    count: Option<&mut usize>,
) -> c_int {
    call(|| {
        let count = given("count", count)?;
        *count = 0;
        let completions = list_to_fill("completions", completions, room)?;
        let mut state = handles::enter::<SessionState>(session.id)?;
        let time = (microseconds < u64::MAX).then_some(Lifetime(microseconds));
        if at_least == 0 {
            state.attached.poll();
        } else {
            state.attached.wait(at_least.min(room), time);
        }
        for completion in completions {
            let Some(finished) = state.attached.operations.take() else { break };
            *completion = state.complete(session, finished);
            *count += 1;
        }
        Ok(())
    })
}

impl SessionState {
    /// Adds one operation. If it cannot be added, adds its completion at once.
    fn add(&mut self, session: Session, operation: &Operation) {
        let tag = self.submitted.insert(Submitted { tag: operation.tag, then: Then::Nothing });
        if let Err(failure) = self.try_add(session, operation, tag) {
            self.attached.operations.fail(tag, failure);
        }
    }

    fn try_add(&mut self, session: Session, operation: &Operation, tag: u64) -> Result<(), Failure> {
        match operation.kind {
            PORTCULLIS_OPERATION_READ | PORTCULLIS_OPERATION_WRITE => {
                self.add_transfer(session, operation, tag)
            }
            PORTCULLIS_OPERATION_COMPARE_AND_SWAP
            | PORTCULLIS_OPERATION_FETCH_AND_ADD
            | PORTCULLIS_OPERATION_EXTEND => self.add_word(session, operation, tag),
            PORTCULLIS_OPERATION_ALLOCATE => {
                // SAFETY: the header requires null or a pointer to options that stay during the call.
                let options = unsafe { operation.allocate.as_ref() };
                let ask = given("allocate", options)?.ask()?;
                self.attached.operations.add(tag, ask);
                Ok(())
            }
            PORTCULLIS_OPERATION_ACQUIRE => {
                // SAFETY: the header requires null or a pointer to options that stay during the call.
                let options = unsafe { operation.acquire.as_ref() };
                let ask = given("acquire", options)?.ask()?;
                self.attached.operations.add(tag, ask);
                Ok(())
            }
            PORTCULLIS_OPERATION_REVOKE | PORTCULLIS_OPERATION_REVOKE_AND_FREE => {
                is_of(session, operation.permission)?;
                let permission = self.take_permission(operation.permission)?;
                let frees = operation.kind == PORTCULLIS_OPERATION_REVOKE_AND_FREE;
                self.attached.operations.revoke(tag, permission, frees);
                Ok(())
            }
            _ => {
                let wrong = "is not an operation: it must be one of PORTCULLIS_OPERATION_...";
                Err(Misuse::Argument { argument: "kind", wrong }.into())
            }
        }
    }

    fn add_word(&mut self, session: Session, operation: &Operation, tag: u64) -> Result<(), Failure> {
        is_of(session, operation.permission)?;
        let held = self.permissions.get(operation.permission.id).ok_or(NO_PERMISSION)?;
        let Operation { offset, compare, value, .. } = *operation;
        let ask: ArenaAsk = match operation.kind {
            PORTCULLIS_OPERATION_COMPARE_AND_SWAP => {
                Access::compare_and_swap(held.view(), offset, compare, value).into()
            }
            PORTCULLIS_OPERATION_FETCH_AND_ADD => Access::fetch_and_add(held.view(), offset, value).into(),
            _ => ControlRequest::extend(held, Lifetime(value)).into(),
        };
        self.attached.operations.add(tag, ask);
        Ok(())
    }

    fn add_transfer(&mut self, session: Session, operation: &Operation, tag: u64) -> Result<(), Failure> {
        is_of(session, operation.permission)?;
        if self.permissions.get(operation.permission.id).is_none() {
            return Err(NO_PERMISSION.into());
        }
        let (buffer, then) = self.buffer_for(session, operation)?;
        self.submitted.get_mut(tag).expect("it was put there just now").then = then;
        let held = self.permissions.get(operation.permission.id).expect("it was there just now");
        let access = match operation.kind {
            PORTCULLIS_OPERATION_READ => Access::read(held.view(), operation.offset, buffer),
            _ => Access::write(held.view(), operation.offset, buffer),
        };
        self.attached.operations.add(tag, access);
        Ok(())
    }

    /// Returns the buffer that an operation reads into or writes from, and the step that remains for it at the
    /// operation's end. The buffer of a write from `data` is already filled.
    fn buffer_for(
        &mut self,
        session: Session,
        operation: &Operation,
    ) -> Result<(ArenaBuffer, Then), Failure> {
        if operation.buffer != BufferHandle::default() {
            if operation.buffer.session != session.id {
                return Err(Error::ForeignBuffer.into());
            }
            let buffer = self.borrow_buffer(operation.buffer)?;
            return Ok((buffer, Then::ReturnBuffer(operation.buffer)));
        }
        let wrong = "is longer than any arena: submit it in parts";
        let too_long = Misuse::Argument { argument: "length", wrong };
        let bytes = u32::try_from(operation.length).map_err(|_| too_long)?;
        let length = usize::try_from(operation.length).map_err(|_| too_long)?;
        let data = Target(operation.data);
        if operation.kind == PORTCULLIS_OPERATION_WRITE {
            let from = Source(operation.data.cast_const()).bytes("data", length)?;
            let mut buffer = self.attached.session.buffer(bytes)?;
            buffer.write(0, from);
            return Ok((buffer, Then::Nothing));
        }
        data.bytes("data", length)?;
        Ok((self.attached.session.buffer(bytes)?, Then::CopyOut { data, length }))
    }

    /// Makes a completion for C, and gives the caller's memory or buffer back to the caller.
    fn complete(&mut self, session: Session, finished: Finished) -> Completion {
        let Finished { tag, result, buffer } = finished;
        let submitted = self.submitted.remove(tag).expect("each operation has one completion");
        let mut completion = Completion { tag: submitted.tag, ..Completion::default() };
        match result {
            Ok(Ended::Value(value)) => completion.value = value,
            Ok(Ended::Granted(permission)) => completion.permission = self.admit(session.id, *permission),
            Ok(Ended::Done) => {}
            Ok(Ended::Entry(_) | Ended::EndOfList) => unreachable!("no submitted operation is about names"),
            Err(failure) => {
                completion.error = i32::from(failure.code().number());
                completion.fault = failure.fault() as u8;
                completion.is_retryable = failure.is_retryable();
            }
        }
        match (submitted.then, buffer) {
            (Then::CopyOut { data, length }, Some(buffer)) if completion.error == 0 => {
                if let Ok(into) = data.bytes("data", length) {
                    buffer.read(0, into);
                }
            }
            (Then::ReturnBuffer(handle), buffer) => self.return_buffer(handle, buffer),
            _ => {}
        }
        completion
    }
}

/// Checks that a permission belongs to this session: a permission of another session has no meaning in it.
fn is_of(session: Session, permission: PermissionHandle) -> Result<(), Failure> {
    if permission.session == session.id { Ok(()) } else { Err(Error::ForeignPermission.into()) }
}
