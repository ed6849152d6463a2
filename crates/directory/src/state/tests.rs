//! Tests of the directory's state against a model that is as simple as possible: lists that are searched from front to
//! back, and sums that are computed anew each time. Also tests that the comparison finds each planted fault of the
//! state.

use super::*;
use crate::entry::{Access, Address, Target, Who};
use portcullis_errors::{Coded, ErrorCode};
#[cfg(feature = "planted")]
use portcullis_planted::{self as planted, Mistake};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};
#[cfg(feature = "planted")]
use proptest::test_runner::{TestError, TestRunner};

const PAGE: u64 = 4096;

/// Returns a space with four places of one page, two of two pages and two of four, so that they run out.
fn space() -> Space {
    Space::new(0x10_0000..0x11_0000, PAGE, 4 * PAGE).expect("room for three classes")
}

fn tenant(number: u8) -> TenantName {
    TenantName::new(["bank", "shop"][usize::from(number % 2)]).expect("a tenant")
}

fn name(number: u8) -> Name {
    Name::new(["bank", "bank/a", "bank/a/b", "shop", "shop/a"][usize::from(number % 5)]).expect("a name")
}

fn entry(number: u8) -> Entry {
    let who = |bit| if number & bit > 0 { Who::Everybody } else { Who::nobody() };
    let address = Address::new(&format!("/run/{number}")).expect("an address");
    Entry { target: Target::Channel { address }, access: Access { look_up: who(1), register: who(2) } }
}

fn quota() -> Quota {
    Quota { process_bytes: 10 * PAGE, tenant_bytes: 14 * PAGE, names: 3, leases: 3 }
}

#[derive(Clone, Copy, Debug)]
enum DirectoryAction {
    Pass { seconds: u8 },
    Open { tenant: u8, seconds: u8 },
    Keep { lease: u8 },
    End { lease: u8 },
    Register { lease: u8, name: u8, entry: u8 },
    Withdraw { lease: u8, name: u8 },
    Create { lease: u8, pages: u8, shared: bool },
    Hold { lease: u8, heap: u8 },
    Release { lease: u8, heap: u8 },
    Reclaim,
}

fn actions() -> impl Strategy<Value = Vec<DirectoryAction>> {
    let lease = 0..8u8;
    let action = prop_oneof![
        2 => (0..4u8).prop_map(|seconds| DirectoryAction::Pass { seconds }),
        3 => (0..2u8, 1..6u8).prop_map(|(tenant, seconds)| DirectoryAction::Open { tenant, seconds }),
        2 => lease.clone().prop_map(|lease| DirectoryAction::Keep { lease }),
        1 => lease.clone().prop_map(|lease| DirectoryAction::End { lease }),
        3 => (lease.clone(), 0..5u8, 0..4u8)
            .prop_map(|(lease, name, entry)| DirectoryAction::Register { lease, name, entry }),
        1 => (lease.clone(), 0..5u8).prop_map(|(lease, name)| DirectoryAction::Withdraw { lease, name }),
        4 => (lease.clone(), 0..6u8, any::<bool>())
            .prop_map(|(lease, pages, shared)| DirectoryAction::Create { lease, pages, shared }),
        3 => (lease.clone(), 0..16u8).prop_map(|(lease, heap)| DirectoryAction::Hold { lease, heap }),
        2 => (lease, 0..16u8).prop_map(|(lease, heap)| DirectoryAction::Release { lease, heap }),
        1 => Just(DirectoryAction::Reclaim),
    ];
    prop::collection::vec(action, 1..80)
}

/// A lease in the model.
struct Known {
    lease: Lease,
    ends: Duration,
    has_ended: bool,
}

/// A heap that was allocated, with its holders as indices into the list of leases.
struct Given {
    range: HeapRange,
    tenant: TenantName,
    shared: bool,
    holders: Vec<usize>,
    is_back: bool,
}

