//! Nodes that clients find by name, with a real etcd and node processes.

#[path = "../../directory/tests/etcd/rig.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod rig;

use portcullis::names::{DirectoryAddress, FindError, OpenOptions};
use portcullis::{Coded, ConnectError, ErrorCode, Names, Session, SessionOptions, connect, connect_with};
use rig::Server;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// The longest wait on a busy machine for an event that otherwise takes a moment.
const PATIENCE: Duration = Duration::from_secs(60);

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command.env_remove("PORTCULLIS_DIRECTORY").env_remove("PORTCULLIS_DIRECTORY_CERTIFICATES");
    command
}

/// A node that ends with its test, because its standard input ends then.
struct Node {
    child: Child,
    addresses: Vec<String>,
    /// The lines that the node writes to standard error.
    told: Receiver<String>,
}

impl Node {
    fn start(directory: &str, name: &str, arguments: &[&str]) -> Self {
        let mut command = portcullis(&["serve", "--json", "--stop-at-end-of-input", "--memory", "16MiB"]);
        command.args(["--directory", directory, "--name", name, "--directory-lease", "1"]).args(arguments);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("it starts");
        let (errors, mut line) = (child.stderr.take().expect("it is piped"), String::new());
        let (sender, told) = channel();
        std::thread::spawn(move || {
            // The thread ends when the receiver is dropped: the test needs no more lines.
            BufReader::new(errors).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        let said: Value = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("{line:?} {:?}", told.iter().collect::<Vec<_>>()));
        let addresses = said["listening"].as_array().expect("addresses");
        let addresses = addresses.iter().map(|it| it.as_str().expect("text").to_owned()).collect();
        Self { child, addresses, told }
    }

    /// Starts a node at a socket in this folder.
    fn at(folder: &Path, directory: &str, name: &str) -> Self {
        Self::start(directory, name, &["--listen", &socket(folder)])
    }

    /// Waits until a line on standard error contains `part`.
    #[track_caller]
    fn says(&self, part: &str) {
        let mut before = Vec::new();
        loop {
            let line = self.told.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("it does not say {part:?} ({error}): {before:?}"));
            if line.contains(part) {
                return;
            }
            before.push(line);
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().to_owned();
    (folder, path)
}

fn socket(folder: &Path) -> String {
    format!("shm:{}", folder.join("node.sock").display())
}

fn place(server: &Server) -> String {
    format!("etcd:{}", server.address())
}

fn find(server: &Server, name: &str) -> Result<Session, ConnectError> {
    let place: DirectoryAddress = place(server).parse().expect("an address");
    let names = Names::At(place, OpenOptions { patience: PATIENCE, ..OpenOptions::default() });
    connect_with(&format!("name:{name}"), SessionOptions { names, ..SessionOptions::default() })
}

/// Returns the error of a wrong call, and checks that its exit code is that of a wrong call.
fn wrong(arguments: &[&str]) -> String {
    let Output { status, stderr, .. } = portcullis(arguments).output().expect("it starts");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(2), "{arguments:?}: {said}");
    said
}

#[test]
fn a_node_is_found_by_its_name_by_programs_and_commands() {
    let Some(server) = rig::shared() else { return };
    let (_folder, path) = folder();
    let node = Node::at(&path, &place(&server), "bank/found");
    node.says("registered as bank/found in etcd:http://127.0.0.1:");
    let mut session = find(&server, "bank/found").expect("it is registered");
    session.allocate(portcullis::Allocate::bytes(64)).expect("a session with the node");
    let kv = |verb: &str, rest: &[&str]| {
        let words = [&["kv", verb, "--node", "name:bank/found", "cities"], rest].concat();
        portcullis(&words).env("PORTCULLIS_DIRECTORY", place(&server)).output().expect("it starts")
    };
    let put = kv("put", &["Bern", "134591"]);
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert_eq!(String::from_utf8_lossy(&kv("get", &["Bern"]).stdout).trim(), "134591");
    // A node that stops removes its name.
    drop(node);
    let told = find(&server, "bank/found").expect_err("it has stopped");
    assert_eq!(told.code(), ErrorCode::NoSuchName, "{told}");
}

#[test]
fn nodes_have_several_addresses_of_which_the_nearest_is_taken() {
    let Some(server) = rig::shared() else { return };
    let (_folder, path) = folder();
    let open = ["--dangerous-no-certificates", "--listen", "udp:0.0.0.0:0", "--advertise", "udp:127.0.0.1:0"];
    let at_socket = socket(&path);
    let node = Node::start(&place(&server), "bank/several", &[&open[..], &["--listen", &at_socket]].concat());
    let port = node.addresses[0].rsplit_once(':').expect("a port").1.to_owned();
    node.says(&format!("{at_socket} and udp:127.0.0.1:{port}"));
    let mut session = find(&server, "bank/several").expect("it is registered");
    assert!(
        matches!(session_end(&mut session), portcullis::SessionEndpoint::Port(_)),
        "the socket is nearer"
    );
    // If the socket is missing, the name leads to the network address.
    std::fs::rename(path.join("node.sock"), path.join("elsewhere.sock")).expect("it is ours");
    let mut session = find(&server, "bank/several").expect("it is registered");
    assert!(matches!(session_end(&mut session), portcullis::SessionEndpoint::Udp(_)));
}

fn session_end(session: &mut Session) -> &portcullis::SessionEndpoint {
    session.client().endpoint()
}

/// Starts a node in this folder, with a name in the node's own directory.
fn embedding(folder: &Path, name: &str) -> (Node, String) {
    let node = Node::at(folder, "embedded", name);
    let directory = format!("unix:{}", folder.join("node.directory").display());
    node.says(&format!("registered as {name} in {directory}"));
    (node, directory)
}

fn find_in(directory: &str, name: &str) -> Result<Session, ConnectError> {
    let names = Names::At(directory.parse().expect("an address"), OpenOptions::default());
    connect_with(&format!("name:{name}"), SessionOptions { names, ..SessionOptions::default() })
}

#[test]
fn a_node_has_a_directory_of_its_own_in_which_others_register() {
    let ((_one, one), (_other, other)) = (folder(), folder());
    let (first, directory) = embedding(&one, "bank/first");
    let second = Node::at(&other, &directory, "shop/second");
    second.says("registered as shop/second in unix:");
    for name in ["bank/first", "shop/second"] {
        let mut session = find_in(&directory, name).expect("it is registered");
        session.allocate(portcullis::Allocate::bytes(64)).expect("the node serves");
    }
    let put = ["kv", "put", "--node", "name:shop/second", "cities", "Bern", "134591"];
    let put = portcullis(&put).env("PORTCULLIS_DIRECTORY", &directory).output().expect("it starts");
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    // The second node's name is free as soon as the node's connection has ended.
    second.kill();
    let third = Node::at(&other, &directory, "shop/second");
    third.says("registered as shop/second in");
    // The directory ends with its node. A node that is registered there continues to serve, and registers again once
    // the directory is back.
    drop(first);
    third.says("the registration as shop/second is lost");
    connect(&third.addresses[0]).expect("it serves on");
    let (_first, _) = embedding(&one, "bank/first");
    third.says("registered as shop/second again");
    find_in(&directory, "shop/second").expect("it is registered again");
}

#[test]
fn the_name_of_a_killed_node_is_free_after_its_lease() {
    let Some(server) = rig::shared() else { return };
    let ((_one, one), (_other, other)) = (folder(), folder());
    let first = Node::at(&one, &place(&server), "bank/killed");
    first.says("registered as bank/killed in");
    let second = Node::at(&other, &place(&server), "bank/killed");
    second.says("not registered as bank/killed yet: another process has the name");
    connect(&second.addresses[0]).expect("it serves meanwhile");
    first.kill();
    second.says("registered as bank/killed in");
    let mut session = find(&server, "bank/killed").expect("it is registered");
    session.allocate(portcullis::Allocate::bytes(64)).expect("the second node serves");
}

#[test]
fn a_node_that_moves_is_found_where_it_is() {
    let Some(server) = rig::shared() else { return };
    let ((_one, one), (_other, other)) = (folder(), folder());
    let first = Node::at(&one, &place(&server), "bank/moved");
    first.says("registered as bank/moved in");
    drop(first);
    let second = Node::at(&other, &place(&server), "bank/moved");
    second.says(&format!(": {}", socket(&other)));
    find(&server, "bank/moved").expect("it is found where it is now");
}

#[test]
fn a_node_serves_while_etcd_is_away_and_is_found_when_it_is_back() {
    let Some(mut server) = Server::start() else { return };
    let ((_one, one), (_other, other)) = (folder(), folder());
    let node = Node::at(&one, &place(&server), "bank/stays");
    node.says("registered as bank/stays in");
    server.kill();
    node.says("the registration as bank/stays is lost");
    let mut session = connect(&node.addresses[0]).expect("who knows the address needs no directory");
    session.allocate(portcullis::Allocate::bytes(64)).expect("it serves on");
    let late = Node::at(&other, &place(&server), "bank/late");
    late.says("not registered as bank/late yet");
    connect(&late.addresses[0]).expect("it serves");
    server.restart();
    node.says("registered as bank/stays again");
    late.says("registered as bank/late in");
    for name in ["bank/stays", "bank/late"] {
        find(&server, name).expect("it is registered again");
    }
}

#[test]
fn another_socket_at_the_path_is_not_the_node() {
    let Some(server) = rig::shared() else { return };
    let (_folder, path) = folder();
    let node = Node::at(&path, &place(&server), "bank/file");
    node.says("registered as bank/file in");
    std::fs::rename(path.join("node.sock"), path.join("elsewhere.sock")).expect("it is ours");
    let foreign = Node::at(&path, &place(&server), "bank/foreign");
    foreign.says("registered as bank/foreign in");
    let told = find(&server, "bank/file").expect_err("the file is another");
    assert_eq!(told.code(), ErrorCode::NameLeadsNowhere, "{told}");
    assert!(told.to_string().contains("another socket is at that path here"), "{told}");
    find(&server, "bank/foreign").expect("it is the right one for this name");
}

#[test]
fn a_name_that_nobody_has_says_who_would_register_it() {
    let Some(server) = rig::shared() else { return };
    let told = find(&server, "bank/nobody").expect_err("nobody has it");
    assert!(matches!(told, ConnectError::Find(FindError::Directory { .. })), "{told}");
    assert_eq!(told.code(), ErrorCode::NoSuchName);
    assert!(told.is_retryable() && told.to_string().contains("--name bank/nobody"), "{told}");
    let listed = portcullis(&["kv", "list", "--node", "name:bank/nobody", "cities"])
        .env("PORTCULLIS_DIRECTORY", place(&server))
        .output()
        .expect("it starts");
    assert_eq!(listed.status.code(), Some(3));
}

#[test]
fn who_does_not_say_where_the_directory_is_is_told_how() {
    let list = ["kv", "list", "--node", "name:bank/a", "cities"];
    let said = wrong(&list);
    assert!(said.contains("set PORTCULLIS_DIRECTORY"), "{said}");
    for (address, told) in
        [("etcd:nowhere", "not an http:// or https://"), ("nowhere", "etcd:http://HOST:PORT")]
    {
        let Output { status, stderr, .. } =
            portcullis(&list).env("PORTCULLIS_DIRECTORY", address).output().expect("it starts");
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(2) && said.contains(told), "{address}: {said}");
    }
    let said = wrong(&["kv", "list", "--node", "name:bank//a", "cities"]);
    assert!(said.contains("not the name of a node"), "{said}");
}

