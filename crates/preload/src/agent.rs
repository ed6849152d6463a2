//! The agent: a thread of the program that moves pages out of the range when the monitor requests it.
//!
//! Only a thread of the program can move its pages, and the kernel refuses to move pages that are pinned. The agent
//! moves a page to the *landing*, an area that nothing else uses, copies its bytes into the outbox, and frees it.
//!
//! The C library does not know the thread: the thread has no thread-local memory there, `errno` included, and calls the
//! kernel only through rustix. All signals are blocked in it. The C library does not count it, so a program without
//! other threads stays single-threaded for the library's locks.

use portcullis_memory::userfault::{Command, PAGE, Powers, Stays, Taken, Userfault, answer, next_command};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ptr::{NonNull, copy_nonoverlapping, null_mut};

/// The maximal number of pages of one command.
const PAGES_MAX: usize = 64;
const LANDING_BYTES: usize = PAGES_MAX * PAGE;
/// How often the landing is cleared for one command. If a program locks its memory all the time, the monitor tries
/// again later.
const CLEARED_MAX: u32 = 3;
/// Bytes of the agent's stack: its calls nest only a few functions deep, in unoptimised code at worst.
const STACK_BYTES: usize = 256 << 10;
/// The protections that pages may have, the likeliest first: the kernel moves pages only between mappings of the same
/// protection.
const PROTECTIONS: [MprotectFlags; 6] = [
    MprotectFlags::READ.union(MprotectFlags::WRITE),
    MprotectFlags::READ,
    MprotectFlags::empty(),
    MprotectFlags::READ.union(MprotectFlags::EXEC),
    MprotectFlags::READ.union(MprotectFlags::WRITE).union(MprotectFlags::EXEC),
    MprotectFlags::WRITE,
];

/// State of the agent. Everything in it lives until the program ends.
#[derive(Debug)]
pub(crate) struct Agent {
    socket: BorrowedFd<'static>,
    userfault: Userfault,
    powers: Powers,
    landing: NonNull<u8>,
    outbox: NonNull<u8>,
}

/// Creates the file that the agent copies the bytes of pages into.
pub(crate) fn make_outbox() -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create("portcullis-far", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, LANDING_BYTES as u64)?;
    Ok(file)
}