#[derive(Default)]
struct Model {
    now: Duration,
    leases: Vec<Known>,
    /// Name, entry, and the index of the lease that registered it.
    names: Vec<(Name, Entry, usize)>,
    heaps: Vec<Given>,
}

impl Model {
    fn lives(&self, lease: usize) -> bool {
        !self.leases[lease].has_ended
    }

    fn end(&mut self, lease: usize) {
        self.leases[lease].has_ended = true;
        self.names.retain(|(.., by)| *by != lease);
        self.heaps.iter_mut().for_each(|heap| heap.holders.retain(|&holder| holder != lease));
    }

    fn pass(&mut self, seconds: u8) {
        self.now += Duration::from_secs(seconds.into());
        for lease in 0..self.leases.len() {
            if self.lives(lease) && self.leases[lease].ends <= self.now {
                self.end(lease);
            }
        }
    }

    fn usage(&self, tenant: TenantName, process: Option<usize>) -> Usage {
        let of_tenant = |lease: usize| *self.leases[lease].lease.tenant() == tenant;
        let bytes = |counts: &dyn Fn(usize) -> bool| {
            let held = |heap: &Given| heap.holders.iter().filter(|&&holder| counts(holder)).count() as u64;
            self.heaps.iter().map(|heap| held(heap) * heap.range.bytes).sum()
        };
        Usage {
            process_bytes: bytes(&|holder| Some(holder) == process),
            tenant_bytes: bytes(&of_tenant),
            names: self.names.iter().filter(|(.., by)| of_tenant(*by)).count() as u64,
            leases: (0..self.leases.len()).filter(|&lease| of_tenant(lease) && self.lives(lease)).count()
                as u64,
        }
    }

    fn has_room(&self, lease: usize, bytes: u64) -> bool {
        let used = self.usage(*self.leases[lease].lease.tenant(), Some(lease));
        used.process_bytes + bytes <= quota().process_bytes
            && used.tenant_bytes + bytes <= quota().tenant_bytes
    }

    fn may_register(&self, lease: usize, name: &Name) -> bool {
        let tenant = self.leases[lease].lease.tenant();
        let lets = |(above, entry, by): &(Name, Entry, usize)| {
            let is_above = name.as_str().starts_with(&format!("{above}/"));
            is_above && (self.leases[*by].lease.tenant() == tenant || entry.access.register.includes(tenant))
        };
        name.is_of(tenant) || self.names.iter().any(lets)
    }
}

/// Performs an action in both, and compares the results.
fn step(model: &mut Model, state: &mut DirectoryState, action: DirectoryAction) -> Result<(), TestCaseError> {
    let leases = model.leases.len();
    match action {
        DirectoryAction::Pass { seconds } => model.pass(seconds),
        DirectoryAction::Reclaim => reclaim(model, state)?,
        DirectoryAction::Open { tenant: number, seconds } => {
            let (tenant, time) = (tenant(number), Duration::from_secs(seconds.into()));
            let has_room = model.usage(tenant, None).leases < quota().leases;
            let opened = state.open_lease(&tenant, time, model.now);
            prop_assert_eq!(opened.is_ok(), has_room);
            if let Ok(lease) = opened {
                prop_assert!(model.leases.iter().all(|known| known.lease.id() != lease.id()));
                model.leases.push(Known { ends: model.now + lease.time_to_live(), lease, has_ended: false });
            }
        }
        _ if leases == 0 => {}
        DirectoryAction::Keep { lease } => {
            let lease = usize::from(lease) % leases;
            let known = &mut model.leases[lease];
            prop_assert_eq!(state.keep_alive(&known.lease, model.now).is_ok(), !known.has_ended);
            known.ends = model.now + known.lease.time_to_live();
        }
        DirectoryAction::End { lease } => {
            let lease = usize::from(lease) % leases;
            state.end_lease(&model.leases[lease].lease, model.now);
            model.end(lease);
        }
        DirectoryAction::Register { lease, name, entry } => {
            register(model, state, usize::from(lease) % leases, &self::name(name), &self::entry(entry))?;
        }
        DirectoryAction::Withdraw { lease, name } => {
            let (lease, name) = (usize::from(lease) % leases, self::name(name));
            let is_there = model.names.iter().any(|(there, _, by)| *there == name && *by == lease);
            let told = state.withdraw(&model.leases[lease].lease, &name, model.now);
            prop_assert_eq!(told.is_ok(), is_there);
            model.names.retain(|(there, _, by)| *there != name || *by != lease);
        }
        DirectoryAction::Create { lease, pages, shared } => {
            create(model, state, usize::from(lease) % leases, u64::from(pages) * PAGE, shared)?;
        }
        DirectoryAction::Hold { lease, heap } => {
            hold(model, state, usize::from(lease) % leases, heap.into())?
        }
        DirectoryAction::Release { lease, heap } => {
            release(model, state, usize::from(lease) % leases, heap.into())?
        }
    }
    Ok(())
}

