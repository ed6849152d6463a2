//! Trees that are deeper than stacks: recursive code that walks them gets an error, on whatever stack it runs, and the
//! server continues to serve.

use portcullis_rpc::channel::{
    CallError, Connection, Copied, Failure, OneShot, Reply, Server, Trusted, serve,
};
use portcullis_rpc::{Boxed, PointerError, Room, Source, View};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Node {
    next: Boxed<Node>,
}

const COPIED: u32 = 1;
const BY_VALUE: u32 = 2;
const IN_A_THREAD: u32 = 3;
const ONE_SHOT: u32 = 4;
const TRUSTED: u32 = 5;
const ECHO: u32 = 6;

/// Returns the depth of a list. Each step of the recursion allocates and formats, also the deepest one.
fn depth(at: Boxed<Node>, view: &View<'_>) -> Result<u64, PointerError> {
    if at.is_null() {
        return Ok(0);
    }
    let next = at.get(view)?.next;
    let text = std::hint::black_box(format!("{next:?}"));
    Ok(depth(next, view)? + u64::from(!text.is_empty()))
}

fn depth_by_value(at: Boxed<Node>, source: &impl Source) -> Result<u64, PointerError> {
    if at.is_null() { Ok(0) } else { Ok(depth_by_value(at.read(source)?.next, source)? + 1) }
}

fn answer(reply: &mut Reply<'_>, depth: Result<u64, PointerError>) -> Result<(), Failure> {
    reply.set_word(depth?);
    Ok(())
}

/// Builds a list of the given depth in a scope of the reply.
fn echo(depth: u64, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let root = list(reply.scope(8 * depth)?, depth)?;
    reply.set_root(root);
    Ok(())
}

fn list<R: Room>(room: &R, depth: u64) -> Result<Boxed<Node>, portcullis_rpc::HeapFull> {
    (0..depth).try_fold(Boxed::NULL, |next, _| Boxed::new(room, Node { next }))
}

fn server(folder: &tempfile::TempDir) -> Server {
    let server = serve(folder.path().join("depth.sock"))
        .copied(COPIED, |list: Copied<'_, Node>, reply| answer(reply, depth(list.root(), list.view())))
        .copied(BY_VALUE, |list: Copied<'_, Node>, reply| {
            answer(reply, depth_by_value(list.root(), list.view()))
        })
        .copied(IN_A_THREAD, |list: Copied<'_, Node>, reply| {
            // The thread has a small stack, which the server's thread knows nothing of.
            let walk = |list: Copied<'_, Node>| depth(list.root(), list.view());
            let depth = std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().stack_size(256 << 10);
                thread.spawn_scoped(scope, move || walk(list)).expect("a thread").join()
            });
            answer(reply, depth.expect("it comes back"))
        })
        .one_shot(ONE_SHOT, |list: OneShot<'_, Node>, reply| {
            let root = Boxed::at(list.word());
            answer(reply, depth(root, list.view()))
        })
        .trusted(TRUSTED, |list: Trusted<'_, Node>, reply| {
            answer(reply, depth_by_value(list.root(), list.heap()))
        })
        .copied(ECHO, |depth: Copied<'_, u64>, reply| echo(depth.word(), reply));
    server.start().expect("a server")
}

/// Depth of a list that is deeper than any stack here.
const DEEP: u64 = 1_000_000;

#[test]
fn a_tree_that_is_deeper_than_the_stack_fails_its_call_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let _server = server(&folder);
    let mut connection = Connection::open(folder.path().join("depth.sock")).expect("a connection");
    let scope = connection.scope(16 << 20).expect("a scope");
    let (short, deep) = (list(&scope, 100).expect("room"), list(&scope, DEEP).expect("room"));
    for method in [COPIED, BY_VALUE, IN_A_THREAD, TRUSTED] {
        for _ in 0..2 {
            assert_eq!(connection.call(method, &scope, deep).unwrap_err(), CallError::StackOverflow);
            assert_eq!(connection.call(method, &scope, short).expect("an answer").word(), 100, "{method}");
        }
    }
    // A list that leads to itself is endless for a method that trusts its callers: the end of the stack stops it.
    let root = Boxed::new(&scope, Node { next: Boxed::NULL }).expect("room");
    connection.heap().set(root, Node { next: root }).expect("it is there");
    assert_eq!(connection.call(TRUSTED, &scope, root).unwrap_err(), CallError::StackOverflow);
}

#[test]
fn sealed_trees_are_no_deeper_than_the_stack_either() {
    let folder = tempfile::tempdir().expect("a folder");
    let _server = server(&folder);
    let mut connection = Connection::open(folder.path().join("depth.sock")).expect("a connection");
    let scope = connection.one_shot(16 << 20).expect("a scope");
    let (short, deep) = (list(&scope, 100).expect("room"), list(&scope, DEEP).expect("room"));
    let sealed = connection.seal(scope).expect("sealed");
    let mut call = |root: Boxed<Node>| {
        let call = connection.begin(ONE_SHOT, sealed.reference(), root, root.address(), None)?;
        connection.wait(call).map(|answer| answer.word())
    };
    assert_eq!(call(deep), Err(CallError::StackOverflow));
    assert_eq!(call(short), Ok(100));
}

#[test]
fn a_client_looks_no_deeper_than_its_stack() {
    let folder = tempfile::tempdir().expect("a folder");
    let _server = server(&folder);
    let mut connection = Connection::open(folder.path().join("depth.sock")).expect("a connection");
    let nothing = connection.scope(4096).expect("a scope").reference();
    for (wanted, expected) in [(DEEP, Err(PointerError::TooDeep)), (100, Ok(100))] {
        let call = connection.begin(ECHO, nothing, Boxed::<u64>::NULL, wanted, None).expect("begun");
        let answer = connection.wait(call).expect("an answer");
        assert_eq!(depth_by_value(answer.root(), connection.heap()), expected);
        let looked = connection.look::<Node>(&answer).expect("a result");
        assert_eq!(depth(looked.root(), looked.view()), expected);
    }
}
