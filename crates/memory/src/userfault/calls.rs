//! The kernel's calls of userfaultfd, and the layouts of their arguments.

use linux_raw_sys::general as raw;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;
use std::mem::{offset_of, size_of};

const GROUP: u8 = 0xAA;
const NEW: Opcode = opcode::none(GROUP, 0);
const API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, 0x3F);
const REGISTER: Opcode = opcode::read_write::<raw::uffdio_register>(GROUP, 0);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(GROUP, 2);
const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(GROUP, 1);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(GROUP, 3);
const MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(GROUP, 5);
const WRITEPROTECT: Opcode = opcode::read_write::<raw::uffdio_writeprotect>(GROUP, 6);

/// `UFFD_API`: the only existing version.
const VERSION: u64 = 0xAA;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const COPY_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;

const _: () = assert!(size_of::<raw::uffdio_api>() == 24 && offset_of!(raw::uffdio_api, features) == 8);
const _: () = assert!(size_of::<raw::uffdio_range>() == 16 && offset_of!(raw::uffdio_range, len) == 8);
const _: () =
    assert!(size_of::<raw::uffdio_register>() == 32 && offset_of!(raw::uffdio_register, mode) == 16);
const _: () = assert!(size_of::<raw::uffdio_copy>() == 40 && offset_of!(raw::uffdio_copy, copy) == 32);
const _: () = assert!(size_of::<raw::uffdio_move>() == 40 && offset_of!(raw::uffdio_move, move_) == 32);
const _: () = assert!(size_of::<raw::uffdio_writeprotect>() == 24);
const _: () = assert!(
    size_of::<raw::uffd_msg>() == super::events::MESSAGE_BYTES && offset_of!(raw::uffd_msg, arg) == 8
);
const _: () = assert!(raw::UFFD_API as u64 == VERSION);

/// A range of addresses.
#[derive(Clone, Copy)]
pub(super) struct Range(raw::uffdio_range);

impl Range {
    pub(super) fn new(start: u64, len: u64) -> Self {
        Self(raw::uffdio_range { start, len })
    }
}

/// The requested features, and after the call the available ones.
pub(super) struct Api(raw::uffdio_api);

impl Api {
    pub(super) fn new(features: u64) -> Self {
        Self(raw::uffdio_api { api: VERSION, features, ioctls: 0 })
    }

    pub(super) fn features(&self) -> u64 {
        self.0.features
    }
}

/// A range to watch for missing pages and for writes to protected ones.
pub(super) struct Register(raw::uffdio_register);

impl Register {
    pub(super) fn new(range: Range) -> Self {
        Self(raw::uffdio_register { range: range.0, mode: MODE_MISSING | MODE_WP, ioctls: 0 })
    }
}

/// Pages to fill with bytes.
pub(super) struct Copied<'a>(raw::uffdio_copy, std::marker::PhantomData<&'a [u8]>);

impl<'a> Copied<'a> {
    pub(super) fn new(dst: u64, bytes: &'a [u8], is_protected: bool) -> Self {
        let mode = if is_protected { COPY_MODE_WP } else { 0 };
        let src = bytes.as_ptr().expose_provenance() as u64;
        Self(raw::uffdio_copy { dst, src, len: bytes.len() as u64, mode, copy: 0 }, std::marker::PhantomData)
    }

    /// Bytes that were filled.
    pub(super) fn done(&self) -> usize {
        usize::try_from(self.0.copy).unwrap_or(0)
    }
}

/// Pages to move to another place of the same process.
pub(super) struct Move(raw::uffdio_move);

impl Move {
    pub(super) fn new(from: Range, to: u64) -> Self {
        Self(raw::uffdio_move { dst: to, src: from.0.start, len: from.0.len, mode: 0, move_: 0 })
    }

    /// Bytes that were moved.
    pub(super) fn done(&self) -> usize {
        usize::try_from(self.0.move_).unwrap_or(0)
    }
}

/// Pages whose protection is set or lifted.
pub(super) struct Protect(raw::uffdio_writeprotect);

impl Protect {
    pub(super) fn new(range: Range, on: bool) -> Self {
        Self(raw::uffdio_writeprotect { range: range.0, mode: if on { WRITEPROTECT_MODE_WP } else { 0 } })
    }
}

