//! The promises of every directory. Each test runs over each implementation: see `for_each_promise`.

use portcullis_directory::{
    Access, Address, Directory, DirectoryError, Entry, Lease, Limited, Name, Quota, Space, Target, Watch, Who,
};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Makes a test of each promise, with a directory of its own.
macro_rules! for_each_promise {
    ($($promise:ident),* $(,)?) => {
        macro_rules! keeps_all_promises {
            ($with:path) => {
                $(#[test] fn $promise() { $with(stringify!($promise), $crate::promises::$promise); })*
            };
        }
    };
}
for_each_promise!(
    a_name_is_found_until_it_is_withdrawn,
    a_name_has_one_process,
    what_a_tenant_may_not_see_is_not_there,
    nobody_registers_names_of_others_unless_let,
    everything_ends_with_its_lease,
    a_lease_ends_by_itself_and_lives_while_it_is_kept_alive,
    a_watch_is_told_when_a_lease_ends_by_itself,
    an_ended_lease_does_nothing_more,
    a_watch_reports_changes_ends_and_new_beginnings,
    names_are_listed_by_the_name_above_them,
    a_list_of_any_length_arrives_whole,
    a_watch_of_a_list_reports_new_names_changes_and_ends,
    heaps_lie_apart_and_aligned,
    a_heap_outlives_its_maker_while_somebody_holds_it,
    a_heap_is_for_those_it_was_made_for,
    the_last_to_let_go_gives_the_addresses_back,
    addresses_run_out_and_come_back,
    quotas_are_exact,
    a_tenant_has_its_own_quota,
    many_at_once_do_not_get_beyond_a_quota_nor_the_same_addresses,
    many_at_once_do_not_get_the_same_name,
);
/// A test of one directory.
pub type Promise = fn(&dyn Directory);

const PAGE: u64 = 4096;
/// Longer than any event takes that a test waits for.
const LONG: Duration = Duration::from_secs(120);

/// Returns a space with two places for heaps of one page, two for two pages, four for four.
pub fn space() -> Space {
    Space::new(0x10_0000_0000..0x10_0001_0000, PAGE, 4 * PAGE).expect("addresses for three classes")
}

pub fn tenant(name: &str) -> TenantName {
    TenantName::new(name).expect("a tenant")
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn entry(address: &str, access: Access) -> Entry {
    let address = Address::new(address).expect("an address");
    Entry { target: Target::Channel { address }, access }
}

pub fn lease(directory: &dyn Directory, of: &str) -> Lease {
    directory.open_lease(&tenant(of), Duration::from_secs(600)).expect("a lease")
}

fn code<T: Debug>(told: Result<T, DirectoryError>) -> ErrorCode {
    told.expect_err("it has to be refused").code()
}

#[expect(clippy::disallowed_methods, reason = "whether the machine has stood still shows by the clock")]
fn clock() -> Instant {
    Instant::now()
}

/// Returns the next value that a watch reports.
pub fn next<T>(watch: &mut dyn Watch<T>) -> T {
    watch.next(LONG).expect("the directory is there").expect("something changes")
}

pub fn a_name_is_found_until_it_is_withdrawn(directory: &dyn Directory) {
    let (server, channel) = (lease(directory, "bank"), name("bank/payments/eu"));
    assert_eq!(code(directory.look_up(&tenant("bank"), &channel)), ErrorCode::NoSuchName);
    let first = entry("/run/first.sock", Access::public());
    directory.register(&server, &channel, &first).expect("the name is free");
    directory.register(&server, &channel, &first).expect("once more changes nothing");
    let found = directory.look_up(&tenant("shop"), &channel).expect("everybody may");
    assert_eq!((&found.target, found.tenant, found.lease), (&first.target, tenant("bank"), server.id()));
    let second = entry("/run/second.sock", Access::public());
    directory.register(&server, &channel, &second).expect("its own name");
    let again = directory.look_up(&tenant("shop"), &channel).expect("it is there");
    assert_eq!((again.target, again.registration), (second.target, found.registration));
    assert_eq!(directory.usage(&server).expect("it lives").names, 1);
    directory.withdraw(&server, &channel).expect("its own name");
    assert_eq!(code(directory.look_up(&tenant("bank"), &channel)), ErrorCode::NoSuchName);
    assert_eq!(code(directory.withdraw(&server, &channel)), ErrorCode::NoSuchName);
    assert_eq!(directory.usage(&server).expect("it lives").names, 0);
    directory.register(&server, &channel, &first).expect("the name is free again");
    let last = directory.look_up(&tenant("shop"), &channel).expect("it is there");
    assert_ne!(last.registration, found.registration, "another registration");
}

pub fn a_name_has_one_process(directory: &dyn Directory) {
    let (one, other) = (lease(directory, "bank"), lease(directory, "bank"));
    let (channel, first) = (name("bank/payments"), entry("/run/one.sock", Access::public()));
    directory.register(&one, &channel, &first).expect("the name is free");
    let second = entry("/run/other.sock", Access::public());
    assert_eq!(code(directory.register(&other, &channel, &second)), ErrorCode::NameTaken);
    assert_eq!(code(directory.register(&other, &channel, &first)), ErrorCode::NameTaken);
    assert_eq!(code(directory.withdraw(&other, &channel)), ErrorCode::NoSuchName);
    assert_eq!(directory.look_up(&tenant("bank"), &channel).expect("it is there").target, first.target);
    directory.end_lease(&one).expect("its own");
    directory.register(&other, &channel, &second).expect("the name is free");
}

pub fn what_a_tenant_may_not_see_is_not_there(directory: &dyn Directory) {
    let (server, channel) = (lease(directory, "bank"), name("bank/payments"));
    let access = Access { look_up: Who::tenants([tenant("shop")]).expect("one"), register: Who::nobody() };
    directory.register(&server, &channel, &entry("/run/a.sock", access)).expect("the name is free");
    for sees in ["bank", "shop"] {
        assert!(directory.look_up(&tenant(sees), &channel).is_ok(), "{sees}");
    }
    assert_eq!(code(directory.look_up(&tenant("thief"), &channel)), ErrorCode::NoSuchName);
    let hidden = directory.watch(&tenant("thief"), &channel).expect("anybody may look");
    assert_eq!(*hidden.seen(), None);
    let crowd = (0..65).map(|number| tenant(&number.to_string())).collect();
    let access = Access { look_up: Who::Tenants(crowd), register: Who::nobody() };
    let told = directory.register(&server, &channel, &entry("/run/a.sock", access));
    assert_eq!(code(told), ErrorCode::EntryUnfit);
}

pub fn nobody_registers_names_of_others_unless_let(directory: &dyn Directory) {
    let (bank, shop) = (lease(directory, "bank"), lease(directory, "shop"));
    let public = entry("/run/a.sock", Access::public());
    for foreign in ["bank", "bank/payments", "bank/a/b/c/d"] {
        let told = directory.register(&shop, &name(foreign), &public);
        assert_eq!(code(told), ErrorCode::RegistrationNotAllowed, "{foreign}");
    }
    let access = Access { look_up: Who::nobody(), register: Who::tenants([tenant("shop")]).expect("one") };
    directory.register(&bank, &name("bank/a"), &entry("/run/b.sock", access)).expect("the name is free");
    directory.register(&shop, &name("bank/a/b/c"), &public).expect("bank/a lets it");
    for beside in ["bank/b", "bank/ab", "bank"] {
        assert_eq!(
            code(directory.register(&shop, &name(beside), &public)),
            ErrorCode::RegistrationNotAllowed
        );
    }
    directory.withdraw(&bank, &name("bank/a")).expect("its own");
    assert_eq!(
        code(directory.register(&shop, &name("bank/a/d"), &public)),
        ErrorCode::RegistrationNotAllowed
    );
    assert!(directory.look_up(&tenant("shop"), &name("bank/a/b/c")).is_ok(), "what is registered stays");
}

pub fn everything_ends_with_its_lease(directory: &dyn Directory) {
    let (one, other) = (lease(directory, "bank"), lease(directory, "bank"));
    for text in ["bank/a", "bank/b"] {
        directory.register(&one, &name(text), &entry("/run/a.sock", Access::public())).expect("free");
    }
    directory.register(&other, &name("bank/c"), &entry("/run/a.sock", Access::public())).expect("free");
    let heap = directory.create_heap(&one, PAGE, &Who::nobody()).expect("room");
    let kept = directory.create_heap(&other, PAGE, &Who::nobody()).expect("room");
    directory.end_lease(&one).expect("its own");
    directory.end_lease(&one).expect("it stays ended");
    for text in ["bank/a", "bank/b"] {
        assert_eq!(code(directory.look_up(&tenant("bank"), &name(text))), ErrorCode::NoSuchName);
    }
    assert!(directory.look_up(&tenant("bank"), &name("bank/c")).is_ok());
    let usage = directory.usage(&other).expect("it lives");
    assert_eq!((usage.leases, usage.names, usage.tenant_bytes), (1, 1, PAGE));
    assert_eq!(directory.reclaim().expect("the directory is there"), [heap]);
    assert_eq!(directory.heaps(&other).expect("it lives"), [kept]);
}

pub fn a_lease_ends_by_itself_and_lives_while_it_is_kept_alive(directory: &dyn Directory) {
    // A machine that is stopped for longer than a lease lives decides nothing.
    for _ in 0..5 {
        let kept = directory.open_lease(&tenant("bank"), Duration::from_secs(4)).expect("a lease");
        let left = directory.open_lease(&tenant("bank"), Duration::from_secs(6)).expect("a lease");
        assert!(kept.time_to_live() < left.time_to_live());
        let (kept_name, left_name) = (name("bank/kept"), name("bank/left"));
        directory.register(&kept, &kept_name, &entry("/run/a.sock", Access::public())).expect("free");
        directory.register(&left, &left_name, &entry("/run/b.sock", Access::public())).expect("free");
        let mut watch = directory.watch(&tenant("shop"), &left_name).expect("anybody may look");
        assert!(watch.seen().is_some());
        let (began, mut asked, mut stood_still) = (clock(), clock(), false);
        let end = loop {
            assert!(began.elapsed() < LONG, "a lease of six seconds does not end");
            let told = directory.keep_alive(&kept);
            stood_still |= asked.elapsed() > Duration::from_secs(2);
            asked = clock();
            assert!(told.is_ok() || stood_still, "{told:?}");
            if let Some(end) = watch.next(Duration::from_millis(300)).expect("it is there") {
                break end;
            }
        };
        assert_eq!(end, None);
        assert_eq!(code(directory.keep_alive(&left)), ErrorCode::LeaseEnded);
        let is_there = directory.look_up(&tenant("shop"), &kept_name).is_ok();
        directory.end_lease(&kept).expect("its own");
        if !stood_still {
            assert!(is_there, "it was kept alive");
            return;
        }
    }
    panic!("this machine stands still for seconds all the time");
}

pub fn a_watch_is_told_when_a_lease_ends_by_itself(directory: &dyn Directory) {
    let (server, channel) =
        (directory.open_lease(&tenant("bank"), Duration::from_secs(5)).expect("a lease"), name("bank/a"));
    let client = lease(directory, "bank");
    directory.register(&server, &channel, &entry("/run/a.sock", Access::public())).expect("free");
    let heap = directory.create_heap(&server, PAGE, &Who::nobody()).expect("room");
    directory.hold_heap(&client, heap.address).expect("its tenant's");
    let mut name = directory.watch(&tenant("bank"), &channel).expect("anybody may look");
    let mut holders = directory.watch_heap(&client, heap.address).expect("it holds it");
    // A machine that was stopped for a while may have ended it before.
    let asked = clock();
    if name.seen().is_some() {
        assert_eq!(next(&mut *name), None);
    }
    if holders.seen().len() > 1 {
        assert_eq!(next(&mut *holders), BTreeSet::from([client.id()]));
    }
    assert!(asked.elapsed() < LONG / 2, "nobody was told until the wait was over");
}

pub fn an_ended_lease_does_nothing_more(directory: &dyn Directory) {
    let (ended, other) = (lease(directory, "bank"), lease(directory, "bank"));
    let heap = directory.create_heap(&other, PAGE, &Who::Everybody).expect("room");
    directory.end_lease(&ended).expect("its own");
    let channel = name("bank/a");
    let ends = [
        code(directory.keep_alive(&ended)),
        code(directory.register(&ended, &channel, &entry("/run/a.sock", Access::public()))),
        code(directory.withdraw(&ended, &channel)),
        code(directory.create_heap(&ended, PAGE, &Who::nobody())),
        code(directory.create_heap(&ended, PAGE - 1, &Who::nobody())),
        code(directory.hold_heap(&ended, heap.address)),
        code(directory.release_heap(&ended, heap.address)),
        code(directory.heaps(&ended)),
        code(directory.watch_heap(&ended, heap.address)),
        code(directory.usage(&ended)),
    ];
    assert_eq!(ends, [ErrorCode::LeaseEnded; 10]);
}

pub fn a_watch_reports_changes_ends_and_new_beginnings(directory: &dyn Directory) {
    let (server, channel) = (lease(directory, "bank"), name("bank/a"));
    let mut watch = directory.watch(&tenant("shop"), &channel).expect("anybody may look");
    assert_eq!(*watch.seen(), None);
    assert_eq!(watch.next(Duration::ZERO).expect("it is there"), None);
    assert_eq!(watch.next(Duration::from_millis(50)).expect("it is there"), None);
    let public = entry("/run/a.sock", Access::public());
    let first = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| next(&mut *watch));
        directory.register(&server, &channel, &public).expect("free");
        waiting.join().expect("it is told")
    });
    let first = first.expect("it was registered");
    assert_eq!(first.target, public.target);
    let moved = entry("/run/b.sock", Access::public());
    directory.register(&server, &channel, &moved).expect("its own");
    assert_eq!(next(&mut *watch).expect("it is there").target, moved.target);
    directory.register(&server, &channel, &entry("/run/b.sock", Access::private())).expect("its own");
    assert_eq!(next(&mut *watch), None, "it may not be seen any more");
    directory.register(&server, &channel, &public).expect("its own");
    assert_eq!(next(&mut *watch).as_ref(), Some(&first));
    // The entry ends and is registered again between two looks.
    directory.withdraw(&server, &channel).expect("its own");
    directory.register(&server, &channel, &public).expect("free");
    let again = next(&mut *watch).expect("it is there");
    assert_ne!(again.registration, first.registration);
    directory.end_lease(&server).expect("its own");
    assert_eq!(next(&mut *watch), None);
}

