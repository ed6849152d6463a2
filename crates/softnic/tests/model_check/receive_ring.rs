//! The receive ring. Its slots are freed one by one, each with the completion of its receive.

use crate::entries::{receive, receive_completion};
use crate::exploration::{Bound, Tally, explore};
use crate::memory::LoomMemory;
use crate::orderings::Orderings;
use portcullis_nic::{Completion, ReceiveRequest};
use portcullis_softnic::core::{CompletionPoller, CompletionPoster, ReceivePoster, ReceiveTaker, Ring};
use std::collections::VecDeque;

/// Number of receives that fit in the ring, and of completions that fit in theirs.
const DEPTH: u32 = 2;
/// Number of receives that are posted: more than fit, so that the ring wraps.
const RECEIVES: u32 = 4;
/// Number of turns of each end while the other end runs.
const TURNS: u32 = 4;

const COMPLETIONS: u64 = 64;
const CELL: u64 = 128;
const BYTES: u64 = 136;

/// The posting end, with the receives that it still has to post and the completions that it expects.
struct Client {
    receive: ReceivePoster<LoomMemory>,
    completions: CompletionPoller<LoomMemory>,
    unposted: VecDeque<ReceiveRequest>,
    expected: VecDeque<Completion>,
}

impl Client {
    fn turn(&mut self) {
        let posted = self.receive.post(self.unposted.make_contiguous());
        self.unposted.drain(..posted);
        if let Some((completion, _)) = self.completions.take() {
            assert_eq!(
                Some(completion),
                self.expected.pop_front(),
                "a completion is not the one that is due"
            );
            self.receive.retire();
            self.completions.publish();
        }
    }
}

/// The NIC's end, with the receives that it expects.
struct Taker {
    receive: ReceiveTaker<LoomMemory>,
    completions: CompletionPoster<LoomMemory>,
    expected: VecDeque<u32>,
}

impl Taker {
    /// Uses one receive, if there is one and there is room for its completion.
    fn turn(&mut self) {
        let Some(next) = self.receive.peek() else { return };
        if !self.completions.has_room(1) {
            return;
        }
        let id = self.expected.pop_front().expect("no more is taken than was posted");
        assert_eq!(next, receive(id), "a receive is not the one that is due");
        self.receive.advance();
        self.completions.post(&receive_completion(id), 0);
    }
}

/// Checks that every receive is found exactly as it was posted, in order and once. Returns the most receives that were
/// found while the posting end ran.
pub fn everything_arrives(orderings: Orderings, bound: Bound) -> u32 {
    let taken = Tally::default();
    let reached = taken.clone();
    let runs = explore(bound, move || {
        let memory = LoomMemory::new(BYTES, orderings);
        let receives = || Ring::new(memory.clone(), 0, DEPTH);
        let completions = || Ring::new(memory.clone(), COMPLETIONS, DEPTH);
        let mut client = Client {
            receive: ReceivePoster::new(receives()),
            completions: CompletionPoller::new(completions(), CELL),
            unposted: (1..=RECEIVES).map(receive).collect(),
            expected: (1..=RECEIVES).map(receive_completion).collect(),
        };
        let mut taker = Taker {
            receive: ReceiveTaker::new(receives()),
            completions: CompletionPoster::new(completions(), CELL),
            expected: (1..=RECEIVES).collect(),
        };
        let posting = loom::thread::spawn(move || {
            for _ in 0..TURNS {
                client.turn();
            }
            client
        });
        for _ in 0..TURNS {
            taker.turn();
        }
        reached.reached(u64::from(RECEIVES) - taker.expected.len() as u64);
        let mut client = posting.join().expect("the posting end ends");
        // The ends now take turns until everything has arrived.
        for _ in 0..2 * RECEIVES {
            taker.turn();
            client.turn();
        }
        assert!(client.unposted.is_empty() && taker.expected.is_empty(), "a receive is lost");
        assert!(client.expected.is_empty(), "a completion is lost");
        assert!(taker.receive.peek().is_none(), "a receive is taken twice");
    });
    println!("{runs} runs");
    u32::try_from(taken.value()).expect("there are only a few")
}

#[test]
fn receives_arrive_whole_in_order_and_once() {
    let taken = everything_arrives(Orderings::OF_MAPPING, Bound::Every);
    assert_eq!(taken, RECEIVES, "no run came round the ring while both ends ran");
}
