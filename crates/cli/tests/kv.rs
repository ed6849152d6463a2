//! `portcullis kv` as a program, with a node process: the behaviour that people and scripts may rely on.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest wait on a busy machine for an event that otherwise takes a moment.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A node with a tenant `orange` and a tenant `blue`. It ends with its test, because its standard input ends then.
struct Node {
    child: Child,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

/// The result of a call.
struct Said {
    code: Option<i32>,
    bytes: Vec<u8>,
    errors: String,
}

impl From<Output> for Said {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        Self { code: status.code(), bytes: stdout, errors: String::from_utf8_lossy(&stderr).into_owned() }
    }
}

impl Said {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).expect("text")
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("{:?} {}", self.bytes, self.errors))
    }

    /// Checks that the call ended with this code.
    #[track_caller]
    fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.errors);
        self
    }

    /// Checks that the call failed with this code, and that its errors contain each of these parts.
    #[track_caller]
    fn refused(self, code: i32, parts: &[&str]) {
        let said = self.with_code(code).errors;
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
    }
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = portcullis(["serve", "--json", "--stop-at-end-of-input"]);
        command.args(["--memory", "256MiB", "--longest-keep", "forever"]);
        for tenant in ["orange", "blue"] {
            let address = address(folder.path(), tenant);
            command.arg("--listen").arg(format!("{address}?tenant={tenant}"));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut node = Self { child, output, folder };
        assert!(node.says()["listening"].is_array());
        node
    }

    /// The next line of the node's output.
    fn says(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says {line:?}"))
    }

    /// The number of the node's objects.
    fn objects(&mut self) -> u64 {
        kill_process(Pid::from_child(&self.child), Signal::USR1).expect("it runs");
        self.says()["counters"]["objects"].as_u64().expect("a number")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file with this content.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), content).expect("a file");
        self.path(name)
    }

    /// `portcullis kv COMMAND` as a client of a tenant.
    fn command_as<A: AsRef<OsStr>>(&self, tenant: &str, command: &str, arguments: &[A]) -> Command {
        let mut program = portcullis(["kv", command, "--node"]);
        program.arg(address(self.folder.path(), tenant)).args(arguments).current_dir(&self.folder);
        program
    }

    fn command<A: AsRef<OsStr>>(&self, command: &str, arguments: &[A]) -> Command {
        self.command_as("orange", command, arguments)
    }

    /// Runs `portcullis kv COMMAND` and returns the result.
    fn kv<A: AsRef<OsStr>>(&self, command: &str, arguments: &[A]) -> Said {
        self.command(command, arguments).output().expect("it runs").into()
    }

    /// Runs `portcullis kv COMMAND` with an input.
    fn kv_with(&self, input: &[u8], command: &str, arguments: &[&str]) -> Said {
        let mut program = self.command(command, arguments);
        let piped = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("it starts");
        child.stdin.take().expect("it is piped").write_all(input).expect("it reads");
        child.wait_with_output().expect("it ends").into()
    }

    /// All keys and values of a table.
    fn content(&self, table: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let dumped = self.kv("dump", &[table]).with_code(0);
        let mut all = BTreeMap::new();
        for line in dumped.text().lines() {
            let pair: Value = serde_json::from_str(line).expect("an object");
            let twice = all.insert(field(&pair, "key"), field(&pair, "value"));
            assert!(twice.is_none(), "a key is there twice: {line}");
        }
        all
    }

    fn statistics(&self, table: &str) -> Value {
        self.kv("stat", &[table, "--json"]).with_code(0).json()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn portcullis<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

fn address(folder: &Path, tenant: &str) -> String {
    format!("shm:{}", folder.join(format!("{tenant}.sock")).display())
}

/// The bytes of a field, which is written in base64 if the bytes are not text.
fn field(object: &Value, name: &str) -> Vec<u8> {
    match object[name].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => {
            let encoded = object[format!("{name}_base64")].as_str().expect("the field");
            BASE64_STANDARD.decode(encoded).expect("base64")
        }
    }
}

