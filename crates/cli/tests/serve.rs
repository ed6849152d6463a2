//! `portcullis serve` as a program: its effects on the file system, its refusals, and its output.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// Makes a call that must fail before it serves. Returns its exit code and its standard error.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } =
        portcullis(&[&["serve"], arguments].concat()).output().expect("the program starts");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// A user other than the one that runs the tests.
const SOMEBODY: u32 = 54_321;

/// A node that ends with its test, because its standard input ends then.
struct Node {
    child: Child,
    said: Value,
}

impl Node {
    fn start(arguments: &[&str]) -> Self {
        Self::spawn(portcullis(&[&["serve"], arguments].concat()))
    }

    fn spawn(mut command: Command) -> Self {
        command.args(["--json", "--stop-at-end-of-input"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let said = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says {line:?} and no address"));
        Self { child, said }
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let own = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(folder.path(), own).expect("it is ours");
    let path = folder.path().join("node.sock");
    (folder, path)
}

fn listen(path: &Path) -> String {
    format!("shm:{}", path.display())
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("a socket").permissions().mode() & 0o777
}

#[test]
fn a_file_where_it_is_to_listen_stays_and_is_named() {
    let (_folder, path) = folder();
    std::fs::write(&path, "someone's work").expect("a file");
    let (code, said) = refused(&["--listen", &listen(&path)]);
    assert_eq!(code, Some(3), "{said}");
    for part in ["--listen", path.to_str().expect("text"), "a regular file exists"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "someone's work");
}

#[test]
fn a_second_node_leaves_the_first_ones_socket_alone() {
    let (_folder, path) = folder();
    let mut first = Node::start(&["--listen", &listen(&path)]);
    let (code, said) = refused(&["--listen", &listen(&path)]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("a node listens there already"), "{said}");
    assert!(path.exists());
    first.stop();
    assert!(!path.exists(), "its own socket goes with it");
}

#[test]
fn a_killed_nodes_socket_is_replaced() {
    let (_folder, path) = folder();
    let mut first = Node::start(&["--listen", &listen(&path)]);
    first.child.kill().expect("it can be killed");
    first.child.wait().expect("it ends");
    assert!(path.exists());
    Node::start(&["--listen", &listen(&path)]).stop();
}

#[test]
fn sockets_are_open_to_whom_they_are_said_to_be_open_to() {
    let (folder, path) = folder();
    let named = folder.path().join("orange.sock");
    let mut node =
        Node::start(&["--listen", &listen(&path), "--listen", &format!("{}?tenant=orange", listen(&named))]);
    assert_eq!((mode(&path), mode(&named)), (0o666, 0o600));
    let said = &node.said["sockets"];
    assert_eq!((&said[0]["mode"], &said[1]["mode"]), (&"0666".into(), &"0600".into()));
    let told = |at: usize| said[at]["open_to"].as_str().unwrap_or_default().to_owned();
    assert!(told(0).starts_with("open to every user of this machine, as far as they may enter"), "{said}");
    assert!(told(1).ends_with(" alone"), "{said}");
    node.stop();

    let group = rustix::process::getegid().as_raw().to_string();
    let mut node = Node::start(&["--listen", &listen(&path), "--socket-group", &group]);
    assert_eq!(mode(&path), 0o660);
    node.stop();
    let mut node = Node::start(&["--listen", &listen(&path), "--socket-mode", "0640"]);
    assert_eq!(mode(&path), 0o640);
    node.stop();
    let (code, said) = refused(&["--listen", &listen(&path), "--socket-mode", "640"]);
    assert!(code == Some(2) && said.contains("--socket-mode") && said.contains("octal"), "{said}");
}

#[test]
fn another_user_gets_in_where_every_user_is_said_to_and_nowhere_else() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can try this as somebody else");
        return;
    }
    let (folder, path) = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let named = folder.path().join("orange.sock");
    let named = format!("{}?tenant=orange", listen(&named));
    let node = Node::start(&["--listen", &listen(&path), "--listen", &named]);
    let (address, _) = named.split_once('?').expect("an address");
    for (address, gets_in) in [(listen(&path), true), (address.to_owned(), false)] {
        let mut client = portcullis(&["kv", "create", "--node", &address, "cities"]);
        match client.uid(SOMEBODY).gid(SOMEBODY).current_dir("/").output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.success(), gets_in, "{address}: {said}");
                let told =
                    said.contains("this user (54321) may not connect") && said.contains("--socket-group");
                assert!(gets_in || told, "{said}");
            }
            Err(error) => eprintln!("skipped: somebody else cannot run the program here: {error}"),
        }
    }
    drop(node);
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused_with_both_numbers() {
    let (_folder, path) = folder();
    let (code, said) = refused(&["--listen", &listen(&path), "--memory", "100TiB"]);
    assert_eq!(code, Some(3), "{said}");
    // The headers and the clients' ports count in addition to the memory.
    let (memory, ports) = ((100u64 << 40) + 65_536 * 32, 512u64 << 20);
    let asked = memory + ports;
    let told = format!("--memory ({memory}) and --ports-memory ({ports}) come to {asked} bytes");
    assert!(said.contains(&told), "{said}");
    let (_, rest) = said.split_once("included, ").expect("what there is");
    let there: u64 = rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
    assert!(there < asked && said.contains("--overcommit"), "{said}");
    assert!(!path.exists());
}

#[test]
fn memory_beyond_a_limit_of_the_process_is_refused_too() {
    let (_folder, path) = folder();
    let program = env!("CARGO_BIN_EXE_portcullis");
    let line = format!(
        "ulimit -v 2000000; exec {program} serve --overcommit --memory 4GiB --listen {}",
        listen(&path)
    );
    let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("--memory (4297064448) and") && said.contains("ulimit -v"), "{said}");
    assert!(!said.contains("--overcommit"), "it would not help: {said}");
}

