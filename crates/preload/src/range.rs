//! The range: private memory, mapped here, whose pages the monitor fills and the agent moves out.
//!
//! The part of the range that the program has not used yet cannot be accessed, so that a program that locks all of its
//! memory does not populate the whole range.
//!
//! This process keeps the descriptor of the faults open. While it is open, an access to a page that the monitor does
//! not fill waits, and never reads zeros. The kernel ends the program when the monitor dies.
//!
//! A forked child has its parent's range, if the kernel follows forks for the monitor (see the module `child`).
//! Otherwise the child has no range (`MADV_DONTFORK`).

use crate::agent::{Agent, make_outbox};
use crate::granules::{GRANULE, Granules};
use crate::settings::Settings;
use portcullis_memory::userfault::{self, Userfault};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use std::io::Write;
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// The number from which on the library places its descriptors, if the program may have so many.
const DESCRIPTORS_FROM: i32 = 600;

/// Bytes that become accessible at once. A multiple of a segment of the monitor's, which fills no pages across segments.
const OPENED_AT_ONCE: usize = 4 << 20;

const _: () = assert!(OPENED_AT_ONCE.is_multiple_of(GRANULE));

/// The descriptors that must stay open, in ascending order. Signal handlers read them too, so no lock guards them.
static KEPT: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];
/// The range's first address, and its bytes. 0: there is no range. They are read without a lock, too.
static START: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// The descriptors that must stay open, in ascending order.
pub(crate) fn kept() -> impl Iterator<Item = i32> {
    KEPT.iter().map(|kept| kept.load(Ordering::Relaxed)).filter(|&kept| kept >= 0)
}

/// Sets the descriptors that must stay open, in place of the earlier ones. -1 stands for no descriptor.
pub(crate) fn keep_only(mut descriptors: [i32; 3]) {
    descriptors.sort_unstable();
    for (kept, descriptor) in KEPT.iter().zip(descriptors) {
        kept.store(descriptor, Ordering::Relaxed);
    }
}

/// Whether any of these bytes lie in the range.
pub(crate) fn overlaps(start: *const u8, length: usize) -> bool {
    let (range, bytes) = (START.load(Ordering::Relaxed), LENGTH.load(Ordering::Relaxed));
    start.addr() < range + bytes && range < start.addr().saturating_add(length)
}

/// A range that the monitor fills.
#[derive(Debug)]
pub(crate) struct Range {
    start: NonNull<u8>,
    granules: Granules,
    /// Number of granules, from the first on, that can be accessed.
    opened: usize,
    /// Whether a forked child has the range too.
    forks: bool,
    socket: i32,
    /// Whether the library has reported to the user that the range is full.
    told_full: bool,
}

// SAFETY: any thread may use the range's memory, and the record of its granules is used by one thread at a time.
unsafe impl Send for Range {}

