//! The mistakes that are planted in calls through shared memory, and in the directory in which their heaps are.

use super::pinned;
use portcullis_planted::{self as planted, Mistake};
use portcullis_sim::{FaultKind, Plan, Programs, Promise, run};

/// Seeds within which a mistake must be found.
const SEEDS: u64 = 60;

/// Returns the plan of a seed, with more of what a mistake needs.
fn plan_for(fault: Mistake, seed: u64) -> Plan {
    let drawn = Plan::draw(seed).with(Programs::Calls);
    let with = |kinds: &[FaultKind]| Plan { faults: kinds.to_vec(), ..drawn.clone() };
    match fault {
        Mistake::TakingNotReclaimed | Mistake::FreedFromTheFirst => with(&[FaultKind::ClientStop]),
        Mistake::DeadlineLookedAtOnce => with(&[FaultKind::NodePause]),
        Mistake::GoneNotTold => with(&[FaultKind::NodeStop]),
        _ => drawn,
    }
}

/// Returns the first seed that finds a mistake, with the promise that it breaks.
fn found(fault: Mistake) -> Option<(u64, Promise, String)> {
    pinned::seeds_for(fault, SEEDS).find_map(|seed| {
        planted::plant(Some(fault));
        let report = run(&plan_for(fault, seed));
        planted::plant(None);
        let failure = report.failures.into_iter().next()?;
        Some((seed, failure.promise, failure.what))
    })
}

macro_rules! mistakes {
    ($($name:ident: $fault:ident by $($promise:ident)|+;)*) => {
        $(#[test]
        fn $name() {
            let Some((seed, promise, what)) = found(Mistake::$fault) else {
                panic!(
                    "{:?} survives: a change may have moved it to another seed, see tests/planted/seeds.txt",
                    Mistake::$fault
                );
            };
            eprintln!("{:?}: {promise}, by seed {seed}: {what}", Mistake::$fault);
            let checkers = [$(Promise::$promise),+];
            assert!(
                checkers.contains(&promise),
                "{:?} is found by {promise}, not by {checkers:?}: seed {seed}: {what}",
                Mistake::$fault
            );
        })*

        #[test]
        fn every_mistake_of_calls_has_its_test() {
            let all = Mistake::OF_CALLS.iter().chain(&Mistake::OF_DIRECTORY);
            let missing: Vec<_> = all.filter(|fault| ![$(Mistake::$fault),*].contains(fault)).collect();
            assert!(missing.is_empty(), "no test plants {missing:?}");
        }
    };
}

mistakes! {
    names_outlive_lease: NamesOutliveLease by Lease;
    ended_bytes_stay_used: EndedBytesStayUsed by Quota | Soundness;
    held_heap_reclaimed: HeldHeapReclaimed by Reclaim | Lease | Places | Soundness;
    place_given_twice: PlaceGivenTwice by Places;
    lease_not_extended: LeaseNotExtended by Lease;
    access_not_asked: AccessNotAsked by Access;
    tenants_bytes_not_compared: TenantsBytesNotCompared by Quota;
    ended_stay_holders: EndedStayHolders by Reclaim | Lease;
    cancel_not_looked_at: CancelNotLookedAt by Beginning;
    cancelled_not_numbered: CancelledNotNumbered by Progress | Timeliness | Answer;
    deadline_not_looked_at: DeadlineNotLookedAt by Beginning | Arguments;
    deadline_looked_at_once: DeadlineLookedAtOnce by Arguments;
    late_not_told: LateNotTold by Timeliness;
    one_page_copied: OnePageCopied by Arguments;
    own_heap_alone: OwnHeapAlone by Answer | Arguments;
    result_kept: ResultKept by Rest;
    late_result_kept: LateResultKept by Rest;
    panicked_result_kept: PanickedResultKept by Rest;
    turn_not_compared: TurnNotCompared by Answer;
    slot_not_freed: SlotNotFreed by Service;
    gone_not_told: GoneNotTold by Progress;
    taking_not_reclaimed: TakingNotReclaimed by Rest;
    freed_from_the_first: FreedFromTheFirst by Rest;
    all_reclaimed: AllReclaimed by Places | Arguments | Answer;
}
