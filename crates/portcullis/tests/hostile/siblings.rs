//! What one client's lateness, and its strays, cost the other clients of its tenant: nothing that they notice.

use crate::attacker::{Attacker, DATA, key};
use crate::stage::{BLUE, RED, Stage, lenient, wait_for};
use portcullis::{Lifetime, NodeConfig, Refusal, Rights, Rkey, SessionOptions, Sharing, ViolationLimits};
use portcullis_nic::{Operation, RemoteSpan, Status, VerbsEndpoint};
use portcullis_protocol::{Granted, Keep, ReplyBody, RequestBody};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One read in so many comes late.
const READS_A_ROUND: u32 = 50;
/// Late reads of a client that does not look at its clock: twice as many as barred a tenant once.
const LATE_READS: u32 = 160;
/// The number of its reads under a permission of its own.
const READ_OWN: u64 = 1;
/// How long a sibling's operations are counted, at least, for one of the rates that are compared.
const SLICE: Duration = Duration::from_millis(25);
/// Pairs of slices, one with violations and one without.
const PAIRS: usize = 50;
/// How often a rate may be measured: other work on the machine may spoil one. A cost that is there spoils all.
const ATTEMPTS: usize = 3;
/// What a sibling keeps of its rate at least.
const KEPT_MIN: f64 = 0.9;

/// As by default in all that violations cost.
fn by_default() -> NodeConfig {
    NodeConfig { violations: ViolationLimits::default(), ..lenient() }
}

/// Asks once for the rebuild of queue pair 0. `Some`: not for so long.
fn ask_for_rebuild(attacker: &mut Attacker) -> Result<Option<Duration>, Refusal> {
    match attacker.ask(RequestBody::Recover { queue_pair: 0 }) {
        ReplyBody::Done => {
            attacker.endpoint.rebuilt(0);
            Ok(None)
        }
        ReplyBody::Refused(Refusal::Paused { wait }) => Ok(Some(wait.into())),
        ReplyBody::Refused(refusal) => Err(refusal),
        other => panic!("no answer to that: {other:?}"),
    }
}

/// Reads with the key of a permission that has ended, until the node's NIC refuses it: until then its window lingers.
fn come_late(attacker: &mut Attacker) {
    let brief = attacker.allocate(64, Sharing::Exclusive);
    attacker.revoke(brief.permission);
    while attacker.try_read(0, brief.address().0, key(brief.credential), 8) == Status::Success {}
}

/// A permission that outlasts the test.
fn hold(attacker: &mut Attacker) -> Granted {
    let body = RequestBody::Allocate {
        size: 64,
        alignment: 0,
        lifetime: Lifetime::seconds(60),
        rights: Rights::all(),
        sharing: Sharing::Exclusive,
        keep: Keep::No,
    };
    match attacker.ask(body) {
        ReplyBody::Granted(granted) => granted,
        other => panic!("no memory: {other:?}"),
    }
}

/// Reads what it holds so many times, all under way at once as far as the queue has room.
fn read_own(attacker: &mut Attacker, queue_pair: u32, held: &Granted, times: u32) {
    let remote = RemoteSpan { address: held.address(), rkey: Rkey(key(held.credential)) };
    let operation = Operation::Read { local: attacker.local(DATA, 8), remote };
    let (mut posted, mut done) = (0, 0);
    wait_for("reads", || {
        while posted < times && attacker.post(queue_pair, READ_OWN, operation) {
            posted += 1;
        }
        while let Some(completion) = attacker.poll() {
            if completion.request == READ_OWN {
                assert_eq!(completion.status, Status::Success);
                done += 1;
            }
        }
        done == times
    });
}

/// What was once seen with default settings: an innocent process paused 906 times, and its tenant barred within a minute.
#[test]
fn reads_that_come_late_pause_no_sibling_and_bar_nobody() {
    // The honest client of the same tenant fails at the first refusal that it meets.
    let stage = Stage::with(by_default(), &[RED, BLUE]);
    let mut attacker = stage.attacker();
    let mut held = hold(&mut attacker);
    for late in 0..LATE_READS {
        read_own(&mut attacker, 0, &held, READS_A_ROUND - 1);
        come_late(&mut attacker);
        attacker.recover(0).expect("it is slowed, and not barred");
        if late % 32 == 0 {
            drop(stage.host.connect(RED, SessionOptions::default()).expect("its tenant comes and goes"));
            attacker.revoke(held.permission);
            held = hold(&mut attacker);
        }
    }
    let log = || std::fs::read_to_string(stage.audit()).expect("there is a log");
    let told = |log: &str| log.lines().filter(|line| line.contains("\"event\":\"violation\"")).count();
    wait_for("the audit log", || told(&log()) == LATE_READS as usize);
    let log = log();
    for line in log.lines().filter(|line| line.contains("\"event\":\"violation\"")) {
        for part in ["\"operation\":\"read\"", "\"length\":8", "\"rkey\":\"0x", "\"reason\":\"late access\""]
        {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    assert!(!log.contains("\"event\":\"bar\""), "nobody is barred");
    drop(attacker);
    stage.clear();
}

/// What an attacker does in its rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mischief {
    Late,
    Stray,
}

/// A client under full load on one queue pair, that breaks rules on another, or keeps them: either way it gets a
/// permission each round, reads with it and gives it back.
struct Loader<'a> {
    stage: &'a Stage,
    attacker: Attacker,
    held: Granted,
}