/// Opens a descriptor for this process's memory, from the device.
pub(super) fn open_device() -> io::Result<OwnedFd> {
    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as usize;
    // SAFETY: USERFAULTFD_IOC_NEW takes the flags of the descriptor as an integer.
    let call = unsafe { NewDescriptor::new(flags) };
    // SAFETY: the device makes a descriptor and touches no memory of this process.
    unsafe { ioctl(device, call) }
}

/// `USERFAULTFD_IOC_NEW`, which returns a descriptor.
struct NewDescriptor(IntegerSetter<NEW>);

impl NewDescriptor {
    /// # Safety
    /// `flags` are flags that the device knows.
    unsafe fn new(flags: usize) -> Self {
        // SAFETY: the opcode takes an integer.
        Self(unsafe { IntegerSetter::new_usize(flags) })
    }
}

// SAFETY: the opcode and the pointer are those of the wrapped call, and the output is read as the descriptor that the
// device returns.
unsafe impl rustix::ioctl::Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        self.0.as_ptr()
    }

    unsafe fn output_from_ptr(
        output: rustix::ioctl::IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> io::Result<OwnedFd> {
        // SAFETY: the device has returned a descriptor that nothing else owns.
        Ok(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(output) })
    }
}

/// Opens a descriptor for this process's memory, by the system call.
pub(super) fn open() -> io::Result<OwnedFd> {
    // SAFETY: nothing is watched yet, so no memory changes.
    unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }
}

pub(super) fn api(descriptor: impl AsFd, api: &mut Api) -> io::Result<()> {
    // SAFETY: UFFDIO_API takes a uffdio_api, which the kernel reads and writes.
    let call = unsafe { Updater::<API, _>::new(&mut api.0) };
    // SAFETY: the call changes nothing but its argument.
    unsafe { ioctl(descriptor, call) }
}

pub(super) fn register(descriptor: impl AsFd, register: &mut Register) -> io::Result<()> {
    // SAFETY: UFFDIO_REGISTER takes a uffdio_register, which the kernel reads and writes.
    let call = unsafe { Updater::<REGISTER, _>::new(&mut register.0) };
    // SAFETY: existing bytes stay.
    unsafe { ioctl(descriptor, call) }
}

pub(super) fn wake(descriptor: impl AsFd, range: &mut Range) -> io::Result<()> {
    // SAFETY: UFFDIO_WAKE takes a uffdio_range.
    let call = unsafe { Updater::<WAKE, _>::new(&mut range.0) };
    // SAFETY: the call changes no memory.
    unsafe { ioctl(descriptor, call) }
}

pub(super) fn copy(descriptor: impl AsFd, copy: &mut Copied<'_>) -> io::Result<()> {
    // SAFETY: UFFDIO_COPY takes a uffdio_copy, which the kernel reads and writes.
    let call = unsafe { Updater::<COPY, _>::new(&mut copy.0) };
    // SAFETY: the source is a live slice of this length. Only missing pages of watched memory change. A thread that
    // touches such a page waits until it is filled, so nothing has seen other bytes there.
    unsafe { ioctl(descriptor, call) }
}

/// Moves pages.
///
/// # Safety
/// Neither range holds memory that a reference of this process points to, and no other part of the process relies on
/// the bytes of the target.
pub(super) unsafe fn move_pages(descriptor: impl AsFd, moved: &mut Move) -> io::Result<()> {
    // SAFETY: UFFDIO_MOVE takes a uffdio_move, which the kernel reads and writes.
    let call = unsafe { Updater::<MOVE, _>::new(&mut moved.0) };
    // SAFETY: the caller's promise.
    unsafe { ioctl(descriptor, call) }
}

pub(super) fn unregister(descriptor: impl AsFd, range: &mut Range) -> io::Result<()> {
    // SAFETY: UFFDIO_UNREGISTER takes a uffdio_range.
    let call = unsafe { Updater::<UNREGISTER, _>::new(&mut range.0) };
    // SAFETY: the call changes no existing bytes.
    unsafe { ioctl(descriptor, call) }
}

pub(super) fn protect(descriptor: impl AsFd, protect: &mut Protect) -> io::Result<()> {
    // SAFETY: UFFDIO_WRITEPROTECT takes a uffdio_writeprotect.
    let call = unsafe { Updater::<WRITEPROTECT, _>::new(&mut protect.0) };
    // SAFETY: the call changes no bytes.
    unsafe { ioctl(descriptor, call) }
}
