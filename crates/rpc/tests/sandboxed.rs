//! Methods in sandboxes, and callers that try to make them fail. Only x86-64 has sandboxes.
#![cfg(target_arch = "x86_64")]

use portcullis_errors::Coded;
use portcullis_rpc::channel::{
    CallError, Connection, Failure, Reply, Sandboxed, Server, ServerOptions, serve,
};
use portcullis_rpc::sandbox::{Cause, Protection, Sandbox, SandboxOptions, Trapped};
use portcullis_rpc::{Boxed, Scope};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Tree {
    value: u64,
    left: Boxed<Tree>,
    right: Boxed<Tree>,
}

const SUM: u32 = 1;
const SUM_BY_VALUE: u32 = 2;
const WALK: u32 = 3;
const PANIC_DEEP: u32 = 4;
const VALUES: u32 = 5;
const FILL: u32 = 6;
const TRAPPED: u32 = 7;
const READ_WILD: u32 = 8;
/// Bytes of a method's temporary heap.
const ARENA: u64 = 8192;

/// Sums a tree. Each step of the recursion allocates and formats, also the deepest one.
fn sum(at: Boxed<Tree>, tree: &Sandboxed<'_, Tree>) -> Result<u64, Failure> {
    if at.is_null() {
        return Ok(0);
    }
    let node = at.get(tree.view())?;
    let text = std::hint::black_box(format!("{}", node.value));
    Ok(text.len() as u64 + sum(node.left, tree)? + sum(node.right, tree)?)
}

fn sum_by_value(at: Boxed<Tree>, tree: &Sandboxed<'_, Tree>) -> Result<u64, Failure> {
    if at.is_null() {
        return Ok(0);
    }
    let node = at.read(tree.view())?;
    Ok(1 + sum_by_value(node.left, tree)? + sum_by_value(node.right, tree)?)
}

/// Sums a tree, and panics if the stack is used up.
fn panic_deep(at: Boxed<Tree>, tree: &Sandboxed<'_, Tree>) -> u64 {
    let node = at.get(tree.view()).expect("a pointer that leads somewhere");
    if node.value == u64::MAX { 0 } else { panic_deep(node.left, tree) + node.value }
}

fn walk(tree: &Sandboxed<'_, Tree>, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let mut at = tree.get()?.left;
    while !at.is_null() {
        at = at.read(tree.view())?.left;
        reply.set_word(at.address());
    }
    Ok(())
}

fn trapped(which: u64, heap_address: u64) -> Trapped {
    let fault = |address| Trapped::Fault { address: Some(address), cause: Cause::Unmapped };
    match which {
        0 => fault(heap_address),
        1 => fault(0x7777_0000),
        2 => Trapped::StackOverflow,
        3 => Trapped::OverBudget(Duration::from_millis(1)),
        _ => Trapped::Panicked,
    }
}

/// Fills the temporary heap, and answers with the amount that it had room for.
fn fill(bytes: &Sandboxed<'_, u64>, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let piece = usize::try_from(bytes.word()).unwrap_or(0);
    for count in 1.. {
        bytes.arena().fill(piece, 7_u8)?;
        reply.set_word(count);
        if count * bytes.word() >= ARENA / 2 {
            break;
        }
    }
    Ok(())
}

/// Reads a byte as foreign code does: the compiler knows nothing of the access.
fn read(address: usize) -> u8 {
    let byte: u8;
    // SAFETY: the processor makes the access, not the language. It changes nothing; if it faults, the code of a trap ends.
    unsafe { core::arch::asm!("mov {}, [{}]", out(reg_byte) byte, in(reg) address, options(nostack)) };
    byte
}