/// Returns the names that a list has.
fn names_of<T>(list: &BTreeMap<Name, T>) -> Vec<&str> {
    list.keys().map(Name::as_str).collect()
}

pub fn names_are_listed_by_the_name_above_them(directory: &dyn Directory) {
    let (bank, shop) = (lease(directory, "bank"), lease(directory, "shop"));
    let all = ["bank/kv", "bank/kv-old/a", "bank/kv/a", "bank/kv/b/c", "bank/kv.d", "bank/kv0", "bank/kw/a"];
    for text in all {
        let access = if text == "bank/kv/a" { Access::public() } else { Access::private() };
        directory.register(&bank, &name(text), &entry(text, access)).expect("it is free");
    }
    directory.register(&shop, &name("shop/kv/a"), &entry("x", Access::public())).expect("it is free");
    let list = |of: &str, above: &str| directory.list(&tenant(of), &name(above)).expect("it is there");
    assert_eq!(names_of(&list("bank", "bank/kv")), ["bank/kv/a", "bank/kv/b/c"]);
    assert_eq!(names_of(&list("shop", "bank/kv")), ["bank/kv/a"], "a tenant sees what it may look up");
    assert_eq!(names_of(&list("bank", "bank/kv/b")), ["bank/kv/b/c"]);
    assert_eq!(names_of(&list("bank", "bank")), sorted(&all));
    assert_eq!(list("bank", "bank/nothing"), BTreeMap::new());
    let found = directory.look_up(&tenant("bank"), &name("bank/kv/a")).expect("it is there");
    assert_eq!(list("bank", "bank/kv")[&name("bank/kv/a")], found);
    directory.withdraw(&bank, &name("bank/kv/a")).expect("it has it");
    assert_eq!(names_of(&list("bank", "bank/kv")), ["bank/kv/b/c"]);
    directory.end_lease(&bank).expect("it is there");
    assert_eq!(list("bank", "bank"), BTreeMap::new(), "names end with their lease");
}

