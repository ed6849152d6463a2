//! Reads, writes and atomics that wait for their result.

use crate::border::{Source, Target, call, given};
use crate::handles::PermissionHandle;
use crate::permissions::under;
use std::ffi::{c_int, c_void};

/// Reads `length` bytes of the permission's memory, from `offset` on, into `data`. After an error, parts of `data` may
/// have been overwritten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_read(
    permission: PermissionHandle,
    offset: u64,
    data: *mut c_void,
    length: usize,
) -> c_int {
    call(|| {
        let into = Target(data).bytes("data", length)?;
        under(permission, |session, held| session.read(held, offset, into))
    })
}

/// Writes `length` bytes from `data` to the permission's memory, from `offset` on. After an error, parts of the bytes
/// may have been written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_write(
    permission: PermissionHandle,
    offset: u64,
    data: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        let from = Source(data).bytes("data", length)?;
        under(permission, |session, held| session.write(held, offset, from))
    })
}

/// Writes `swap` to the 8-byte word at `offset` if the word equals `compare`. `before` becomes the word's previous
/// value.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_compare_and_swap(
    permission: PermissionHandle,
    offset: u64,
    compare: u64,
    swap: u64,
    before: Option<&mut u64>,
) -> c_int {
    call(|| {
        let before = given("before", before)?;
        *before = under(permission, |session, held| session.compare_and_swap(held, offset, compare, swap))?;
        Ok(())
    })
}

/// Adds `add` to the 8-byte word at `offset`, wrapping. `before` becomes the word's previous value.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_fetch_and_add(
    permission: PermissionHandle,
    offset: u64,
    add: u64,
    before: Option<&mut u64>,
) -> c_int {
    call(|| {
        let before = given("before", before)?;
        *before = under(permission, |session, held| session.fetch_and_add(held, offset, add))?;
        Ok(())
    })
}
