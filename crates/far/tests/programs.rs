//! Existing programs with far memory of a node in this process: a shell's utilities and Python. If one is missing, or
//! this process may not handle faults, the test prints a message and ends.

mod rig;

use portcullis::host::{Host, NodeCounters};
use portcullis_far::Ended;
use rig::{CHUNKS, PATIENCE, Running, can_run, host, python};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Waits until the node's counters satisfy a condition.
fn wait_for(host: &Host, what: &str, wanted: impl Fn(&NodeCounters) -> bool) {
    let within = Instant::now() + PATIENCE;
    while !wanted(&host.counters()) {
        assert!(Instant::now() < within, "{what}: {:?}", host.counters());
        thread::yield_now();
    }
}

/// Lines in no particular order, each with its number in it.
fn lines(count: u64) -> String {
    let mut text = String::new();
    for number in 0..count {
        let mixed = (number.wrapping_mul(6364136223846793005) >> 20) % 1_000_000_007;
        writeln!(text, "{mixed:010} line {number}").expect("memory");
    }
    text
}

fn feed(mut input: ChildStdin, text: String) -> JoinHandle<()> {
    thread::spawn(move || {
        // A program that dies does not read its input.
        let _ = input.write_all(text.as_bytes());
    })
}

fn plain(mut command: Command, text: &str) -> Vec<u8> {
    let mut child: Child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let feeding = feed(child.stdin.take().expect("a pipe"), text.to_owned());
    let output = child.wait_with_output().expect("it ends");
    feeding.join().expect("it is fed");
    output.stdout
}

fn sort(threads: u32) -> Command {
    let mut command = Command::new("sort");
    command.args([&format!("--parallel={threads}"), "-S", "64M"]).env("LC_ALL", "C");
    command
}

fn sorts_as_ever(threads: u32) {
    if !can_run("sort") {
        return;
    }
    let text = lines(150_000);
    let host = host(CHUNKS);
    let mut running = Running::start(&host, 8 << 20, sort(threads));
    let feeding = feed(running.input.take().expect("a pipe"), text.clone());
    let (printed, ended, summary) = running.end();
    feeding.join().expect("it is fed");
    assert_eq!(ended.expect("the node is there"), Ended::Exited(0));
    assert!(printed == plain(sort(threads), &text), "the output is another than without far memory");
    assert!(summary.fetched_pages + summary.prefetched_pages > 1000, "hardly anything was far: {summary:?}");
    assert!(summary.local_bytes_max <= summary.local_bytes, "{summary:?}");
    wait_for(&host, "the session has ended", |counters| counters.chunks_held == 0);
}

#[test]
fn sort_prints_the_same_with_a_part_of_its_memory_here() {
    sorts_as_ever(1);
}

#[test]
fn threads_wait_for_pages_side_by_side() {
    sorts_as_ever(4);
}

#[test]
fn the_node_s_memory_grows_and_shrinks_with_the_program_s() {
    if !can_run("python3") {
        return;
    }
    let script = "
blocks = [bytearray(b'x' * (8 << 20)) for _ in range(8)]
print('grown', flush=True); input()
for number, block in enumerate(blocks):
    assert bytes(block) == b'x' * (8 << 20), number
blocks = blocks[:1]
del block
print('shrunk', flush=True); input()
blocks = [bytearray(b'y' * (8 << 20)) for _ in range(4)]
print('grown again', flush=True); input()
";
    let host = host(CHUNKS);
    let mut running = Running::start(&host, 8 << 20, python(script));
    assert_eq!(running.says(), "grown");
    wait_for(&host, "far memory takes chunks", |counters| counters.chunks_held > 50);
    running.tell("");
    assert_eq!(running.says(), "shrunk");
    wait_for(&host, "released memory gives chunks back", |counters| counters.chunks_held < 15);
    running.tell("");
    assert_eq!(running.says(), "grown again");
    wait_for(&host, "it takes chunks again", |counters| counters.chunks_held > 20);
    running.tell("");
    let (_, ended, summary) = running.end();
    assert_eq!(ended.expect("the node is there"), Ended::Exited(0));
    assert!(summary.chunks_max > 50 && summary.chunks_freed > 40, "{summary:?}");
}