/// Returns the names in the order of a list.
fn sorted<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let mut names = names.to_vec();
    names.sort_unstable();
    names
}

pub fn a_list_of_any_length_arrives_whole(directory: &dyn Directory) {
    let bank = lease(directory, "bank");
    // The names and entries together are longer than a message of any implementation.
    let long = Address::new(&"x".repeat(Address::BYTES_MAX)).expect("an address");
    let mut expected = Vec::new();
    for number in 0..60 {
        let addresses = vec![long.clone(); 1 + number % Target::NODE_ADDRESSES_MAX];
        let entry = Entry {
            target: Target::Node { addresses, memory_bytes: number as u64 },
            access: Access::private(),
        };
        let name = name(&format!("bank/kv/{number:02}"));
        directory.register(&bank, &name, &entry).expect("it is free");
        expected.push((name, entry.target));
    }
    let mut watch = directory.watch_list(&tenant("bank"), &name("bank/kv")).expect("anybody may look");
    let list = directory.list(&tenant("bank"), &name("bank/kv")).expect("it is there");
    assert_eq!(*watch.seen(), list);
    let targets: Vec<_> = list.into_iter().map(|(name, found)| (name, found.target)).collect();
    assert_eq!(targets, expected);
    // A change is reported with the whole list.
    let last = &expected[59].0;
    directory.register(&bank, last, &entry("moved", Access::private())).expect("it has it");
    let moved = next(&mut *watch);
    assert_eq!(moved, directory.list(&tenant("bank"), &name("bank/kv")).expect("it is there"));
    assert_eq!((moved.len(), &moved[last].target), (60, &entry("moved", Access::private()).target));
    directory.end_lease(&bank).expect("it is there");
    while !next(&mut *watch).is_empty() {}
}

