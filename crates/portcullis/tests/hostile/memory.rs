//! Attacks on shared memory: the port's file, the engine's page, the event and the alarm.

use crate::attach_connection::{AttachConnection, hello, mapped};
use crate::attacker::{Attacker, key};
use crate::rig::{BLUE, RED, Rig, lenient, resident_bytes, wait_for};
use nix::libc;
use portcullis::Sharing;
use portcullis::host::PortLimits;
use portcullis_memory::Mapping;
use portcullis_nic::{Memory, Status};
use rustix::event::Timespec;
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use rustix::thread::futex;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

#[test]
fn the_ports_file_keeps_its_size() {
    let rig = Rig::new();
    let (connection, [file, ..], memory) = AttachConnection::attach(&rig.socket(RED));
    let seals = rustix::fs::fcntl_get_seals(&file).expect("a sealed file");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW), "{seals:?}");
    let length = u64::try_from(rustix::fs::fstat(&file).expect("a file").st_size).expect("a size");
    for size in [0, 4096, length - 4096, length + 4096, 1 << 40] {
        rustix::fs::ftruncate(&file, size).expect_err("the file is sealed");
    }
    rustix::fs::fallocate(&file, FallocateFlags::empty(), length, 4096).expect_err("the file is sealed");
    rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096)
        .expect_err("no such operation here");
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).expect_err("no more seals either");
    rig.others_go_on(20);
    drop((connection, memory));
    rig.clear();
}

#[test]
fn the_engines_page_is_read_only_for_clients() {
    let rig = Rig::new();
    let (_connection, [_file, page, event, _alarm], _memory) = AttachConnection::attach(&rig.socket(RED));
    let seals = rustix::fs::fcntl_get_seals(&page).expect("a sealed file");
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    assert!(seals.contains(needed), "{seals:?}");
    rustix::io::pwrite(&page, &[0xff; 8], 0).expect_err("the page cannot be written");
    rustix::fs::fallocate(&page, HOLE, 0, 4096).expect_err("the page cannot be written");
    rustix::fs::ftruncate(&page, 0).expect_err("the page is sealed");
    let copy = |fd: &rustix::fd::OwnedFd| fd.try_clone().expect("a descriptor");
    Mapping::of_peer(copy(&page), 4096, true).expect_err("the page cannot be mapped for writing");
    let mapped = Mapping::of_peer(copy(&page), 4096, false).expect("but for reading");
    // /proc gives access to the same file.
    let again = format!("/proc/self/fd/{}", page.as_raw_fd());
    if let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(again) {
        rustix::io::pwrite(&file, &[0xff; 8], 0).expect_err("nor by another way");
        Mapping::of_peer(file.into(), 4096, true).expect_err("nor by another way");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = rustix::io::write(&event, &1u64.to_ne_bytes());
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let short = Timespec { tv_sec: 0, tv_nsec: 100_000 };
                let word = mapped.half_word(0);
                let _ = futex::wait(word, futex::Flags::empty(), word.load(Ordering::Relaxed), Some(&short));
            }
        });
        rig.others_go_on(200);
        stop.store(true, Ordering::Relaxed);
    });
    // A write to a full event fails, and still wakes the engine.
    let _ = rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes());
    rig.others_go_on(20);
    drop(_connection);
    rig.clear();
}

#[test]
fn an_alarm_takes_nothing_from_a_client_and_never_makes_the_node_wait() {
    let rig = Rig::new();
    let (connection, [_file, _page, event, alarm], memory) = AttachConnection::attach(&rig.socket(RED));
    rustix::fs::fcntl_setfl(&alarm, OFlags::empty()).expect("the client's own flags");
    assert_eq!(send(&alarm, &[0; 64], SendFlags::NOSIGNAL | SendFlags::DONTWAIT), Err(Errno::PIPE));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let gift = [event.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&gift)), "one fits");
    let parts = [IoSlice::new(&[0])];
    let passed = sendmsg(&alarm, &parts, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    assert_eq!(passed, Err(Errno::PIPE), "nor descriptors");
    rig.others_go_on(20);
    // The client closes its end of the alarm before it leaves.
    drop(alarm);
    memory.half_word(0).store(2, Ordering::Relaxed);
    rig.others_go_on(20);
    drop((connection, memory));
    rig.clear();
}

#[test]
fn no_page_of_the_port_can_be_taken_away_or_mapped_for_writing_once_more() {
    let rig = Rig::new();
    let mut attacker = Attacker::attach(&rig.socket(RED));
    let own = attacker.allocate(1 << 20, Sharing::Exclusive);
    let file = attacker.memory.file().expect("a file").try_clone_to_owned().expect("a descriptor");
    let length = attacker.memory.length();
    for (start, bytes) in [(0, length), (0, 4096), (length - 4096, 4096)] {
        let refused = rustix::fs::fallocate(&file, HOLE, start, bytes);
        assert_eq!(refused, Err(Errno::PERM), "a hole of {bytes} bytes at {start}");
    }
    assert_eq!(remove(&attacker.memory), Err(Errno::PERM), "nor by way of a mapping");
    assert_eq!(rustix::io::pwrite(&file, &[0xff; 8], 0), Err(Errno::PERM));
    let copy = || file.try_clone().expect("a descriptor");
    Mapping::of_peer(copy(), length, true).expect_err("one mapping for writing is all there is");
    let other = Mapping::of_peer(copy(), length, false).expect("others are for reading");
    assert_eq!(remove(&other), Err(Errno::ACCESS), "those take nothing away at all");
    for _ in 0..20 {
        assert_eq!(attacker.try_read(0, own.address().0, key(own.credential), 1 << 20), Status::Success);
    }
    drop((attacker, file, other));
    rig.clear();
}

