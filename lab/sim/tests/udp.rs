//! Clients over UDP: no promise is broken.
//!
//! `PORTCULLIS_SEEDS=100000 cargo test --release -p portcullis-sim --features planted --test simulator udp::` runs more seeds, `make mutants` fewer.

use crate::extent;
use portcullis_sim::{FaultKind, Plan, Programs, campaign, run};

/// Number of seeds, in a run of everything.
const SEEDS: u64 = 150;
/// Number of seeds of a structure, in a run of everything. Such runs are long.
const SEEDS_OF_STRUCTURES: u64 = 30;

fn seeds() -> u64 {
    extent::seeds(SEEDS)
}

/// Runs plans. Returns the number of accesses that were executed, and the number of violations that were tried.
fn hold(plan_of: impl Fn(u64) -> Plan + Sync) -> (u64, u64) {
    hold_for(seeds(), plan_of)
}

fn hold_for(seeds: u64, plan_of: impl Fn(u64) -> Plan + Sync) -> (u64, u64) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    let (mut accesses, mut tried, mut refused) = (0, 0, 0);
    campaign(0..seeds, threads, &plan_of, |report| {
        accesses += report.accesses;
        tried += report.violations_tried;
        refused += report.violations_refused;
        if let Some(failure) = report.failures.first() {
            failed.push(format!("{failure}\n  {}", plan_of(report.seed).command()));
        }
        failed.len() < 5
    });
    eprintln!("{accesses} accesses, {tried} violations tried, {refused} refused");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(tried, refused);
    (accesses, tried)
}

#[test]
fn clients_over_udp_break_no_promise() {
    let (accesses, tried) = hold(|seed| Plan { udp: 100, ..Plan::draw(seed) });
    assert!(accesses > 40 * seeds() && tried > seeds(), "{accesses} {tried}");
}

#[test]
fn somebody_on_the_path_breaks_no_promise() {
    let (accesses, _) = hold(|seed| {
        let mut plan = Plan { udp: 100, ..Plan::draw(seed) };
        if !plan.faults.contains(&FaultKind::Path) {
            plan.faults.push(FaultKind::Path);
        }
        plan
    });
    assert!(accesses > 20 * seeds(), "{accesses}");
}

#[test]
fn a_path_that_becomes_narrow_ends_no_operation() {
    let (accesses, _) = hold(|seed| Plan { udp: 100, faults: vec![FaultKind::Mtu], ..Plan::draw(seed) });
    assert!(accesses > 40 * seeds(), "{accesses}");
    for programs in [Programs::Sessions, Programs::Tables, Programs::Queues, Programs::Claims] {
        hold_for(extent::seeds(SEEDS_OF_STRUCTURES / 3), |seed| Plan {
            udp: 100,
            faults: vec![FaultKind::Mtu],
            ..Plan::draw(seed).with(programs)
        });
    }
}

#[test]
fn narrow_paths_beside_all_other_faults_break_no_promise() {
    hold(|seed| {
        let mut plan = Plan { udp: 100, ..Plan::draw(seed) };
        plan.faults.push(FaultKind::Mtu);
        plan
    });
}

#[test]
fn clients_over_udp_and_over_queue_pairs_share_objects() {
    let (accesses, _) = hold(|seed| Plan { udp: 50, sharing: true, ..Plan::draw(seed) });
    assert!(accesses > 40 * seeds(), "{accesses}");
}

/// Returns a seed's plan with these programs, and with `udp` of a hundred clients over UDP. Even seeds have an
/// attacker on the clients' paths.
fn with(programs: Programs, seed: u64, udp: u32) -> Plan {
    let mut plan = Plan { udp, ..Plan::draw(seed).with(programs) };
    if seed.is_multiple_of(2) && !plan.faults.contains(&FaultKind::Path) {
        plan.faults.push(FaultKind::Path);
    }
    plan
}

