//! Operations that do not wait: they are submitted in batches, and end as completions.

use crate::border::{Source, Target, call, given, list, list_to_fill};
use crate::handles::{self, BufferHandle, PermissionHandle, Session, SessionState};
use crate::permissions::{AcquireOptions, AllocateOptions, NO_PERMISSION};
use portcullis::{Error, Lifetime};
use portcullis_errors::Coded;
use portcullis_foreign::{ArenaBuffer, Completion as Finished, Ended, Failure, Misuse};
use std::ffi::{c_int, c_void};

/// A read into `data`, or into `buffer`.
pub const PORTCULLIS_OPERATION_READ: u32 = 1;
/// A write from `data`, or from `buffer`.
pub const PORTCULLIS_OPERATION_WRITE: u32 = 2;
/// Writes `value` to the word at `offset` if it equals `compare`.
pub const PORTCULLIS_OPERATION_COMPARE_AND_SWAP: u32 = 3;
/// Adds `value` to the word at `offset`.
pub const PORTCULLIS_OPERATION_FETCH_AND_ADD: u32 = 4;
/// As `portcullis_allocate`, with `allocate`.
pub const PORTCULLIS_OPERATION_ALLOCATE: u32 = 5;
/// As `portcullis_acquire`, with `acquire`.
pub const PORTCULLIS_OPERATION_ACQUIRE: u32 = 6;
/// As `portcullis_revoke`. The handle of the permission is closed at once.
pub const PORTCULLIS_OPERATION_REVOKE: u32 = 7;
/// As `portcullis_revoke` with `frees`.
pub const PORTCULLIS_OPERATION_REVOKE_AND_FREE: u32 = 8;
/// As `portcullis_extend`, by `value` microseconds from when the operation begins.
pub const PORTCULLIS_OPERATION_EXTEND: u32 = 9;

/// One operation. What its kind does not need is zero.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Operation {
    /// `PORTCULLIS_OPERATION_...`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// The caller's: the completion has the same.
    pub tag: u64,
    /// The permission that the operation is under.
    pub permission: PermissionHandle,
    /// Where in the permission's memory.
    pub offset: u64,
    /// Memory of the caller's, to read into or write from, if there is no `buffer`. What is written is copied at once. What is read is
    /// copied when the completion is given out: until then the memory stays, and nobody else uses it.
    pub data: *mut c_void,
    /// Bytes of `data`.
    pub length: u64,
    /// A buffer to read into or write from, all of it. Until the completion is given out it is the operation's.
    pub buffer: BufferHandle,
    /// See the kinds.
    pub compare: u64,
    /// See the kinds.
    pub value: u64,
    /// What to allocate. It may go when `portcullis_submit` returns.
    pub allocate: *const AllocateOptions,
    /// What to acquire. It may go when `portcullis_submit` returns.
    pub acquire: *const AcquireOptions,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Completion {
    /// The operation's.
    pub tag: u64,
    /// Reads and writes: the bytes moved. Atomics: the word's value before.
    pub value: u64,
    /// Of allocations and acquisitions.
    pub permission: PermissionHandle,
    /// Zero, or the number of the error.
    pub error: i32,
    /// Whose fault the error is: `PORTCULLIS_FAULT_...`.
    pub fault: u8,
    /// Whether the same operation may succeed later although the caller changes nothing.
    pub is_retryable: bool,
    /// Zeros.
    pub reserved: [u8; 2],
}

/// What is to be done when an operation has ended.
pub(crate) struct Submitted {
    tag: u64,
    then: Then,
}

enum Then {
    Nothing,
    /// The bytes that were read go to the caller's memory.
    CopyOut {
        data: Target,
        length: usize,
    },
    /// The buffer is the caller's again.
    ReturnBuffer(BufferHandle),
}

// SAFETY: the pointer in CopyOut is used only by the thread that is inside the session, and the header asks the caller to leave
// the memory alone until the completion, whichever thread submits and takes it.
unsafe impl Send for Submitted {}

/// Submits operations, in order, with one doorbell. It never waits: what has no room begins when others have ended. Each operation
/// gets one completion from `portcullis_wait`, also if it could not begin. The error of this call itself says that nothing was
/// submitted.
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

/// Waits until `at_least` operations have ended, none is under way any more, or `microseconds` have passed (`UINT64_MAX`: as long as
/// it takes), and gives out up to `room` completions in the order of their ends. With `at_least` of zero it does not wait.
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
    /// Adds one operation. What cannot be added is a completion at once.
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
                // SAFETY: the header asks for null or options that stay for the call.
                let options = unsafe { operation.allocate.as_ref() };
                let ask = given("allocate", options)?.ask()?;
                self.attached.operations.allocate(tag, ask);
                Ok(())
            }
            PORTCULLIS_OPERATION_ACQUIRE => {
                // SAFETY: the header asks for null or options that stay for the call.
                let options = unsafe { operation.acquire.as_ref() };
                let ask = given("acquire", options)?.ask()?;
                self.attached.operations.acquire(tag, ask);
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
                let wrong = "is none: it is one of PORTCULLIS_OPERATION_...";
                Err(Misuse::Argument { argument: "kind", wrong }.into())
            }
        }
    }

    fn add_word(&mut self, session: Session, operation: &Operation, tag: u64) -> Result<(), Failure> {
        is_of(session, operation.permission)?;
        let held = self.permissions.get(operation.permission.id).ok_or(NO_PERMISSION)?;
        let operations = &mut self.attached.operations;
        let Operation { offset, compare, value, .. } = *operation;
        match operation.kind {
            PORTCULLIS_OPERATION_COMPARE_AND_SWAP => {
                operations.compare_and_swap(tag, held, offset, compare, value)
            }
            PORTCULLIS_OPERATION_FETCH_AND_ADD => operations.fetch_and_add(tag, held, offset, value),
            _ => operations.extend(tag, held, Lifetime(value)),
        }
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
        let operations = &mut self.attached.operations;
        match operation.kind {
            PORTCULLIS_OPERATION_READ => operations.read(tag, held, operation.offset, buffer),
            _ => operations.write(tag, held, operation.offset, buffer),
        }
        Ok(())
    }

    /// The buffer that an operation reads into or writes from, filled if it is a write, and what happens with it at the end.
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

    /// Makes a completion for C, and gives the caller back what is the caller's.
    fn complete(&mut self, session: Session, finished: Finished) -> Completion {
        let Finished { tag, result, buffer } = finished;
        let submitted = self.submitted.remove(tag).expect("each operation has one completion");
        let mut completion = Completion { tag: submitted.tag, ..Completion::default() };
        match result {
            Ok(Ended::Value(value)) => completion.value = value,
            Ok(Ended::Granted(permission)) => completion.permission = self.admit(session.id, *permission),
            Ok(Ended::Done) => {}
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

/// A permission of another session has no meaning in this one.
fn is_of(session: Session, permission: PermissionHandle) -> Result<(), Failure> {
    if permission.session == session.id { Ok(()) } else { Err(Error::ForeignPermission.into()) }
}
