//! The conventions by which calls of libibverbs report their outcome, with an adapter for each.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

/// Converts a new object, or NULL and `errno`: `ibv_open_device`, `ibv_alloc_pd`, `ibv_reg_mr`, `ibv_create_qp` and the
/// like.
pub(super) fn object<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(last)
}

/// Converts zero, or the error's number: `ibv_modify_qp`, `ibv_dereg_mr`, `ibv_post_send` and the like. Some providers
/// return the number negated, and a few return -1 with `errno`, although the manual page specifies a number.
pub(super) fn error_number(said: c_int) -> io::Result<()> {
    match said {
        0 => Ok(()),
        -1 => Err(last()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// Converts zero or more, or -1 and `errno`: `ibv_get_async_event`, `ibv_get_cq_event`, `ibv_query_gid`,
/// `ibv_close_device`.
pub(super) fn minus_one(said: c_int) -> io::Result<()> {
    if said < 0 { Err(last()) } else { Ok(()) }
}

/// Converts a count, or a negative number: `ibv_poll_cq`.
pub(super) fn count(said: c_int) -> io::Result<usize> {
    usize::try_from(said).map_err(|_| io::Error::other("the provider cannot poll this queue"))
}

/// Returns the last call's error. Some providers set none.
fn last() -> io::Error {
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(0) { io::Error::other("the provider gives no reason") } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves `number` in `errno`, as a failed call of the C library would.
    fn fail_with(number: rustix::io::Errno) {
        // Neither path can be opened, so these calls fail with a known number.
        match number {
            rustix::io::Errno::NOENT => drop(std::fs::File::open("/nowhere/at/all")),
            _ => drop(std::fs::read_dir("/proc/self/exe")),
        }
    }

    #[test]
    fn no_object_is_told_by_errno() {
        fail_with(rustix::io::Errno::NOENT);
        let error = object(std::ptr::null_mut::<u8>()).expect_err("NULL is no object");
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOENT.raw_os_error()));
        let mut there = 1_u8;
        assert!(object(&raw mut there).is_ok());
    }

    #[test]
    fn an_error_number_is_told_as_it_is_negated_or_by_errno() {
        assert!(error_number(0).is_ok());
        for said in [16, -16] {
            assert_eq!(error_number(said).expect_err("EBUSY").raw_os_error(), Some(16));
        }
        fail_with(rustix::io::Errno::NOTDIR);
        let error = error_number(-1).expect_err("errno says");
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTDIR.raw_os_error()));
    }

    #[test]
    fn minus_one_is_told_by_errno() {
        assert!(minus_one(0).is_ok());
        fail_with(rustix::io::Errno::NOENT);
        let error = minus_one(-1).expect_err("errno says");
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOENT.raw_os_error()));
    }

    #[test]
    fn a_negative_count_is_an_error() {
        assert_eq!(count(3).expect("a count"), 3);
        assert!(count(-2).is_err());
    }
}
