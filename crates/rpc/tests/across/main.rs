//! Calls between machines: through shared memory and over UDP on this machine, and with `PORTCULLIS_NIC=ibverbs` over
//! its RDMA device.

mod certificates;
mod child;
mod death;
mod rig;

use portcullis_rpc::channel::{CallError, Connection, Copied, Failure, OneShotError, Reply, Trusted};
use portcullis_rpc::{Boxed, Linked, Source, Text, Vector, copy_from};
use rig::{BLUE, Fabric, LONG, RED, Rig, at_node, fabrics, wait_for};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const SUM: u32 = 1;
const MIRROR: u32 = 2;
const SUM_TRUSTED: u32 = 3;
const BYTES: u32 = 4;
const ECHO: u32 = 5;
const FAIL: u32 = 6;
const WAIT: u32 = 7;

/// A tree with native pointers.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Linked)]
#[repr(C)]
struct Tree {
    name: Text,
    value: u64,
    left: Boxed<Tree>,
    right: Boxed<Tree>,
}

/// Builds a tree of `levels` levels, whose values count from `first` on.
fn grow<R: portcullis_rpc::Room>(room: &R, levels: u32, first: u64) -> Boxed<Tree> {
    if levels == 0 {
        return Boxed::NULL;
    }
    let half = (1 << (levels - 1)) - 1;
    let (left, right) = (grow(room, levels - 1, first + 1), grow(room, levels - 1, first + 1 + half));
    let name = Text::new(room, &format!("node {first}")).expect("room");
    Boxed::new(room, Tree { name, value: first, left, right }).expect("room")
}

fn sum<S: Source>(source: &S, at: Boxed<Tree>) -> Result<u64, Failure> {
    if at.is_null() {
        return Ok(0);
    }
    let Tree { name, value, left, right } = at.read(source)?;
    if name.read(source)? != format!("node {value}") {
        return Err(Failure::new(99, "a name is wrong"));
    }
    Ok(value + sum(source, left)? + sum(source, right)?)
}

/// The sum of the numbers from `first` on, `2^levels - 1` of them.
fn sum_of(levels: u32, first: u64) -> u64 {
    (first..first + (1 << levels) - 1).sum()
}

fn mirrored<S: Source, R: portcullis_rpc::Room>(
    from: &S,
    at: Boxed<Tree>,
    to: &R,
) -> Result<Boxed<Tree>, Failure> {
    if at.is_null() {
        return Ok(Boxed::NULL);
    }
    let Tree { name, value, left, right } = at.read(from)?;
    let name = Text::new(to, &name.read(from)?)?;
    let tree = Tree { name, value, left: mirrored(from, right, to)?, right: mirrored(from, left, to)? };
    Ok(Boxed::new(to, tree)?)
}

fn methods(channel: portcullis_rpc::channel::Channel) -> portcullis_rpc::channel::Channel {
    channel
        .copied(SUM, |tree: Copied<'_, Tree>, reply| {
            reply.set_word(sum(tree.view(), tree.root())?);
            Ok(())
        })
        .copied(MIRROR, |tree: Copied<'_, Tree>, reply| {
            let scope = reply.scope(tree.word())?;
            let root = mirrored(tree.view(), tree.root(), scope)?;
            reply.set_root(root);
            Ok(())
        })
        .trusted(SUM_TRUSTED, |tree: Trusted<'_, Tree>, reply| {
            reply.set_word(sum(tree.heap(), tree.root())?);
            Ok(())
        })
        .copied(BYTES, |bytes: Copied<'_, u64>, reply| {
            let scope = reply.scope(bytes.word())?;
            let root = Vector::new(scope, &vec![7_u64; usize::try_from(bytes.word() / 8 - 3).unwrap_or(0)])?;
            let root = Boxed::new(scope, root)?;
            reply.set_root(root);
            Ok(())
        })
        .copied(ECHO, |word: Copied<'_, u64>, reply| {
            reply.set_word(word.word());
            Ok(())
        })
        .copied(FAIL, |_: Copied<'_, u64>, _| Err(Failure::new(7, "as it is asked to")))
}

/// Runs a test on each fabric that this machine has.
fn on_each(test: impl Fn(Fabric)) {
    for fabric in fabrics() {
        eprintln!("over {fabric:?}");
        test(fabric);
    }
}

