//! Tests that the models agree with the source that they stand for.
//!
//! The orderings of a mapping and the steps of the protocol for sleep are copied into the models. An author who changes
//! one in the source has to change it in the model too, and learns then whether the promises still hold. Only the text
//! is compared, so a harmless rewording of these few functions can fail here too: then this file has to be adapted.

use crate::orderings::Orderings;
use crate::sleep::{
    ANNOUNCE_STEPS, AWAKE_STEPS, RING_STEPS, SLEEP_STEPS, WAIT_STEPS, WAKE_SLEEPERS_STEPS, WAKE_STEPS,
    WATCH_STEPS,
};

const ACCESS: &str = include_str!("../../../memory/src/access.rs");
const FUTEX: &str = include_str!("../../../memory/src/futex.rs");
const ENDPOINT: &str = include_str!("../../src/port/endpoint.rs");
const EVENT_LOOP: &str = include_str!("../../../portcullis/src/waiting/event_loop.rs");
const SESSION_WAITER: &str = include_str!("../../../portcullis/src/waiting/waiter.rs");
const NIC: &str = include_str!("../../src/nic.rs");
const OBJECTS: &str = include_str!("../../src/core/objects.rs");
const SEAT: &str = include_str!("../../src/core/engines/seat.rs");
const WAKER: &str = include_str!("../../../memory/src/waker.rs");
const ENGINE: &str = include_str!("../../../host/src/engine/mod.rs");
const DRIVER: &str = include_str!("../../../host/src/software/driver.rs");

/// Calls that matter. A call with an ordering is listed with its ordering.
const CALLS: [&str; 31] = [
    "fence",
    "load",
    "store",
    "swap",
    "compare_exchange",
    "compare_exchange_weak",
    "fetch_add",
    "fetch_or",
    "waiting",
    "futex::wait",
    "futex::wake",
    "write",
    "announce",
    "turn_all",
    "turn",
    "run_commands",
    "sleep",
    "awake",
    "compiler_fence",
    "wake",
    "wake_sleeper",
    "turn_at",
    "wake_sleepers",
    "wake_client",
    "post",
    "ring",
    "quiet",
    "watch",
    "node_alive",
    "look_for_node",
    "arm",
];

/// Returns the body of the only function of this name that has one, without its comments.
fn body(source: &str, name: &str) -> String {
    let code: String =
        source.lines().flat_map(|line| [line.split("//").next().unwrap_or(""), "\n"]).collect();
    let starts = ["(", "<"].map(|after| format!("fn {name}{after}"));
    let bodies: Vec<&str> = starts
        .iter()
        .flat_map(|start| code.match_indices(start))
        .filter_map(|(at, _)| {
            let rest = &code[at..];
            let open = rest.find('{')?;
            // A trait's declaration ends before any bracket opens.
            (!rest[..open].contains(";\n")).then(|| enclosed(&rest[open..], '{', '}'))
        })
        .collect();
    let [body] = bodies[..] else { panic!("there are {} functions {name}", bodies.len()) };
    body.to_owned()
}

/// Returns the text between the bracket that `text` begins with and its partner.
fn enclosed(text: &str, open: char, close: char) -> &str {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        if letter == open {
            depth += 1;
        } else if letter == close {
            depth -= 1;
            if depth == 0 {
                return &text[1..at];
            }
        }
    }
    panic!("a bracket is not closed: {text}");
}

/// Returns the accesses of a function to memory that other threads see, in the order of its text.
fn steps(source: &str, name: &str) -> Vec<String> {
    let body = body(source, name);
    let mut steps = Vec::new();
    for (at, _) in body.match_indices('(') {
        let path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
        let start = body[..at].rfind(|letter| !path(letter)).map_or(0, |before| before + 1);
        let called = &body[start..at];
        let named = |call: &&&str| called == **call || called.ends_with(&format!("::{call}"));
        // The longest matching name is used: `futex::wait` rather than `wait`.
        let Some(call) = CALLS.iter().filter(named).max_by_key(|call| call.len()) else { continue };
        let arguments = enclosed(&body[at..], '(', ')');
        let orderings = arguments.split("Ordering::").skip(1).map(|rest| {
            let end = rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len());
            &rest[..end]
        });
        let step: Vec<&str> = std::iter::once(*call).chain(orderings).collect();
        steps.push(step.join(" "));
    }
    steps
}

