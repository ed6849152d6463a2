//! The send ring and the completions that free its slots, used as a client and a NIC use them.

use crate::entries::{request, request_words, send_completion};
use crate::exploration::{Bound, Tally, explore};
use crate::memory::LoomMemory;
use crate::orderings::Orderings;
use portcullis_nic::{Completion, WorkRequest};
use portcullis_softnic::core::{CompletionPoller, CompletionPoster, Ring, SendPoster, SendTaker};
use std::collections::VecDeque;

/// Number of requests that fit in the ring, and of completions that fit in theirs.
const DEPTH: u32 = 2;
/// Whether each request is signalled. There are more requests than fit, so that the ring wraps. The second one's
/// completion retires the first.
const SIGNALLED: [bool; 5] = [false, true, true, true, true];
/// Number of turns of each end while the other end runs.
const TURNS: usize = 5;

const COMPLETIONS: u64 = 128;
const CELL: u64 = 192;
const BYTES: u64 = 200;

fn numbered() -> impl Iterator<Item = (u32, bool)> {
    (1..).zip(SIGNALLED)
}

/// The posting end, with the requests that it still has to post and the completions that it expects.
struct Client {
    send: SendPoster<LoomMemory>,
    completions: CompletionPoller<LoomMemory>,
    unposted: VecDeque<WorkRequest>,
    expected: VecDeque<Completion>,
}

impl Client {
    fn new(memory: &LoomMemory) -> Self {
        Self {
            send: SendPoster::new(Ring::new(memory.clone(), 0, DEPTH)),
            completions: CompletionPoller::new(Ring::new(memory.clone(), COMPLETIONS, DEPTH), CELL),
            unposted: numbered().map(|(id, signalled)| request(id, signalled)).collect(),
            expected: numbered().filter(|entry| entry.1).map(|(id, _)| send_completion(id)).collect(),
        }
    }

    /// Posts as many requests as fit and polls once, as `PortEndpoint` does.
    fn turn(&mut self) {
        let posted = self.send.post(self.unposted.make_contiguous());
        self.unposted.drain(..posted);
        if let Some((completion, taken)) = self.completions.take() {
            assert_eq!(
                Some(completion),
                self.expected.pop_front(),
                "a completion is not the one that is due"
            );
            self.send.retire(taken);
            self.completions.publish();
        }
    }
}

/// The NIC's end, with the requests that it expects.
struct Taker {
    send: SendTaker<LoomMemory>,
    completions: CompletionPoster<LoomMemory>,
    expected: VecDeque<(u32, bool)>,
}

impl Taker {
    fn new(memory: &LoomMemory) -> Self {
        Self {
            send: SendTaker::new(Ring::new(memory.clone(), 0, DEPTH)),
            completions: CompletionPoster::new(Ring::new(memory.clone(), COMPLETIONS, DEPTH), CELL),
            expected: numbered().collect(),
        }
    }

    /// Takes one request, if there is one and there is room for its completion, as `Core::turn` does.
    fn turn(&mut self) {
        let Some(words) = self.send.peek() else { return };
        if !self.completions.has_room(1) {
            return;
        }
        let (id, signalled) = self.expected.pop_front().expect("no more is taken than was posted");
        let lap = self.send.taken() / u64::from(DEPTH) + 1;
        assert_eq!(words, request_words(id, signalled, lap), "a request is not the one that is due");
        self.send.advance();
        if signalled {
            self.completions.post(&send_completion(id), self.send.taken());
        }
    }
}

/// Checks that every request is taken exactly as it was posted, in order and once. Returns the most requests that were
/// taken while the posting end ran.
pub fn everything_arrives(orderings: Orderings, bound: Bound) -> u64 {
    let taken = Tally::default();
    let reached = taken.clone();
    let runs = explore(bound, move || {
        let memory = LoomMemory::new(BYTES, orderings);
        let (mut client, mut taker) = (Client::new(&memory), Taker::new(&memory));
        let posting = loom::thread::spawn(move || {
            for _ in 0..TURNS {
                client.turn();
            }
            client
        });
        for _ in 0..TURNS {
            taker.turn();
        }
        reached.reached(taker.send.taken());
        let mut client = posting.join().expect("the posting end ends");
        // The ends now take turns until everything has arrived.
        for _ in 0..2 * SIGNALLED.len() {
            taker.turn();
            client.turn();
        }
        assert!(client.unposted.is_empty() && taker.expected.is_empty(), "a request is lost");
        assert!(client.expected.is_empty(), "a completion is lost");
        assert_eq!(client.send.room(), u64::from(DEPTH), "a slot did not come back");
        assert!(taker.send.peek().is_none(), "a request is taken twice");
    });
    println!("{runs} runs");
    taken.value()
}

/// Checks that a taker that sees the first of two requests also sees the second, if `post` posts them.
pub fn both_or_none(
    orderings: Orderings,
    bound: Bound,
    post: fn(&mut SendPoster<LoomMemory>, &[WorkRequest; 2]),
) {
    let (none, both) = (Tally::default(), Tally::default());
    let (saw_none, saw_both) = (none.clone(), both.clone());
    let runs = explore(bound, move || {
        let memory = LoomMemory::new(BYTES, orderings);
        let mut poster = SendPoster::new(Ring::new(memory.clone(), 0, DEPTH));
        let mut taker = SendTaker::new(Ring::new(memory, 0, DEPTH));
        let posting = loom::thread::spawn(move || post(&mut poster, &[request(1, false), request(2, true)]));
        if let Some(first) = taker.peek() {
            assert_eq!(first, request_words(1, false, 1), "the first request is not whole");
            let second = Some(request_words(2, true, 1));
            assert_eq!(taker.glimpse(1), second, "the second request is not there with the first");
            taker.advance();
            assert_eq!(taker.peek(), second, "the second request is not there after the first");
            saw_both.add();
        } else {
            saw_none.add();
        }
        posting.join().expect("the posting end ends");
    });
    println!("{runs} runs");
    assert!(none.value() > 0 && both.value() > 0, "the model does not come to both outcomes");
}

#[test]
fn requests_arrive_whole_in_order_and_once() {
    let taken = everything_arrives(Orderings::OF_MAPPING, Bound::Every);
    assert_eq!(taken, SIGNALLED.len() as u64, "no run came round the ring while both ends ran");
}

#[test]
fn requests_posted_together_become_visible_together() {
    both_or_none(Orderings::OF_MAPPING, Bound::Every, |poster, requests| {
        assert_eq!(poster.post(requests), 2);
    });
}