#[test]
fn what_cannot_be_registered_is_refused_with_the_flag_that_mends_it() {
    let etcd = ["--directory", "etcd:http://127.0.0.1:1"];
    let named = [&etcd[..], &["--name", "bank/a"]].concat();
    let (shm, udp, any) = ("shm:/run/none/a.sock", "udp:127.0.0.1:0", "udp:0.0.0.0:7472");
    let cases: [(&[&str], &[&str], &str); 13] = [
        (&[udp], &["--name", "bank/a", "--directory", "embedded"], "write embedded:PATH"),
        (&[shm], &etcd, "--name TENANT/NODE"),
        (&[shm], &[&etcd[..], &["--name", "a"]].concat(), "TENANT/a"),
        (&[shm], &[&etcd[..], &["--name", "bank//a"]].concat(), "--name bank//a"),
        (&[shm], &["--name", "bank/a"], "--directory"),
        (&[shm], &["--advertise", "udp:a:1"], "--advertise needs --directory"),
        (&[shm], &["--directory-certificates", "/x"], "--directory-certificates needs --directory"),
        (&[shm], &["--directory", "etcd:http://10.0.0.7:1", "--name", "bank/a"], "https://"),
        (&[shm], &[&named[..], &["--directory-lease", "0"]].concat(), "whole seconds"),
        (&[shm], &[&named[..], &["--directory-certificates", "/none"]].concat(), "client-key.pem"),
        (&[shm], &[&named[..], &["--advertise", "udp:a:1"]].concat(), "no --listen is of that kind"),
        (&[shm], &[&named[..], &["--advertise", "shm:/a"]].concat(), "leave it out"),
        (&[any], &named, "--advertise udp:HOST:7472"),
    ];
    let two: (&[&str], &[&str], &str) =
        (&[udp, udp], &[&named[..], &["--advertise", "udp:a:0"]].concat(), "write the port");
    let wild: (&[&str], &[&str], &str) =
        (&[any], &[&named[..], &["--advertise", "udp:[::]:1"]].concat(), "write the host");
    for (listen, rest, told) in cases.into_iter().chain([two, wild]) {
        let mut words = vec!["serve"];
        listen.iter().for_each(|address| words.extend(["--listen", address]));
        let said = wrong(&[&words[..], rest].concat());
        assert!(said.contains(told), "{rest:?}: {said}");
    }
}