struct Rig {
    server: Server,
    path: PathBuf,
    private: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls.sock");
        let private = Arc::new(AtomicU64::new(5));
        let named = Arc::clone(&private);
        let sandbox = SandboxOptions { arena_bytes: ARENA, ..SandboxOptions::default() };
        let server = serve(&path)
            .with(ServerOptions { sandbox, ..ServerOptions::default() })
            .sandboxed(SUM, |tree: Sandboxed<'_, Tree>, reply| {
                let root = tree.get()?;
                reply.set_word(sum(root.left, &tree)? + sum(root.right, &tree)?);
                Ok(())
            })
            .sandboxed(SUM_BY_VALUE, |tree: Sandboxed<'_, Tree>, reply| {
                reply.set_word(sum_by_value(tree.get()?.left, &tree)?);
                Ok(())
            })
            .sandboxed(WALK, |tree: Sandboxed<'_, Tree>, reply| walk(&tree, reply))
            .sandboxed(PANIC_DEEP, |tree: Sandboxed<'_, Tree>, reply| {
                reply.set_word(panic_deep(tree.get()?.left, &tree));
                Ok(())
            })
            .sandboxed_with(
                VALUES,
                move || named.load(Ordering::Acquire),
                |word: Sandboxed<'_, u64, u64>, reply| {
                    reply.set_word(word.word() + word.values());
                    Ok(())
                },
            )
            .sandboxed_with(
                READ_WILD,
                || {
                    let of_the_server = 7_u8;
                    // The address lies deeper on the stack of the server's thread: the page that the thread began on is
                    // not withheld, since the thread's locals are there.
                    std::ptr::from_ref(std::hint::black_box(&of_the_server)).addr() - 16_384
                },
                |wild: Sandboxed<'_, u64, usize>, reply| {
                    let asked = usize::try_from(wild.word()).unwrap_or(0);
                    let address = if asked == 0 { *wild.values() } else { asked };
                    // SAFETY: the code owns nothing, and a fault interrupts no operation that must be completed.
                    let read = unsafe { wild.inside().trap(None, || read(address)) };
                    reply.set_word(read?.into());
                    Ok(())
                },
            )
            .sandboxed(FILL, |bytes: Sandboxed<'_, u64>, reply| fill(&bytes, reply))
            .sandboxed(TRAPPED, |heap: Sandboxed<'_, u64>, _| {
                Err(trapped(heap.word(), heap.view().address()).into())
            })
            .start()
            .unwrap();
        Self { server, path, private, _folder: folder }
    }

    fn connection(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }
}

/// Builds a tree whose depth is the number of its nodes.
fn chain(scope: &Scope, nodes: u64) -> Boxed<Tree> {
    let mut root = Boxed::NULL;
    for value in 0..nodes {
        root = Boxed::new(scope, Tree { value, left: root, right: Boxed::NULL }).unwrap();
    }
    root
}

/// Builds a node that is its own child, and `bytes` bytes beside it: their number sets how many steps are allowed.
fn cycle(connection: &Connection, scope: &Scope, bytes: usize) -> Boxed<Tree> {
    let root = Boxed::new(scope, Tree { value: 1, left: Boxed::NULL, right: Boxed::NULL }).unwrap();
    connection.heap().set(root, Tree { value: 1, left: root, right: root }).unwrap();
    portcullis_rpc::Vector::new(scope, &vec![0_u8; bytes]).unwrap();
    root
}

fn works(connection: &mut Connection) {
    let scope = connection.scope(4096).unwrap();
    let root = chain(&scope, 11);
    assert_eq!(connection.call(SUM, &scope, root).unwrap().word(), 10);
    assert_eq!(connection.call(SUM_BY_VALUE, &scope, root).unwrap().word(), 10);
}

#[test]
fn a_tree_that_is_too_deep_is_an_error_and_the_server_lives_on() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.scope(12 << 20).unwrap();
    let root = chain(&scope, 500_000);
    for method in [SUM, SUM_BY_VALUE] {
        for _ in 0..3 {
            let error = connection.call(method, &scope, root).unwrap_err();
            assert_eq!(error, CallError::StackOverflow);
            assert_eq!(error.code().name(), "sandbox-stack");
            works(&mut connection);
        }
    }
    // A loop over a list of the same length takes no stack.
    assert_eq!(connection.call(WALK, &scope, root).unwrap().word(), 0);
    assert_eq!(rig.server.counters().failed, 6);
}

#[test]
fn what_leads_to_itself_is_an_error_however_it_is_followed() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.scope(4 << 20).unwrap();
    let root = cycle(&connection, &scope, 3 << 20);
    assert_eq!(connection.call(SUM, &scope, root).unwrap_err(), CallError::StackOverflow);
    assert_eq!(connection.call(SUM_BY_VALUE, &scope, root).unwrap_err(), CallError::StackOverflow);
    let endless = connection.call(WALK, &scope, root).unwrap_err();
    assert!(matches!(&endless, CallError::WildPointer(text) if text.contains("no end")), "{endless}");
    // With fewer bytes the steps are used up before the stack is.
    let scope = connection.scope(4096).unwrap();
    let root = cycle(&connection, &scope, 100);
    for method in [SUM, SUM_BY_VALUE, WALK] {
        let endless = connection.call(method, &scope, root).unwrap_err();
        assert!(matches!(&endless, CallError::WildPointer(text) if text.contains("no end")), "{endless}");
    }
    works(&mut connection);
}