/// The lines of a stream, for which a test can wait with a time limit.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    lines
}

#[track_caller]
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "waiting for {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_value_comes_back_until_it_is_removed_and_exit_codes_say_what_happened() {
    let node = Node::start();
    assert_eq!(node.kv("put", &["t", "Bern", "old"]).with_code(0).text(), "Bern: new\n");
    assert_eq!(node.kv("put", &["t", "Bern", "new"]).with_code(0).text(), "Bern: replaced\n");
    assert_eq!(node.kv("get", &["t", "Bern"]).with_code(0).text(), "new");
    let both = node.kv("get", &["t", "Bern", "Basel", "--json"]).with_code(1);
    assert_eq!(both.text(), "{\"key\":\"Bern\",\"value\":\"new\"}\n{\"key\":\"Basel\",\"value\":null}\n");
    node.kv("get", &["t", "Basel"]).refused(1, &["no key Basel"]);
    node.kv("get", &["t", "Bern", "Basel", "--output", "x"]).refused(2, &["--output", "one KEY"]);

    let stored = |arguments: &[&str], code| {
        let arguments = [&["t"], arguments, &["--json"]].concat();
        node.kv("put", &arguments).with_code(code).json()["stored"].clone()
    };
    assert_eq!(stored(&["Bern", "newer", "--if-absent"], 1), "unchanged");
    assert_eq!(stored(&["Basel", "1", "--if-present"], 1), "unchanged");
    assert_eq!(stored(&["Basel", "1", "--if-absent"], 0), "inserted");
    assert_eq!(stored(&["Basel", "2", "--if-present"], 0), "replaced");
    node.kv("put", &["t", "Bern", "x", "--if-absent"]).refused(1, &["Bern exists already"]);
    node.kv("put", &["t", "Genf", "x", "--if-present"]).refused(1, &["Genf does not exist"]);
    assert_eq!(node.kv("get", &["t", "Bern", "Basel"]).with_code(0).text(), "Bern\tnew\nBasel\t2\n");

    let removed = node.kv("del", &["t", "Bern", "Genf", "--json"]).with_code(1);
    assert_eq!(removed.json(), json!({"removed": 1, "absent": 1}));
    assert!(removed.errors.contains("no key Genf"), "{}", removed.errors);
    node.kv("del", &["t", "Basel"]).with_code(0);
    assert!(node.content("t").is_empty());
    node.kv("create", &["t"]).refused(1, &["table t exists already", "kv drop"]);
    node.kv("put", &["t", "Bern"]).refused(2, &["VALUE"]);
}

#[test]
fn any_bytes_come_back() {
    let node = Node::start();
    let all: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..MIB).map(|at| (at * 31 % 251).to_le_bytes()[0]).collect();
    let file = node.file("large", &large);
    // The shell cannot write a zero byte in a word.
    let key = OsStr::from_bytes(&all[1..]);
    assert!(node.kv_with(&all, "put", &["t", "all", "-"]).code == Some(0));
    node.kv("put", &[OsStr::new("t"), key, OsStr::new("")]).with_code(0);
    node.kv("put", &[OsStr::new("t"), OsStr::new(""), key]).with_code(0);
    node.kv("put", &[OsStr::new("t"), OsStr::new("large"), OsStr::new("--file"), file.as_os_str()])
        .with_code(0);
    let line = json!({"key_base64": BASE64_STANDARD.encode(&all), "value_base64": "/wA="}).to_string();
    node.kv_with(line.as_bytes(), "load", &["t", "-", "--format", "jsonl", "--value", "value"]).with_code(0);

    let get = |key: &OsStr| node.kv("get", &[OsStr::new("t"), key]).with_code(0).bytes;
    assert_eq!(get(OsStr::new("all")), all);
    assert_eq!(get(key), b"");
    assert_eq!(get(OsStr::new("")), all[1..]);
    node.kv("get", &["t", "large", "--output", "copy"]).with_code(0);
    assert!(std::fs::read(node.path("copy")).expect("a file") == large, "a long value is changed");
    let content = node.content("t");
    assert_eq!((content.len(), &content[&all][..]), (5, &b"\xff\0"[..]));

    std::fs::write(&file, [&large[..], b"x"].concat()).expect("a file");
    node.kv("put", &["t", "large", "--file", "large"]).refused(2, &["1048576", "1048577"]);
    let long = OsString::from("k".repeat(65_536));
    node.kv("put", &[OsStr::new("t"), &long, OsStr::new("x")]).refused(2, &["65535", "65536"]);
    let absent = node.kv("get", &[OsStr::new("t"), &long]).with_code(1);
    assert!(absent.errors.len() < 500, "a key floods the terminal: {} bytes", absent.errors.len());
    assert!(get(OsStr::new("large")) == large, "what was refused has changed something");
}