pub fn a_watch_of_a_list_reports_new_names_changes_and_ends(directory: &dyn Directory) {
    let (bank, other) = (lease(directory, "bank"), lease(directory, "bank"));
    let mut watch = directory.watch_list(&tenant("bank"), &name("bank/kv")).expect("anybody may look");
    assert_eq!(*watch.seen(), BTreeMap::new());
    assert_eq!(watch.next(Duration::ZERO).expect("it is there"), None);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| next(&mut *watch));
        directory.register(&bank, &name("bank/kv/a"), &entry("a", Access::private())).expect("it is free");
        assert_eq!(names_of(&waiting.join().expect("it ends")), ["bank/kv/a"]);
    });
    directory.register(&other, &name("bank/kv/b"), &entry("b", Access::private())).expect("it is free");
    assert_eq!(names_of(&next(&mut *watch)), ["bank/kv/a", "bank/kv/b"]);
    // Other names change nothing.
    directory.register(&bank, &name("bank/kw/a"), &entry("a", Access::private())).expect("it is free");
    assert_eq!(watch.next(Duration::from_millis(50)).expect("it is there"), None);
    let moved = entry("c", Access::private());
    directory.register(&bank, &name("bank/kv/a"), &moved).expect("it has it");
    assert_eq!(next(&mut *watch)[&name("bank/kv/a")].target, moved.target);
    directory.end_lease(&other).expect("it is there");
    assert_eq!(names_of(&next(&mut *watch)), ["bank/kv/a"]);
    directory.withdraw(&bank, &name("bank/kv/a")).expect("it has it");
    assert_eq!(next(&mut *watch), BTreeMap::new());
}

