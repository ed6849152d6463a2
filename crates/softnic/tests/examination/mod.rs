//! The examination of devices: the software NIC, on which every guarantee holds, and NICs with one defect each. The
//! examination has to find that defect and nothing else.

mod known;
mod spoilt;

use portcullis_examination::{
    Examination, Limits, Verdict, examine, examine_within, mechanism_for, mechanisms_that_hold, names,
    unenforced,
};
use portcullis_nic::{Guarantee, Misuse, VerbsError};
use portcullis_protocol::Mechanism;
use portcullis_softnic::SoftNic;
use spoilt::{Spoiler, Spoilt};
use std::time::Duration;

fn examined(spoiler: Spoiler) -> Examination {
    // Each poll moves a part of the megabytes, and the machine may be busy.
    let limits = Limits { patience: Duration::from_secs(2), ..Limits::default() };
    examine_within(limits, || Ok(Spoilt::nic(spoiler)), |_| {}).expect("it opens")
}

fn with_verdict(examination: &Examination, verdict: Verdict) -> Vec<&'static str> {
    let there = examination.findings.iter().filter(|finding| finding.verdict == verdict);
    there.map(|finding| finding.name).collect()
}

/// Checks that exactly these findings are broken, that the examination continues to its end, and that a starting node
/// agrees.
fn finds(spoiler: Spoiler, broken: &[&str], guarantees: &[Guarantee], mechanism: Mechanism) {
    let examination = examined(spoiler);
    assert_eq!(
        with_verdict(&examination, Verdict::Broken),
        broken,
        "{spoiler:?}: {:#?}",
        examination.findings
    );
    assert_eq!(examination.capabilities.unenforced, guarantees, "{spoiler:?}");
    assert_eq!(unenforced(|| Ok(Spoilt::nic(spoiler))).expect("it opens"), guarantees, "{spoiler:?}");
    assert_eq!(examination.mechanism().0, mechanism, "{spoiler:?}: {}", examination.mechanism().1);
}

#[test]
fn on_the_software_nic_everything_holds() {
    let mut heard = Vec::new();
    let nic = || Ok::<_, VerbsError>(SoftNic::self_driven());
    let examination = examine(nic, |finding| heard.push(finding.name)).expect("it opens");
    assert_eq!(with_verdict(&examination, Verdict::Holds), names(), "{:#?}", examination.findings);
    assert_eq!(heard, names());
    assert_eq!(examination.mechanism().0, Mechanism::MemoryWindow);
    assert_eq!(examination.untimed, []);
    for time in &examination.times {
        assert!(
            time.rounds > 0 && time.least_us <= time.median_us && time.median_us <= time.most_us,
            "{time:?}"
        );
    }
    assert_eq!(unenforced(nic).expect("it opens"), []);
}

#[test]
fn a_transfer_on_the_software_nic_is_cut_off() {
    let examination = examine(|| Ok(SoftNic::self_driven()), |_| {}).expect("it opens");
    for name in ["revoke-during-transfer-window-1", "revoke-during-transfer-window-2"] {
        let finding = examination.findings.iter().find(|finding| finding.name == name).expect("it is there");
        assert_eq!(finding.detail.matches("was cut off").count(), 2, "{}", finding.detail);
    }
}

#[test]
fn windows_as_wide_as_their_region_are_found() {
    let broken = ["range-window-1", "range-window-2"];
    let guarantees = [Guarantee::WindowRange, Guarantee::Type2Range];
    finds(Spoiler::WideWindows, &broken, &guarantees, Mechanism::MemoryRegion);
}

#[test]
fn regions_as_wide_as_their_memory_are_found() {
    finds(Spoiler::WideRegions, &["range-region"], &[Guarantee::RegionRange], Mechanism::MemoryWindow);
}

#[test]
fn windows_without_rights_of_their_own_are_found() {
    let broken = ["rights-window-1", "rights-window-2"];
    let guarantees = [Guarantee::WindowRights, Guarantee::Type2Rights];
    finds(Spoiler::AllRightsOfWindows, &broken, &guarantees, Mechanism::MemoryRegion);
}

#[test]
fn regions_without_rights_of_their_own_are_found() {
    let guarantees = [Guarantee::RegionRights];
    finds(Spoiler::AllRightsOfRegions, &["rights-region"], &guarantees, Mechanism::NodeCopy);
}

#[test]
fn a_key_that_stays_as_it_was_is_found() {
    let broken = ["stale-key-after-rebind", "key-advance", "many-binds"];
    finds(Spoiler::KeyStays, &broken, &[Guarantee::StaleKey], Mechanism::WindowGroup);
}

#[test]
fn windows_that_stay_open_after_the_unbind_are_found() {
    let broken = ["stale-key-after-unbind", "revoke-during-transfer-window-1"];
    finds(Spoiler::NoUnbind, &broken, &[Guarantee::StaleKey], Mechanism::WindowGroup);
}

#[test]
fn windows_that_stay_open_after_the_invalidate_are_found() {
    let broken = ["stale-key-after-invalidate", "revoke-during-transfer-window-2"];
    finds(Spoiler::NoInvalidate, &broken, &[Guarantee::Type2StaleKey], Mechanism::MemoryWindow);
}

#[test]
fn regions_that_stay_open_after_their_end_are_found() {
    let broken = ["stale-key-of-region", "revoke-during-transfer-region"];
    finds(Spoiler::NoDeregistration, &broken, &[Guarantee::RegionEnd], Mechanism::MemoryWindow);
}

#[test]
fn type_2_windows_open_to_every_queue_pair_are_found() {
    let guarantees = [Guarantee::WindowQueuePair];
    finds(Spoiler::TypeTwoIsTypeOne, &["queue-pair-binding"], &guarantees, Mechanism::MemoryWindow);
}