#[test]
fn sessions_and_their_keepers_break_no_promise() {
    for udp in [50, 100] {
        let (accesses, _) = hold_for(seeds() / 3, |seed| with(Programs::Sessions, seed, udp));
        assert!(accesses > 20 * seeds(), "{accesses}");
    }
}

#[test]
fn what_the_users_of_a_structure_are_told_fits_one_order() {
    for programs in [Programs::Tables, Programs::Queues, Programs::Claims] {
        for udp in [50, 100] {
            let seeds = extent::seeds(SEEDS_OF_STRUCTURES);
            let (accesses, _) = hold_for(seeds, |seed| with(programs, seed, udp));
            assert!(accesses > 200 * seeds, "{programs:?}: {accesses}");
        }
    }
}

#[test]
fn hostile_clients_over_udp_reach_no_chunk() {
    let (_, tried) = hold_for(seeds() / 3, |seed| with(Programs::Chunks, seed, 100));
    assert!(tried > seeds(), "{tried}");
}

#[test]
fn a_run_over_udp_can_be_had_again() {
    for programs in Programs::ALL {
        let plan = with(programs, 2, 60);
        assert_eq!(run(&plan), run(&plan), "{}", plan.command());
    }
}

/// Returns a plan with few clients, and no faults but these.
fn small(programs: Programs, seed: u64, (clients, micros): (usize, u64), faults: &[FaultKind]) -> Plan {
    let plan = Plan::draw(seed).with(programs);
    let duration_ns = micros * 1_000;
    Plan { clients, duration_ns, udp: 100, held: 1, faults: faults.to_vec(), ..plan }
}

fn breaks_nothing(plan: &Plan) {
    let report = run(plan);
    assert!(report.ok, "{:?}: {}", report.failures, plan.command());
}

#[test]
fn a_slot_of_a_queue_is_filled_when_its_bytes_are_there_although_operations_have_no_order() {
    breaks_nothing(&small(Programs::Queues, 1, (1, 2_848), &[]));
}

#[test]
fn what_made_the_first_segment_of_a_queue_keeps_nobody_from_freeing_it() {
    breaks_nothing(&small(Programs::Queues, 14, (2, 13_500), &[FaultKind::ClientStop]));
}

#[test]
fn a_sweep_frees_what_it_finds_although_a_permission_ends_before_all_is_freed() {
    breaks_nothing(&small(Programs::Tables, 27, (1, 26_000), &[]));
}

#[test]
fn a_window_comes_back_although_each_operation_comes_too_late_for_its_permission() {
    breaks_nothing(&Plan { udp: 100, ..Plan::draw(90).with(Programs::Tables) });
}

/// Returns the plan of a seed in which some clients are over UDP.
fn mixed(programs: Programs, seed: u64) -> Plan {
    Plan { udp: 70, ..Plan::draw(seed).with(programs) }
}

#[test]
fn one_slow_answer_spaces_operations_out_until_the_next_only() {
    breaks_nothing(&mixed(Programs::Tables, 884_000_349));
}

#[test]
fn extents_with_many_blocks_are_given_back_although_packets_are_lost() {
    breaks_nothing(&mixed(Programs::Tables, 884_004_658));
}

#[test]
fn a_permission_that_many_accesses_failed_under_is_replaced_once() {
    breaks_nothing(&mixed(Programs::Tables, 884_001_772));
}

#[test]
fn programs_that_read_long_values_at_once_over_a_slow_link_are_answered() {
    breaks_nothing(&mixed(Programs::Tables, 884_003_986));
}

#[test]
fn a_long_write_over_a_slow_link_is_not_interrupted_while_its_parts_succeed() {
    for seed in [882_000_005, 883_000_004] {
        breaks_nothing(&mixed(Programs::Tables, seed));
    }
}

#[test]
fn a_write_whose_permission_ends_under_its_data_is_told_so() {
    breaks_nothing(&mixed(Programs::Workers, 886_301_672));
}

#[test]
fn a_run_lasts_as_long_as_the_founders_last_sweeps_wait_for_leases() {
    breaks_nothing(&mixed(Programs::Tables, 884_000_311));
}
