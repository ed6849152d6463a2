//! The one list of promises, with the code generated from it: [`promises`] and
//! [`conformance_tests!`](crate::conformance_tests).

use super::report::{PromiseOutcome, Report};
use super::{
    atomics, binds, binds_for_others, chains, faults, ids, keys, local, messages, order, queues, range,
    regions, rights, states, teardown, type_1, type_2,
};
use portcullis_examination::bench::{Bench, Holder};
use portcullis_examination::check::Check;
use portcullis_nic::{Guarantee, Nic, WindowKind};
use std::convert::identity;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One promise of every NIC, with the check whether a NIC keeps it.
#[derive(Debug)]
pub struct Promise<N: Nic> {
    /// The name of the promise: theme, the holder of the key if there are several, and the promise.
    pub name: &'static str,
    /// The guarantee on which this promise depends. The promise fails on a device that declares that it lacks the
    /// guarantee.
    pub guarantee: Option<Guarantee>,
    check: fn(&mut Bench<N>) -> Check,
}

impl<N: Nic> Promise<N> {
    /// Tests the promise on a NIC that has no objects yet.
    pub fn check(&self, nic: N) -> PromiseOutcome {
        let known = nic.capabilities();
        let expected_to_break = self.guarantee.is_some_and(|guarantee| known.unenforced.contains(&guarantee))
            || known.deviations.contains(&self.name);
        // The NIC is dropped with its bench, whatever state a panic left it in.
        let said = catch_unwind(AssertUnwindSafe(|| {
            let mut bench = Bench::new(nic)?;
            (self.check)(&mut bench)?;
            bench.clear()
        }));
        match said {
            Ok(said) => PromiseOutcome::judge(said, expected_to_break),
            Err(_) => PromiseOutcome::Broken("the device panicked".to_owned()),
        }
    }
}

/// Tests every promise, each on a NIC of its own.
pub fn run<N: Nic>(mut make: impl FnMut() -> N) -> Report {
    let mut report = Report::default();
    let promises = promises::<N>();
    let mut deviations = Vec::new();
    for promise in &promises {
        let nic = make();
        let capabilities = nic.capabilities();
        (report.device, deviations) = (capabilities.name, capabilities.deviations);
        report.outcomes.push((promise.name, promise.check(nic)));
    }
    deviations.retain(|name| promises.iter().all(|promise| promise.name != *name));
    let unknown =
        PromiseOutcome::Broken("the device is known to break this, and there is no such promise".to_owned());
    report.outcomes.extend(deviations.into_iter().map(|name| (name, unknown.clone())));
    report
}

/// Tests one promise, for the tests of [`conformance_tests!`](crate::conformance_tests). A skip is reported on
/// standard error, which the test harness does not capture.
///
/// # Panics
/// Panics if the promise is broken or unexpectedly kept, or if no promise has this name.
pub fn keep<N: Nic>(name: &str, make: impl FnOnce() -> N) {
    let found = promises::<N>().into_iter().find(|promise| promise.name == name);
    let Some(promise) = found else { panic!("there is no promise {name}") };
    let nic = make();
    let device = nic.capabilities().name;
    let outcome = promise.check(nic);
    assert!(!outcome.is_failure(), "{name} on {device}: {outcome}");
    if let PromiseOutcome::Skipped(_) | PromiseOutcome::ExpectedDeviation(_) = outcome {
        // If even standard error is closed, there is nowhere to report it.
        let _ = writeln!(std::io::stderr(), "{name} on {device}: {outcome}");
    }
}