#[test]
fn a_limit_that_makes_no_sense_is_called_by_its_option() {
    let wrong = [
        "--memory=4096",
        "--headers=0",
        "--longest-lifetime=0s",
        "--longest-wait=3000min",
        "--quota-bytes=0",
        "--quota-objects=0",
        "--objects-max=0",
        "--steps-per-turn=1",
        "--quota-permissions=0",
        "--violations-free-again=0s",
        "--violations-pause-min=2s",
        "--violations-pause-max=0s",
        "--violations-bar-after=0",
        "--longest-keep=3000min",
        "--bar-for=0s",
        "--late-grace=3000min",
        "--keys-remembered=0",
        "--excuse-again=0s",
        "--window-rest=3000min",
        "--linger-max=3000min",
        "--spare-queue-pairs=65",
        "--spare-queue-pairs=16",
        "--windows-ready=300000",
        "--windows-max=0",
        "--recoveries-max=0",
        "--postponed-max=0",
        "--clients-max=0",
        "--requests-per-turn=0",
        "--audit-records-max=0",
        "--send-depth=100",
        "--control-depth=8192",
        "--processors=100000",
    ];
    for argument in wrong {
        let (code, said) = refused(&["--listen", "shm:/nowhere/node.sock", argument]);
        let option = argument.split('=').next().expect("an option");
        assert!(matches!(code, Some(2 | 3)), "{argument}: {code:?}");
        assert!(said.contains(option), "{argument}: {said}");
        assert!(!said.contains('_'), "a field of the library's: {said}");
    }
    let (code, said) = refused(&[]);
    assert!(code == Some(2) && said.contains("--listen shm:PATH"), "{said}");
    let (code, said) = refused(&["--listen", "shm:/nowhere/node.sock", "--listen", "rdma:127.0.0.1:0"]);
    assert!(code == Some(2) && said.contains("--listen: a node is on one NIC"), "{said}");
    let (code, said) = refused(&["--listen", "shm:/nowhere/node.sock", "--audit", "/nowhere/audit.jsonl"]);
    assert!(code == Some(3) && said.contains("--audit") && said.contains("/nowhere/audit.jsonl"), "{said}");
    let (code, said) = refused(&["--listen", "shm:/nowhere/node.sock"]);
    assert!(code == Some(3) && said.contains("there is no directory /nowhere"), "{said}");
    let (code, said) = refused(&["--listen", "rdma:127.0.0.1:0", "--certificates", "/nowhere"]);
    assert!(code == Some(2) && said.contains("--name"), "{said}");
}

#[test]
fn a_file_of_settings_is_read_and_what_is_in_force_is_printed() {
    let (folder, path) = folder();
    let file = folder.path().join("serve.toml");
    let listen = listen(&path);
    let text = format!("memory = \"32MiB\"\nlisten = [\"{listen}\"]\nlongest-lifetime = \"50ms\"\n");
    std::fs::write(&file, text).expect("a file");
    let file = file.to_str().expect("text");
    let mut node = Node::start(&["--config", file]);
    assert_eq!(node.said["listening"][0], listen.as_str());
    node.stop();

    let print = |arguments: &[&str]| {
        let output =
            portcullis(&[&["serve", "--print-config"], arguments].concat()).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let said = print(&["--config", file, "--memory", "64MiB"]);
    let line = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("memory").contains("\"64MiB\"") && line("memory").ends_with("# the command line"), "{said}");
    assert!(
        line("longest-lifetime").contains("\"50ms\"") && line("longest-lifetime").contains(file),
        "{said}"
    );
    assert!(line("clients-max").ends_with("# default"), "{said}");
    let printed = folder.path().join("printed.toml");
    std::fs::write(&printed, &said).expect("a file");
    let again = print(&["--config", printed.to_str().expect("text")]);
    assert!(again.contains("memory = \"64MiB\""), "{again}");
    assert!(!path.exists(), "printing starts no node");

    std::fs::write(file, "memroy = \"1GiB\"\n").expect("a file");
    let (code, said) = refused(&["--config", file]);
    assert!(code == Some(2) && said.contains("did you mean memory?") && said.contains(file), "{said}");
    let (code, said) = refused(&["--config", "/nowhere.toml"]);
    assert!(code == Some(3) && said.contains("/nowhere.toml"), "{said}");
}

#[test]
fn a_node_cannot_be_looked_into_by_its_user_and_its_pool_is_in_no_core_dump() {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can try this as somebody else");
        return;
    }
    let (folder, path) = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let mut command = portcullis(&["serve", "--listen", &listen(&path)]);
    command.uid(SOMEBODY).gid(SOMEBODY).current_dir("/");
    let tried = portcullis(&["--version"]).uid(SOMEBODY).gid(SOMEBODY).current_dir("/").output();
    if let Err(error) = tried {
        eprintln!("skipped: somebody else cannot run the program here: {error}");
        return;
    }
    let node = Node::spawn(command);
    let process = node.said["process"].as_u64().expect("a number");
    // The kernel assigns files that show a process to root, if the process does not let itself be dumped.
    let owner = std::fs::metadata(format!("/proc/{process}/environ")).expect("it runs").uid();
    assert_eq!(owner, 0, "its user can look into it");
    let maps = std::fs::read_to_string(format!("/proc/{process}/smaps")).expect("root may look");
    let kept_out = maps.lines().filter(|line| line.starts_with("VmFlags:") && line.contains(" dd")).count();
    assert!(kept_out > 0, "the pool would be in a core dump");
}