fn check_calls(connection: &mut Connection, levels: u32, first: u64) {
    let scope = connection.scope(64 << 10).expect("room");
    let tree = grow(&scope, levels, first);
    let expected = sum_of(levels, first);
    assert_eq!(connection.call(SUM, &scope, tree).expect("a sum").word(), expected);
    assert_eq!(connection.call(SUM_TRUSTED, &scope, tree).expect("a sum").word(), expected);
    let call = connection.begin(MIRROR, scope.reference(), tree, 64 << 10, None).expect("it begins");
    let answer = connection.wait(call).expect("a tree");
    let root: Boxed<Tree> = answer.root();
    let there = connection.look::<Tree>(&answer).expect("a result");
    assert_eq!(sum(there.view(), root).expect("a tree"), expected);
    let mut left_most = *there.get().expect("a root");
    while !left_most.left.is_null() {
        left_most = *left_most.left.get(there.view()).expect("a child");
    }
    // The tree is mirrored, so its left-most node has the last number.
    assert_eq!(left_most.value, first + (1 << levels) - 2);
    assert_eq!(answer.read::<Tree>().expect("by value").value, first);
}

#[test]
fn a_tree_with_native_pointers_goes_there_and_one_comes_back() {
    on_each(|fabric| {
        let rig = Rig::new(fabric, methods);
        let mut connection = rig.connect(RED);
        for round in 0..50 {
            check_calls(&mut connection, 1 + round % 8, u64::from(round) * 1000);
        }
        // The same methods can be called from this machine, without the node.
        check_calls(&mut Connection::open(rig.local()).expect("a connection"), 8, 5);
        drop(connection);
        rig.assert_empty();
    });
}

#[test]
fn as_many_calls_as_there_are_lines_are_under_way_and_each_has_its_own_answer() {
    on_each(|fabric| {
        let rig = Rig::new(fabric, methods);
        let mut connection = rig.connect(RED);
        for round in 0..20_u64 {
            let word = |call: u64| round * 1000 + call;
            let begin = |connection: &mut Connection, call| {
                connection.begin(
                    ECHO,
                    portcullis_rpc::ScopeRef::default(),
                    Boxed::<u64>::NULL,
                    word(call),
                    None,
                )
            };
            let calls: Vec<_> = (0..64).map(|call| begin(&mut connection, call).expect("room")).collect();
            // The calls are waited for in another order, so that slots and lines do not correspond.
            for at in [7, 0, 63].into_iter().chain((0..64).filter(|at| ![7, 0, 63].contains(at))) {
                let answer = connection.wait(calls[at]).expect("an answer");
                assert_eq!(answer.word(), word(at as u64));
            }
            assert_eq!(connection.wait(calls[5]).expect_err("it was taken"), CallError::NoSuchCall);
        }
    });
}

#[test]
fn results_that_were_dropped_make_room_for_others() {
    on_each(|fabric| {
        let mut at = at_node();
        at.heap_bytes = 2 << 20;
        let rig = Rig::with(fabric, at, methods);
        let mut connection = rig.connect(RED);
        let mut kept = Vec::new();
        let bytes = |connection: &mut Connection, length| {
            let call = connection.begin(
                BYTES,
                portcullis_rpc::ScopeRef::default(),
                Boxed::<u64>::NULL,
                length,
                None,
            );
            call.and_then(|call| connection.wait(call))
        };
        // The results have ten times the bytes that there is room for.
        for _ in 0..100 {
            let answer = bytes(&mut connection, 100 << 10).expect("room");
            let vector: Vector<u64> = answer.read().expect("a vector");
            assert_eq!(vector.len(), (100 << 10) / 8 - 3);
            let there = connection.look::<Vector<u64>>(&answer).expect("a result");
            let values = there.get().and_then(|it| it.get(there.view())).expect("values");
            assert!(values.iter().all(|&it| it == 7));
        }
        let error = loop {
            match bytes(&mut connection, 100 << 10) {
                Ok(answer) => kept.push(answer),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, CallError::NoRoom(_)), "{error}");
        assert!((5..11).contains(&kept.len()), "{}", kept.len());
        kept.clear();
        // Each call gives back eight of the results.
        (0..2).for_each(|word| drop(connection.call_with_word(ECHO, word).expect("an answer")));
        bytes(&mut connection, 900 << 10).expect("room again, in one piece");
    });
}

#[test]
fn what_is_too_long_is_an_error_that_says_so() {
    on_each(|fabric| {
        let channel = |channel: portcullis_rpc::channel::Channel| {
            let options =
                portcullis_rpc::channel::ServerOptions { arguments_max: 8192, ..Default::default() };
            methods(channel.with(options))
        };
        let rig = Rig::new(fabric, channel);
        let options = portcullis_rpc::channel::ConnectionOptions { results_max: 4096, ..Default::default() };
        let mut connection = rig.connect_with(RED, options);
        let call =
            connection.begin(BYTES, portcullis_rpc::ScopeRef::default(), Boxed::<u64>::NULL, 8192, None);
        let error = connection.wait(call.expect("it begins")).expect_err("too long");
        assert!(matches!(error, CallError::ResultTooLong { length: 4097.., most: 4096 }), "{error}");
        let scope = connection.scope(16 << 10).expect("room");
        let long = Boxed::new(&scope, Vector::new(&scope, &[1_u64; 1100]).expect("room")).expect("room");
        let error = connection.call(SUM, &scope, long).expect_err("too long");
        assert_eq!(error, CallError::ArgumentsTooLong);
        // The scope belongs to another connection, and does not exist in this one.
        let other = rig.connect(RED);
        let foreign = other.scope(4096).expect("room");
        let root = grow(&foreign, 1, 1);
        assert_eq!(connection.call(SUM, &foreign, root).expect_err("foreign"), CallError::ArgumentsTooLong);
        let error = connection.one_shot(4096).expect_err("there are none");
        assert!(matches!(&error, OneShotError::Refused(why) if why.contains("Connection::scope")), "{error}");
        check_calls(&mut rig.connect(BLUE), 4, 1);
    });
}

