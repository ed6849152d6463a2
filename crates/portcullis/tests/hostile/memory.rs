//! Attacks on what is shared: the port's file, the engine's page, the event.

use crate::attacker::{Attacker, DATA, key};
use crate::door::Door;
use crate::stage::{BLUE, RED, Stage};
use portcullis::Sharing;
use portcullis_nic::{Memory, Status};
use portcullis_softnic::shared::Mapping;
use rustix::event::Timespec;
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, Ordering};

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

#[test]
fn the_ports_file_keeps_its_size() {
    let stage = Stage::set();
    let (door, [file, _page, _event]) = Door::attach(&stage.socket(RED));
    let seals = rustix::fs::fcntl_get_seals(&file).expect("a sealed file");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW), "{seals:?}");
    let length = u64::try_from(rustix::fs::fstat(&file).expect("a file").st_size).expect("a size");
    for size in [0, 4096, length - 4096, length + 4096, 1 << 40] {
        rustix::fs::ftruncate(&file, size).expect_err("the file is sealed");
    }
    rustix::fs::fallocate(&file, FallocateFlags::empty(), length, 4096).expect_err("the file is sealed");
    rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096)
        .expect_err("no such operation here");
    // Sealing it further is a client's own loss: the node has mapped it already.
    let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE);
    let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL);
    stage.others_go_on(20);
    drop(door);
    stage.clear();
}

#[test]
fn the_engines_page_is_read_only_for_clients() {
    let stage = Stage::set();
    let (_door, [_file, page, event]) = Door::attach(&stage.socket(RED));
    let seals = rustix::fs::fcntl_get_seals(&page).expect("a sealed file");
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    assert!(seals.contains(needed), "{seals:?}");
    rustix::io::pwrite(&page, &[0xff; 8], 0).expect_err("the page cannot be written");
    rustix::fs::fallocate(&page, HOLE, 0, 4096).expect_err("the page cannot be written");
    rustix::fs::ftruncate(&page, 0).expect_err("the page is sealed");
    let copy = |fd: &rustix::fd::OwnedFd| fd.try_clone().expect("a descriptor");
    Mapping::of_peer(copy(&page), 4096, true).expect_err("the page cannot be mapped for writing");
    let mapped = Mapping::of_peer(copy(&page), 4096, false).expect("but for reading");
    // Through /proc it is the same file.
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&page));
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
        stage.others_go_on(200);
        stop.store(true, Ordering::Relaxed);
    });
    // A full event takes no more, and wakes all the same.
    let _ = rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes());
    stage.others_go_on(20);
    drop(_door);
    stage.clear();
}

#[test]
fn holes_in_the_file_while_it_is_used_are_zeros_and_no_faults() {
    let stage = Stage::set();
    let mut attacker = Attacker::attach(&stage.socket(RED));
    let own = attacker.allocate(1 << 20, Sharing::Exclusive);
    let file = attacker.memory.file().expect("a file").try_clone_to_owned().expect("a descriptor");
    let (start, length) = (attacker.layout.arena() + DATA, attacker.memory.length());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::fallocate(&file, HOLE, start, length - start).expect("a hole");
                // Mapped once more, elsewhere: the same bytes, and no more rights to them.
                let again = Mapping::of_peer(file.try_clone().expect("a descriptor"), length, true);
                again.expect("a second mapping").zero(start, 4096);
            }
        });
        for _ in 0..100 {
            let status = attacker.try_read(0, own.address().0, key(own.token), 1 << 20);
            assert_eq!(status, Status::Success);
        }
        stop.store(true, Ordering::Relaxed);
    });
    rustix::fs::fallocate(&file, HOLE, 0, length).expect("a hole over the queues too");
    stage.others_go_on(50);
    drop((attacker, file));
    stage.clear();
}

#[test]
fn a_client_holds_descriptors_of_its_own_port_only() {
    let stage = Stage::set();
    let (_red, red) = Door::attach(&stage.socket(RED));
    let (_blue, blue) = Door::attach(&stage.socket(BLUE));
    let inode = |fd: &rustix::fd::OwnedFd| rustix::fs::fstat(fd).expect("a file").st_ino;
    assert_ne!(inode(&red[0]), inode(&blue[0]), "each port has a file of its own");
    drop((_red, _blue));
    stage.clear();
}