/// The list of promises. A name is that of a function in the theme's module. The brackets contain the guarantee
/// without which the promise fails for windows. Only promises whose stray access lies inside the region are marked
/// with a range: the region refuses the others even if windows refuse nothing.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_promise {
    ($context:tt $($then:tt)+) => {
        $($then)+! { $context
            every_key {
                range {
                    refuses_the_byte_below [WindowRange];
                    refuses_the_byte_past_the_end [WindowRange];
                    refuses_what_straddles_the_start [WindowRange];
                    refuses_what_straddles_the_end [WindowRange];
                    refuses_more_than_the_whole [WindowRange];
                    refuses_what_is_far_outside;
                    refuses_a_length_that_wraps_the_address_space;
                    reads_exactly_what_is_inside;
                    writes_exactly_what_is_inside;
                    moves_nothing_for_length_zero;
                }
                rights {
                    refuses_a_read_without_the_right [WindowRights];
                    refuses_a_write_without_the_right [WindowRights];
                    refuses_atomics_without_the_right [WindowRights];
                    refuses_reads_and_writes_with_the_atomic_right_alone [WindowRights];
                    follow_the_flags_of_a_live_queue_pair;
                    follow_the_atomic_flag_of_a_live_queue_pair;
                }
                atomics {
                    refuse_the_word_below [WindowRange];
                    refuse_the_word_past_the_end [WindowRange];
                    refuse_a_word_that_straddles_the_end [WindowRange];
                    refuse_a_word_that_is_not_aligned;
                    refuse_a_local_span_that_is_not_one_word;
                    swap_when_the_word_compares;
                    leave_a_word_that_does_not_compare;
                    add_and_give_the_value_before;
                    add_past_the_largest_number_by_wrapping;
                    of_one_queue_see_each_other_in_order;
                }
            }
            every_window {
                keys {
                    open_nothing_before_a_bind;
                    of_the_bind_before_open_nothing [StaleKey];
                    with_any_other_low_byte_open_nothing [StaleKey];
                    open_nothing_after_the_unbind [StaleKey];
                    open_nothing_when_the_window_is_gone;
                    of_neighbours_open_only_their_own [WindowRange];
                    go_round_all_low_bytes_and_each_opens_in_its_turn;
                }
                binds {
                    past_the_end_of_the_region_fail;
                    below_the_region_fail;
                    longer_than_the_region_fail;
                    that_wrap_the_address_space_fail;
                    over_a_region_that_allows_none_fail;
                    over_a_region_of_another_domain_fail;
                    of_a_window_of_another_domain_fail;
                    through_a_queue_pair_of_another_domain_fail;
                    that_let_peers_write_where_the_owner_may_not_fail;
                    to_the_key_of_another_object_fail;
                    over_a_region_that_is_gone_fail;
                    of_a_window_that_is_gone_fail;
                    up_to_the_edges_of_the_region_work;
                }
                teardown {
                    of_a_domain_waits_for_its_windows;
                    of_a_region_waits_for_its_windows;
                    of_a_region_works_after_the_unbind;
                }
                ids {
                    that_nobody_gave_name_no_domain_of_windows;
                    of_windows_that_are_gone_name_nothing;
                }
            }
            every_nic {
                regions {
                    without_remote_rights_open_nothing_to_peers;
                    refuse_a_queue_pair_of_another_domain [ProtectionDomain];
                    refuse_a_key_that_nobody_gave;
                    that_are_gone_open_nothing;
                    over_the_same_bytes_do_not_share_rights;
                    are_not_made_of_nothing_or_of_bytes_outside;
                    let_no_peer_write_where_their_owner_may_not;
                }
                type_1 {
                    windows_refuse_a_queue_pair_of_another_domain [ProtectionDomain];
                    windows_take_any_low_byte_where_the_nic_says_so [StaleKey];
                    windows_cannot_be_freed_by_a_local_invalidate;
                    windows_cannot_be_freed_by_a_peer;
                    windows_move_when_they_are_bound_again [WindowRange];
                    windows_that_moved_leave_their_old_key_behind [StaleKey];
                    windows_lose_rights_when_they_are_bound_with_fewer [WindowRights];
                    windows_can_be_bound_from_every_queue_pair_of_the_domain [StaleKey];
                    windows_can_be_handed_over_in_one_batch [StaleKey];
                    windows_work_on_every_queue_pair_of_the_domain;
                    windows_outlive_the_recovery_of_their_queue_pair;
                    windows_outlive_the_queue_pair_that_bound_them;
                }
                type_2 {
                    windows_refuse_every_other_queue_pair [WindowQueuePair];
                    windows_refuse_a_queue_pair_of_another_domain;
                    windows_cannot_be_bound_while_they_are;
                    windows_cannot_be_taken_by_another_queue_pair;
                    windows_are_not_freed_by_the_peer_of_another_queue_pair;
                    invalidates_of_a_stale_key_fail;
                    invalidates_of_a_free_window_fail;
                    invalidates_of_no_window_fail;
                    messages_cannot_invalidate_what_is_no_window;
                    windows_are_free_after_a_local_invalidate [Type2StaleKey];
                    windows_whose_bind_was_flushed_are_free;
                    windows_outlive_the_recovery_of_their_queue_pair;
                    windows_that_are_free_can_change_queue_pairs [WindowQueuePair];
                    windows_are_freed_by_the_peers_message_and_it_says_which [Type2StaleKey];
                }
                local {
                    keys_that_nobody_gave_are_refused;
                    keys_of_another_domain_are_refused;
                    keys_of_windows_are_refused;
                    spans_outside_their_region_are_refused;
                    regions_that_are_gone_are_refused;
                    reads_into_a_region_without_local_write_are_refused;
                    messages_from_the_wrong_bytes_are_not_sent;
                    spans_of_the_owners_end_are_checked_too;
                }
                messages {
                    longer_than_their_receive_fail_at_both_ends;
                    with_no_receive_posted_fail_after_the_retries;
                    into_the_wrong_bytes_fail_at_both_ends;
                    wait_for_a_receive_that_comes_while_they_are_tried;
                    carry_their_bytes_and_their_length;
                    take_the_receives_in_order;
                    find_receives_posted_before_the_connection;
                    go_both_ways;
                }
                chains {
                    of_ordinary_queue_pairs_are_refused;
                    of_managed_queue_pairs_without_the_privilege_fail;
                    of_queue_pairs_with_another_peer_are_not_possible;
                    waits_for_what_does_not_count_fail;
                    limits_are_set_for_managed_queues_only;
                    queue_memory_of_ordinary_queues_cannot_be_registered;
                    nothing_runs_beyond_a_limit;
                    limits_do_not_go_back;
                    patched_requests_that_mean_nothing_fail;
                    that_never_end_leave_time_for_others;
                    waits_fail_when_what_they_wait_for_goes;
                    waits_end_with_their_queue_pair;
                    go_on_when_what_they_enable_is_broken;
                    reach_the_memory_of_their_own_domain_only;
                    managed_queues_execute_their_ring_again;
                    messages_wait_until_a_receive_is_enabled;
                    waits_end_when_the_count_is_reached_and_not_before;
                    waits_compare_counts_that_go_round;
                    counts_are_of_signalled_successes_and_failures_are_told;
                    requests_see_what_those_before_them_wrote_to_them;
                }
                binds_for_others {
                    are_refused_to_ordinary_queue_pairs;
                    name_a_queue_pair_of_their_own_domain;
                    are_of_type_2;
                    do_not_take_a_window_that_is_bound;
                    work_on_the_named_queue_pair_only;
                    end_for_the_named_queue_pair_only;
                    do_not_end_for_the_one_that_posts;
                    move_to_another_queue_pair_once_they_are_free;
                    have_ended_all_accesses_when_the_chain_goes_on;
                }
                order {
                    executes_nothing_after_a_refused_request;
                    executes_nothing_after_a_request_that_fails_at_home;
                    flushes_the_rest_once_each_in_order_unsignalled_too;
                    lets_a_read_see_the_write_before_it;
                    lets_the_last_write_win;
                    lets_a_message_announce_the_write_before_it;
                }
                queues {
                    take_nothing_before_they_are_ready;
                    in_error_flush_what_is_posted;
                    flush_the_receives_that_wait_when_they_go_to_error;
                    forget_without_a_completion_when_they_are_reset;
                    complete_the_signalled_once_and_the_others_never;
                    take_as_many_as_they_hold_and_say_so;
                    free_the_unsignalled_with_a_later_completion;
                    of_receives_take_as_many_as_they_hold_and_say_so;
                    give_no_more_completions_than_a_poll_asks_for;
                    that_share_a_completion_queue_are_told_apart;
                    go_round_and_lose_nothing;
                }
                faults {
                    put_both_ends_in_error_and_name_the_owners;
                    leave_other_queue_pairs_undisturbed;
                    are_what_the_nic_says_of_them;
                    at_home_leave_the_peer_in_service;
                    of_the_peer_show_as_retries_exceeded;
                    of_a_peer_that_is_gone_show_as_retries_exceeded;
                    do_not_bring_old_rights_back;
                    are_over_after_reset_and_reconnection;
                }
                states {
                    skip_no_step_and_take_none_back;
                    of_a_queue_pair_in_error_end_only_by_reset;
                    all_lead_back_to_reset;
                    all_that_can_hold_requests_lead_to_error;
                    are_what_the_last_step_made_them;
                    have_addresses_that_tell_queue_pairs_apart;
                }
                teardown {
                    of_a_domain_waits_for_its_queue_pairs;
                    of_a_domain_waits_for_its_regions;
                    of_a_completion_queue_waits_for_its_queue_pairs;
                    of_a_region_follows_a_window_that_moves;
                    of_a_queue_pair_waits_for_its_type_2_windows;
                    in_the_right_order_leaves_nothing;
                }
                ids {
                    that_nobody_gave_name_no_domain;
                    that_nobody_gave_name_no_region_and_no_window;
                    that_nobody_gave_name_no_completion_queue;
                    that_nobody_gave_name_no_queue_pair;
                    of_what_is_gone_name_nothing;
                }
            }
        }
    };
}