#[test]
fn the_modelled_orderings_are_those_of_a_mapping() {
    let modelled = Orderings::OF_MAPPING;
    assert_eq!(steps(ACCESS, "load"), [format!("load {:?}", modelled.load)]);
    assert_eq!(steps(ACCESS, "store"), [format!("store {:?}", modelled.store)]);
    assert_eq!(steps(ACCESS, "load_words"), [format!("load {:?}", modelled.load_words)]);
    assert_eq!(steps(ACCESS, "store_words"), [format!("store {:?}", modelled.store_words)]);
    let [success, failure] = Orderings::OF_COMPARE_EXCHANGE;
    let exchange = [format!("compare_exchange {success:?} {failure:?}")];
    assert_eq!(steps(ACCESS, "compare_exchange"), exchange);
    assert_eq!(steps(ACCESS, "fetch_add"), [format!("fetch_add {:?}", Orderings::OF_FETCH_ADD)]);
    // The copy of few words is by atomics, and that of many bytes by the processor, between the same fences.
    let words = ["store Relaxed Relaxed", "load Relaxed"];
    assert_eq!(steps(ACCESS, "copy"), ["fence Release", words[0], words[1], "fence Acquire"]);
    assert_eq!(steps(ACCESS, "read"), ["fence Acquire"; 2]);
    assert_eq!(steps(ACCESS, "write"), ["fence Release"; 2]);
}

#[test]
fn the_modelled_bargain_is_the_one_that_is_kept() {
    assert_eq!(steps(WAKER, "announce"), ANNOUNCE_STEPS);
    assert_eq!(steps(WAKER, "awake"), AWAKE_STEPS);
    assert_eq!(steps(WAKER, "ring"), RING_STEPS);
    assert_eq!(steps(WAKER, "wake"), ["ring"]);
    assert_eq!(steps(ENGINE, "sleep"), SLEEP_STEPS);
    for step in ["announce", "turn_all", "turn", "sleep", "awake"] {
        assert_eq!(steps(DRIVER, step), [step]);
    }
    assert_eq!(steps(FUTEX, "sleep"), WAIT_STEPS);
    assert_eq!(steps(FUTEX, "watch"), WATCH_STEPS);
    assert_eq!(steps(ENDPOINT, "wait"), ["sleep", "waiting"]);
    assert_eq!(steps(ENDPOINT, "arm"), ["node_alive", "watch", "waiting"]);
    assert_eq!(steps(ENDPOINT, "node_alive"), ["quiet"]);
    assert_eq!(steps(EVENT_LOOP, "arm"), ["arm", "look_for_node"]);
    assert_eq!(steps(SESSION_WAITER, "look_for_node"), ["node_alive"]);
    assert_eq!(steps(OBJECTS, "wake_sleepers"), WAKE_SLEEPERS_STEPS);
    assert_eq!(steps(NIC, "wake_client"), ["wake"]);
    assert_eq!(steps(FUTEX, "wake_sleeper"), WAKE_STEPS);
    assert_eq!(steps(NIC, "wake"), ["wake_sleeper"]);
}

#[test]
fn whoever_makes_work_wakes_the_other_end_after_it() {
    assert_eq!(steps(ENDPOINT, "post"), ["post", "ring"]);
    assert_eq!(steps(ENDPOINT, "post_control"), ["post", "ring"]);
    assert_eq!(steps(NIC, "turn"), ["turn_at"]);
    assert_eq!(steps(NIC, "turn_at"), ["turn", "wake_sleepers"]);
    assert_eq!(steps(NIC, "turn_all"), ["turn_all", "wake_sleepers"]);
    assert_eq!(steps(SEAT, "turn"), ["load Acquire", "turn", "wake_sleepers"]);
}

#[test]
fn a_changed_ordering_does_not_pass_for_the_old_one() {
    let source =
        "fn load(&self) -> u64 {\n // .store(1, Ordering::SeqCst)\n self.word(8).load(Ordering::Relaxed)\n}";
    assert_eq!(steps(source, "load"), ["load Relaxed"]);
    let unnamed = "fn load(&self) -> u64 { self.word(8).load(RELAXED) }";
    assert_eq!(steps(unnamed, "load"), ["load"]);
    let more = "fn load(&self) -> u64 { fence(Ordering::SeqCst); self.word(8).load(Ordering::Acquire) }";
    assert_eq!(steps(more, "load"), ["fence SeqCst", "load Acquire"]);
}