#[test]
fn a_child_executes_others_and_has_what_its_parent_had() {
    if !can_run("python3") {
        return;
    }
    let script = "
import os, subprocess
block = bytearray(b'x' * (32 << 20))
assert subprocess.check_output(['echo', 'from a child']) == b'from a child\\n'
child = os.fork()
if child == 0:
    os._exit(0 if bytes(block) == b'x' * (32 << 20) else 1)
block[5] = 1
_, status = os.waitpid(child, 0)
print(status)
assert bytes(block) == b'xxxxx\\x01' + b'x' * ((32 << 20) - 6)
os.execvp('python3', ['python3', '-c', 'print(sum(bytearray(64 << 20)), bytearray(b\"z\" * (32 << 20))[7])'])
";
    let host = host(CHUNKS);
    let (printed, ended, summary) = Running::start(&host, 8 << 20, python(script)).end();
    assert_eq!(ended.expect("the node is there"), Ended::Exited(0));
    assert_eq!(String::from_utf8_lossy(&printed), "0\n0 122\n");
    // A program that is executed in the program's place has far memory too.
    assert!(summary.ranges >= 2, "{summary:?}");
}

#[test]
fn children_that_execute_other_programs_are_not_ended() {
    if !can_run("bash") {
        return;
    }
    // A subshell becomes another program: alone, and while a child of its own exists.
    let script = "
for turn in {1..150}; do
    ( exec true ) || echo \"turn $turn: $?\"
    ( read -t 0.02 < /dev/zero & exec bash -c 'read -t 0.01 < /dev/zero; exit 3' ); code=$?
    [ $code = 3 ] || echo \"turn $turn, with a child: $code\"
done
wait
";
    let host = host(CHUNKS);
    let mut command = Command::new("bash");
    command.args(["-c", script]);
    let (printed, ended, summary) = Running::start(&host, 8 << 20, command).end();
    assert_eq!(String::from_utf8_lossy(&printed), "");
    assert_eq!(ended.expect("the node is there"), Ended::Exited(0));
    assert!(summary.forks > 300, "{summary:?}");
}

#[test]
fn the_kernel_reads_and_writes_far_memory() {
    if !can_run("python3") {
        return;
    }
    let script = "
import os, tempfile
block = bytearray(os.urandom(1 << 20) * 24)
with tempfile.TemporaryFile() as file:
    assert os.write(file.fileno(), memoryview(block)) == len(block)
    again = bytearray(len(block))
    assert os.preadv(file.fileno(), [again], 0) == len(block)
    assert again == block
print('the same')
";
    let host = host(CHUNKS);
    let (printed, ended, _) = Running::start(&host, 8 << 20, python(script)).end();
    assert_eq!(ended.expect("the node is there"), Ended::Exited(0));
    assert_eq!(printed, b"the same\n");
}

#[test]
fn a_program_whose_node_is_full_dies_with_the_reason() {
    if !can_run("python3") {
        return;
    }
    let script = "
blocks = []
while True:
    blocks.append(bytearray(b'x' * (4 << 20)))
    print('more', flush=True)
";
    let host = host(16);
    let (_, ended, _) = Running::start(&host, 8 << 20, python(script)).end();
    let error = ended.expect_err("16 MiB are not enough");
    assert!(error.to_string().contains("--chunks"), "{error}");
}

#[test]
fn a_program_that_closes_all_descriptors_keeps_its_memory() {
    if !can_run("python3") {
        return;
    }
    let script = "
import os
block = bytearray(b'x' * (24 << 20))
os.closerange(3, 65536)
for number in range(3, 1024):
    try: os.close(number)
    except OSError: pass
links = [os.readlink('/proc/self/fd/' + name) for name in os.listdir('/proc/self/fd') if int(name) > 2 and os.path.lexists('/proc/self/fd/' + name)]
print(sum('userfaultfd' in link for link in links), bytes(block) == b'x' * (24 << 20))
del block
print(sum(bytearray(16 << 20)))
";
    let host = host(CHUNKS);
    let (printed, ended, _) = Running::start(&host, 8 << 20, python(script)).end();
    assert_eq!(ended.expect("the node is there"), Ended::Exited(0));
    assert_eq!(String::from_utf8_lossy(&printed), "1 True\n0\n");
}
