//! Every operation ends exactly once, with its true result, and in the order in which it was begun, whatever breaks.

use crate::fake::{BAD, Fake, GOOD, Handle, fake};
use portcullis_client::{Access, Allocate, Answer, Client, ClientConfig, Error, Operation, Permission};
use portcullis_nic::Memory;
use portcullis_protocol::{Lifetime, Moment};
use proptest::prelude::*;
use std::collections::HashMap;

const NOW: Moment = Moment(10);

/// Greatest number of turns for which the client may wait for room.
const TURNS_MAX: usize = 10_000;

#[derive(Clone, Debug)]
enum Step {
    /// One operation, and whether it is guilty.
    Single(bool),
    /// A batch of operations: whether each is guilty, and whether it is linked to the one before it.
    Batch(Vec<(bool, bool)>),
    /// The NIC executes this many requests.
    Run(usize),
    /// The client polls.
    Poll,
}

fn guilty() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.15)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => guilty().prop_map(Step::Single),
        2 => prop::collection::vec((guilty(), any::<bool>()), 1..20).prop_map(Step::Batch),
        3 => (1_usize..12).prop_map(Step::Run),
        2 => Just(Step::Poll),
    ]
}

fn grant(client: &mut Client<Fake>, handle: &Handle, key: portcullis_protocol::Rkey) -> Permission {
    handle.world().node.key = Some(key);
    let ask = Allocate::bytes(64).lifetime(Lifetime::millis(10));
    let call = client.call(NOW, ask).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    permission
}

/// An operation that has begun.
struct Begun {
    operation: Operation,
    is_guilty: bool,
    is_linked: bool,
}

/// The test's record of the operations that it began, in order.
#[derive(Default)]
struct Ledger {
    begun: Vec<Begun>,
    ended: HashMap<Operation, Result<u64, Error>>,
}

impl Ledger {
    fn collect(&mut self, client: &mut Client<Fake>) {
        let mut outcomes = Vec::new();
        client.drain(&mut outcomes);
        for (operation, outcome) in outcomes {
            assert!(client.take(operation).is_none(), "an outcome can be taken once");
            let before = self.ended.insert(operation, outcome.result);
            assert!(before.is_none(), "{operation:?} ended twice");
        }
    }

    /// Checks the results. Every operation is a fetch-and-add of 1 on one word, so the old values number the executed
    /// operations in their order. An operation that is linked to one that has failed fails with it.
    fn check(&self, word: u64) {
        let (mut executed, mut has_failed) = (0, false);
        for Begun { operation, is_guilty, is_linked } in &self.begun {
            has_failed = *is_guilty || (*is_linked && has_failed);
            if has_failed {
                assert_eq!(self.ended[operation], Err(Error::Revoked));
            } else {
                assert_eq!(self.ended[operation], Ok(executed));
                executed += 1;
            }
        }
        assert_eq!(word, executed);
        assert_eq!(self.ended.len(), self.begun.len());
    }
}

fn play(steps: Vec<Step>, pairs: usize, depth: usize, use_spares: bool) {
    let (endpoint, handle) = fake(pairs, depth);
    let config = ClientConfig { use_spares, operations_max: 64, backlog_max: 24 };
    let mut client = Client::new(endpoint, config).unwrap();
    let good = grant(&mut client, &handle, GOOD);
    let bad = grant(&mut client, &handle, BAD);
    let mut ledger = Ledger::default();
    for step in steps {
        match step {
            Step::Single(is_guilty) => {
                let permission = if is_guilty { &bad } else { &good };
                if let Ok(operation) = client.access(NOW, Access::fetch_and_add(permission, 0, 1)) {
                    ledger.begun.push(Begun { operation, is_guilty, is_linked: false });
                }
            }
            Step::Batch(members) => {
                let (mut batch, mut before) = (client.batch(), None);
                for (is_guilty, is_linked) in members {
                    let permission = if is_guilty { &bad } else { &good };
                    let access = Access::fetch_and_add(permission, 0, 1);
                    let link = before.filter(|_| is_linked);
                    let begun = match link {
                        Some(before) => batch.access_behind(NOW, before, access),
                        None => batch.access(NOW, access),
                    };
                    before = begun.ok();
                    let operation =
                        before.map(|it| Begun { operation: it, is_guilty, is_linked: link.is_some() });
                    ledger.begun.extend(operation);
                }
                batch.post();
            }
            Step::Run(most) => handle.run(most),
            Step::Poll => {
                client.poll(NOW);
                ledger.collect(&mut client);
            }
        }
    }
    for turn in 0.. {
        ledger.collect(&mut client);
        if client.pending() == 0 {
            break;
        }
        assert!(turn < TURNS_MAX, "{client:?} hangs");
        handle.run_all();
        client.poll(NOW);
    }
    let word = handle.look().remote.load(good.address().0);
    ledger.check(word);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn every_operation_ends_once_with_the_truth_and_in_order(
        steps in prop::collection::vec(step(), 0..80),
        pairs in 1_usize..4,
        depth in 1_usize..24,
        use_spares: bool,
    ) {
        play(steps, pairs, depth, use_spares);
    }
}
