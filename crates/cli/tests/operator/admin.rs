//! `portcullis admin` with a running node.

use super::node::{Node, count, errors, folder, log, portcullis, wait_for};
use portcullis::host::WallTime;
use portcullis::{Access, Allocate, Lifetime, RemoteAddress, Rkey, Session, Unchecked, connect};
use serde_json::Value;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;

/// Options of a node with an operator's socket, which bars a tenant at the third guess.
const STRICT: &[&str] = &[
    "--admin",
    "node.admin",
    "--audit",
    "audit.jsonl",
    "--violations-free",
    "0",
    "--violations-pause-max",
    "1ms",
    "--violations-bar-after",
    "3",
];

fn admin(place: &Path, words: &[&str]) -> Output {
    let place = place.to_str().expect("text");
    portcullis(&["admin", "--node", place]).args(words).output().expect("the program starts")
}

fn json(place: &Path, words: &[&str]) -> Value {
    let output = admin(place, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Uses keys that the client never had, until the node bars the client's tenant.
fn guess_until_barred(session: &mut Session) {
    wait_for("the bar", || {
        let buffer = session.buffer(8).expect("room");
        let target = Unchecked::new(RemoteAddress(0x1000_0000_0000), Rkey(0x00ab_cd00));
        let guess = session.client().dangerous_access(Access::read(target, 0, buffer));
        if let Ok(operation) = guess {
            // The result does not matter: the access is refused.
            let _ = session.wait(operation);
        }
        let ask = Allocate::bytes(64).lifetime(Lifetime::millis(1));
        session.allocate(ask).is_err_and(|error| error.to_string().contains("barred"))
    });
}

fn own_tenant() -> String {
    format!("uid:{}", rustix::process::geteuid().as_raw())
}

#[test]
fn a_barred_tenant_is_listed_with_the_reason_and_served_again_when_the_operator_says_so() {
    let node = Node::start(folder(), STRICT);
    let (place, tenant) = (node.path("node.admin"), own_tenant());
    let address = format!("shm:{}", node.path("node.sock").display());
    assert!(text(&admin(&place, &["list"])).contains("No tenant or client is barred"));
    let mut session = node.connect();
    guess_until_barred(&mut session);
    assert!(connect(&address).is_err_and(|error| error.to_string().contains("barred")));

    let bars = json(&place, &["list"]);
    let bar = bars["bars"].as_array().expect("a list").iter().find(|bar| bar["client"].is_null());
    let bar = bar.unwrap_or_else(|| panic!("the tenant is barred: {bars}"));
    assert_eq!((&bar["tenant"], &bar["barred"]), (&Value::from(tenant.clone()), &Value::from(true)));
    let time = |name: &str| -> WallTime { bar[name].as_str().expect("a time").parse().expect("a time") };
    assert!(time("since") <= std::time::SystemTime::now().into() && time("since") < time("until"));
    let told = text(&admin(&place, &["list"]));
    for part in [&*tenant, "barred", bar["reason"].as_str().expect("a reason")] {
        assert!(told.contains(part), "{told}");
    }

    assert_eq!(json(&place, &["unbar", &tenant])["unbarred"], true);
    let mut again = connect(&address).expect("its tenant is served again");
    let it = again.allocate(Allocate::bytes(64)).expect("a permission");
    again.write(&it, 0, b"here again").expect("a write");
    let output = admin(&place, &["unbar", &tenant]);
    assert_eq!(output.status.code(), Some(1), "nobody is barred any more");
    assert!(errors(&output).contains(&tenant), "{}", errors(&output));
    drop((session, again));
    let (_, folder) = node.stop();
    let log = log(&folder.path().join("audit.jsonl"));
    assert_eq!((count(&log, "bar"), count(&log, "unbar")), (1, 1), "both are written down");
}

#[test]
fn clients_are_shown_with_what_they_hold_and_counters_with_the_state_of_the_log() {
    let node = Node::start(folder(), STRICT);
    let place = node.path("node.admin");
    assert!(text(&admin(&place, &["clients"])).contains("No client is attached"));
    let mut session = node.connect();
    let held = [64, 100].map(|bytes| session.allocate(Allocate::bytes(bytes)).expect("a permission"));
    let told = json(&place, &["clients"]);
    let client = &told["clients"][0];
    let expected = serde_json::json!({
        "client": session.number(),
        "tenant": own_tenant(),
        "process": std::process::id(),
        "permissions": 2,
        "bytes": 164,
        "chunks": 0,
        "violations": { "late": 0, "stray": 0, "guesses": 0 },
        "standing": { "is": "good" },
    });
    assert_eq!(*client, expected);
    assert!(text(&admin(&place, &["clients"])).contains(&own_tenant()));
    let told = json(&place, &["counters"]);
    assert_eq!((&told["counters"]["grants"], &told["counters"]["clients"]), (&2.into(), &1.into()));
    wait_for("the log", || json(&place, &["counters"])["audit"]["written"] == 4);
    assert!(text(&admin(&place, &["counters"])).contains("audit log: written"));
    drop((held, session));
    node.stop();
}

#[test]
fn the_work_of_each_engine_is_shown() {
    let node = Node::start(folder(), &["--admin", "node.admin", "--engines", "2"]);
    let place = node.path("node.admin");
    let idle = serde_json::json!([{ "clients": 0, "requests": 0 }, { "clients": 0, "requests": 0 }]);
    assert_eq!(json(&place, &["counters"])["engines"], idle);
    let mut session = node.connect();
    let held = session.allocate(Allocate::bytes(64)).expect("a permission");
    let mut bytes = [0; 64];
    wait_for("an engine", || {
        for _ in 0..1000 {
            session.read(&held, 0, &mut bytes).expect("read");
        }
        let engines = json(&place, &["counters"])["engines"].clone();
        engines.as_array().expect("two").iter().any(|engine| engine["requests"].as_u64() > Some(0))
    });
    assert!(text(&admin(&place, &["counters"])).contains("engine 1: requests"));
    wait_for("the idle client to be the node's again", || {
        let engines = json(&place, &["counters"])["engines"].clone();
        engines.as_array().expect("two").iter().all(|engine| engine["clients"] == 0)
    });
    drop((held, session));
    node.stop();
}

#[test]
fn where_no_node_is_the_exit_code_says_so_and_a_wrong_call_has_another() {
    let folder = folder();
    let nowhere = folder.path().join("nowhere");
    let output = admin(&nowhere, &["list"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        errors(&output).contains("nowhere") && errors(&output).contains("--admin"),
        "{}",
        errors(&output)
    );
    std::fs::write(folder.path().join("file"), "").expect("written");
    assert_eq!(admin(&folder.path().join("file"), &["list"]).status.code(), Some(3));
    assert_eq!(admin(&nowhere, &["unbar"]).status.code(), Some(2));
    assert_eq!(admin(&nowhere, &["shoot"]).status.code(), Some(2));

    let node = Node::start(folder, STRICT);
    let place = node.path("node.sock");
    let output = admin(&place, &["list"]);
    assert_eq!(output.status.code(), Some(3), "clients' socket is not the operator's");
    assert!(errors(&output).contains("not a node's socket for operators"), "{}", errors(&output));
    node.connect();
    let folder = node.kill();
    let output = admin(&folder.path().join("node.admin"), &["list"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(errors(&output).contains("no node listens there any more"), "{}", errors(&output));
    // The files of a killed node do not prevent a new start, and the next node removes them.
    let (output, folder) = Node::start(folder, STRICT).stop();
    assert!(output.status.success() && !folder.path().join("node.admin").exists());
}

#[test]
fn another_user_is_refused_by_the_file_and_by_the_node() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    let node = Node::start(folder(), STRICT);
    let place = node.path("node.admin");
    let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    let program = node.path("portcullis");
    // Copied by another process: a child that another test starts meanwhile would inherit the copy, open for writing,
    // and no process could execute it.
    let copied =
        std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_portcullis")).arg(&program).status();
    assert!(copied.is_ok_and(|copied| copied.success()), "a copy");
    mode(place.parent().expect("a folder"), 0o755);
    let ask = || {
        let mut command = std::process::Command::new(&program);
        command.arg("admin").arg("--node").arg(&place).arg("list");
        command.uid(65534).gid(65534).output().expect("the program starts")
    };
    let output = ask();
    assert_eq!(output.status.code(), Some(3));
    assert!(errors(&output).contains("only root and the node's own user"), "{}", errors(&output));
    mode(&place, 0o666);
    let output = ask();
    assert_eq!(output.status.code(), Some(3));
    assert!(errors(&output).contains("the node refuses: only root"), "{}", errors(&output));
    node.stop();
}