fn register(
    model: &mut Model,
    state: &mut DirectoryState,
    lease: usize,
    name: &Name,
    entry: &Entry,
) -> Result<(), TestCaseError> {
    let told =
        state.register(&model.leases[lease].lease, name, entry, model.now).map_err(|error| error.code());
    let there = model.names.iter().position(|(there, ..)| there == name);
    let has_room = model.usage(*model.leases[lease].lease.tenant(), None).names < quota().names;
    let expected = match there {
        _ if !model.lives(lease) => Err(ErrorCode::LeaseEnded),
        _ if !model.may_register(lease, name) => Err(ErrorCode::RegistrationNotAllowed),
        Some(at) if model.names[at].2 != lease => Err(ErrorCode::NameTaken),
        None if !has_room => Err(ErrorCode::DirectoryQuota),
        _ => Ok(()),
    };
    prop_assert_eq!(told, expected, "{:?}", name);
    if told.is_ok() {
        match there {
            Some(at) => model.names[at].1 = entry.clone(),
            None => model.names.push((name.clone(), entry.clone(), lease)),
        }
    }
    Ok(())
}

fn create(
    model: &mut Model,
    state: &mut DirectoryState,
    lease: usize,
    bytes: u64,
    shared: bool,
) -> Result<(), TestCaseError> {
    let others = if shared { Who::Everybody } else { Who::nobody() };
    let told = state.create_heap(&model.leases[lease].lease, bytes, &others, model.now);
    let expected = match bytes {
        _ if !model.lives(lease) => Some(ErrorCode::LeaseEnded),
        0 | 0x5000.. => Some(ErrorCode::HeapSize),
        _ if !model.has_room(lease, bytes) => Some(ErrorCode::DirectoryQuota),
        _ => None,
    };
    match told {
        Ok(range) => {
            prop_assert_eq!((expected, range.bytes), (None, bytes));
            prop_assert_eq!(range.address % bytes.next_power_of_two(), 0, "alignment");
            let end = range.address + range.bytes;
            for heap in model.heaps.iter_mut().filter(|heap| !heap.is_back) {
                let is_apart =
                    heap.range.address + heap.range.bytes <= range.address || end <= heap.range.address;
                // Addresses of orphans are freed when others have run out.
                heap.is_back = !is_apart && heap.holders.is_empty();
                prop_assert!(is_apart || heap.is_back, "{:x?} is given twice", range);
            }
            let tenant = *model.leases[lease].lease.tenant();
            model.heaps.push(Given { range, tenant, shared, holders: vec![lease], is_back: false });
        }
        Err(DirectoryError::NoAddresses { .. }) => {
            let of_size = |heap: &&Given| heap.range.bytes.next_power_of_two() == bytes.next_power_of_two();
            let held = model.heaps.iter().filter(of_size).filter(|heap| !heap.holders.is_empty()).count();
            let places = if bytes == PAGE { 4 } else { 2 };
            prop_assert!(expected.is_none() && held == places, "{} places of that size are held", held);
        }
        Err(error) => prop_assert_eq!(Some(error.code()), expected),
    }
    Ok(())
}

