//! Peers that write anything at any time into the rings that they share with the NIC.
//!
//! The promise: such a peer harms only its own queue. The NIC's end never panics and never accesses a byte outside the
//! ring (the model's memory is confined to the ring). It takes only entries that were made valid for this lap, and
//! takes each of them once. So a peer gets one entry executed for each entry that it wrote.

use crate::entries::send_completion;
use crate::exploration::{Bound, Tally, explore};
use crate::memory::LoomMemory;
use crate::orderings::Orderings;
use portcullis_nic::{LocalSpan, Memory, ReceiveRequest};
use portcullis_softnic::core::{CompletionPoster, ReceiveTaker, Ring, SendTaker};
use std::ops::Range;

const DEPTH: u32 = 2;
/// The offset at which the ring starts. The peer must not reach the bytes before and after the ring.
const START: u64 = 64;
/// Number of stores of a peer.
const SCRIBBLES: u64 = 3;
/// The values that a peer stores: the laps of the first rounds, too early, twice or backwards, and a lap that is never
/// reached.
const VALUES: [u64; 4] = [1, 2, 3, u64::MAX];
/// Number of attempts of the NIC's end while the peer writes.
const LOOKS: usize = 3;
const BOUND: Bound = Bound::Interruptions(3);

/// A store of a peer: the offset and the value.
type Scribble = (u64, u64);

/// Returns all sequences of stores to these words.
fn scripts(words: &[u64]) -> Vec<Vec<Scribble>> {
    let one: Vec<Scribble> = words.iter().flat_map(|&word| VALUES.map(|value| (word, value))).collect();
    (0..SCRIBBLES).fold(vec![Vec::new()], |scripts, _| {
        let longer = |script: &Vec<Scribble>| {
            let script = script.clone();
            one.iter().map(move |&next| [script.as_slice(), &[next]].concat())
        };
        scripts.iter().flat_map(longer).collect()
    })
}

/// Runs `nic` against a peer for each script. Returns the most entries that any peer got executed. `nic` returns the
/// number for its peer. It calls its last argument to wait until the peer has ended.
fn against_scribblers(
    words: &[u64],
    [readable, writable]: [Range<u64>; 2],
    nic: impl Fn(LoomMemory, &[Scribble], &mut dyn FnMut()) -> u64 + Copy + Send + Sync + 'static,
) -> u64 {
    let done = Tally::default();
    let (mut runs, bytes) = (0, readable.end.max(writable.end) + 64);
    for script in scripts(words) {
        let (done, readable, writable) = (done.clone(), readable.clone(), writable.clone());
        runs += explore(BOUND, move || {
            let memory = LoomMemory::new(bytes, Orderings::OF_MAPPING);
            let (peer, scribbles) = (memory.clone(), script.clone());
            let mut scribbling = Some(loom::thread::spawn(move || {
                for (offset, value) in scribbles {
                    peer.store(offset, value);
                }
            }));
            let mut wait_for_peer = || {
                if let Some(scribbling) = scribbling.take() {
                    scribbling.join().expect("the peer ends");
                }
            };
            done.reached(nic(
                memory.confined(readable.clone(), writable.clone()),
                &script,
                &mut wait_for_peer,
            ));
            wait_for_peer();
        });
    }
    println!("{runs} runs");
    done.value()
}

/// Returns the number of entries that a peer earns with these stores into the lap words at these offsets: one for each
/// slot and lap, in the order of the ring, up to the first that is missing.
fn earned(script: &[Scribble], lap_words: [u64; 2]) -> u64 {
    let laps = (1..).flat_map(|lap| lap_words.map(|word| (word, lap)));
    laps.take_while(|made_valid| script.contains(made_valid)).map(|_| 1).sum()
}

/// Checks that every word is zero or a value that the peer stored there.
fn assert_written(words: &[u64], offset: u64, script: &[Scribble]) {
    for (at, &word) in (offset..).step_by(8).zip(words) {
        assert!(word == 0 || script.contains(&(at, word)), "{word} at {at} comes from nowhere");
    }
}