/// Tries to remove the pages behind a mapping.
fn remove(memory: &Mapping) -> rustix::io::Result<()> {
    let bytes = usize::try_from(memory.length()).expect("it is mapped");
    // SAFETY: the span is a live mapping of memory that is only accessed atomically. Zeros are as valid as any other
    // bytes.
    unsafe { rustix::mm::madvise(memory.start().as_ptr().cast(), bytes, Advice::LinuxRemove) }
}

const HUGE: usize = 2 << 20;

/// Maps a file again, at an address where a huge page could lie, and makes the kernel move the first two mebibytes to
/// one.
fn collapse(memory: &Mapping) -> std::io::Result<()> {
    let (file, length) = (memory.file().expect("a file").as_raw_fd(), usize::try_from(memory.length()));
    let length = length.expect("it is mapped");
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing.
    let room = unsafe { libc::mmap(null_mut(), length + HUGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(room, libc::MAP_FAILED, "there is room for addresses");
    let aligned = room.map_addr(|start| start.next_multiple_of(HUGE));
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: the span lies in the mapping just made, which nothing else uses.
    let mapped = unsafe { libc::mmap(aligned, length, libc::PROT_READ, flags, file, 0) };
    assert_eq!(mapped, aligned, "the file can be mapped for reading");
    // SAFETY: the span is part of a live mapping. Moving its bytes to other pages does not change them.
    let result = match unsafe { libc::madvise(aligned, HUGE, libc::MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: both mappings were made here, and no pointer into them is left.
    unsafe { libc::munmap(room, length + HUGE) };
    result
}

#[test]
fn no_page_of_the_port_can_be_moved_by_its_client() {
    let rig = Rig::new();
    let attacker = Attacker::attach(&rig.socket(RED));
    let unheld = Mapping::shareable("unheld", 4 << 20).expect("memory");
    unheld.zero(0, 4 << 20);
    if let Err(error) = collapse(&unheld) {
        println!("SKIPPED: this kernel moves no client's pages to huge ones: {error}");
    } else {
        let refused = collapse(&attacker.memory).expect_err("a page of it is held");
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
    }
    drop(attacker);
    rig.clear();
}

/// Page faults of the engine's thread, which runs the NIC.
fn faults_of_the_engine() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").map_while(Result::ok);
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let engine = stats.filter(|stat| stat.contains("(portcullis-node)")).last().expect("an engine");
    let fields: Vec<&str> = engine.split(')').next_back().expect("fields").split_whitespace().collect();
    fields[7].parse::<u64>().expect("a count") + fields[9].parse::<u64>().expect("a count")
}

#[test]
fn the_engine_meets_no_page_fault_on_a_port() {
    let rig = Rig::with(lenient(), &[]);
    let mut attacker = Attacker::attach(&rig.socket(RED));
    let own = attacker.allocate(1 << 20, Sharing::Exclusive);
    // The first read takes pages of the pool, which faults.
    let mut read = || attacker.try_read(0, own.address().0, key(own.credential), 1 << 20);
    assert_eq!(read(), Status::Success);
    let before = faults_of_the_engine();
    assert_eq!(read(), Status::Success);
    let of_one_that_was_used = faults_of_the_engine() - before;
    drop(attacker);
    // A new port reads 256 pages into its unused arena and unused queues.
    let mut fresh = Attacker::attach(&rig.socket(RED));
    let own = fresh.allocate(1 << 20, Sharing::Exclusive);
    let before = faults_of_the_engine();
    assert_eq!(fresh.try_read(0, own.address().0, key(own.credential), 1 << 20), Status::Success);
    let of_a_fresh_one = faults_of_the_engine() - before;
    assert!(
        of_a_fresh_one <= of_one_that_was_used + 8,
        "{of_a_fresh_one} faults, {of_one_that_was_used} before"
    );
    drop(fresh);
    rig.clear();
}

#[test]
fn ports_take_no_more_memory_than_the_node_has_for_them() {
    let rig = Rig::with_ports(PortLimits { ports_bytes_max: 24 << 20, ..PortLimits::default() });
    let path = rig.socket(RED);
    let connect = |bytes| {
        let connection = AttachConnection::connect(&path);
        connection.say(&hello(bytes));
        (connection.hear(), connection)
    };
    let before = resident_bytes();
    // Offers take half of the room and no more, also when the clients never map them.
    let crowd: Vec<_> = (0..40).map(|_| connect(1 << 20)).collect();
    let offered = crowd.iter().filter(|(heard, _)| !heard.is_refusal()).count();
    assert!((8..12).contains(&offered), "{offered} ports of more than a mebibyte in half of 24 MiB");
    let (refused, _) = crowd.iter().find(|(heard, _)| heard.is_refusal()).expect("most of them");
    assert!(String::from_utf8_lossy(&refused.bytes).contains("ports"));
    drop(Attacker::attach(&rig.socket(BLUE)));
    for (_, connection) in crowd.iter().filter(|(heard, _)| !heard.is_refusal()) {
        // If the connection ended before this message, the offer has ended as well.
        connection.say(&mapped());
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more");
    drop(crowd);
    wait_for("room again", || !connect(2 << 20).0.is_refusal());
    rig.clear();
}

#[test]
fn a_client_holds_descriptors_of_its_own_port_only() {
    let rig = Rig::new();
    let (_red, red, _) = AttachConnection::attach(&rig.socket(RED));
    let (_blue, blue, _) = AttachConnection::attach(&rig.socket(BLUE));
    let inode = |fd: &rustix::fd::OwnedFd| rustix::fs::fstat(fd).expect("a file").st_ino;
    assert_ne!(inode(&red[0]), inode(&blue[0]), "each port has a file of its own");
    drop((_red, _blue));
    rig.clear();
}