/// Makes a `#[test]` for each promise. The expression makes a fresh NIC for each.
///
/// ```ignore
/// portcullis_conformance::conformance_tests!(MyNic::new());
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::for_each_promise! { ($make) $crate::conformance_test_modules }
    };
}

/// Generates a `#[test]` for each promise, in a module for each theme.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_test_modules {
    (
        $make:tt
        every_key { $($key_theme:ident $key_rows:tt)* }
        every_window { $($window_theme:ident $window_rows:tt)* }
        every_nic { $($theme:ident $rows:tt)* }
    ) => {
        mod every_key {
            #[allow(unused_imports)]
            use super::*;
            $( mod $key_theme {
                #[allow(unused_imports)]
                use super::*;
                $crate::conformance_test_module! { $make $key_theme region $key_rows }
                $crate::conformance_test_module! { $make $key_theme type_1 $key_rows }
                $crate::conformance_test_module! { $make $key_theme type_2 $key_rows }
            } )*
        }
        mod every_window {
            #[allow(unused_imports)]
            use super::*;
            $( mod $window_theme {
                #[allow(unused_imports)]
                use super::*;
                $crate::conformance_test_module! { $make $window_theme type_1 $window_rows }
                $crate::conformance_test_module! { $make $window_theme type_2 $window_rows }
            } )*
        }
        mod every_nic {
            #[allow(unused_imports)]
            use super::*;
            $( $crate::conformance_test_module! { $make $theme $rows } )*
        }
    };
}