#[test]
fn domains_that_are_all_one_are_found() {
    let guarantees = [Guarantee::ProtectionDomain];
    finds(Spoiler::OneDomain, &["protection-domain"], &guarantees, Mechanism::NodeCopy);
}

#[test]
fn queue_pairs_that_keep_no_flags_are_found() {
    let guarantees = [Guarantee::QueuePairRights];
    finds(Spoiler::AllRightsOfQueuePairs, &["queue-pair-rights"], &guarantees, Mechanism::MemoryWindow);
}

#[test]
fn bind_number_682_that_goes_astray_is_found() {
    finds(Spoiler::StrayBind(682), &["many-binds"], &[], Mechanism::MemoryWindow);
}

#[test]
fn bind_number_1024_that_hits_another_window_is_found() {
    finds(Spoiler::StrayBind(1024), &["many-binds"], &[], Mechanism::MemoryWindow);
}

#[test]
fn a_violation_that_is_others_error_is_found() {
    finds(Spoiler::FaultsSpread, &["fault-isolation"], &[], Mechanism::MemoryWindow);
}

#[test]
fn an_end_that_goes_on_after_a_violation_is_found() {
    finds(Spoiler::NobodyInError, &["both-ends-in-error"], &[], Mechanism::MemoryWindow);
}

#[test]
fn a_transfer_that_outlives_its_key_is_found() {
    finds(Spoiler::TransfersGoOn, &["revoke-during-transfer-window-1"], &[], Mechanism::MemoryWindow);
}

#[test]
fn a_device_that_does_not_survive_misuse_and_never_said_so_is_found() {
    finds(Spoiler::HangsOfMisuse, &["survives-misuse"], &[], Mechanism::MemoryWindow);
}

#[test]
fn fewer_windows_than_were_promised_are_found() {
    finds(Spoiler::FewWindows, &["window-count"], &[], Mechanism::MemoryWindow);
}

#[test]
fn atomics_that_are_none_are_found() {
    finds(Spoiler::AddsTwice, &["atomics"], &[], Mechanism::MemoryWindow);
}

#[test]
fn a_device_without_windows_has_regions() {
    let examination = examined(Spoiler::NoWindows);
    assert_eq!(with_verdict(&examination, Verdict::Broken), [""; 0]);
    assert_eq!(examination.capabilities.unenforced, []);
    assert_eq!(examination.mechanism().0, Mechanism::MemoryRegion);
    let untried = with_verdict(&examination, Verdict::Untried);
    assert!(untried.contains(&"range-window-1") && untried.contains(&"many-binds"), "{untried:?}");
    assert!(!mechanisms_that_hold(&examination.capabilities).contains(&Mechanism::MemoryWindow));
}

#[test]
fn what_a_device_does_not_survive_is_not_done_to_it() {
    let examination = examined(Spoiler::DiesOfMisuse);
    assert_eq!(
        with_verdict(&examination, Verdict::Untried),
        ["survives-misuse"],
        "{:#?}",
        examination.findings
    );
    assert_eq!(with_verdict(&examination, Verdict::Broken), [""; 0]);
    let finding = examination.findings.iter().find(|finding| finding.name == "survives-misuse");
    assert_eq!(finding.expect("it is there").detail, Misuse::InvalidateFreeWindow.reason());
}

/// If nothing can be observed, no finding is broken, but the node relies on none either.
#[test]
fn a_device_that_refuses_everything_leaves_everything_untried() {
    let examination = examined(Spoiler::RefusesQueuePairs);
    let untried = with_verdict(&examination, Verdict::Untried);
    assert_eq!(untried.len(), names().len() - 1, "only windows can be counted: {untried:?}");
    assert_eq!(examination.capabilities.unenforced.len(), Guarantee::ALL.len());
    assert_eq!(mechanisms_that_hold(&examination.capabilities), []);
    assert_eq!(examination.times.len() + examination.untimed.len(), 13);
}

#[test]
fn a_device_that_never_answers_does_not_hold_the_examination_up() {
    let limits = Limits { patience: Duration::from_millis(20), ..Limits::default() };
    let examination =
        examine_within(limits, || Ok(Spoilt::nic(Spoiler::NeverAnswers)), |_| {}).expect("it opens");
    assert_eq!(with_verdict(&examination, Verdict::Untried), names());
    let said = &examination.findings.last().expect("there are some").detail;
    assert_eq!(said, "the device does not answer any more");
}

#[test]
fn a_driver_that_panics_is_one_finding_and_not_the_end() {
    let examination = examined(Spoiler::PanicsAtAtomics);
    let untried = with_verdict(&examination, Verdict::Untried);
    assert!(untried.contains(&"atomics") && untried.contains(&"rights-region"), "{untried:?}");
    assert!(with_verdict(&examination, Verdict::Holds).contains(&"many-binds"));
}

#[test]
fn a_device_that_cannot_be_opened_is_an_error() {
    let closed = || Err::<SoftNic, _>(VerbsError::Machine("no such device".to_owned()));
    assert!(examine(closed, |_| {}).is_err());
    assert!(unenforced(closed).is_err());
}

#[test]
fn the_choice_of_a_mechanism_names_what_is_missing() {
    let mut capabilities = examined(Spoiler::NoWindows).capabilities;
    capabilities.unenforced = vec![Guarantee::RegionRange];
    let (mechanism, reason) = mechanism_for(&capabilities);
    assert_eq!(mechanism, Mechanism::NodeCopy);
    assert!(reason.contains("windows of type 1") && reason.contains("region-range"), "{reason}");
    let hold = [Mechanism::QueuePair, Mechanism::NodeCopy];
    assert_eq!(mechanisms_that_hold(&capabilities), hold);
}