pub fn heaps_lie_apart_and_aligned(directory: &dyn Directory) {
    let maker = lease(directory, "bank");
    let mut heaps = Vec::new();
    for (bytes, times) in [(PAGE, 4), (PAGE + 1, 2), (3 * PAGE, 1), (4 * PAGE, 1)] {
        for _ in 0..times {
            let heap = directory.create_heap(&maker, bytes, &Who::nobody()).expect("room");
            assert_eq!(heap.bytes, bytes.next_multiple_of(PAGE));
            assert_eq!(heap.address % bytes.next_power_of_two(), 0, "{heap:x?}");
            assert!(space().addresses().contains(&heap.address));
            heaps.push(heap);
        }
    }
    heaps.sort_unstable();
    assert!(heaps.windows(2).all(|pair| pair[0].address + pair[0].bytes <= pair[1].address), "{heaps:x?}");
    assert_eq!(directory.heaps(&maker).expect("it lives"), heaps);
    for bytes in [0, 1, PAGE - 1, 4 * PAGE + 1, u64::MAX] {
        assert_eq!(code(directory.create_heap(&maker, bytes, &Who::nobody())), ErrorCode::HeapSize);
    }
}

pub fn a_heap_outlives_its_maker_while_somebody_holds_it(directory: &dyn Directory) {
    let [server, client, late] = ["bank", "shop", "shop"].map(|of| lease(directory, of));
    let heap = directory.create_heap(&server, PAGE, &Who::Everybody).expect("room");
    assert_eq!(directory.hold_heap(&client, heap.address).expect("everybody may"), heap);
    assert_eq!(directory.hold_heap(&client, heap.address).expect("it holds it"), heap);
    let mut watch = directory.watch_heap(&client, heap.address).expect("it holds it");
    assert_eq!(*watch.seen(), BTreeSet::from([server.id(), client.id()]));
    directory.end_lease(&server).expect("its own");
    assert_eq!(next(&mut *watch), BTreeSet::from([client.id()]), "the failure notice");
    assert_eq!(directory.reclaim().expect("it is there"), [], "somebody holds it");
    directory.hold_heap(&late, heap.address).expect("somebody holds it");
    assert_eq!(next(&mut *watch), BTreeSet::from([client.id(), late.id()]));
    for holder in [&client, &late] {
        directory.end_lease(holder).expect("its own");
    }
    assert_eq!(next(&mut *watch), BTreeSet::new());
    let later = lease(directory, "bank");
    assert_eq!(code(directory.hold_heap(&later, heap.address)), ErrorCode::NoSuchHeap, "nobody holds it");
    assert_eq!(directory.reclaim().expect("it is there"), [heap]);
    assert_eq!(directory.reclaim().expect("it is there"), []);
}

