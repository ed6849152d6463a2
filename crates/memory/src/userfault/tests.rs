//! Pages of this process's own memory, filled by the test while a thread waits for them.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ptr::{NonNull, null_mut};
use std::thread;

const PAGES: u64 = 8;
const BYTES: u64 = PAGES * PAGE as u64;

/// Private memory, which stays mapped.
#[derive(Clone, Copy)]
struct Private(NonNull<u8>);

// SAFETY: its words are only reached by volatile accesses.
unsafe impl Send for Private {}
// SAFETY: as above.
unsafe impl Sync for Private {}

impl Private {
    fn new() -> Self {
        let length = usize::try_from(BYTES).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), length, protection, MapFlags::PRIVATE) };
        Self(NonNull::new(start.expect("memory").cast()).expect("an address"))
    }

    fn word(self, at: u64) -> *mut u64 {
        self.0.as_ptr().wrapping_add(usize::try_from(at).unwrap()).cast()
    }

    fn load(self, at: u64) -> u64 {
        // SAFETY: the word lies in the mapping.
        unsafe { self.word(at).read_volatile() }
    }

    fn store(self, at: u64, value: u64) {
        // SAFETY: the word lies in the mapping.
        unsafe { self.word(at).write_volatile(value) }
    }

    fn address(self, page: u64) -> u64 {
        self.0.as_ptr().expose_provenance() as u64 + page * PAGE as u64
    }
}

/// Watches fresh memory. Returns `None`, and prints a message, if this process may not watch memory or its kernel
/// cannot move pages.
fn watched() -> Option<(Userfault, Private)> {
    let (userfault, powers) = match (Userfault::new(), Userfault::powers()) {
        (Ok(userfault), Ok(powers)) if powers.moves => (userfault, powers),
        other => {
            eprintln!("SKIPPED: {other:?}");
            return None;
        }
    };
    userfault.agree(Powers { forks: false, ..powers }).expect("a kernel with what it says");
    let memory = Private::new();
    userfault.watch(memory.address(0), BYTES).expect("private memory can be watched");
    Some((userfault, memory))
}

/// Waits for the next event.
fn next_event(userfault: &Userfault) -> Event {
    let mut events = Vec::new();
    while events.is_empty() {
        let mut descriptors = [PollFd::new(userfault, PollFlags::IN)];
        let within = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut descriptors, Some(&within)), Ok(1), "nothing has happened");
        userfault.take(&mut events).expect("events");
    }
    assert_eq!(events.len(), 1);
    events.remove(0)
}

fn next_fault(userfault: &Userfault) -> PageFault {
    match next_event(userfault) {
        Event::Fault(fault) => fault,
        other => panic!("{other:?} is no fault"),
    }
}

/// Moves pages of the memory to other ones.
fn move_out(userfault: &Userfault, from: u64, to: u64, pages: u64) -> (usize, Option<Stays>) {
    // SAFETY: the test's own memory, to which there are no references.
    unsafe { userfault.move_out(from, to, pages * PAGE as u64) }.expect("the target is watched")
}

const WHOLE: Done = Done { bytes: PAGE, stop: None };

#[test]
fn a_touched_page_is_filled_and_its_first_write_is_seen() {
    let Some((userfault, memory)) = watched() else { return };
    thread::scope(|scope| {
        let toucher = scope.spawn(|| {
            let first = memory.load(PAGE as u64);
            memory.store(PAGE as u64, 9);
            (first, memory.load(PAGE as u64))
        });
        let fault = next_fault(&userfault);
        let at = memory.address(1);
        assert_eq!(fault, PageFault { address: at, is_write: false, is_protected: false });
        assert_eq!(userfault.fill(at, &[7; PAGE], Fill::Protected).unwrap(), WHOLE);
        let fault = next_fault(&userfault);
        assert_eq!(fault, PageFault { address: at, is_write: true, is_protected: true });
        assert_eq!(userfault.allow(at, PAGE as u64).unwrap(), None);
        assert_eq!(toucher.join().unwrap(), (u64::from_ne_bytes([7; 8]), 9));
    });
}