#[test]
fn what_was_loaded_and_dumped_is_loaded_again_as_it_was() {
    let node = Node::start();
    let mut rows = String::from("value,city,note\n");
    let mut objects = String::new();
    std::fs::create_dir_all(node.path("tree/a/b")).expect("folders");
    for number in 0..2_000usize {
        rows += &format!("\"{number},\"\"x\"\"\n\",city {number},\n");
        objects += &format!("{{\"id\": {number}, \"name\": \"n\\u00fc{number}\"}}\n");
        if number < 50 {
            node.file(&format!("tree/a/b/{number}"), vec![number.to_le_bytes()[0]; number * 100]);
        }
    }
    node.file("rows.csv", rows);
    node.file("objects.jsonl", objects);
    for (input, more, dump, again) in [
        ("rows.csv", &["--key", "city"][..], "1.csv", &[][..]),
        ("objects.jsonl", &["--key", "id"], "2.jsonl", &["--value", "value"]),
        ("tree", &[], "3", &[]),
    ] {
        let format: &[&str] = if input == "tree" { &["--format", "folder"] } else { &[] };
        let loaded = node.kv("load", &[&[input, input], more, &["--json"]].concat()).with_code(0).json();
        let first = node.content(input);
        assert_eq!(loaded["keys"], first.len(), "{input}");
        assert_eq!((&loaded["replaced"], &loaded["left_out"]), (&json!(0), &json!([])), "{input}");
        node.kv("dump", &[&[input, dump], format].concat()).with_code(0);
        node.kv("load", &[&[dump, dump], again].concat()).with_code(0);
        assert!(node.content(dump) == first, "{input} is not what was dumped and loaded again");
    }
    assert_eq!(node.content("rows.csv")[&b"city 7"[..]], b"7,\"x\"\n");
    assert_eq!(node.content("objects.jsonl")[&b"7"[..]], "{\"id\": 7, \"name\": \"n\\u00fc7\"}".as_bytes());
    assert_eq!(node.content("tree")[&b"a/b/7"[..]], [7; 700]);
}

#[test]
fn each_format_of_a_dump_keeps_what_it_can_and_names_what_it_leaves_out() {
    let node = Node::start();
    let mut lines = String::new();
    for key in [&b"plain"[..], b"", b"../out", b"/abs", b"a\0b", b"\xff\xfe", b"c,\"d\"\r\ne", b" "] {
        let value = [key, b"\r\n\0\x80\"", key].concat();
        let [key, value] = [key, &value].map(|bytes| BASE64_STANDARD.encode(bytes));
        lines += &format!("{}\n", json!({"key_base64": key, "value_base64": value}));
    }
    node.kv_with(lines.as_bytes(), "load", &["t", "-", "--format", "jsonl", "--value", "value"]).with_code(0);
    let all = node.content("t");
    assert_eq!(all.len(), 8);
    node.kv("dump", &["t", "t.csv"]).with_code(0);
    node.kv("load", &["rows", "t.csv"]).with_code(0);
    assert!(node.content("rows") == all, "{:?}", node.content("rows"));

    let left_out = ["../out", "/abs", "\"a\\x00b\"", "an empty key"];
    node.kv("dump", &["t", "inner/folder", "--format", "folder"]).refused(1, &left_out);
    node.kv("load", &["files", "inner/folder"]).with_code(0);
    let mut some = all;
    some.retain(|key, _| ![&b""[..], b"../out", b"/abs", b"a\0b"].contains(&&key[..]));
    assert!(node.content("files") == some, "{:?}", node.content("files"));
    assert!(!node.path("inner/out").exists());

    node.kv("dump", &["t", "inner/folder", "--format", "folder"]).refused(2, &["not empty"]);
    node.kv("dump", &["t", "t.what"]).refused(2, &["--format"]);
    node.kv("dump", &["t", "/dev/full", "--format", "csv"]).refused(3, &["/dev/full", "No space left"]);
}

