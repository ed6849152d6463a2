//! The effects of a listening node on the file system: it replaces a dead socket and nothing else, and it removes its
//! own socket and nothing else.

use portcullis_attach::unix::{Listener, SocketAccess};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use tempfile::TempDir;

const OWN: SocketAccess = SocketAccess { mode: 0o600, group: None };

fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.sock");
    (folder, path)
}

fn refused(path: &Path) -> String {
    Listener::bind(path, OWN).expect_err("the place is taken").to_string()
}

/// Makes a socket that no process listens on, as a killed node leaves it.
fn orphan(path: &Path) {
    drop(UnixListener::bind(path).expect("a socket"));
    assert!(path.exists());
}

#[test]
fn what_is_no_socket_stays_and_is_named() {
    let (folder, path) = place();
    std::fs::write(&path, "someone's work").expect("a file");
    assert!(refused(&path).contains("a regular file exists"));
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "someone's work");
    std::fs::remove_file(&path).expect("it goes");

    std::fs::create_dir(&path).expect("a directory");
    assert!(refused(&path).contains("a directory exists"));
    std::fs::remove_dir(&path).expect("it goes");

    // Links to a dead socket and to nothing. Neither the link nor its target may be removed.
    let dead = folder.path().join("dead.sock");
    orphan(&dead);
    for target in [dead.clone(), folder.path().join("nothing")] {
        std::os::unix::fs::symlink(&target, &path).expect("a link");
        assert!(refused(&path).contains("a symbolic link exists"));
        assert_eq!(std::fs::read_link(&path).expect("the link"), target);
        std::fs::remove_file(&path).expect("it goes");
    }
    assert!(dead.exists());
}

#[test]
fn a_socket_in_use_stays_and_works_on() {
    let (_folder, path) = place();
    let node = Listener::bind(&path, OWN).expect("a free place");
    assert!(refused(&path).contains("a node listens there already"));
    assert!(path.exists());
    drop(node);
    let stream = UnixListener::bind(&path).expect("a free place");
    assert!(refused(&path).contains("another program has its socket there"));
    drop(stream);
    std::fs::remove_file(&path).expect("it goes");
    let _datagrams = UnixDatagram::bind(&path).expect("a free place");
    assert!(refused(&path).contains("another program has its socket there"));
    assert!(path.exists());
}

#[test]
fn a_socket_that_nobody_listens_on_is_replaced() {
    let (_folder, path) = place();
    orphan(&path);
    let node = Listener::bind(&path, OWN).expect("a dead socket's place");
    drop(node);
    assert!(!path.exists(), "its own socket goes with it");
}

#[test]
fn at_the_end_only_ones_own_socket_goes() {
    let (_folder, path) = place();
    let node = Listener::bind(&path, OWN).expect("a free place");
    std::fs::remove_file(&path).expect("an operator's hand");
    let next = Listener::bind(&path, OWN).expect("a free place");
    drop(node);
    assert!(path.exists(), "the next node's socket stays");
    std::fs::remove_file(&path).expect("an operator's hand");
    std::fs::write(&path, "notes").expect("a file");
    drop(next);
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "notes");
}

#[test]
fn a_socket_has_its_mode_whatever_the_umask_is() {
    let (_folder, path) = place();
    for mode in [0o600, 0o660, 0o666] {
        let _node = Listener::bind(&path, SocketAccess { mode, group: None }).expect("a free place");
        let there = std::fs::metadata(&path).expect("a socket");
        assert_eq!(there.permissions().mode() & 0o7777, mode);
        assert_eq!(there.gid(), rustix::process::getegid().as_raw());
    }
    // A process may always use its own group.
    let group = Some(rustix::process::getegid().as_raw());
    let _node = Listener::bind(&path, SocketAccess { mode: 0o660, group }).expect("a free place");
}

#[test]
fn of_nodes_that_start_at_once_over_a_dead_socket_one_stays_and_is_reached() {
    const NODES: usize = 8;
    for _ in 0..40 {
        let (_folder, path) = place();
        orphan(&path);
        let start = Barrier::new(NODES);
        let bound: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..NODES)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        Listener::bind(&path, OWN)
                    })
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("no panic").ok()).collect()
        });
        assert_eq!(bound.len(), 1);
        assert!(refused(&path).contains("a node listens there already"), "its socket is there and live");
    }
}

#[test]
fn a_path_that_no_socket_can_have_is_told_so() {
    let (folder, _) = place();
    assert!(refused(&folder.path().join("x".repeat(120))).contains("107 bytes"));
}
