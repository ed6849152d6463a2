//! The functions that the program calls instead of the C library's.

use crate::heap::Heap;
use crate::lock::Lock;
use crate::range;
use core::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

static HEAP: Lock<Heap> = Lock::new(Heap::new());

/// The alignment of every block.
const ALIGN: usize = 16;
const PAGE: usize = 4096;

unsafe extern "C" {
    fn __close(descriptor: c_int) -> c_int;
    fn __fork() -> libc::pid_t;
}

/// Runs when the library is loaded, before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    // The standard library's own report needs a heap, and this heap is broken.
    std::panic::set_hook(Box::new(|_| {
        let stderr = rustix::stdio::stderr();
        let _ = rustix::io::write(stderr, b"portcullis far: the program's heap is damaged\n");
        // SAFETY: this ends the program, whatever its state.
        unsafe { libc::abort() }
    }));
    HEAP.with(Heap::set_up);
    // SAFETY: the handlers use only the lock and the heap, which exist for ever.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
}

unsafe extern "C" fn before_fork() {
    HEAP.close();
}

unsafe extern "C" fn after_fork() {
    HEAP.open();
}

unsafe extern "C" fn in_child() {
    HEAP.open();
    HEAP.with(Heap::forked);
}

/// Returns the block. If it is null, sets `errno` as the C library does when there is no memory.
fn or_no_memory(block: *mut u8) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block.cast()
}

fn set_errno(errno: c_int) {
    // SAFETY: the C library has a place for the error number of each thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's.
    unsafe { place.write(errno) };
}

/// Does the same as the C library's `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    or_no_memory(HEAP.with(|heap| heap.allocate(size, ALIGN)))
}

/// Does the same as the C library's `calloc`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let block = count.checked_mul(size).map(|bytes| HEAP.with(|heap| heap.allocate_zeroed(bytes)));
    or_no_memory(block.unwrap_or(null_mut()))
}

/// Does the same as the C library's `free`.
///
/// # Safety
/// The block was allocated here and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if !block.is_null() {
        // SAFETY: the caller's promise.
        HEAP.with(|heap| unsafe { heap.free(block.cast()) });
    }
}

/// Does the same as the C library's `realloc`.
///
/// # Safety
/// The block is null, or was allocated here and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { free(block) };
        return null_mut();
    }
    // SAFETY: the caller's promise.
    or_no_memory(HEAP.with(|heap| unsafe { heap.resize(block.cast(), size) }))
}

/// Does the same as the C library's `reallocarray`.
///
/// # Safety
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => or_no_memory(null_mut()),
    }
}

/// Does the same as the C library's `posix_memalign`.
///
/// # Safety
/// `into` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(into: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    let block = HEAP.with(|heap| heap.allocate(size, align));
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { into.write(block.cast()) };
    0
}

/// Does the same as the C library's `memalign`.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // The C library rounds up an alignment that is no power of two.
    let Some(align) = align.max(ALIGN).checked_next_power_of_two() else { return or_no_memory(null_mut()) };
    or_no_memory(HEAP.with(|heap| heap.allocate(size, align)))
}

/// Does the same as the C library's `aligned_alloc`.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// Does the same as the C library's `valloc`.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(PAGE, size)
}

/// Does the same as the C library's `pvalloc`.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(size) => memalign(PAGE, size),
        None => or_no_memory(null_mut()),
    }
}

/// Does the same as the C library's `malloc_usable_size`.
///
/// # Safety
/// The block is null, or was allocated here and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    HEAP.with(|heap| unsafe { heap.size(block.cast()) })
}

/// Does the same as the C library's `fork`. But if the kernel does not follow forks for the monitor, a program that has
/// far blocks cannot fork: its child would miss them.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> libc::pid_t {
    if HEAP.with(|heap| heap.forbids_fork()) {
        let _ = rustix::io::write(rustix::stdio::stderr(), NO_FORK.as_bytes());
        set_errno(libc::ENOMEM);
        return -1;
    }
    // SAFETY: the caller could call the C library's `fork` under the same conditions.
    unsafe { __fork() }
}

const NO_FORK: &str = "portcullis far: the program cannot fork, since its child would miss what is far: run portcullis far \
                       as root or with CAP_SYS_PTRACE\n";

/// Does the same as the C library's `madvise`, with two exceptions in far memory. Pages that the kernel may drop later
/// (`MADV_FREE`) are dropped at once, which is equivalent. `MADV_WIPEONFORK` fails, since the monitor does not know
/// which pages a child is to see as zeros.
///
/// # Safety
/// The conditions of the C library's `madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int {
    let advice = match advice {
        libc::MADV_FREE if range::overlaps(start.cast(), length) => libc::MADV_DONTNEED,
        libc::MADV_WIPEONFORK if range::overlaps(start.cast(), length) => {
            set_errno(libc::EINVAL);
            return -1;
        }
        advice => advice,
    };
    // SAFETY: the caller's promise.
    let advised = unsafe { libc::syscall(libc::SYS_madvise, start, length, advice) };
    c_int::try_from(advised).unwrap_or(-1)
}

/// Does the same as the C library's `close`, but treats the descriptors that the heap needs as closed already: some
/// programs close all descriptors.
#[unsafe(no_mangle)]
pub extern "C" fn close(descriptor: c_int) -> c_int {
    if range::kept().any(|kept| kept == descriptor) {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: the program closes its own descriptor.
    unsafe { __close(descriptor) }
}

/// Does the same as the C library's `close_range`, but skips the descriptors that the heap needs.
#[unsafe(no_mangle)]
pub extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut from = first;
    for kept in range::kept() {
        let kept = c_uint::try_from(kept).unwrap_or(c_uint::MAX);
        if kept < from || kept > last {
            continue;
        }
        if kept > from && close_between(from, kept - 1, flags) != 0 {
            return -1;
        }
        from = kept + 1;
    }
    if from > last && from != first { 0 } else { close_between(from, last, flags) }
}

/// Does the same as the C library's `closefrom`.
#[unsafe(no_mangle)]
pub extern "C" fn closefrom(first: c_int) {
    close_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX, 0);
}

fn close_between(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program closes its own descriptors.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    c_int::try_from(closed).unwrap_or(-1)
}