#[test]
fn errors_of_methods_come_back_with_their_texts() {
    on_each(|fabric| {
        let rig = Rig::new(fabric, methods);
        let mut connection = rig.connect(RED);
        let error = connection.call_with_word(FAIL, 0).expect_err("it fails");
        assert_eq!(error, CallError::Failed { number: 7, text: "as it is asked to".to_owned() });
        assert_eq!(connection.call_with_word(77, 0).expect_err("there is none"), CallError::NoSuchMethod(77));
        let scope = connection.scope(4096).expect("room");
        let wild = Boxed::<Tree>::at(scope.address() + (1 << 20));
        let error = connection.call(SUM, &scope, wild).expect_err("wild");
        assert!(matches!(error, CallError::WildPointer(_)), "{error}");
        check_calls(&mut connection, 4, 1);
    });
}

/// Returns a method that waits for its gate to open, and reports when it has begun.
fn gated() -> (impl Fn(Copied<'_, u64>, &mut Reply<'_>) -> Result<(), Failure>, Gate) {
    let (begun, begins) = mpsc::channel();
    let is_open = Arc::new(AtomicBool::new(false));
    let (gate, begun) = (Arc::clone(&is_open), std::sync::Mutex::new(begun));
    let method = move |word: Copied<'_, u64>, reply: &mut Reply<'_>| {
        let _ = begun.lock().map(|begun| begun.send(word.word()));
        wait_for("the gate", || gate.load(Ordering::Acquire));
        reply.set_word(word.word());
        Ok(())
    };
    (method, Gate { is_open, begins })
}

struct Gate {
    is_open: Arc<AtomicBool>,
    begins: mpsc::Receiver<u64>,
}

impl Gate {
    fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }
}

#[test]
fn a_deadline_passes_here_and_there() {
    on_each(|fabric| {
        let (method, gate) = gated();
        let ran = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&ran);
        let rig = Rig::new(fabric, |channel| {
            methods(channel).copied(WAIT, method).copied(20, move |_: Copied<'_, u64>, reply| {
                count.fetch_add(1, Ordering::Relaxed);
                reply.set_word(
                    reply.time_left().map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(0)),
                );
                Ok(())
            })
        });
        let mut connection = rig.connect(RED);
        let begin = |connection: &mut Connection, method, within| {
            let (scope, root) = (portcullis_rpc::ScopeRef::default(), Boxed::<u64>::NULL);
            connection.begin(method, scope, root, 1, within).expect("it begins")
        };
        // The method reads how long its caller waits, by its own clock.
        let call = begin(&mut connection, 20, Some(LONG));
        let left = connection.wait(call).expect("in time").word();
        assert!(left > 0 && left <= u64::try_from(LONG.as_millis()).expect("short"), "{left}");
        // Each exchange can improve the estimate of the server's clock.
        for word in 0..100 {
            assert_eq!(connection.call_with_word(ECHO, word).expect("an answer").word(), word);
        }
        let first = begin(&mut connection, WAIT, None);
        gate.begins.recv_timeout(LONG).expect("it has begun");
        let late = begin(&mut connection, 20, Some(Duration::from_millis(30)));
        assert_eq!(connection.wait(late).expect_err("the thread is busy"), CallError::Late);
        // By the client's estimate of the server's clock, the deadline has passed there too.
        gate.open();
        connection.wait(first).expect("it has no deadline");
        check_calls(&mut connection, 3, 1);
        assert_eq!(ran.load(Ordering::Relaxed), 1, "what is too late is not begun");
    });
}

