//! Pages of this process's own mappings, filled by the test while a thread waits for them.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::thread;

const PAGES: u64 = 8;
const BYTES: u64 = PAGES * PAGE as u64;

/// A watched mapping. `None`, aloud: this process may not watch memory.
fn watched() -> Option<(Userfault, Mapping)> {
    let userfault = match Userfault::new() {
        Ok(userfault) => userfault,
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            return None;
        }
    };
    userfault.agree().expect("a kernel with what is needed");
    let mapping = Mapping::shareable("test", BYTES).expect("memory");
    userfault.watch_mapping(&mapping).expect("a mapping of a file in memory can be watched");
    Some((userfault, mapping))
}

fn address(mapping: &Mapping, page: u64) -> u64 {
    mapping.start().addr().get() as u64 + page * PAGE as u64
}

/// Waits until a thread has touched a page.
fn next_fault(userfault: &Userfault) -> Fault {
    let mut faults = Vec::new();
    while faults.is_empty() {
        let mut descriptors = [PollFd::new(userfault, PollFlags::IN)];
        let within = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut descriptors, Some(&within)), Ok(1), "nobody has touched a page");
        userfault.take(&mut faults).expect("faults");
    }
    assert_eq!(faults.len(), 1);
    faults[0]
}

#[test]
fn a_touched_page_is_filled_and_its_first_write_is_seen() {
    let Some((userfault, mapping)) = watched() else { return };
    thread::scope(|scope| {
        let toucher = scope.spawn(|| {
            let first = mapping.load(PAGE as u64);
            mapping.store(PAGE as u64, 9);
            (first, mapping.load(PAGE as u64))
        });
        let fault = next_fault(&userfault);
        let at = address(&mapping, 1);
        assert_eq!(fault, Fault { address: at, is_write: false, is_protected: false });
        assert_eq!(userfault.fill(at, &[7; PAGE], Fill::Protected).unwrap(), PAGE);
        let fault = next_fault(&userfault);
        assert_eq!(fault, Fault { address: at, is_write: true, is_protected: true });
        userfault.allow(at, PAGE as u64).unwrap();
        assert_eq!(toucher.join().unwrap(), (u64::from_ne_bytes([7; 8]), 9));
    });
}

#[test]
fn pages_that_are_there_are_not_filled_again() {
    let Some((userfault, mapping)) = watched() else { return };
    assert_eq!(userfault.fill_zeros(address(&mapping, 2), PAGE).unwrap(), PAGE);
    mapping.store(2 * PAGE as u64, 5);
    // Up to the page that is there.
    assert_eq!(userfault.fill(address(&mapping, 0), &[1; 4 * PAGE], Fill::Writable).unwrap(), 2 * PAGE);
    assert_eq!(userfault.fill_zeros(address(&mapping, 2), 2 * PAGE).unwrap(), 0);
    assert_eq!(mapping.load(2 * PAGE as u64), 5);
}

#[test]
fn a_page_that_was_taken_out_faults_again_and_its_writer_loses_nothing() {
    let Some((userfault, mapping)) = watched() else { return };
    let at = address(&mapping, 3);
    assert_eq!(userfault.fill(at, &[1; PAGE], Fill::Writable).unwrap(), PAGE);
    userfault.protect(at, PAGE as u64).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| mapping.store(3 * PAGE as u64 + 8, 2));
        assert!(next_fault(&userfault).is_protected);
        // Nobody can write meanwhile: what is read is what the page holds when it goes.
        let mut held = vec![0; PAGE];
        assert_eq!(rustix::io::pread(mapping.file().unwrap(), &mut held, 3 * PAGE as u64), Ok(PAGE));
        assert!(held.iter().all(|&byte| byte == 1));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(mapping.file().unwrap(), hole, 3 * PAGE as u64, PAGE as u64).unwrap();
        userfault.wake(at, PAGE as u64).unwrap();
        let fault = next_fault(&userfault);
        assert_eq!(fault, Fault { address: at, is_write: true, is_protected: false });
        assert_eq!(userfault.fill(at, &held, Fill::Writable).unwrap(), PAGE);
        writer.join().unwrap();
    });
    assert_eq!(mapping.load(3 * PAGE as u64), u64::from_ne_bytes([1; 8]));
    assert_eq!(mapping.load(3 * PAGE as u64 + 8), 2);
}

#[test]
fn the_kernel_s_own_accesses_wait_for_pages_too() {
    let Some((userfault, mapping)) = watched() else { return };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"from a pipe").unwrap();
    thread::scope(|scope| {
        let read = scope.spawn(|| {
            // SAFETY: the bytes lie in the mapping, which outlives this, and nothing else touches them meanwhile.
            let into = unsafe { std::slice::from_raw_parts_mut(mapping.start().as_ptr(), 11) };
            rustix::io::read(&reader, into)
        });
        let fault = next_fault(&userfault);
        assert_eq!(fault, Fault { address: address(&mapping, 0), is_write: true, is_protected: false });
        assert_eq!(userfault.fill_zeros(fault.address, PAGE).unwrap(), PAGE);
        assert_eq!(read.join().unwrap(), Ok(11));
    });
    let mut bytes = [0; 12];
    mapping.read(0, &mut bytes);
    assert_eq!(&bytes, b"from a pipe\0");
}

#[test]
fn a_range_is_handed_over_and_parts_of_it_are_given_back() {
    let Some((userfault, mapping)) = watched() else { return };
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let handover = Handover::new(ours);
    assert!(handover.take().unwrap().is_none());
    thread::scope(|scope| {
        let program = scope.spawn(|| {
            let file = mapping.file().unwrap();
            hand_over(theirs.as_fd(), &userfault, file, (address(&mapping, 0), BYTES)).unwrap();
            release(theirs.as_fd(), address(&mapping, 1), PAGE as u64).unwrap();
            deny(theirs.as_fd(), 12).unwrap();
        });
        let next = || {
            let mut descriptors = [PollFd::new(&handover, PollFlags::IN)];
            poll(&mut descriptors, None).unwrap();
            handover.take().unwrap().expect("a request")
        };
        let Request::HandOver(handed) = next() else { panic!("a range comes first") };
        assert_eq!((handed.address, handed.length), (address(&mapping, 0), BYTES));
        // It is the same memory.
        assert_eq!(handed.userfault.fill(address(&mapping, 4), &[3; PAGE], Fill::Writable).unwrap(), PAGE);
        assert_eq!(mapping.load(4 * PAGE as u64), u64::from_ne_bytes([3; 8]));
        handover.done().unwrap();
        let Request::Release { address: from, length } = next() else { panic!("then a release") };
        assert_eq!((from, length), (address(&mapping, 1), PAGE as u64));
        handover.done().unwrap();
        assert!(matches!(next(), Request::Denied(12)));
        program.join().unwrap();
    });
    rustix::net::send(&theirs, b"garbage", rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(handover.take(), Err(HandoverError::Malformed)));
    drop(theirs);
    assert!(matches!(handover.take(), Err(HandoverError::Socket(_))));
}