pub fn a_heap_is_for_those_it_was_made_for(directory: &dyn Directory) {
    let [maker, sibling, shop, thief] = ["bank", "bank", "shop", "thief"].map(|of| lease(directory, of));
    let others = Who::tenants([tenant("shop")]).expect("one");
    let heap = directory.create_heap(&maker, PAGE, &others).expect("room");
    for holder in [&sibling, &shop] {
        directory.hold_heap(holder, heap.address).expect("it is for them");
    }
    assert_eq!(code(directory.hold_heap(&thief, heap.address)), ErrorCode::NoSuchHeap);
    assert_eq!(code(directory.watch_heap(&thief, heap.address)), ErrorCode::NoSuchHeap);
    assert_eq!(code(directory.release_heap(&thief, heap.address)), ErrorCode::NoSuchHeap);
    assert_eq!(code(directory.hold_heap(&shop, heap.address + PAGE)), ErrorCode::NoSuchHeap);
    assert_eq!(code(directory.hold_heap(&shop, u64::MAX)), ErrorCode::NoSuchHeap);
}

pub fn the_last_to_let_go_gives_the_addresses_back(directory: &dyn Directory) {
    let (maker, other) = (lease(directory, "bank"), lease(directory, "bank"));
    let heap = directory.create_heap(&maker, 4 * PAGE, &Who::nobody()).expect("room");
    directory.hold_heap(&other, heap.address).expect("it is its tenant's");
    directory.release_heap(&maker, heap.address).expect("it holds it");
    assert_eq!(code(directory.release_heap(&maker, heap.address)), ErrorCode::NoSuchHeap);
    assert_eq!(directory.heaps(&other).expect("it lives"), [heap]);
    directory.release_heap(&other, heap.address).expect("it holds it");
    assert_eq!(code(directory.hold_heap(&maker, heap.address)), ErrorCode::NoSuchHeap);
    assert_eq!(directory.usage(&maker).expect("it lives").tenant_bytes, 0);
    assert_eq!(directory.reclaim().expect("it is there"), [], "they were given back before");
}