#[test]
fn a_load_names_the_line_that_is_wrong_and_what_came_before_is_stored() {
    let node = Node::start();
    let mut rows = String::from("key,value\n");
    let mut objects = String::new();
    for number in 0..500 {
        rows += &format!("{number},value {number}\n");
        objects += &format!("{{\"key\":{number},\"value\":\"value {number}\"}}\n");
    }
    node.file("rows.csv", format!("{rows}short\nafter,1\n"));
    node.file("objects.jsonl", format!("{objects}no object\n{{\"key\":\"after\",\"value\":\"1\"}}\n"));
    let long = "x".repeat(MIB + 1);
    node.file("long.csv", format!("{rows}long,{long}\nafter,1\n"));
    for (file, place, why) in [
        ("rows.csv", "rows.csv, line 502", "1 field,"),
        ("objects.jsonl", "objects.jsonl, line 501", "not a JSON object"),
        ("long.csv", "long.csv, line 502", "1048577"),
    ] {
        let loaded = node.kv("load", &[file, file, "--value", "value", "--json"]);
        assert_eq!(loaded.json()["keys"], 500, "{file}: {}", loaded.errors);
        loaded.refused(2, &[place, why]);
        let content = node.content(file);
        assert_eq!(content.len(), 500, "{file}");
        for number in 0..500 {
            let (key, value) = (number.to_string(), format!("value {number}"));
            assert_eq!(content.get(key.as_bytes()).map(Vec::as_slice), Some(value.as_bytes()), "{file}");
        }
    }
    node.kv("load", &["none", "rows.csv", "--key", "name"]).refused(2, &["key, value", "--key"]);
    node.kv("load", &["none", "rows.csv", "nowhere.csv"]).refused(2, &["nowhere.csv"]);
    node.kv("load", &["none", "-"]).refused(2, &["--format"]);
    node.kv("stat", &["none"]).refused(3, &["no table none"]);
}

#[test]
fn a_load_keeps_the_last_value_of_a_key_and_leaves_files_out_that_are_too_long() {
    let node = Node::start();
    let rows: String = (0..3_000).map(|number| format!("{},{number}\n", number % 3)).collect();
    node.file("rows.csv", format!("key,value\n{rows}"));
    let loaded = node.kv("load", &["t", "rows.csv", "--json"]).with_code(0).json();
    assert_eq!((&loaded["inserted"], &loaded["replaced"]), (&json!(3), &json!(2_997)));
    assert_eq!(node.kv("get", &["t", "0", "1", "2"]).text(), "0\t2997\n1\t2998\n2\t2999\n");

    std::fs::create_dir(node.path("tree")).expect("a folder");
    node.file("tree/short", "short");
    node.file("tree/long", vec![0; MIB + 1]);
    std::os::unix::fs::symlink("short", node.path("tree/link")).expect("a link");
    let loaded = node.kv("load", &["tree", "tree", "--json"]).with_code(1);
    assert_eq!(loaded.json()["left_out"].as_array().map(Vec::len), Some(2));
    loaded.refused(1, &["tree/long: 1048577 bytes", "tree/link"]);
    assert_eq!(node.kv("list", &["tree"]).text(), "short\n");
}