/// Returns a heap of the model; most are among the latest.
fn heap_of(model: &Model, number: usize) -> Option<usize> {
    model.heaps.len().checked_sub(1 + number % 4)
}

fn hold(
    model: &mut Model,
    state: &mut DirectoryState,
    lease: usize,
    heap: usize,
) -> Result<(), TestCaseError> {
    let Some(at) = heap_of(model, heap) else { return Ok(()) };
    let range = model.heaps[at].range;
    // Another heap may have the addresses by now.
    let at = model.heaps.iter().rposition(|heap| heap.range.address == range.address).unwrap_or(at);
    let told = state.hold_heap(&model.leases[lease].lease, range.address, model.now);
    let Given { range, tenant, shared, ref holders, .. } = model.heaps[at];
    let expected = match () {
        () if !model.lives(lease) => Err(ErrorCode::LeaseEnded),
        () if holders.is_empty() => Err(ErrorCode::NoSuchHeap),
        () if !shared && tenant != *model.leases[lease].lease.tenant() => Err(ErrorCode::NoSuchHeap),
        () if holders.contains(&lease) => Ok(range),
        () if !model.has_room(lease, range.bytes) => Err(ErrorCode::DirectoryQuota),
        () => Ok(range),
    };
    prop_assert_eq!(told.map_err(|error| error.code()), expected);
    if expected.is_ok() && !model.heaps[at].holders.contains(&lease) {
        model.heaps[at].holders.push(lease);
    }
    Ok(())
}

fn release(
    model: &mut Model,
    state: &mut DirectoryState,
    lease: usize,
    heap: usize,
) -> Result<(), TestCaseError> {
    let Some(at) = heap_of(model, heap) else { return Ok(()) };
    let address = model.heaps[at].range.address;
    let at = model.heaps.iter().rposition(|heap| heap.range.address == address).unwrap_or(at);
    let holds = model.heaps[at].holders.contains(&lease);
    let told = state.release_heap(&model.leases[lease].lease, address, model.now);
    prop_assert_eq!(told.is_ok(), holds);
    let heap = &mut model.heaps[at];
    heap.holders.retain(|&holder| holder != lease);
    heap.is_back |= holds && heap.holders.is_empty();
    Ok(())
}

fn reclaim(model: &mut Model, state: &mut DirectoryState) -> Result<(), TestCaseError> {
    for range in state.reclaim(model.now) {
        let heap = model.heaps.iter_mut().rev().find(|heap| heap.range == range);
        let heap = heap.expect("it was given out");
        prop_assert!(heap.holders.is_empty(), "{:x?} is held, and is taken back", range);
        prop_assert!(!std::mem::replace(&mut heap.is_back, true), "{:x?} is taken back twice", range);
    }
    prop_assert!(
        model.heaps.iter().all(|heap| heap.is_back || !heap.holders.is_empty()) || state.orphans.is_empty()
    );
    Ok(())
}