pub fn addresses_run_out_and_come_back(directory: &dyn Directory) {
    let (one, other) = (lease(directory, "bank"), lease(directory, "bank"));
    let mut given = BTreeSet::new();
    for maker in [&one, &other, &one, &other] {
        given.insert(directory.create_heap(maker, PAGE, &Who::nobody()).expect("room"));
    }
    assert_eq!(given.len(), 4);
    assert_eq!(code(directory.create_heap(&one, PAGE, &Who::nobody())), ErrorCode::NoAddresses);
    directory.create_heap(&one, 2 * PAGE, &Who::nobody()).expect("others of another size are free");
    directory.end_lease(&one).expect("its own");
    // No process has called `reclaim`.
    for _ in 0..2 {
        directory.create_heap(&other, PAGE, &Who::nobody()).expect("two are held no more");
    }
    assert_eq!(code(directory.create_heap(&other, PAGE, &Who::nobody())), ErrorCode::NoAddresses);
}

pub fn quotas_are_exact(directory: &dyn Directory) {
    let quota = Quota { process_bytes: 4 * PAGE, tenant_bytes: 6 * PAGE, names: 2, leases: 2 };
    directory.set_quota(None, quota).expect("it is there");
    let (one, other) = (lease(directory, "bank"), lease(directory, "bank"));
    let told = directory.open_lease(&tenant("bank"), Duration::from_secs(600)).expect_err("a third lease");
    let DirectoryError::Quota(quota) = told else { panic!("{told}") };
    assert_eq!((quota.limited, quota.most, quota.used, quota.asked), (Limited::Leases, 2, 2, 1));
    let three = directory.create_heap(&one, 3 * PAGE, &Who::nobody()).expect("room");
    let told = directory.create_heap(&one, 2 * PAGE, &Who::nobody()).expect_err("a process has four pages");
    let DirectoryError::Quota(quota) = told else { panic!("{told}") };
    let expected = (Limited::ProcessBytes, 4 * PAGE, 3 * PAGE, 2 * PAGE);
    assert_eq!((quota.limited, quota.most, quota.used, quota.asked), expected);
    directory.create_heap(&one, PAGE, &Who::nobody()).expect("the fourth page");
    let told = directory.hold_heap(&other, three.address).expect_err("a tenant has six pages");
    let DirectoryError::Quota(quota) = told else { panic!("{told}") };
    assert_eq!((quota.limited, quota.used), (Limited::TenantBytes, 4 * PAGE));
    let usage = directory.usage(&one).expect("it lives");
    assert_eq!((usage.process_bytes, usage.tenant_bytes, usage.leases), (4 * PAGE, 4 * PAGE, 2));
    for text in ["bank/a", "bank/claims/bank/x/heap/b"] {
        directory.register(&one, &name(text), &entry("/run/a.sock", Access::public())).expect("room");
    }
    let told = directory.register(&other, &name("bank/c"), &entry("/run/a.sock", Access::public()));
    assert_eq!(code(told), ErrorCode::DirectoryQuota);
    lease(directory, "shop");
    assert_eq!(directory.usage(&one).expect("it lives").names, 2);
    directory.end_lease(&one).expect("its own");
    let usage = directory.usage(&other).expect("it lives");
    assert_eq!((usage.process_bytes, usage.tenant_bytes, usage.names, usage.leases), (0, 0, 0, 1));
    directory.create_heap(&other, 4 * PAGE, &Who::nobody()).expect("there is room again");
}