#[test]
fn a_list_is_in_order_and_as_long_as_it_was_asked_to_be() {
    let node = Node::start();
    let rows: String = (0..300).map(|number| format!("k{:03},\n", (number * 7) % 300)).collect();
    node.file("rows.csv", format!("key,value\n{rows}Bern,\nBasel,\nGenf,\n"));
    node.kv("load", &["t", "rows.csv"]).with_code(0);
    let list = |arguments: &[&str]| node.kv("list", &[&["t"], arguments].concat()).with_code(0);
    let all: Vec<String> = list(&[]).text().lines().map(str::to_owned).collect();
    assert_eq!(all.len(), 303);
    assert!(all.is_sorted(), "{all:?}");
    assert_eq!(list(&["--prefix", "B"]).text(), "Basel\nBern\n");
    assert_eq!(list(&["--prefix", "k1", "--limit", "3"]).text(), "k100\nk101\nk102\n");
    assert_eq!(list(&["--limit", "1"]).text(), "Basel\n");
    assert_eq!(list(&["--limit", "0"]).text(), "");
    assert_eq!(list(&["--prefix", "x"]).text(), "");
    assert_eq!(list(&["--prefix", "G", "--json"]).text(), "{\"key\":\"Genf\"}\n");
}

/// Number of processes that try at once.
const RIVALS: usize = 6;

#[test]
fn of_several_processes_that_store_a_key_if_it_is_absent_exactly_one_succeeds() {
    let mut node = Node::start();
    // There is no table yet: the processes also make it at once, and only one of the tables stays.
    let rivals: Vec<Child> = (0..RIVALS)
        .map(|number| {
            let mut put = node.command("put", &["locks", "job", &number.to_string(), "--if-absent"]);
            put.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
        })
        .collect();
    let codes: Vec<_> = rivals.into_iter().map(|mut rival| rival.wait().expect("it ends").code()).collect();
    let winners: Vec<usize> = (0..RIVALS).filter(|&number| codes[number] == Some(0)).collect();
    assert_eq!(winners.len(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == Some(1)).count(), RIVALS - 1, "{codes:?}");
    assert_eq!(node.kv("get", &["locks", "job"]).text(), winners[0].to_string());
    node.kv("drop", &["locks"]).with_code(0);
    wait_for("the tables of those who lost to go", || node.objects() == 0);
}

#[test]
fn a_key_with_a_time_to_live_goes_and_others_stay() {
    let node = Node::start();
    node.kv("put", &["t", "short", "x", "--ttl", "50ms"]).with_code(0);
    node.kv("put", &["t", "long", "x", "--ttl", "1440min"]).with_code(0);
    node.kv("put", &["t", "for ever", "x"]).with_code(0);
    wait_for("the key to go", || node.kv("get", &["t", "short"]).code == Some(1));
    assert_eq!(node.kv("list", &["t"]).text(), "for ever\nlong\n");
    node.kv("put", &["t", "short", "y", "--if-absent"]).with_code(0);
    assert_eq!(node.kv("get", &["t", "short"]).with_code(0).text(), "y");
    node.kv("put", &["t", "short", "z", "--ttl", "soon"]).refused(2, &["--ttl"]);
    node.kv("put", &["t", "unasked", "x", "--ttl", "50ms"]).with_code(0);
    wait_for("the key to go", || node.kv("list", &["t"]).text() == "for ever\nlong\nshort\n");
    assert_eq!(node.statistics("t")["keys"], 4, "its block is taken until somebody removes it");
    assert_eq!(node.kv("sweep", &["t", "--json"]).with_code(0).json()["expired"], 1);
    assert_eq!(node.statistics("t")["keys"], 3);
}