#[test]
fn pages_that_are_there_are_not_filled_again_and_split_mappings_are_filled() {
    let Some((userfault, memory)) = watched() else { return };
    assert_eq!(userfault.fill_zeros(memory.address(2), PAGE).unwrap(), WHOLE);
    memory.store(2 * PAGE as u64, 5);
    let there = |bytes| Done { bytes, stop: Some(Stop::There) };
    // Up to the page that exists already.
    assert_eq!(userfault.fill(memory.address(0), &[1; 4 * PAGE], Fill::Writable).unwrap(), there(2 * PAGE));
    assert_eq!(userfault.fill_zeros(memory.address(2), 2 * PAGE).unwrap(), there(0));
    assert_eq!(memory.load(2 * PAGE as u64), 5);
    // SAFETY: the advice changes no bytes.
    unsafe { rustix::mm::madvise(memory.word(5 * PAGE as u64).cast(), PAGE, Advice::Random) }.unwrap();
    let all = Done { bytes: 4 * PAGE, stop: None };
    assert_eq!(userfault.fill(memory.address(4), &[3; 4 * PAGE], Fill::Writable).unwrap(), all);
}

#[test]
fn a_page_that_was_moved_out_faults_again_and_a_locked_one_stays() {
    let Some((userfault, memory)) = watched() else { return };
    let target = Private::new();
    userfault.watch(target.address(0), BYTES).unwrap();
    assert_eq!(userfault.fill(memory.address(3), &[1; 2 * PAGE], Fill::Writable).unwrap().stop, None);
    // SAFETY: the page is the test's.
    unsafe { rustix::mm::mlock(memory.word(4 * PAGE as u64).cast(), PAGE) }.unwrap();
    let moved = move_out(&userfault, memory.address(3), target.address(0), 2);
    assert_eq!(moved, (PAGE, Some(Stays::Unlike)));
    assert_eq!(target.load(0), u64::from_ne_bytes([1; 8]));
    assert_eq!(move_out(&userfault, memory.address(3), target.address(1), 1), (0, Some(Stays::Missing)));
    assert_eq!(move_out(&userfault, memory.address(4), target.address(0), 1).0, 0);
    assert_eq!(memory.load(4 * PAGE as u64), u64::from_ne_bytes([1; 8]));
    thread::scope(|scope| {
        let reader = scope.spawn(|| memory.load(3 * PAGE as u64));
        assert_eq!(next_fault(&userfault).address, memory.address(3));
        assert_eq!(userfault.fill_zeros(memory.address(3), PAGE).unwrap(), WHOLE);
        assert_eq!(reader.join().unwrap(), 0);
    });
}

#[test]
fn nothing_is_filled_or_moved_while_a_change_waits_to_be_taken() {
    let Some((userfault, memory)) = watched() else { return };
    let target = Private::new();
    userfault.watch(target.address(0), BYTES).unwrap();
    assert_eq!(userfault.fill(memory.address(0), &[1; 2 * PAGE], Fill::Writable).unwrap().stop, None);
    thread::scope(|scope| {
        let dropper = scope.spawn(|| {
            // SAFETY: there are no references to the page.
            unsafe { rustix::mm::madvise(memory.word(0).cast(), PAGE, Advice::LinuxDontNeed) }
        });
        let mut descriptors = [PollFd::new(&userfault, PollFlags::IN)];
        poll(&mut descriptors, None).unwrap();
        let changing = Done { bytes: 0, stop: Some(Stop::Changing) };
        assert_eq!(userfault.fill_zeros(memory.address(5), PAGE).unwrap(), changing);
        let moved = move_out(&userfault, memory.address(1), target.address(1), 1);
        assert_eq!(moved, (0, Some(Stays::Changing)));
        match next_event(&userfault) {
            Event::Removed(range) => assert_eq!(range, memory.address(0)..memory.address(1)),
            other => panic!("{other:?} is no removal"),
        }
        dropper.join().unwrap().unwrap();
    });
    assert_eq!(move_out(&userfault, memory.address(1), target.address(1), 1), (PAGE, None));
}