#[test]
fn a_panic_where_the_stack_is_used_up_is_an_error() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.scope(12 << 20).unwrap();
    let root = chain(&scope, 400_000);
    for _ in 0..3 {
        assert_eq!(connection.call(PANIC_DEEP, &scope, root).unwrap_err(), CallError::Panicked);
        works(&mut connection);
    }
}

#[test]
fn named_values_are_those_of_the_moment_of_the_call() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    assert_eq!(connection.call_with_word(VALUES, 1).unwrap().word(), 6);
    rig.private.store(50, Ordering::Release);
    assert_eq!(connection.call_with_word(VALUES, 1).unwrap().word(), 51);
}

#[test]
fn the_temporary_heap_is_whole_at_each_call() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    for _ in 0..100 {
        assert_eq!(connection.call_with_word(FILL, 512).unwrap().word(), ARENA / 2 / 512);
        let full = connection.call_with_word(FILL, 1 << 20).unwrap_err();
        assert!(matches!(&full, CallError::NoRoom(text) if text.contains("temporary heap")), "{full}");
    }
}

#[test]
fn the_caller_is_told_what_a_trap_caught_and_no_address_of_the_servers() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.scope(4096).unwrap();
    let root = Boxed::new(&scope, 1_u64).unwrap();
    let mut call = |which| {
        let call = connection.begin(TRAPPED, scope.reference(), root, which, None).unwrap();
        connection.wait(call).unwrap_err()
    };
    assert_eq!(call(0), CallError::Fault(format!("at {:#x}", scope.address())));
    assert_eq!(call(1), CallError::Fault("outside the heap".to_owned()));
    assert_eq!(call(2), CallError::StackOverflow);
    assert_eq!(call(3), CallError::OverBudget);
    assert_eq!(call(4), CallError::Panicked);
    let codes = [call(1), call(2), call(3)].map(|error| error.code().number());
    assert_eq!(codes, [934, 933, 935]);
    works(&mut connection);
}

/// Returns the addresses of connections' heaps that this process has mapped with a protection key: the server's
/// mappings.
fn withheld_heaps() -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut of_heap, mut withheld) = (None, Vec::new());
    for line in maps.lines() {
        if let Some((start, _)) = line.split_once('-')
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            of_heap = line.contains("portcullis-heap").then_some(start);
        }
        let key = line.strip_prefix("ProtectionKey:").and_then(|key| key.trim().parse::<u32>().ok());
        if key.is_some_and(|key| key > 0) {
            withheld.extend(of_heap);
        }
    }
    withheld
}

#[test]
fn foreign_code_reaches_neither_what_others_share_nor_the_servers_stack() {
    let rig = Rig::new();
    if Sandbox::protection() != Protection::Keys {
        return eprintln!("SKIPPED: what trapped code does not reach: {}", Sandbox::protection());
    }
    let (mut connection, mut other) = (rig.connection(), rig.connection());
    let (secret, scope) = (other.scope(4096).unwrap(), connection.scope(4096).unwrap());
    let root = Boxed::new(&scope, 1_u64).unwrap();
    let mut read = |address| {
        let call = connection.begin(READ_WILD, scope.reference(), root, address, None).unwrap();
        connection.wait(call)
    };
    let wild = CallError::Fault("outside the heap".to_owned());
    let heaps = withheld_heaps();
    assert!(heaps.len() >= 2, "{heaps:x?}");
    for address in heaps {
        assert_eq!(read(address + 64).unwrap_err(), wild, "{address:x}");
    }
    assert_eq!(read(0).unwrap_err(), wild, "the server's stack");
    // The method can read its arguments, through the pointer that the caller has.
    assert_eq!(read(root.address()).unwrap().word(), 1);
    drop(secret);
    works(&mut other);
    works(&mut connection);
}

#[test]
fn hostile_and_honest_callers_share_a_server() {
    let rig = Rig::new();
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                let mut connection = rig.connection();
                let scope = connection.scope(8 << 20).unwrap();
                let root = chain(&scope, 300_000);
                for _ in 0..10 {
                    let error = connection.call(SUM, &scope, root).unwrap_err();
                    assert_eq!(error, CallError::StackOverflow);
                }
            });
            threads.spawn(|| {
                let mut connection = rig.connection();
                (0..50).for_each(|_| works(&mut connection));
            });
        }
    });
    assert_eq!(rig.server.counters().failed, 20);
}
