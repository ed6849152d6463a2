//! What every function does on its way in and out.
//!
//! Arguments become values of Rust here, and nowhere else. A panic ends the call, not the program: it never unwinds into C.

use crate::errors;
use portcullis_foreign::{Failure, Misuse};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Carries a call out. Returns zero, or the number of its error, which [`errors::portcullis_last_error`] then tells more of.
pub(crate) fn call(act: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // What a panic leaves behind is closed by its door.
    let ended = catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err(Misuse::Panicked.into()));
    match ended {
        Ok(()) => 0,
        Err(failure) => errors::remember(failure),
    }
}

/// What an argument points to.
pub(crate) fn given<T>(argument: &'static str, pointer: Option<T>) -> Result<T, Misuse> {
    pointer.ok_or(Misuse::Null { argument })
}

/// Text of C: null, or bytes up to a zero.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(pub *const c_char);

impl Text {
    /// The text.
    ///
    /// # Errors
    /// It is null, or no UTF-8.
    pub(crate) fn read<'a>(self, argument: &'static str) -> Result<&'a str, Misuse> {
        self.read_or_none(argument)?.ok_or(Misuse::Null { argument })
    }

    /// The text. `None`: it is null.
    ///
    /// # Errors
    /// It is no UTF-8.
    pub(crate) fn read_or_none<'a>(self, argument: &'static str) -> Result<Option<&'a str>, Misuse> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: it is not null, and the header asks callers for bytes up to a zero that stay as they are for the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(Some).map_err(|_| Misuse::NotText { argument })
    }
}

/// Memory of the caller's to read from, with its length in an argument of its own.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Source(pub *const c_void);

impl Source {
    /// The bytes.
    ///
    /// # Errors
    /// It is null, and `length` is not zero.
    pub(crate) fn bytes<'a>(self, argument: &'static str, length: usize) -> Result<&'a [u8], Misuse> {
        if length == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() {
            return Err(Misuse::Null { argument });
        }
        check_length(argument, length)?;
        // SAFETY: it is not null, no object is longer than isize::MAX, and the header asks callers for as many bytes that stay
        // as they are for the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), length) })
    }
}

/// Memory of the caller's to write to, with its length in an argument of its own.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Target(pub *mut c_void);

impl Target {
    /// The bytes.
    ///
    /// # Errors
    /// It is null, and `length` is not zero.
    pub(crate) fn bytes<'a>(self, argument: &'static str, length: usize) -> Result<&'a mut [u8], Misuse> {
        if length == 0 {
            return Ok(&mut []);
        }
        if self.0.is_null() {
            return Err(Misuse::Null { argument });
        }
        check_length(argument, length)?;
        // SAFETY: as for a source; and the header asks callers that nobody else uses the bytes for the call.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), length) })
    }

    /// Copies a result there, if it fits. Says how long it is in either case.
    ///
    /// # Errors
    /// It does not fit: nothing is copied.
    pub(crate) fn put(self, result: &[u8], room: usize, length: &mut usize) -> Result<(), Misuse> {
        *length = result.len();
        if result.len() > room {
            return Err(Misuse::TooShort { length: result.len() as u64, room: room as u64 });
        }
        self.bytes("value", result.len())?.copy_from_slice(result);
        Ok(())
    }
}

/// A list of the caller's, with its length in an argument of its own.
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
    // SAFETY: the header asks callers for as many entries that stay as they are for the call.
    Ok(unsafe { std::slice::from_raw_parts(first, length) })
}

/// A list of the caller's to write to, with its length in an argument of its own.
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
    // SAFETY: the header asks callers for room for as many entries, which nobody else uses for the call.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, length) })
}

fn check_length(argument: &'static str, bytes: usize) -> Result<(), Misuse> {
    let wrong = "is longer than any memory";
    if isize::try_from(bytes).is_ok() { Ok(()) } else { Err(Misuse::Argument { argument, wrong }) }
}
