//! Memory operations of programs with most of their memory on a node. Each program checks all of its bytes. Programs in
//! C are built here. A program that is not on the machine is skipped with a message.

mod rig;

use portcullis_far::{Ended, Summary};
use rig::{CHUNKS, Running, can_run, host, python};
use std::path::{Path, PathBuf};
use std::process::Command;

const LOCAL: u64 = 16 << 20;
/// Exit code of a program that cannot do its part on this machine, whether with far memory or without.
const CANNOT: i32 = 77;

/// Builds a program of `tests/programs_in_c`. Returns `None`, with a message, if it cannot be built here.
fn built(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs_in_c").join(name).with_extension("c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let call =
        Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).args(flags).output();
    match call {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            eprintln!("SKIPPED: {name} cannot be built: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            eprintln!("SKIPPED: there is no cc here: {error}");
            None
        }
    }
}

/// Runs a program that does the same without far memory. Its folder is that of the build, which is on a disk.
fn runs(mut command: impl FnMut() -> Command) -> Option<Summary> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if !can_run("cc") {
        return None;
    }
    let alone = command().current_dir(folder).status();
    if !alone.as_ref().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: {:?} fails without far memory: {alone:?}", command());
        return None;
    }
    let host = host(CHUNKS);
    let mut far = command();
    far.current_dir(folder);
    let (_, ended, summary) = Running::start(&host, LOCAL, far).end();
    let ended = ended.expect("the node is there");
    if ended == Ended::Exited(CANNOT) {
        eprintln!("SKIPPED: {:?} cannot do its part here", command());
        return None;
    }
    assert_eq!(ended, Ended::Exited(0), "{:?}: {summary:?}", command());
    Some(summary)
}

fn part(name: &str) -> Option<Summary> {
    let program = built("memory", &[])?;
    let summary = runs(|| {
        let mut command = Command::new(&program);
        command.arg(name);
        command
    })?;
    assert!(summary.evicted_pages > 1000, "hardly anything was far: {summary:?}");
    Some(summary)
}

#[test]
fn blocks_of_every_call_of_the_allocator_keep_their_bytes() {
    part("allocators");
}

#[test]
fn pages_that_the_program_drops_are_zeros_wherever_they_were() {
    part("dropped");
}

#[test]
fn advice_that_splits_a_mapping_changes_no_byte() {
    part("advice");
}

#[test]
fn protected_pages_keep_their_bytes() {
    part("protections");
}

#[test]
fn locked_pages_stay_and_a_program_that_locks_all_lives() {
    if let Some(summary) = part("locks") {
        assert!(summary.refused_pages > 0, "no locked page was asked for: {summary:?}");
    }
}

#[test]
fn parts_that_are_unmapped_or_moved_are_what_the_program_made_of_them() {
    part("mappings");
}

#[test]
fn a_child_has_its_parent_s_memory_as_it_was_at_the_fork() {
    if let Some(summary) = part("children") {
        assert!(summary.child_pages > 1000, "the child found all here: {summary:?}");
    }
}

#[test]
fn another_process_reads_and_writes_far_memory() {
    part("remotely");
}

#[test]
fn threads_and_signal_handlers_wait_for_pages() {
    part("threads");
}

#[test]
fn direct_io_reaches_the_pages_that_the_program_sees() {
    part("direct");
}

#[test]
fn direct_reads_under_pressure_lose_no_sector() {
    let Some(program) = built("direct_read", &[]) else { return };
    runs(|| {
        let mut command = Command::new(&program);
        command.args(["./far-direct-read", "3"]);
        command
    });
}

#[test]
fn io_uring_reads_into_registered_and_plain_buffers() {
    let Some(program) = built("io_uring", &["-luring"]) else { return };
    for how in ["f", "p"] {
        let summary = runs(|| {
            let mut command = Command::new(&program);
            command.args([&format!("./far-io-uring-{how}"), how]);
            command
        });
        if how == "f"
            && let Some(summary) = summary
        {
            assert!(summary.refused_pages > 0, "no pinned page was asked for: {summary:?}");
        }
    }
}

#[test]
fn fio_verifies_what_it_wrote_with_each_engine() {
    if !can_run("fio") {
        return;
    }
    for (engine, direct) in
        [("psync", "1"), ("libaio", "1"), ("io_uring", "1"), ("io_uring", "0"), ("mmap", "0")]
    {
        runs(|| {
            let mut command = Command::new("fio");
            command.args(["--name=far", "--size=24M", "--bs=64k", "--rw=randwrite", "--verify=crc32c"]);
            command.args(["--verify_fatal=1", "--iodepth=16", "--thread", "--mem=malloc", "--unlink=1"]);
            command.args([format!("--ioengine={engine}"), format!("--direct={direct}")]);
            command
        });
    }
}

#[test]
fn sqlite_finds_its_database_sound() {
    if !can_run("sqlite3") {
        return;
    }
    let script = "
        pragma cache_size = -60000; create table t(a integer primary key, b blob);
        with recursive n(x) as (select 1 union all select x + 1 from n where x < 60000)
            insert into t select x, zeroblob(500) from n;
        update t set b = randomblob(500) where a % 3 = 0; create index i on t(b); pragma integrity_check;";
    runs(|| {
        let mut command = Command::new("sh");
        let script = format!("test \"$(sqlite3 :memory: \"{script}\" | tail -n 1)\" = ok");
        command.args(["-c", &script]);
        command
    });
    runs(|| {
        let mut command = Command::new("sqlite3");
        command.args([":memory:", script]);
        command
    });
}

#[test]
fn python_s_pool_of_processes_reads_what_its_parent_had() {
    if !can_run("python3") {
        return;
    }
    let script = "
import multiprocessing
multiprocessing.set_start_method('fork')
block = bytearray(b'x' * (48 << 20))
def look(at): return block[at << 20 : (at + 1) << 20] == b'x' * (1 << 20)
with multiprocessing.Pool(2) as pool:
    assert all(pool.map(look, range(48)))
assert block == b'x' * (48 << 20)
";
    runs(|| python(script));
}

#[test]
fn numpy_s_arrays_keep_their_sums() {
    let script = "
import numpy as np
rng = np.random.default_rng(1); have = {}
for turn in range(60):
    n = int(rng.integers(1, 9 << 20)); k = int(rng.integers(0, 6))
    have[k] = (np.full(n, turn, dtype='u1'), turn)
    for a, v in have.values(): assert a[0] == v and a[-1] == v and int(a[::4096].sum()) == v * len(a[::4096])
";
    runs(|| python(script));
}
