//! The range: a file in memory, mapped here, whose pages the monitor fills.
//!
//! A forked child does not get the range (`MADV_DONTFORK`): it would have no monitor, and see zeros in place of what is on
//! the node. A child that only executes another program does not notice. One that touches the range dies by SIGSEGV.
//!
//! The descriptor of the faults stays open here. While it is open, a page that the monitor does not fill is waited for, and
//! is never zeros. The kernel ends the program when the monitor dies.

use crate::granules::{GRANULE, Granules};
use crate::settings::Settings;
use portcullis_memory::userfault::{self, Userfault};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};

/// Descriptors from here on are ours, where the program may have so many.
const DESCRIPTORS_FROM: i32 = 600;

/// The descriptors that must stay open, in order. They are asked for in signal handlers too, so no lock guards them.
static KEPT: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// The descriptors that must stay open, in order.
pub(crate) fn kept() -> impl Iterator<Item = i32> {
    KEPT.iter().map(|kept| kept.load(Ordering::Relaxed)).filter(|&kept| kept >= 0)
}

/// No descriptor needs to stay open, as in a forked child.
pub(crate) fn keep_none() {
    KEPT.iter().for_each(|kept| kept.store(-1, Ordering::Relaxed));
}

/// A range that the monitor fills.
#[derive(Debug)]
pub(crate) struct Range {
    start: NonNull<u8>,
    granules: Granules,
    socket: i32,
}

// SAFETY: the range's memory may be used from any thread, and its books are used by one at a time.
unsafe impl Send for Range {}

impl Range {
    /// Maps a range and hands it to the monitor. `None`: this process is not the monitor's program, such as a child of it.
    pub(crate) fn set_up(settings: Settings) -> Option<Self> {
        if !is_child_of(settings.monitor) {
            return None;
        }
        // From here on the program does not outlive its monitor. It may have died before.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if !is_child_of(settings.monitor) {
            die();
        }
        // SAFETY: the monitor has passed this descriptor, and nobody closes it.
        let socket = unsafe { BorrowedFd::borrow_raw(settings.socket) };
        match Self::map(settings, socket) {
            Ok(range) => Some(range),
            Err(errno) => {
                let _ = userfault::deny(socket, errno.raw_os_error());
                die()
            }
        }
    }

    fn map(settings: Settings, socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let length = usize::try_from(settings.range).map_err(|_| Errno::NOMEM)? / GRANULE * GRANULE;
        let file = rustix::fs::memfd_create("portcullis-far", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, length as u64)?;
        let start = map_shared(&file, length)?;
        let count = length / GRANULE;
        let taken = map_private::<u64>(Granules::words(count))?;
        let sizes = map_private::<usize>(count)?;
        let userfault = Userfault::new().map_err(|error| match error {
            userfault::UserfaultError::Missing => Errno::NOSYS,
            _ => Errno::PERM,
        })?;
        let whole = (start.addr().get() as u64, length as u64);
        if userfault::hand_over(socket, &userfault, file.as_fd(), whole).is_err() {
            die();
        }
        let socket = socket.as_raw_fd();
        let userfault = keep(userfault.into());
        KEPT[0].store(socket.min(userfault), Ordering::Relaxed);
        KEPT[1].store(socket.max(userfault), Ordering::Relaxed);
        Ok(Self { start, granules: Granules::new(taken, sizes), socket })
    }

    pub(crate) fn granules(&mut self) -> &mut Granules {
        &mut self.granules
    }

    /// Whether an address lies in the range.
    pub(crate) fn has(&self, at: *const u8, length: usize) -> bool {
        at.addr().checked_sub(self.start.addr().get()).is_some_and(|offset| offset < length)
    }

    /// The granule that an address lies in.
    pub(crate) fn granule_of(&self, at: *const u8) -> usize {
        (at.addr() - self.start.addr().get()) / GRANULE
    }

    /// Where a granule begins.
    pub(crate) fn at(&self, granule: usize) -> *mut u8 {
        // SAFETY: granules come from the books of this range, so the offset is below its length.
        unsafe { self.start.as_ptr().add(granule * GRANULE) }
    }

    /// Gives granules back, here and on the node.
    pub(crate) fn give_back(&mut self, granule: usize, count: usize) {
        // SAFETY: the descriptor stays open until the program ends.
        let socket = unsafe { BorrowedFd::borrow_raw(self.socket) };
        let address = self.at(granule).addr() as u64;
        if userfault::release(socket, address, (count * GRANULE) as u64).is_err() {
            // Without its monitor the program has no memory.
            die();
        }
        self.granules.give_back(granule, count);
    }
}

/// Keeps a descriptor open until the program ends, with a number that programs do not use themselves, where that can be.
fn keep(descriptor: OwnedFd) -> i32 {
    let high = rustix::io::fcntl_dupfd_cloexec(&descriptor, DESCRIPTORS_FROM);
    let kept = high.unwrap_or(descriptor);
    let number = kept.as_raw_fd();
    std::mem::forget(kept);
    number
}

fn is_child_of(monitor: i32) -> bool {
    getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == monitor)
}

/// Ends the program: there is nobody any more who could fill its memory.
fn die() -> ! {
    loop {
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

fn map_shared(file: &OwnedFd, length: usize) -> Result<NonNull<u8>, Errno> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing.
    let start = unsafe { rustix::mm::mmap(null_mut(), length, protection, flags, file, 0) }?;
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump, Advice::LinuxNoHugepage] {
        // SAFETY: the span is exactly the mapping, and this advice changes no bytes of it.
        let advised = unsafe { rustix::mm::madvise(start, length, advice) };
        // Huge pages may not be known here. Forks and dumps must.
        if advice == Advice::LinuxDontFork {
            advised?;
        }
    }
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

/// Zeroed words of this process alone. They stay mapped until it ends.
fn map_private<T>(count: usize) -> Result<&'static mut [T], Errno> {
    let bytes = count * size_of::<T>();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing.
    let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes.max(1), protection, flags) }?;
    // SAFETY: the mapping has this many zeroed integers, is aligned to a page, and nobody else uses it or unmaps it.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) })
}