const SEND_LAPS: [u64; 2] = [START + 56, START + 64 + 56];
const RECEIVE_LAPS: [u64; 2] = [START + 24, START + 32 + 24];
const CELL: u64 = 0;
const NOWHERE: Range<u64> = 0..0;

#[test]
fn a_scribbler_gets_at_most_one_request_done_for_each_it_made_valid() {
    // The first word of an entry may change at any moment, too. It is read once, after the lap.
    let words = [SEND_LAPS[0], SEND_LAPS[1], START];
    let most = against_scribblers(&words, [START..START + 128, NOWHERE], |memory, script, wait_for_peer| {
        let mut taker = SendTaker::new(Ring::new(memory, START, DEPTH));
        let look = |taker: &mut SendTaker<LoomMemory>| {
            let Some(words) = taker.peek() else { return false };
            assert_written(&words, START + taker.taken() % 2 * 64, script);
            taker.advance();
            true
        };
        for _ in 0..LOOKS {
            look(&mut taker);
        }
        wait_for_peer();
        while look(&mut taker) {}
        assert!(taker.taken() <= earned(script, SEND_LAPS), "{} requests were taken", taker.taken());
        taker.taken()
    });
    assert_eq!(most, SCRIBBLES, "the peer that did everything right did not get it done");
}

#[test]
fn a_scribbler_gets_at_most_one_receive_used_for_each_it_made_valid() {
    let rights = [START..START + 64, NOWHERE];
    let most = against_scribblers(&RECEIVE_LAPS, rights, |memory, script, wait_for_peer| {
        let mut taker = ReceiveTaker::new(Ring::new(memory, START, DEPTH));
        let mut taken = 0;
        let mut look = || {
            let Some(found) = taker.peek() else { return false };
            assert_eq!(found, ReceiveRequest { id: 0, local: LocalSpan::default() }, "nobody wrote that");
            taker.advance();
            taken += 1;
            true
        };
        for _ in 0..LOOKS {
            look();
        }
        wait_for_peer();
        while look() {}
        assert!(taken <= earned(script, RECEIVE_LAPS), "{taken} receives were used");
        taken
    });
    assert_eq!(most, SCRIBBLES, "the peer that did everything right did not get it used");
}

#[test]
fn discarding_ends_whatever_a_scribbler_does_meanwhile() {
    let most = against_scribblers(&SEND_LAPS, [START..START + 128, NOWHERE], |memory, script, _| {
        let mut taker = SendTaker::new(Ring::new(memory, START, DEPTH));
        taker.discard();
        let discarded = taker.taken();
        assert!(discarded <= earned(script, SEND_LAPS), "{discarded} requests were discarded");
        discarded
    });
    assert_eq!(most, u64::from(DEPTH), "no more than the ring holds is discarded, but that much");
}

#[test]
fn a_poller_that_lies_about_how_far_it_came_gets_no_more_than_it_claims() {
    let rights = [CELL..CELL + 8, START..START + 64];
    let most = against_scribblers(&[CELL], rights, |memory, script, wait_for_peer| {
        let mut poster = CompletionPoster::new(Ring::new(memory, START, DEPTH), CELL);
        let mut posted = 0;
        let mut turn = || {
            let room = poster.has_room(1);
            if room {
                posted += 1;
                poster.post(&send_completion(posted), u64::from(posted));
            }
            room
        };
        for _ in 0..LOOKS {
            turn();
        }
        wait_for_peer();
        // The last claim no longer changes, so the room is limited.
        while turn() {}
        let posted = u64::from(posted);
        let claims = script.iter().map(|claim| claim.1).filter(|&claim| claim <= posted);
        let claimed = claims.max().unwrap_or(0);
        assert!(posted <= claimed + u64::from(DEPTH), "{posted} were posted, {claimed} claimed");
        posted
    });
    assert_eq!(most, SCRIBBLES + u64::from(DEPTH), "the poller that told the truth did not get room");
}