#[test]
fn a_call_that_was_cancelled_before_it_began_does_not_begin() {
    on_each(|fabric| {
        let (method, gate) = gated();
        let rig = Rig::new(fabric, |channel| methods(channel).copied(WAIT, method));
        let mut connection = rig.connect(RED);
        let begin = |connection: &mut Connection, method, word| {
            let (scope, root) = (portcullis_rpc::ScopeRef::default(), Boxed::<u64>::NULL);
            connection.begin(method, scope, root, word, None).expect("it begins")
        };
        let first = begin(&mut connection, WAIT, 1);
        gate.begins.recv_timeout(LONG).expect("it has begun");
        let (second, third) = (begin(&mut connection, WAIT, 2), begin(&mut connection, ECHO, 3));
        connection.cancel(second);
        // A call that has begun continues.
        connection.cancel(first);
        // If a later call has arrived, the cancellation has arrived too: the fabric may carry it later than the
        // cancelled call itself.
        let settle = std::time::Instant::now();
        wait_for("the cancellation to be carried", || {
            connection.has_ended(third);
            settle.elapsed() > Duration::from_millis(200)
        });
        gate.open();
        assert_eq!(connection.wait(first).expect("it had begun").word(), 1);
        assert_eq!(connection.wait(second).expect_err("it was cancelled"), CallError::Cancelled);
        assert_eq!(connection.wait(third).expect("it was not").word(), 3);
        assert!(gate.begins.try_recv().is_err(), "the second one has not begun");
    });
}

#[test]
fn a_value_goes_from_one_kind_of_connection_to_another_and_back() {
    on_each(|fabric| {
        let rig = Rig::new(fabric, methods);
        let (mut far, mut near) = (rig.connect(RED), Connection::open(rig.local()).expect("a connection"));
        let here = far.scope(64 << 10).expect("room");
        let tree = grow(&here, 6, 1);
        let there = near.scope(64 << 10).expect("room");
        let copy = copy_from(&here, tree, &there).expect("room");
        assert_eq!(near.call(SUM, &there, copy).expect("a sum").word(), sum_of(6, 1));
        // The result of the far server is passed to the near one, out of the far connection's copy of it.
        let call = far.begin(MIRROR, here.reference(), tree, 64 << 10, None).expect("it begins");
        let answer = far.wait(call).expect("a tree");
        let made = far.look::<Tree>(&answer).expect("a result");
        let next = near.scope(64 << 10).expect("room");
        let copy = copy_from(made.view(), made.root(), &next).expect("room");
        let call = near.begin(MIRROR, next.reference(), copy, 64 << 10, None).expect("it begins");
        let answer = near.wait(call).expect("a tree");
        let made = near.look::<Tree>(&answer).expect("a result");
        // The tree is passed back, after it was mirrored twice.
        let last = far.scope(64 << 10).expect("room");
        let copy = copy_from(made.view(), made.root(), &last).expect("room");
        assert_eq!(sum(&last, copy).expect("a tree"), sum(&here, tree).expect("a tree"));
        let (first, second) = (copy.read(&last).expect("a root"), tree.read(&here).expect("a root"));
        assert_eq!(
            first.left.read(&last).expect("a child").value,
            second.left.read(&here).expect("a child").value
        );
        assert_eq!(far.call(SUM, &last, copy).expect("a sum").word(), sum_of(6, 1));
    });
}

#[portcullis_rpc::service]
trait Library {
    /// Counts the titles that begin so.
    #[method(200)]
    fn count(&self, beginning: Copied<'_, Text>) -> Result<u64, Failure>;

    /// At most so many titles.
    #[method(201)]
    fn titles(&self, most: u64, reply: &mut Reply<'_>) -> Result<Boxed<Vector<Text>>, Failure>;
}

struct Shelf(Vec<&'static str>);

impl Library for Shelf {
    fn count(&self, beginning: Copied<'_, Text>) -> Result<u64, Failure> {
        let beginning = beginning.get()?.get(beginning.view())?;
        Ok(self.0.iter().filter(|title| title.starts_with(beginning)).count() as u64)
    }

    fn titles(&self, most: u64, reply: &mut Reply<'_>) -> Result<Boxed<Vector<Text>>, Failure> {
        let scope = reply.scope(4096)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let titles: Result<Vec<Text>, _> =
            self.0.iter().take(most).map(|title| Text::new(scope, title)).collect();
        Ok(Boxed::new(scope, Vector::new(scope, &titles?)?)?)
    }
}

#[test]
fn a_typed_client_is_the_same_over_a_node() {
    on_each(|fabric| {
        let rig =
            Rig::new(fabric, |channel| channel.service(LibraryServer(Shelf(vec!["Emma", "Emil", "Faust"]))));
        let mut library = LibraryClient(rig.connect(RED));
        let scope = library.0.scope(4096).expect("room");
        let beginning = Boxed::new(&scope, Text::new(&scope, "Em").expect("room")).expect("room");
        assert_eq!(library.count(&scope, beginning).expect("a number"), 2);
        let titles = library.titles(2).expect("titles");
        let titles = titles.look(&mut library.0).expect("a result");
        let second = titles.get().and_then(|it| it.get(titles.view())).expect("titles")[1];
        assert_eq!(second.get(titles.view()), Ok("Emil"));
    });
}