/// Compares everything visible with the model.
fn compare(model: &Model, state: &mut DirectoryState) -> Result<(), TestCaseError> {
    for (at, known) in model.leases.iter().enumerate() {
        let usage = state.usage(&known.lease, model.now).ok();
        let expected = model.lives(at).then(|| model.usage(*known.lease.tenant(), Some(at)));
        prop_assert_eq!(usage, expected, "what is used");
        let mut held: Vec<_> =
            model.heaps.iter().filter(|heap| heap.holders.contains(&at)).map(|heap| heap.range).collect();
        held.sort_unstable();
        prop_assert_eq!(state.heaps(&known.lease, model.now).ok(), model.lives(at).then_some(held));
    }
    for number in 0..5 {
        for reader in 0..2 {
            let (name, reader) = (name(number), tenant(reader));
            let seen = state.look_up(&reader, &name, model.now).map(|found| (found.target, found.lease));
            let there = model.names.iter().find(|(there, ..)| *there == name).and_then(|(_, entry, by)| {
                let lease = &model.leases[*by].lease;
                let sees = *lease.tenant() == reader || entry.access.look_up.includes(&reader);
                sees.then(|| (entry.target.clone(), lease.id()))
            });
            prop_assert_eq!(seen, there, "what {} sees of {}", reader, name);
        }
    }
    Ok(())
}

fn run(actions: Vec<DirectoryAction>) -> Result<(), TestCaseError> {
    let (mut model, mut state) = (Model::default(), DirectoryState::new(space()));
    state.set_quota(None, quota());
    for next in actions {
        step(&mut model, &mut state, next)?;
        compare(&model, &mut state)?;
    }
    // All leases end: nothing is left but addresses to free.
    model.pass(100);
    compare(&model, &mut state)?;
    reclaim(&mut model, &mut state)?;
    prop_assert!(state.heaps.is_empty() && state.names.is_empty() && state.leases.is_empty());
    prop_assert!(state.ends.is_empty() && state.tenants.is_empty() && state.orphans.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 1_000, ..Config::default() })]
    #[test]
    fn the_state_is_what_the_model_says(actions in actions()) {
        run(actions)?;
    }
}

/// Returns the comparison's message with a planted fault.
#[cfg(feature = "planted")]
fn said(fault: Mistake) -> Option<String> {
    planted::plant(Some(fault));
    let mut runner = TestRunner::new(Config { cases: 2_000, failure_persistence: None, ..Config::default() });
    let end = runner.run(&actions(), run);
    planted::plant(None);
    match end {
        Err(TestError::Fail(why, actions)) => Some(format!("{why} after {actions:?}")),
        _ => None,
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_mistake_is_found() {
    let words: [&[&str]; 4] = [
        &["of bank", "of shop"],
        &["what is used", "tenants.is_empty"],
        &["is taken back", "is given twice", "a held heap exists", "no entry found"],
        &["is given twice"],
    ];
    for (fault, words) in Mistake::OF_DIRECTORY.into_iter().zip(words) {
        let said = said(fault).unwrap_or_else(|| panic!("{fault:?} is not found"));
        eprintln!("{fault:?}: {said}");
        assert!(
            words.iter().any(|words| said.contains(words)),
            "{fault:?} is found by another check: {said}"
        );
    }
}

#[test]
fn addresses_rest_before_they_are_given_again() {
    let mut state = DirectoryState::new(space());
    let lease = state.open_lease(&tenant(0), Duration::from_secs(9), Duration::ZERO).expect("a lease");
    let mut given = BTreeSet::new();
    for _ in 0..4 {
        let heap = state.create_heap(&lease, PAGE, &Who::nobody(), Duration::ZERO).expect("a heap");
        state.release_heap(&lease, heap.address, Duration::ZERO).expect("it is held");
        assert!(given.insert(heap.address), "another one is free");
    }
}

#[test]
fn orphans_that_nobody_reclaims_do_not_pile_up() {
    let space = Space::new(1 << 40..1 << 44, PAGE, PAGE).expect("room");
    let mut state = DirectoryState::new(space);
    for _ in 0..10_000 {
        let lease = state.open_lease(&tenant(0), Duration::from_secs(9), Duration::ZERO).expect("a lease");
        state.create_heap(&lease, PAGE, &Who::nobody(), Duration::ZERO).expect("a heap");
        state.end_lease(&lease, Duration::ZERO);
    }
    assert!(state.heaps.len() <= 4_097, "{} heaps that nobody holds", state.heaps.len());
}