impl Range {
    /// Maps a range and hands it to the monitor. `None`: this process is not the monitor's program, for example because
    /// it is a child of that program.
    pub(crate) fn set_up(settings: Settings) -> Option<Self> {
        if !is_child_of(settings.monitor) {
            return None;
        }
        // From here on the program does not outlive its monitor. The monitor may have died before, so its identity is
        // checked again.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if !is_child_of(settings.monitor) {
            die();
        }
        // SAFETY: the monitor has passed this descriptor, and nothing closes it.
        let socket: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(settings.socket) };
        match Self::map(settings, socket) {
            Ok(range) => Some(range),
            Err(errno) => {
                let _ = userfault::deny(socket, errno.raw_os_error());
                die()
            }
        }
    }

    fn map(settings: Settings, socket: BorrowedFd<'static>) -> Result<Self, Errno> {
        let length = usize::try_from(settings.range).map_err(|_| Errno::NOMEM)? / GRANULE * GRANULE;
        let start = map_closed(length + userfault::MARKS_BYTES)?;
        let count = length / GRANULE;
        let taken = map_private::<u64>(Granules::words(count))?;
        let sizes = map_private::<usize>(count)?;
        let outbox = make_outbox()?;
        let pagemap =
            rustix::fs::open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let userfault = Userfault::new().map_err(|error| match error {
            userfault::UserfaultError::Missing => Errno::NOSYS,
            _ => Errno::PERM,
        })?;
        let whole = (start.addr().get() as u64, length as u64);
        let pagemap = pagemap.as_ref().map(AsFd::as_fd);
        let Ok(terms) = userfault::hand_over(socket, &userfault, outbox.as_fd(), pagemap, whole) else {
            die()
        };
        if !terms.powers.forks {
            // SAFETY: the span is exactly the mapping, and this advice changes no bytes of it.
            unsafe { rustix::mm::madvise(start.as_ptr().cast(), length, Advice::LinuxDontFork) }?;
        }
        let socket_number = socket.as_raw_fd();
        let kept = keep(userfault.into());
        keep_only([socket_number, kept, -1]);
        // SAFETY: the number belongs to a descriptor that stays open until the program ends. The agent never drops its
        // owner.
        let own = Userfault::of_peer(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(kept) });
        Agent::new(socket, own, terms.powers, &outbox)?.start()?;
        START.store(start.addr().get(), Ordering::Relaxed);
        LENGTH.store(length, Ordering::Relaxed);
        Ok(Self {
            start,
            granules: Granules::new(taken, sizes),
            opened: 0,
            forks: terms.powers.forks,
            socket: socket_number,
            told_full: false,
        })
    }

    /// Takes neighbouring granules, which are zeros. The first time that the range has no room, reports to the user why
    /// the program's `malloc` fails.
    pub(crate) fn take(&mut self, count: usize) -> Option<usize> {
        let Some(granule) = self.granules.take(count) else {
            if !std::mem::replace(&mut self.told_full, true) {
                tell_full(count, self.granules.count());
            }
            return None;
        };
        if self.open(granule + count) {
            return Some(granule);
        }
        self.granules.give_back(granule, count);
        None
    }

    /// Takes the granules right behind others, if they are free.
    pub(crate) fn extend(&mut self, at: usize, more: usize) -> bool {
        self.granules.extend(at, more) && {
            let is_open = self.open(at + more);
            if !is_open {
                self.granules.give_back(at, more);
            }
            is_open
        }
    }

    /// Makes the granules up to `end` accessible. `false`: the kernel has no memory for that.
    fn open(&mut self, end: usize) -> bool {
        if end <= self.opened {
            return true;
        }
        let step = OPENED_AT_ONCE / GRANULE;
        let end = end.next_multiple_of(step).min(self.granules.count());
        let start = self.at(self.opened).cast();
        let length = (end - self.opened) * GRANULE;
        let protection = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: these granules lie in the range, and nothing uses them yet.
        let is_open = unsafe { rustix::mm::mprotect(start, length, protection) }.is_ok();
        if is_open {
            self.opened = end;
        }
        is_open
    }

    pub(crate) fn granules(&mut self) -> &mut Granules {
        &mut self.granules
    }

    /// Whether a forked child has the range too.
    pub(crate) fn forks(&self) -> bool {
        self.forks
    }

    /// The socket to the monitor.
    pub(crate) fn socket(&self) -> BorrowedFd<'static> {
        // SAFETY: the descriptor stays open until the program ends.
        unsafe { BorrowedFd::borrow_raw(self.socket) }
    }

    /// The memory behind the range, which a child uses to identify itself. It is watched and never accessed.
    pub(crate) fn marks(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.granules.count() * GRANULE)
    }

    /// Whether an address lies in the range.
    pub(crate) fn has(&self, at: *const u8, length: usize) -> bool {
        at.addr().checked_sub(self.start.addr().get()).is_some_and(|offset| offset < length)
    }

    /// The granule that an address lies in.
    pub(crate) fn granule_of(&self, at: *const u8) -> usize {
        (at.addr() - self.start.addr().get()) / GRANULE
    }

    /// The address of a granule's first byte.
    pub(crate) fn at(&self, granule: usize) -> *mut u8 {
        // SAFETY: granule numbers are taken from the record of this range, so the offset is below its length.
        unsafe { self.start.as_ptr().add(granule * GRANULE) }
    }

    /// Gives granules back. The kernel reports to the monitor that they are not needed any more.
    pub(crate) fn give_back(&mut self, granule: usize, count: usize) {
        let start = self.at(granule).cast();
        let length = count * GRANULE;
        // SAFETY: nothing uses these granules any more.
        let dropped = unsafe { rustix::mm::madvise(start, length, Advice::LinuxDontNeed) };
        let dropped = dropped.or_else(|_| {
            // The program has locked this memory and not unlocked it. Kernels before Linux 5.18 cannot drop such pages.
            // SAFETY: as above.
            unsafe { rustix::mm::madvise(start, length, Advice::LinuxDontneedLocked) }
        });
        // If the kernel cannot drop the pages, the program has unmapped a part of them: such granules are not used
        // again.
        if dropped.is_ok() {
            self.granules.give_back(granule, count);
        }
    }
}

/// Keeps a descriptor open until the program ends, if possible with a number that programs do not use themselves.
pub(crate) fn keep(descriptor: OwnedFd) -> i32 {
    let high = rustix::io::fcntl_dupfd_cloexec(&descriptor, DESCRIPTORS_FROM);
    let kept = high.unwrap_or(descriptor);
    let number = kept.as_raw_fd();
    std::mem::forget(kept);
    number
}

fn is_child_of(monitor: i32) -> bool {
    getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == monitor)
}

/// Writes to standard error, without heap memory, that a range of `count` granules has no room for `asked` more.
fn tell_full(asked: usize, count: usize) {
    let mut text = [0; 256];
    let mut rest = &mut text[..];
    let written = writeln!(
        rest,
        "portcullis far: the program has no room for {} KiB more in its {} MiB: its malloc fails. Give it more with --range",
        (asked * GRANULE) >> 10,
        (count * GRANULE) >> 20
    );
    let left = rest.len();
    if written.is_ok() {
        // If standard error is closed, the report cannot reach any reader.
        let _ = rustix::io::write(rustix::stdio::stderr(), &text[..text.len() - left]);
    }
}

/// Ends the program: nothing can fill its memory any more.
pub(crate) fn die() -> ! {
    loop {
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

/// Maps memory that cannot be accessed yet.
fn map_closed(length: usize) -> Result<NonNull<u8>, Errno> {
    let (protection, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing.
    let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), length, protection, flags) }?;
    for advice in [Advice::LinuxDontDump, Advice::LinuxNoHugepage] {
        // SAFETY: the span is exactly the mapping, and this advice changes no bytes of it.
        let _ = unsafe { rustix::mm::madvise(start, length, advice) };
    }
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

/// Maps zeroed words of this process alone. They stay mapped until the process ends.
fn map_private<T>(count: usize) -> Result<&'static mut [T], Errno> {
    let bytes = count * size_of::<T>();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing.
    let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes.max(1), protection, flags) }?;
    // SAFETY: the mapping has this many zeroed integers, is aligned to a page, and no other code uses or unmaps it.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) })
}