#[test]
fn the_kernel_s_own_accesses_wait_for_pages_too() {
    let Some((userfault, memory)) = watched() else { return };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"from a pipe").unwrap();
    thread::scope(|scope| {
        let read = scope.spawn(|| {
            let start = memory.word(0).cast::<u8>();
            // SAFETY: the bytes lie in the mapping, and nothing else touches them meanwhile.
            let into = unsafe { std::slice::from_raw_parts_mut(start, 11) };
            rustix::io::read(&reader, &mut *into)
        });
        let fault = next_fault(&userfault);
        assert_eq!(fault, PageFault { address: memory.address(0), is_write: true, is_protected: false });
        assert_eq!(userfault.fill_zeros(fault.address, PAGE).unwrap(), WHOLE);
        assert_eq!(read.join().unwrap(), Ok(11));
    });
    assert_eq!(memory.load(0).to_ne_bytes(), *b"from a p");
}

#[test]
fn a_range_is_handed_over_and_pages_are_asked_for() {
    let Some((userfault, memory)) = watched() else { return };
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let handover = Handover::new(ours);
    assert!(handover.take().unwrap().is_none());
    let terms = Terms { powers: Powers { moves: true, forks: false } };
    let command = Command { tag: 7, address: memory.address(1), count: 2 };
    let taken = Taken { tag: 7, moved: 1, missing: 2, unprotected: 0, is_changing: true };
    thread::scope(|scope| {
        let program = scope.spawn(|| {
            let outbox = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let whole = (memory.address(0), BYTES);
            let agreed = hand_over(theirs.as_fd(), &userfault, outbox.as_fd(), None, whole).unwrap();
            assert_eq!(agreed, terms);
            assert_eq!(next_command(theirs.as_fd()).unwrap(), command);
            answer(theirs.as_fd(), taken).unwrap();
            deny(theirs.as_fd(), 12).unwrap();
        });
        let next = || {
            let mut descriptors = [PollFd::new(&handover, PollFlags::IN)];
            poll(&mut descriptors, None).unwrap();
            handover.take().unwrap().expect("a request")
        };
        let Request::HandOver(handed) = next() else { panic!("a range comes first") };
        assert_eq!((handed.address, handed.length), (memory.address(0), BYTES));
        assert!(handed.pagemap.is_none());
        // The descriptor stands for the same memory.
        assert_eq!(handed.userfault.fill(memory.address(4), &[3; PAGE], Fill::Writable).unwrap(), WHOLE);
        assert_eq!(memory.load(4 * PAGE as u64), u64::from_ne_bytes([3; 8]));
        // A message for a former program is skipped.
        handover.command(Command { tag: 1, ..command }).unwrap();
        handover.accept(terms).unwrap();
        handover.command(command).unwrap();
        assert!(matches!(next(), Request::Taken(it) if it == taken));
        assert!(matches!(next(), Request::Denied(12)));
        program.join().unwrap();
    });
    rustix::net::send(&theirs, b"garbage", rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(handover.take(), Err(HandoverError::Malformed)));
    drop(theirs);
    // A process that another test has just forked may hold the socket a little longer.
    poll(&mut [PollFd::new(&handover, PollFlags::IN)], None).unwrap();
    assert!(matches!(handover.take(), Err(HandoverError::Socket(_))));
}

#[test]
fn a_child_s_mark_stands_for_its_number_alone() {
    let longest = (1 << 22) - 1;
    for number in [0, 1, 2047, 2048, 4_194_303, 1_234_567, longest] {
        let (offset, length) = mark_of(number);
        assert_eq!(number_of(offset, length), number);
        assert!(offset + length <= MARKS_BYTES as u64);
    }
}