impl<'a> Loader<'a> {
    fn new(stage: &'a Stage) -> Self {
        let mut attacker = stage.attacker();
        let held = hold(&mut attacker);
        Self { stage, attacker, held }
    }

    fn keep_the_rules(&mut self) {
        let brief = self.attacker.allocate(64, Sharing::Exclusive);
        read_own(&mut self.attacker, 0, &brief, 1);
        self.attacker.revoke(brief.permission);
        self.read_a_round();
    }

    fn break_a_rule(&mut self, mischief: Mischief) {
        match mischief {
            Mischief::Late => come_late(&mut self.attacker),
            Mischief::Stray => {
                let brief = self.attacker.allocate(64, Sharing::Exclusive);
                let behind = brief.address().0 + brief.length;
                let status = self.attacker.try_read(0, behind, key(brief.credential), 8);
                assert_eq!(status, Status::RemoteAccessError);
                self.attacker.revoke(brief.permission);
            }
        }
        loop {
            match ask_for_rebuild(&mut self.attacker) {
                Ok(None) => return,
                // It does not idle while it is paused: nor does the one that keeps the rules.
                Ok(Some(wait)) => {
                    let until = Instant::now() + wait;
                    while Instant::now() < until {
                        self.read_a_round();
                    }
                }
                Err(refusal) => panic!("{mischief:?}: {refusal}"),
            }
        }
    }

    fn read_a_round(&mut self) {
        read_own(&mut self.attacker, 1, &self.held, READS_A_ROUND);
    }

    /// Comes anew, as it would have to once it was shown out.
    fn come_anew(&mut self) {
        *self = Self::new(self.stage);
    }
}

/// Sets a flag when it goes.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The part of its rate that an honest client of the tenant keeps while a sibling does mischief, beside what it has
/// while the same sibling keeps the rules and is as busy. The median of pairs of slices, taken in turn.
fn kept_rate(mischief: Mischief) -> f64 {
    let stage = Stage::with(by_default(), &[RED]);
    let (breaks, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (rounds, violations) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut kept: Vec<f64> = std::thread::scope(|scope| {
        let loader = scope.spawn(|| {
            let mut loader = Loader::new(&stage);
            while !over.load(Ordering::Relaxed) {
                if breaks.load(Ordering::Relaxed) {
                    loader.break_a_rule(mischief);
                    let so_far = violations.fetch_add(1, Ordering::Relaxed) + 1;
                    // Before pauses grow beyond a slice, and before it would be shown out.
                    if mischief == Mischief::Stray && so_far % 20 == 0 {
                        loader.come_anew();
                    }
                } else {
                    loader.keep_the_rules();
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Also when a rate cannot be told: nobody waits for a client that works for ever.
        let _end = SetAtEnd(&over);
        let rate = |mode: bool| {
            breaks.store(mode, Ordering::Relaxed);
            let (before, began, first) = (stage.operations(), Instant::now(), rounds.load(Ordering::Relaxed));
            // A time to count in, and a round at least that began in it.
            while began.elapsed() < SLICE || rounds.load(Ordering::Relaxed) < first + 2 {
                assert!(!loader.is_finished(), "the client under load met an error");
                std::thread::sleep(SLICE / 5);
            }
            (stage.operations() - before) as f64 / began.elapsed().as_secs_f64()
        };
        let kept = (0..PAIRS).map(|pair| {
            // Each goes first as often as the other.
            let (first, second) = (rate(pair % 2 == 0), rate(pair % 2 != 0));
            if pair % 2 == 0 { first / second } else { second / first }
        });
        kept.collect()
    });
    let broken = violations.load(Ordering::Relaxed);
    assert!(broken >= PAIRS as u64, "only {broken} violations in all slices");
    stage.clear();
    kept.sort_by(f64::total_cmp);
    let (median, quarters) = (kept[PAIRS / 2], [kept[PAIRS / 4], kept[3 * PAIRS / 4]]);
    println!("{mischief:?}: {broken} violations; the sibling kept {median:.2} {quarters:.2?} of its rate");
    median
}

fn keeps_its_rate(mischief: Mischief) {
    let best = (0..ATTEMPTS).map(|_| kept_rate(mischief)).find(|&kept| kept >= KEPT_MIN);
    assert!(best.is_some(), "the sibling of a client with {mischief:?} accesses lost its rate each time");
}

#[test]
fn a_sibling_keeps_its_rate_beside_a_client_that_comes_late() {
    keeps_its_rate(Mischief::Late);
}

#[test]
fn a_sibling_keeps_its_rate_beside_a_client_that_strays() {
    keeps_its_rate(Mischief::Stray);
}