impl Agent {
    /// Maps the landing and the outbox.
    pub(crate) fn new(
        socket: BorrowedFd<'static>,
        userfault: Userfault,
        powers: Powers,
        outbox: &OwnedFd,
    ) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing.
        let landing =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), LANDING_BYTES, protection, MapFlags::PRIVATE) }?;
        // SAFETY: as above.
        let outbox = unsafe {
            rustix::mm::mmap(null_mut(), LANDING_BYTES, protection, MapFlags::SHARED, outbox.as_fd(), 0)
        }?;
        for (place, advice) in [
            (landing, Advice::LinuxDontFork),
            (landing, Advice::LinuxNoHugepage),
            (landing, Advice::LinuxDontDump),
            (outbox, Advice::LinuxDontFork),
        ] {
            // SAFETY: the span is exactly a mapping of the agent's, and this advice changes no bytes of it.
            let advised = unsafe { rustix::mm::madvise(place, LANDING_BYTES, advice) };
            if advice != Advice::LinuxNoHugepage {
                advised?;
            }
        }
        let place = |start: *mut core::ffi::c_void| NonNull::new(start.cast()).ok_or(Errno::NOMEM);
        Ok(Self { socket, userfault, powers, landing: place(landing)?, outbox: place(outbox)? })
    }

    /// Starts the thread.
    pub(crate) fn start(self) -> Result<(), Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::STACK);
        // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing.
        let stack = unsafe { rustix::mm::mmap_anonymous(null_mut(), STACK_BYTES, protection, flags) }?;
        // SAFETY: nothing uses this page of the new mapping: a stack overflow ends the program.
        unsafe { rustix::mm::mprotect(stack, PAGE, MprotectFlags::empty()) }?;
        // The agent lies at the far end of the stack, and the thread's stack grows downwards from just below it.
        let place =
            stack.wrapping_byte_add(STACK_BYTES - size_of::<Self>().next_multiple_of(64)).cast::<Self>();
        // SAFETY: the place is inside the mapping, aligned, and nothing uses it.
        unsafe { place.write(self) };
        // The flags of a C library thread, but without thread-local memory.
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        with_signals_blocked(|| {
            // SAFETY: the stack is the thread's alone, and it gets the agent, which nothing else uses.
            let thread = unsafe { libc::clone(run, place.cast(), flags, place.cast()) };
            if thread < 0 { Err(Errno::AGAIN) } else { Ok(()) }
        })
    }

    fn serve(&self) -> Result<(), ()> {
        let landing = self.landing.as_ptr().expose_provenance() as u64;
        if self.powers.moves {
            self.userfault.watch(landing, LANDING_BYTES as u64).map_err(drop)?;
        }
        loop {
            let command = next_command(self.socket).map_err(drop)?;
            if command.count as usize > PAGES_MAX {
                return Err(());
            }
            let taken = if self.powers.moves { self.take(command)? } else { self.take_blindly(command)? };
            answer(self.socket, taken).map_err(drop)?;
        }
    }

    /// Moves pages out. Pages that the kernel refuses to move stay.
    fn take(&self, command: Command) -> Result<Taken, ()> {
        let mut taken = Taken { tag: command.tag, ..Taken::default() };
        // A program that has locked all of its memory has locked the landing too, and the kernel does move pages
        // between two locked places. If unlocking fails, the page stays where it is.
        let _ = self.unlock_landing();
        let (mut at, mut copied, mut cleared) = (0, 0, 0);
        while at < command.count {
            let (count, stays) = self.move_out(command, at, command.count - at)?;
            taken.moved |= bits(at, count);
            at += count;
            match stays {
                None => {}
                Some(Stays::Changing) => {
                    taken.is_changing = true;
                    break;
                }
                // A program that locks all of its memory also populates the landing.
                Some(Stays::Occupied) if cleared < CLEARED_MAX => {
                    self.copy_and_free(command, taken.moved & !copied)?;
                    copied = taken.moved;
                    cleared += 1;
                }
                Some(Stays::Occupied) => {
                    taken.is_changing = true;
                    break;
                }
                Some(Stays::Missing) => {
                    taken.missing |= bits(at, 1);
                    at += 1;
                }
                Some(stays) => {
                    self.try_again(command, at, stays, &mut taken)?;
                    at += 1;
                }
            }
        }
        if taken.moved & !copied != 0 {
            self.copy_and_free(command, taken.moved & !copied)?;
        }
        Ok(taken)
    }

    /// Tries again to move out a page that the kernel refused: the page may only be shared with a child, or have
    /// another protection than the landing.
    fn try_again(&self, command: Command, at: u32, stays: Stays, taken: &mut Taken) -> Result<(), ()> {
        let page = command.address + u64::from(at) * PAGE as u64;
        match stays {
            Stays::Pinned => {
                if self.userfault.allow(page, PAGE as u64).map_err(drop)?.is_some() {
                    return Ok(());
                }
                taken.unprotected |= bits(at, 1);
                let start = core::ptr::with_exposed_provenance_mut(usize::try_from(page).map_err(drop)?);
                // A write that changes nothing replaces a shared page by a private one.
                // SAFETY: the advice changes no bytes.
                let _ = unsafe { rustix::mm::madvise(start, PAGE, Advice::LinuxPopulateWrite) };
                let (count, _) = self.move_out(command, at, 1)?;
                taken.moved |= bits(at, count);
            }
            Stays::Unlike => {
                for protection in &PROTECTIONS[1..] {
                    self.protect_landing(*protection)?;
                    let (count, stays) = self.move_out(command, at, 1)?;
                    taken.moved |= bits(at, count);
                    if stays != Some(Stays::Unlike) {
                        break;
                    }
                }
                self.protect_landing(PROTECTIONS[0])?;
            }
            Stays::Missing | Stays::Occupied | Stays::Changing => {}
        }
        Ok(())
    }

    /// Moves pages to their places on the landing, up to the first page that stays.
    fn move_out(&self, command: Command, at: u32, count: u32) -> Result<(u32, Option<Stays>), ()> {
        let offset = u64::from(at) * PAGE as u64;
        let landing = self.landing.as_ptr().expose_provenance() as u64 + offset;
        // SAFETY: the landing is the agent's. The range's pages are the program's, which waits for missing pages.
        let moved = unsafe {
            self.userfault.move_out(command.address + offset, landing, u64::from(count) * PAGE as u64)
        };
        let (bytes, stays) = moved.map_err(drop)?;
        Ok((u32::try_from(bytes / PAGE).map_err(drop)?, stays))
    }

    fn copy_and_free(&self, command: Command, moved: u64) -> Result<(), ()> {
        for at in (0..command.count as usize).filter(|at| moved >> at & 1 == 1) {
            let offset = at * PAGE;
            // SAFETY: the offset lies in the landing, and the page is present: it was moved.
            let from = unsafe { self.landing.as_ptr().add(offset) };
            // SAFETY: the offset lies in the outbox.
            let to = unsafe { self.outbox.as_ptr().add(offset) };
            // SAFETY: the places are different mappings that the agent alone writes to.
            unsafe { copy_nonoverlapping(from, to, PAGE) };
        }
        // The kernel reports each page that is dropped from watched memory, and waits until the report is read.
        let landing = self.landing.as_ptr().expose_provenance() as u64;
        self.userfault.unwatch(landing, LANDING_BYTES as u64).map_err(drop)?;
        // The program may have locked all of its memory since the landing was last unlocked.
        let drop_all = || {
            // SAFETY: the landing is the agent's, and its bytes are copied.
            unsafe { rustix::mm::madvise(self.landing.as_ptr().cast(), LANDING_BYTES, Advice::LinuxDontNeed) }
        };
        drop_all().or_else(|_| self.unlock_landing().and_then(|()| drop_all())).map_err(drop)?;
        self.userfault.watch(landing, LANDING_BYTES as u64).map_err(drop)
    }

    /// Takes pages out on a kernel that cannot move them: bytes that a device writes into a pinned page afterwards are
    /// lost.
    fn take_blindly(&self, command: Command) -> Result<Taken, ()> {
        let mut taken = Taken { tag: command.tag, ..Taken::default() };
        let length = command.count as usize * PAGE;
        let start: *mut u8 =
            core::ptr::with_exposed_provenance_mut(usize::try_from(command.address).map_err(drop)?);
        if self.userfault.protect(command.address, length as u64).map_err(drop)?.is_some() {
            taken.is_changing = true;
            return Ok(taken);
        }
        taken.unprotected = bits(0, command.count);
        for at in 0..command.count {
            let offset = at as usize * PAGE;
            // SAFETY: the program's pages are present until they are dropped below, and nothing can write to them.
            let from = unsafe { start.add(offset) };
            // SAFETY: the offset lies in the outbox.
            let to = unsafe { self.outbox.as_ptr().add(offset) };
            // SAFETY: the places are different mappings.
            unsafe { copy_nonoverlapping(from, to, PAGE) };
            // SAFETY: the page's bytes are copied, and the next touch of it waits for them.
            let dropped = unsafe { rustix::mm::madvise(from.cast(), PAGE, Advice::LinuxDontNeed) };
            if dropped.is_ok() {
                taken.moved |= bits(at, 1);
            } else if self
                .userfault
                .allow(command.address + offset as u64, PAGE as u64)
                .map_err(drop)?
                .is_some()
            {
                taken.is_changing = true;
            }
        }
        Ok(taken)
    }

    fn unlock_landing(&self) -> Result<(), Errno> {
        // SAFETY: the landing is the agent's.
        unsafe { rustix::mm::munlock(self.landing.as_ptr().cast(), LANDING_BYTES) }
    }

    fn protect_landing(&self, protection: MprotectFlags) -> Result<(), ()> {
        // SAFETY: the landing is the agent's, which copies from it only with the first of the protections.
        unsafe { rustix::mm::mprotect(self.landing.as_ptr().cast(), LANDING_BYTES, protection) }.map_err(drop)
    }
}

/// Returns a mask of `count` bits, from bit `at` on.
fn bits(at: u32, count: u32) -> u64 {
    let all = if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 };
    all << at
}

extern "C" fn run(agent: *mut core::ffi::c_void) -> core::ffi::c_int {
    // SAFETY: the starter has left an agent here for this thread alone.
    let agent = unsafe { &*agent.cast::<Agent>() };
    let _ = agent.serve();
    // The monitor has ended, or the kernel refuses an operation that was agreed on: nothing fills the program's memory
    // any more.
    crate::range::die()
}

/// Runs `act` with all signals blocked: a thread inherits the mask of blocked signals, and the agent handles no
/// signals.
fn with_signals_blocked<R>(act: impl FnOnce() -> R) -> R {
    let all = u64::MAX;
    let mut before = 0u64;
    let set = |new: *const u64, old: *mut u64| {
        // SAFETY: the kernel reads and writes one word of signals each.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, size_of::<u64>()) }
    };
    set(&raw const all, &raw mut before);
    let result = act();
    set(&raw const before, null_mut());
    result
}
