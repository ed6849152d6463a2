//! Errors: their numbers, names and texts.

use portcullis_errors::{Coded, ErrorCode, Fault};
use portcullis_foreign::Failure;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null;
use std::sync::OnceLock;

/// Size of an error's text in bytes, including the zero at its end. Longer texts are cut.
pub const PORTCULLIS_TEXT_BYTES: usize = 512;

/// The caller is at fault: the call or its arguments are invalid.
pub const PORTCULLIS_FAULT_CALLER: u8 = 1;
/// No party is at fault: the permission, the object or the name no longer exists.
pub const PORTCULLIS_FAULT_ENDED: u8 = 2;
/// The tenant is at fault: its quota, its pause, or its other programs.
pub const PORTCULLIS_FAULT_TENANT: u8 = 3;
/// The node is at fault: it is gone, full or silent, or it refuses all clients.
pub const PORTCULLIS_FAULT_NODE: u8 = 4;
/// The machine on which the program runs is at fault.
pub const PORTCULLIS_FAULT_MACHINE: u8 = 5;
/// Another program is at fault: it has broken the rules.
pub const PORTCULLIS_FAULT_PEER: u8 = 6;
/// Portcullis is at fault: it has a bug.
pub const PORTCULLIS_FAULT_LIBRARY: u8 = 7;

const _: () = {
    let same = [
        PORTCULLIS_FAULT_CALLER,
        PORTCULLIS_FAULT_ENDED,
        PORTCULLIS_FAULT_TENANT,
        PORTCULLIS_FAULT_NODE,
        PORTCULLIS_FAULT_MACHINE,
        PORTCULLIS_FAULT_PEER,
        PORTCULLIS_FAULT_LIBRARY,
    ];
    let mut at = 0;
    while at < same.len() {
        assert!(same[at] == Fault::ALL[at] as u8);
        at += 1;
    }
};

/// The failure of the last call on this thread that failed. Later calls that succeed do not change it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Error {
    /// Number of the error, as in docs/errors.md. Zero: no call has failed on this thread.
    pub number: i32,
    /// Party that is at fault: one of `PORTCULLIS_FAULT_...`.
    pub fault: u8,
    /// Whether the same call may succeed later although the caller changes nothing.
    pub is_retryable: bool,
    /// Text for people: what was wrong, and what to do about it.
    pub text: [c_char; PORTCULLIS_TEXT_BYTES],
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Keeps a failure for [`portcullis_last_error`]. Returns the failure's number.
#[cold]
pub(crate) fn remember(failure: Failure) -> c_int {
    let number = failure.code().number();
    // A thread that is ending may already have dropped its `LAST`.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(failure));
    c_int::from(number)
}

/// Copies to `error` the failure of the last call on this thread that failed.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_last_error(error: Option<&mut Error>) {
    let Some(error) = error else { return };
    let last = LAST.try_with(|last| last.borrow().clone()).ok().flatten();
    *error = Error { number: 0, fault: 0, is_retryable: false, text: [0; PORTCULLIS_TEXT_BYTES] };
    if let Some(failure) = last {
        error.number = i32::from(failure.code().number());
        error.fault = failure.fault() as u8;
        error.is_retryable = failure.is_retryable();
        let text = failure.text();
        let cut = text.floor_char_boundary(PORTCULLIS_TEXT_BYTES - 1);
        for (to, from) in error.text.iter_mut().zip(text[..cut].bytes()) {
            *to = from.cast_signed() as c_char;
        }
    }
}

/// Returns the stable name of an error, in small letters and hyphens. Null: no error has this number. The text stays
/// valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_error_name(number: c_int) -> *const c_char {
    texts_of(number).map_or(null(), |texts| texts.name.as_ptr())
}

/// Returns the meaning of an error, in a sentence. Null: no error has this number. The text stays valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_error_meaning(number: c_int) -> *const c_char {
    texts_of(number).map_or(null(), |texts| texts.meaning.as_ptr())
}

/// Returns the version of the library, for example `0.1.0`. The text stays valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_version() -> *const c_char {
    VERSION.as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zero in it"),
};

struct Texts {
    name: CString,
    meaning: CString,
}

/// Returns the texts of an error in the form that C needs. The first call makes the texts of all errors.
fn texts_of(number: c_int) -> Option<&'static Texts> {
    static ALL: OnceLock<Vec<Texts>> = OnceLock::new();
    let all = ALL.get_or_init(|| ErrorCode::ALL.iter().map(texts).collect());
    let code = ErrorCode::from_number(u16::try_from(number).ok()?)?;
    let at = ErrorCode::ALL.binary_search(&code).ok()?;
    all.get(at)
}

fn texts(code: &ErrorCode) -> Texts {
    let c = |text: &str| CString::new(text).expect("names and meanings have no zeros");
    Texts { name: c(code.name()), meaning: c(code.meaning()) }
}