#[test]
fn many_short_lived_clients_leave_nothing_and_the_figures_say_so() {
    let node = Node::start();
    node.kv("create", &["t", "--grain", "block", "--lease", "200ms", "--groups", "16"]).with_code(0);
    for number in 0..12 {
        let key = number.to_string();
        node.kv("put", &["t", &key, "a value"]).with_code(0);
        node.kv("put", &["t", &key, "never", "--if-absent"]).with_code(1);
        node.kv("put", &["t", &key, "another value"]).with_code(0);
        if number % 2 == 0 {
            node.kv("del", &["t", &key]).with_code(0);
        }
    }
    let found = node.statistics("t");
    assert_eq!((&found["keys"], &found["unlinked"], &found["dangling"]), (&json!(6), &json!(0), &json!(0)));
    assert_eq!((&found["grain"], &found["subtables"]), (&json!("block"), &json!(1)));
    let parts = ["key", "value", "blocks_rest", "claims", "subtables", "head"];
    let each = |name: &str| found["bytes_per_key"][name].as_f64().expect("a number");
    let sum: f64 = parts.map(each).iter().sum();
    assert!((sum - each("all")).abs() < 0.01, "{found}");
    assert!((each("all") * 6.0 - found["bytes"].as_f64().expect("a number")).abs() < 0.01, "{found}");
    // The keys are odd numbers: 1, 3, 5, 7, 9, 11.
    assert!((each("key") * 6.0 - 7.0).abs() < 0.01 && (each("value") - 13.0).abs() < 0.01, "{found}");
    let text = node.kv("stat", &["t"]).with_code(0);
    assert!(text.text().contains("load factor") && text.text().contains("200.0 ms"), "{}", text.text());
}

