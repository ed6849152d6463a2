//! The completion ring, whose polling end publishes its progress only now and then.

use crate::entries::{receive_completion, send_completion};
use crate::exploration::{Bound, Tally, explore};
use crate::memory::LoomMemory;
use crate::orderings::Orderings;
use portcullis_nic::Completion;
use portcullis_softnic::core::{CompletionPoller, CompletionPoster, Ring};
use std::collections::VecDeque;

/// Number of completions that fit.
const DEPTH: u32 = 2;
/// Number of completions that are posted: more than fit, so that the ring wraps.
const COMPLETIONS: u32 = 4;
/// Number of completions after which the polling end publishes its progress.
const PUBLISHED_EVERY: u32 = 2;
/// Number of attempts of each end while the other end runs.
const TURNS: u32 = 4;

const CELL: u64 = 64;
const BYTES: u64 = 72;

/// Returns a completion. The two kinds alternate: their entries are filled differently.
fn completion(id: u32) -> Completion {
    if id.is_multiple_of(2) { receive_completion(id) } else { send_completion(id) }
}

/// Whether the posting end checks for room before it posts, as it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    Asks,
    Pushes,
}

struct Poster {
    ring: CompletionPoster<LoomMemory>,
    unposted: VecDeque<u32>,
    manners: Manners,
}

impl Poster {
    fn turn(&mut self) {
        if let Some(&id) = self.unposted.front()
            && (self.manners == Manners::Pushes || self.ring.has_room(1))
        {
            self.ring.post(&completion(id), u64::from(id));
            self.unposted.pop_front();
        }
    }
}

struct Poller {
    ring: CompletionPoller<LoomMemory>,
    expected: VecDeque<u32>,
    unpublished: u32,
}

impl Poller {
    fn turn(&mut self) {
        let waiting = self.ring.waiting();
        let Some((got, taken)) = self.ring.take() else {
            assert!(!waiting, "a completion that waits can be taken");
            return;
        };
        let id = self.expected.pop_front().expect("no more is taken than was posted");
        assert_eq!(got, completion(id), "a completion is not the one that is due");
        if !id.is_multiple_of(2) {
            assert_eq!(taken, id, "a completion does not say how many requests were taken");
        }
        self.unpublished += 1;
        if self.unpublished == PUBLISHED_EVERY {
            self.ring.publish();
            self.unpublished = 0;
        }
    }
}

/// Checks that no completion is lost, torn, overrun or taken twice. Returns the most completions that were taken while
/// the posting end ran.
pub fn nothing_is_overrun(orderings: Orderings, bound: Bound, manners: Manners) -> u32 {
    let taken = Tally::default();
    let reached = taken.clone();
    let runs = explore(bound, move || {
        let memory = LoomMemory::new(BYTES, orderings);
        let ring = || Ring::new(memory.clone(), 0, DEPTH);
        let unposted = (1..=COMPLETIONS).collect::<VecDeque<_>>();
        let mut poller =
            Poller { ring: CompletionPoller::new(ring(), CELL), expected: unposted.clone(), unpublished: 0 };
        let mut poster = Poster { ring: CompletionPoster::new(ring(), CELL), unposted, manners };
        let posting = loom::thread::spawn(move || {
            for _ in 0..TURNS {
                poster.turn();
            }
            poster
        });
        for _ in 0..TURNS {
            poller.turn();
        }
        reached.reached(u64::from(COMPLETIONS) - poller.expected.len() as u64);
        let mut poster = posting.join().expect("the posting end ends");
        // The ends now take turns until everything has arrived.
        for _ in 0..2 * COMPLETIONS {
            poster.turn();
            poller.turn();
        }
        assert!(poster.unposted.is_empty() && poller.expected.is_empty(), "a completion is lost");
        assert!(!poller.ring.waiting(), "a completion is taken twice");
    });
    println!("{runs} runs");
    u32::try_from(taken.value()).expect("there are only a few")
}

#[test]
fn completions_are_never_overrun_lost_torn_or_doubled() {
    let taken = nothing_is_overrun(Orderings::OF_MAPPING, Bound::Every, Manners::Asks);
    assert_eq!(taken, COMPLETIONS, "no run came round the ring while both ends ran");
}