/// Generates the tests of one theme, for one holder of the key if there are several.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_test_module {
    ($make:tt $theme:ident $holder:ident { $($name:ident $([$guarantee:ident])?;)* }) => {
        mod $holder {
            #[allow(unused_imports)]
            use super::*;
            $( #[test] fn $name() {
                let name = concat!(stringify!($theme), "::", stringify!($holder), "::", stringify!($name));
                $crate::keep(name, || $make);
            } )*
        }
    };
    ($make:tt $theme:ident { $($name:ident $([$guarantee:ident])?;)* }) => {
        mod $theme {
            #[allow(unused_imports)]
            use super::*;
            $( #[test] fn $name() {
                $crate::keep(concat!(stringify!($theme), "::", stringify!($name)), || $make);
            } )*
        }
    };
}

/// The guarantee in a row's brackets, or `None` without brackets.
macro_rules! marked {
    () => {
        None
    };
    ($guarantee:ident) => {
        Some(Guarantee::$guarantee)
    };
}

/// Appends the promises of one theme, for one holder of the key if there are several.
macro_rules! theme {
    ($into:ident, $theme:ident { $($name:ident $([$guarantee:ident])?;)* }) => {
        $into.extend([$( Promise {
            name: concat!(stringify!($theme), "::", stringify!($name)),
            guarantee: marked!($($guarantee)?),
            check: $theme::$name,
        } ),*]);
    };
    ($into:ident, $theme:ident $holder:ident = $value:expr, $marks:expr, {
        $($name:ident $([$guarantee:ident])?;)*
    }) => {
        $into.extend([$( Promise {
            name: concat!(stringify!($theme), "::", stringify!($holder), "::", stringify!($name)),
            guarantee: $marks(marked!($($guarantee)?)),
            check: |bench: &mut Bench<N>| $theme::$name(bench, $value),
        } ),*]);
    };
}

/// Appends all promises, as values.
macro_rules! themes {
    (
        ($into:ident)
        every_key { $($key_theme:ident $key_rows:tt)* }
        every_window { $($window_theme:ident $window_rows:tt)* }
        every_nic { $($theme:ident $rows:tt)* }
    ) => {
        // The marks of these themes apply to windows only: regions must keep every promise.
        $( theme!($into, $key_theme region = Holder::Region, |_: Option<Guarantee>| None, $key_rows); )*
        $( theme!($into, $key_theme type_1 = Holder::Window(WindowKind::One), identity, $key_rows); )*
        $( theme!($into, $key_theme type_2 = Holder::Window(WindowKind::Two), of_type_2, $key_rows); )*
        $( theme!($into, $window_theme type_1 = WindowKind::One, identity, $window_rows); )*
        $( theme!($into, $window_theme type_2 = WindowKind::Two, of_type_2, $window_rows); )*
        $( theme!($into, $theme $rows); )*
    };
}

/// Returns the mark for windows of type 2 of a promise about windows of both types.
fn of_type_2(mark: Option<Guarantee>) -> Option<Guarantee> {
    mark.map(Guarantee::of_type_2)
}

/// Returns every promise. Within each theme, refusals come first.
#[must_use]
pub fn promises<N: Nic>() -> Vec<Promise<N>> {
    let mut all = Vec::new();
    for_each_promise! { (all) themes }
    all
}