#[test]
fn a_watcher_is_told_what_changes_until_nobody_reads_it() {
    let node = Node::start();
    node.kv("put", &["t", "there", "before"]).with_code(0);
    let mut watch = node.command("watch", &["t", "--every", "5ms", "--json"]);
    let mut child = Running(watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"));
    let errors = lines(child.0.stderr.take().expect("it is piped"));
    let said = errors.recv_timeout(PATIENCE).expect("it says that it watches");
    assert!(said.contains("watching t: 1 keys"), "{said}");
    let changes = lines(child.0.stdout.take().expect("it is piped"));
    let next = || -> Value {
        let line = changes.recv_timeout(PATIENCE).expect("a line");
        serde_json::from_str(&line).expect("an object")
    };
    node.kv("put", &["t", "new", "1"]).with_code(0);
    assert_eq!(next(), json!({"change": "added", "key": "new", "value": "1"}));
    node.kv("put", &["t", "there", "after"]).with_code(0);
    assert_eq!(next(), json!({"change": "changed", "key": "there", "value": "after"}));
    node.kv("put", &["t", "there", "after"]).with_code(0);
    node.kv("del", &["t", "new"]).with_code(0);
    assert_eq!(next(), json!({"change": "removed", "key": "new"}));
    child.0.kill().expect("it still watches");
    assert!(child.0.wait().is_ok());

    let mut watch = node.command("watch", &["t", "there", "--every", "5ms"]);
    let mut child = Running(watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"));
    let errors = lines(child.0.stderr.take().expect("it is piped"));
    errors.recv_timeout(PATIENCE).expect("it says that it watches");
    let mut reader = BufReader::new(child.0.stdout.take().expect("it is piped"));
    node.kv("put", &["t", "other", "1"]).with_code(0);
    node.kv("put", &["t", "there", "1\n"]).with_code(0);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    assert_eq!(line, "~ there = \"1\\n\"\n");
    drop(reader);
    node.kv("put", &["t", "there", "2"]).with_code(0);
    assert_eq!(child.0.wait().expect("it ends").code(), Some(0));
}

/// The most rows of the load that is killed: a busy machine may be late to kill it.
const ROWS_MOST: u64 = 20_000;

/// The value of a key of this load.
fn value_of(key: &str) -> String {
    format!("{key} ").repeat(20)
}

#[test]
fn a_load_that_is_killed_in_the_middle_leaves_whole_keys_and_a_sweep_frees_the_rest() {
    let node = Node::start();
    node.kv("create", &["t", "--lease", "100ms", "--groups", "4"]).with_code(0);
    let mut load = node.command("load", &["t", "-", "--format", "csv"]);
    let mut child = Running(load.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts"));
    let mut input = child.0.stdin.take().expect("it is piped");
    // The input does not end, so the load is in the middle of its work when it is killed.
    let rows = std::thread::spawn(move || {
        let mut row = writeln!(input, "key,value");
        let mut begun = 0;
        while row.is_ok() && begun < ROWS_MOST {
            row = writeln!(input, "{begun},{}", value_of(&begun.to_string()));
            begun += 1;
        }
        (begun, input)
    });
    wait_for("a few thousand keys", || node.kv("list", &["t"]).text().lines().count() >= 2_000);
    child.0.kill().expect("it still loads");
    child.0.wait().expect("it ends");
    let (begun, _) = rows.join().expect("it ends");

    let content = node.content("t");
    assert!(content.len() >= 2_000);
    for (key, value) in &content {
        let key = std::str::from_utf8(key).expect("a number");
        assert!(key.parse::<u64>().expect("a number") < begun, "{key} was never loaded");
        assert_eq!(String::from_utf8_lossy(value), value_of(key));
    }
    // Other clients continue, with new keys and with the keys that were just being written.
    for number in 0..10 {
        node.kv("put", &["t", &format!("more {number}"), "x"]).with_code(0);
        node.kv("put", &["t", &(content.len() - 5 + number).to_string(), "x"]).with_code(0);
    }
    let before = node.content("t");
    // The second sweep frees what the first takes out of slots.
    for _ in 0..2 {
        let swept = node.kv("sweep", &["t", "--json"]).with_code(0).json();
        assert!(swept["blocks"].is_u64() && swept["splits"].is_u64(), "{swept}");
    }
    let found = node.statistics("t");
    assert_eq!((&found["unlinked"], &found["dangling"]), (&json!(0), &json!(0)), "{found}");
    assert_eq!(found["keys"], before.len());
    assert!(node.content("t") == before, "a sweep changes no key");
    assert_eq!(node.kv("sweep", &["t"]).with_code(0).text(), "there was nothing to free\n");
}

#[test]
fn a_row_of_a_slow_pipe_is_stored_when_it_has_come_not_when_the_pipe_ends() {
    let node = Node::start();
    let mut load = node.command("load", &["t", "-", "--format", "csv", "--json"]);
    let mut child = Running(load.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut input = child.0.stdin.take().expect("it is piped");
    input.write_all(b"key,value\n").expect("it reads");
    for (key, value) in [("first", "1"), ("second", "2"), ("first", "3")] {
        writeln!(input, "{key},{value}").expect("it reads");
        wait_for(key, || {
            let got = node.kv("get", &["t", key]);
            got.code == Some(0) && got.text() == value
        });
    }
    drop(input);
    let mut report = String::new();
    child.0.stdout.take().expect("it is piped").read_to_string(&mut report).expect("text");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&report["inserted"], &report["replaced"]), (&json!(2), &json!(1)), "{report}");
    node.kv("load", &["t", "-", "-", "--format", "csv"]).with_code(2);
}

#[test]
fn a_table_that_is_dropped_gives_its_memory_back() {
    let mut node = Node::start();
    let rows: String = (0..5_000).map(|number| format!("{number},{number}\n")).collect();
    node.file("rows.csv", format!("key,value\n{rows}"));
    node.kv("create", &["t", "--groups", "4"]).with_code(0);
    node.kv("load", &["t", "rows.csv"]).with_code(0);
    assert!(node.statistics("t")["subtables"].as_u64() > Some(10));
    assert!(node.objects() > 10);
    assert_eq!(node.kv("drop", &["t", "--json"]).with_code(0).json(), json!({"dropped": "t"}));
    wait_for("the memory to be given back", || node.objects() == 0);
    node.kv("get", &["t", "1"]).refused(3, &["no table t"]);
    node.kv("drop", &["t"]).refused(3, &["no table t"]);
    node.kv("put", &["t", "1", "new"]).with_code(0);
    assert_eq!(node.content("t"), BTreeMap::from([(b"1".to_vec(), b"new".to_vec())]));
}

#[test]
fn an_error_says_whose_it_is_and_what_mends_it() {
    let node = Node::start();
    let advice = ["no table t", "kv create", "put", "load"];
    for (command, arguments) in [
        ("get", &["t", "k"][..]),
        ("del", &["t", "k"]),
        ("list", &["t"]),
        ("dump", &["t"]),
        ("stat", &["t"]),
        ("watch", &["t"]),
        ("sweep", &["t"]),
        ("drop", &["t"]),
    ] {
        node.kv(command, arguments).refused(3, &advice);
    }
    node.kv("create", &["t", "--depth-max", "99"]).refused(2, &["99"]);
    node.kv("create", &["t", "--lease", "1440min"]).refused(2, &["lease", "10000000"]);
    node.kv("get", &["", "k"]).refused(2, &["TABLE"]);
    let call = |address: &str| -> Said {
        portcullis(["kv", "get", "--node", address, "t", "k"]).output().expect("it runs").into()
    };
    call("somewhere").refused(2, &["shm:PATH"]);
    call("shm:/nowhere/at/all.sock").refused(3, &["/nowhere/at/all.sock"]);
}

#[test]
fn tables_of_another_tenant_are_not_visible() {
    let node = Node::start();
    node.kv("put", &["t", "k", "orange"]).with_code(0);
    let blue = |command: &str, arguments: &[&str]| -> Said {
        node.command_as("blue", command, arguments).output().expect("it runs").into()
    };
    for command in ["list", "stat", "drop", "dump"] {
        blue(command, &["t"]).refused(3, &["no table t"]);
    }
    blue("put", &["t", "k", "blue"]).with_code(0);
    assert_eq!(blue("get", &["t", "k"]).text(), "blue");
    assert_eq!(node.kv("get", &["t", "k"]).text(), "orange");
    blue("drop", &["t"]).with_code(0);
    assert_eq!(node.kv("get", &["t", "k"]).with_code(0).text(), "orange");
}

#[test]
fn another_tenant_reads_a_table_that_is_shared_with_it_and_changes_only_its_own() {
    let node = Node::start();
    let blue = |command: &str, arguments: &[&str]| -> Said {
        node.command_as("blue", command, arguments).output().expect("it runs").into()
    };
    node.kv("put", &["t", "Bern", "1"]).with_code(0);
    blue("get", &["--owner", "orange", "t", "Bern"]).refused(3, &["orange shares no table t", "kv share"]);
    assert_eq!(node.kv("share", &["t", "blue"]).with_code(0).text(), "blue can read table t\n");
    assert_eq!(blue("get", &["--owner", "orange", "t", "Bern"]).with_code(0).text(), "1");
    node.kv("put", &["t", "Basel", "2"]).with_code(0);
    assert_eq!(blue("list", &["--owner", "orange", "t"]).with_code(0).text(), "Basel\nBern\n");
    // A value that this tenant stores under the same name is in a table of its own.
    blue("put", &["t", "Bern", "3"]).with_code(0);
    blue("put", &["--owner", "orange", "t", "Bern", "3"]).refused(2, &["--owner"]);
    assert_eq!(node.kv("get", &["t", "Bern"]).with_code(0).text(), "1");
    let ended = node.kv("unshare", &["t", "blue", "--json"]).with_code(0).json();
    assert_eq!(ended, json!({"table": "t", "tenant": "blue", "shared": false}));
    blue("dump", &["--owner", "orange", "t"]).refused(3, &["orange shares no table t"]);
}
