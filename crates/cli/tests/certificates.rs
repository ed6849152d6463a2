//! `portcullis certificates` as a program: its certificates give access to a node, and its output is reliable.

use portcullis_attach::tls::{ClientIdentity, NodeIdentity};
use std::path::Path;
use std::process::{Command, Output};

fn certificates(directory: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["certificates", "--directory"])
        .arg(directory)
        .args(words)
        .output()
        .expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_it_makes_can_be_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let pki = folder.path().join("new").join("pki");
    for words in [
        &["authority"][..],
        &["node", "one", "--host", "localhost", "--host", "10.0.0.1"],
        &["tenant", "orange", "--days", "30"],
    ] {
        let output = certificates(&pki, words);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let load = |name: &str| {
        [pki.join("ca.pem"), pki.join(format!("{name}.pem")), pki.join(format!("{name}-key.pem"))]
    };
    let [authority, certificate, key] = load("tenant-orange");
    assert_eq!(ClientIdentity::load(&authority, &certificate, &key).expect("usable").tenant(), "orange");
    let [authority, certificate, key] = load("node-one");
    NodeIdentity::load(&authority, &certificate, &key).expect("usable");
}

#[test]
fn it_says_what_it_made_as_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = certificates(folder.path(), &["authority", "--days", "2", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["made"], "authority");
    assert!(Path::new(said["certificate"].as_str().expect("a path")).exists());
    assert!(Path::new(said["key"].as_str().expect("a path")).exists());
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let left = said["expires"].as_u64().expect("a time") - now;
    assert!((2 * 86_400 - 60..=2 * 86_400).contains(&left), "{left}");
}

#[test]
fn exit_codes_tell_a_wrong_call_from_a_machine_that_refuses() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = certificates(&folder.path().join("none"), &["tenant", "orange"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains("authority"), "{}", text(&missing.stderr));
    assert_eq!(certificates(folder.path(), &["authority"]).status.code(), Some(0));
    assert_eq!(certificates(folder.path(), &["authority"]).status.code(), Some(3));
    for words in [
        &["tenant", "uid:0"][..],
        &["tenant", "orange", "--days", "0"],
        &["node", "one", "--host", "a host"],
        &["node", "one"],
        &["orange"],
    ] {
        assert_eq!(certificates(folder.path(), words).status.code(), Some(2), "{words:?}");
    }
}