pub fn a_tenant_has_its_own_quota(directory: &dyn Directory) {
    let none = Quota { process_bytes: 0, tenant_bytes: 0, names: 0, leases: 9 };
    directory.set_quota(None, none).expect("it is there");
    directory.set_quota(Some(&tenant("bank")), Quota::default()).expect("it is there");
    let (bank, shop) = (lease(directory, "bank"), lease(directory, "shop"));
    directory.create_heap(&bank, PAGE, &Who::nobody()).expect("its own quota has room");
    let told = code(directory.create_heap(&shop, PAGE, &Who::nobody()));
    assert_eq!(told, ErrorCode::DirectoryQuota);
    directory.set_quota(Some(&tenant("bank")), none).expect("it is there");
    assert_eq!(code(directory.create_heap(&bank, PAGE, &Who::nobody())), ErrorCode::DirectoryQuota);
    assert_eq!(directory.usage(&bank).expect("it lives").tenant_bytes, PAGE, "what was had stays");
}

pub fn many_at_once_do_not_get_beyond_a_quota_nor_the_same_addresses(directory: &dyn Directory) {
    let quota = Quota { tenant_bytes: 5 * PAGE, ..Quota::default() };
    directory.set_quota(None, quota).expect("it is there");
    let ask = |bytes| {
        let own = lease(directory, "bank");
        directory.create_heap(&own, bytes, &Who::nobody())
    };
    let sizes = [PAGE, PAGE, PAGE, PAGE, 2 * PAGE, 2 * PAGE];
    let told: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = sizes.map(|bytes| scope.spawn(move || ask(bytes))).into();
        asking.into_iter().map(|asking| asking.join().expect("it is told")).collect()
    });
    let given: BTreeSet<_> = told.iter().flatten().map(|heap| heap.address).collect();
    assert_eq!(given.len(), told.iter().flatten().count(), "no address twice: {told:x?}");
    let bytes: u64 = told.iter().flatten().map(|heap| heap.bytes).sum();
    // A request for two pages may find one left.
    assert!((4 * PAGE..=5 * PAGE).contains(&bytes), "{told:x?}");
    for refused in told.into_iter().filter(Result::is_err) {
        assert_eq!(code(refused), ErrorCode::DirectoryQuota);
    }
}

pub fn many_at_once_do_not_get_the_same_name(directory: &dyn Directory) {
    // The processes belong to several tenants, so that only the name stands between them.
    let (bank, channel) = (lease(directory, "bank"), name("bank/a/b"));
    let access = Access { look_up: Who::nobody(), register: Who::Everybody };
    directory.register(&bank, &name("bank/a"), &entry("/run/a.sock", access)).expect("free");
    let ask = |number: usize| {
        let own = lease(directory, &format!("tenant{number}"));
        let there = entry(&format!("/run/{number}.sock"), Access::public());
        directory.register(&own, &channel, &there).map(|()| there.target)
    };
    let told: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..6).map(|number| scope.spawn(move || ask(number))).collect();
        asking.into_iter().map(|asking| asking.join().expect("it is told")).collect()
    });
    let winners: Vec<_> = told.iter().flatten().collect();
    let found = directory.look_up(&tenant("bank"), &channel).expect("somebody has it");
    assert_eq!(winners, [&found.target]);
    for refused in told.into_iter().filter(Result::is_err) {
        assert_eq!(code(refused), ErrorCode::NameTaken);
    }
}
