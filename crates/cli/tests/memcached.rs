//! `portcullis memcached` as a program: the addresses at which it listens, and the signals that end it.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that is killed with its test, and the line in which it announced its addresses.
struct Program {
    child: Child,
    said: Value,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        Self::announced(Self::spawn(arguments, Stdio::inherit()))
    }

    fn spawn(arguments: &[&str], errors: Stdio) -> Child {
        Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(arguments)
            .arg("--json")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("the program starts")
    }

    /// Reads the line in which a program announces its addresses.
    fn announced(mut child: Child) -> Self {
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let said = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says {line:?}"));
        Self { child, said }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends lines to a gateway and returns its replies until it ends the connection.
fn ask(path: &Path, lines: &str) -> String {
    let mut client = UnixStream::connect(path).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    client.write_all(lines.as_bytes()).expect("it reads");
    let mut answers = String::new();
    client.read_to_string(&mut answers).expect("answers and the end");
    answers
}

#[test]
fn a_gateway_at_a_unix_socket_outlives_sighup_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memcached.sock");
    let address = format!("shm:{}", folder.path().join("node").display());
    let _node = Program::start(&["serve", "--memory", "32MiB", "--listen", &address]);
    let listen = format!("unix:{}", path.display());
    let mut gateway = Program::start(&["memcached", "--node", &address, "--listen", &listen]);
    assert_eq!(gateway.said["listening"], serde_json::json!([listen]));
    let mode = path.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else is let in unasked");
    assert_eq!(ask(&path, "set a 0 0 1\r\n1\r\nquit\r\n"), "STORED\r\n");
    gateway.signal(Signal::HUP);
    assert_eq!(ask(&path, "get a\r\nquit\r\n"), "VALUE a 0 1\r\n1\r\nEND\r\n");
    gateway.signal(Signal::HUP);
    gateway.signal(Signal::TERM);
    assert!(gateway.child.wait().expect("it ends").success());
    assert!(!path.exists());
}

#[test]
fn a_gateway_waits_for_its_node_and_says_when_it_goes_and_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memcached.sock");
    let address = format!("shm:{}", folder.path().join("node").display());
    let listen = format!("unix:{}", path.display());
    let mut child = Program::spawn(&["memcached", "--node", &address, "--listen", &listen], Stdio::piped());
    let mut errors = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut logged = move |what: &str| {
        let line = errors.next().expect("it logs").expect("text");
        assert!(line.contains("WARN") && line.contains(what), "{line}");
    };
    logged("waiting for the node: no node listens at");
    let serve = ["serve", "--memory", "32MiB", "--listen", &address];
    let node = Program::start(&serve);
    let gateway = Program::announced(child);
    assert_eq!(ask(&path, "set a 0 0 1\r\n1\r\nquit\r\n"), "STORED\r\n");
    // The gateway receives no request when its node ends.
    drop(node);
    logged("the node is gone");
    logged("the table cannot be opened: no node listens at");
    let _node = Program::start(&serve);
    logged("the node is back");
    // Each of the gateway's threads notices that by itself.
    let until = Instant::now() + Duration::from_secs(20);
    while ask(&path, "get a\r\nquit\r\n") != "END\r\n" {
        assert!(Instant::now() < until, "it is not served again");
    }
    gateway.signal(Signal::TERM);
}

#[test]
fn a_gateway_that_waits_for_its_node_stops_when_it_is_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("shm:{}", folder.path().join("node").display());
    let mut child = Program::spawn(&["memcached", "--node", &address], Stdio::piped());
    let mut line = String::new();
    BufReader::new(child.stderr.take().expect("it is piped")).read_line(&mut line).expect("it logs");
    let process = Pid::from_child(&child);
    kill_process(process, Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
}
