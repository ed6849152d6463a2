//! The border between C and Rust: every function converts its arguments, errors and panics here.
//!
//! Arguments of C become values of Rust only in this module. A panic ends the call, not the program: it never unwinds
//! into C.

use crate::errors;
use portcullis_foreign::{Failure, Misuse};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Carries a call out. Returns zero, or the number of the error, of which [`errors::portcullis_last_error`] then
/// returns more.
pub(crate) fn call(act: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // A panic poisons the cell of the value that it leaves in the middle of a change, so no later call sees that value.
    let ended = catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err(Misuse::Panicked.into()));
    match ended {
        Ok(()) => 0,
        Err(failure) => errors::remember(failure),
    }
}

/// Returns the value that a pointer argument points to, or an error if the pointer is null.
pub(crate) fn given<T>(argument: &'static str, pointer: Option<T>) -> Result<T, Misuse> {
    pointer.ok_or(Misuse::Null { argument })
}

/// A text of C: null, or bytes up to a zero.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(pub *const c_char);

impl Text {
    /// Returns the text.
    ///
    /// # Errors
    /// The pointer is null, or the text is not UTF-8.
    pub(crate) fn read<'a>(self, argument: &'static str) -> Result<&'a str, Misuse> {
        self.read_or_none(argument)?.ok_or(Misuse::Null { argument })
    }

    /// Returns the text. `None`: the pointer is null.
    ///
    /// # Errors
    /// The text is not UTF-8.
    pub(crate) fn read_or_none<'a>(self, argument: &'static str) -> Result<Option<&'a str>, Misuse> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the pointer is not null, and the header requires of callers that it points to bytes up to a zero,
        // which do not change during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(Some).map_err(|_| Misuse::NotText { argument })
    }
}

/// Memory of the caller from which a function reads. Another argument has its length.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Source(pub *const c_void);

impl Source {
    /// Returns the bytes.
    ///
    /// # Errors
    /// The pointer is null although `length` is not zero, or `length` is longer than any memory.
    pub(crate) fn bytes<'a>(self, argument: &'static str, length: usize) -> Result<&'a [u8], Misuse> {
        if length == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() {
            return Err(Misuse::Null { argument });
        }
        check_length(argument, length)?;
        // SAFETY: the pointer is not null, `length` was checked to be at most isize::MAX, and the header requires of
        // callers that the pointer points to this many bytes, which do not change during the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), length) })
    }
}

/// Memory of the caller to which a function writes. Another argument has its length.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Target(pub *mut c_void);

impl Target {
    /// Returns the bytes.
    ///
    /// # Errors
    /// The pointer is null although `length` is not zero, or `length` is longer than any memory.
    pub(crate) fn bytes<'a>(self, argument: &'static str, length: usize) -> Result<&'a mut [u8], Misuse> {
        if length == 0 {
            return Ok(&mut []);
        }
        if self.0.is_null() {
            return Err(Misuse::Null { argument });
        }
        check_length(argument, length)?;
        // SAFETY: as for a source; and the header requires of callers that no other code uses the bytes during the
        // call.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), length) })
    }

    /// Copies a result to the memory, if the result fits into `room` bytes. Sets `length` to the length of the result
    /// in either case.
    ///
    /// # Errors
    /// The result does not fit, and nothing is copied; or the pointer is null although the result has bytes.
    pub(crate) fn put(self, result: &[u8], room: usize, length: &mut usize) -> Result<(), Misuse> {
        *length = result.len();
        if result.len() > room {
            return Err(Misuse::TooShort { length: result.len() as u64, room: room as u64 });
        }
        self.bytes("value", result.len())?.copy_from_slice(result);
        Ok(())
    }
}

/// Returns a list of the caller. Another argument has its length.
pub(crate) fn list<'a, T>(
    argument: &'static str,
    first: Option<&'a T>,
    length: usize,
) -> Result<&'a [T], Misuse> {
    if length == 0 {
        return Ok(&[]);
    }
    let first = given(argument, first)?;
    check_length(argument, length.saturating_mul(size_of::<T>()))?;
    // SAFETY: the header requires of callers that the pointer points to this many entries, which do not change during
    // the call.
    Ok(unsafe { std::slice::from_raw_parts(first, length) })
}

/// Returns a list of the caller to which a function writes. Another argument has its length.
pub(crate) fn list_to_fill<'a, T>(
    argument: &'static str,
    first: Option<&'a mut T>,
    length: usize,
) -> Result<&'a mut [T], Misuse> {
    if length == 0 {
        return Ok(&mut []);
    }
    let first = given(argument, first)?;
    check_length(argument, length.saturating_mul(size_of::<T>()))?;
    // SAFETY: the header requires of callers that the pointer points to room for this many entries, which no other code
    // uses during the call.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, length) })
}

fn check_length(argument: &'static str, bytes: usize) -> Result<(), Misuse> {
    let wrong = "is longer than any memory";
    if isize::try_from(bytes).is_ok() { Ok(()) } else { Err(Misuse::Argument { argument, wrong }) }
}
