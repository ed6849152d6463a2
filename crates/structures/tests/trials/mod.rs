//! Trials: a client dies, or stands still, at one step of an operation.

use crate::rig::{Map, User, node};
use portcullis::host::Host;
use portcullis::{Lifetime, Mechanism};
use portcullis_structures::table::{
    Access, Condition, Grain, Statistics, Stored, Table, TableError, TableOptions, Vacated,
};
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const LEASE: Lifetime = Lifetime::millis(40);
/// Number of keys of a table in which there is room for a few more.
const FEW: u32 = 8;
/// The key that is updated and removed.
const PRESENT: u32 = 3;

/// The operation in whose middle the client dies.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    Insert,
    Update,
    Remove,
}

/// How the client ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum End {
    /// The client dies, and the node ends its permissions at once.
    Killed,
    /// The client stands still, and goes on when all others are done.
    Late,
    /// The client stands still for a moment, in which another client changes each key.
    Slow,
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Makes a table with the first `keys` keys. Each trial has a tenant of its own, whose memory is freed with it.
fn table_of(node: &Host, tenant: &str, grain: Grain, keys: u32) -> (User, Map) {
    let options = TableOptions {
        grain,
        lease: LEASE,
        groups: 1,
        depth_max: 6,
        seed: Some(0),
        ..TableOptions::default()
    };
    let user = User::create(node, tenant, &options);
    let mut map = Map::new();
    for number in 0..keys {
        assert!(user.run(user.table.insert(&key(number), b"old")));
        map.insert(key(number), b"old".to_vec());
    }
    (user, map)
}

/// Counts the keys that fit into a table before a subtable is split.
fn keys_before_a_split(node: &Host, grain: Grain) -> u32 {
    let (user, _) = table_of(node, "observer", grain, 0);
    let mut keys = 0;
    while user.run(user.table.statistics()).subtables == 1 {
        assert!(user.run(user.table.insert(&key(keys), b"old")));
        keys += 1;
    }
    keys - 1
}

async fn perform(table: &Table, deed: Deed, number: u32) -> Result<bool, TableError> {
    match deed {
        Deed::Insert => table.insert(&key(number), b"new").await,
        Deed::Update => table.update(&key(number), b"new").await,
        Deed::Remove => table.remove(&key(number)).await,
    }
}

/// Runs one trial in a table with `keys` keys: the client ends after `posts` posts. Returns whether its operation ended
/// before.
fn trial(node: &Host, grain: Grain, keys: u32, deed: Deed, end: End, posts: u64) -> bool {
    let what = format!("{deed:?} in {keys} keys, {end:?} after {posts} posts, {grain:?}");
    let tenant = format!("trial-{posts}");
    let (other, mut map) = table_of(node, &tenant, grain, keys);
    let number = if matches!(deed, Deed::Insert) { keys } else { PRESENT };
    let User { pipeline, table } = User::open(node, &tenant, other.table.head(), Access::Write);
    pipeline.halt_after(Some(posts));
    let mut done = None;
    {
        let mut operation = pin!(perform(&table, deed, number));
        done = pipeline.drive(operation.as_mut()).or(done);
        if done.is_none() && end == End::Slow {
            for (key, value) in &mut map {
                *value = b"mine".to_vec();
                // An exchange looks for its key. An upsert would use the slot that its handle remembers.
                let exchange = other.table.compare_and_set(key, b"old", value);
                assert!(other.run(exchange), "{what}: keys are lost or changed");
            }
            pipeline.halt_after(None);
            assert_eq!(pipeline.drive(operation.as_mut()), Some(Ok(true)), "{what}");
            map.insert(key(number), b"new".to_vec());
        }
        if done.is_none() && end == End::Late {
            let found = others_go_on(&other, &mut map, deed, number, &what);
            pipeline.halt_after(None);
            let result = pipeline.drive(operation.as_mut()).expect("it goes on");
            let (expected, value) = after_the_late(deed, found);
            assert_eq!(result, Ok(expected), "{what}");
            match value {
                Some(value) => map.insert(key(number), value.to_vec()),
                None => map.remove(&key(number)),
            };
        }
    }
    drop((table, pipeline));
    match done {
        Some(result) => {
            assert_eq!(result, Ok(true), "{what}");
            match deed {
                Deed::Remove => map.remove(&key(number)),
                Deed::Insert | Deed::Update => map.insert(key(number), b"new".to_vec()),
            };
        }
        None if end == End::Killed => {
            others_go_on(&other, &mut map, deed, number, &what);
        }
        None => {}
    }
    check(&other, &map, &what);
    sweep(node, &other, &map, &what);
    done.is_some()
}

/// Works with the table as another client, after the client's end or while it stands still. Returns whether the
/// client's operation has happened.
fn others_go_on(other: &User, map: &mut Map, deed: Deed, number: u32, what: &str) -> bool {
    let its = key(number);
    for (key, value) in map.iter().filter(|(key, _)| **key != its) {
        assert_eq!(other.get(key).as_ref(), Some(value), "{what}: keys are lost or changed");
    }
    let found = other.get(&its);
    let happened = match (deed, found.as_deref()) {
        (Deed::Insert, None) | (Deed::Update | Deed::Remove, Some(b"old")) => false,
        (Deed::Insert | Deed::Update, Some(b"new")) | (Deed::Remove, None) => true,
        (_, value) => panic!("{what}: {value:?}"),
    };
    assert_eq!(other.get(&its), found, "{what}: what has happened stays so");
    let stored = other.run(other.table.upsert(&its, b"mine"));
    assert_eq!(stored == Stored::Replaced, found.is_some(), "{what}");
    map.insert(its, b"mine".to_vec());
    for number in 100..110 {
        assert!(other.run(other.table.insert(&key(number), b"more")), "{what}");
        map.insert(key(number), b"more".to_vec());
    }
    check(other, map, what);
    happened
}

/// Returns the result that a late client must get, and the value of its key after that. The other client has stored
/// `mine` meanwhile.
fn after_the_late(deed: Deed, happened: bool) -> (bool, Option<&'static [u8]>) {
    match (deed, happened) {
        (_, true) => (true, Some(b"mine")),
        (Deed::Insert, false) => (false, Some(b"mine")),
        (Deed::Update, false) => (true, Some(b"new")),
        (Deed::Remove, false) => (true, None),
    }
}

fn check(user: &User, map: &Map, what: &str) {
    let found = user.all();
    let lost: Vec<_> = map.iter().filter(|(key, value)| found.get(*key) != Some(value)).collect();
    let extra: Vec<_> = found.iter().filter(|(key, value)| map.get(*key) != Some(value)).collect();
    assert!(
        lost.is_empty() && extra.is_empty(),
        "{what}: keys are lost or changed: {lost:?}, in their place {extra:?}"
    );
    for (key, value) in map {
        assert_eq!(user.get(key).as_ref(), Some(value), "{what}: keys are lost or changed");
    }
}

/// Checks that a sweep frees the memory that the client has left. After that exactly the keys' blocks are claimed.
fn sweep(node: &Host, user: &User, map: &Map, what: &str) {
    let statistics = || user.run(user.table.statistics());
    // A second sweep frees the blocks that a first sweep takes out of slots.
    let objects = |found: &Statistics| 1 + found.subtables + found.extents;
    for _ in 0..2 {
        let found = statistics();
        if found.unlinked > 0 || node.counters().objects != objects(&found) {
            user.run(user.table.sweep());
        }
    }
    let statistics = statistics();
    let lost = (statistics.unlinked, statistics.dangling);
    assert_eq!(lost, (0, 0), "{what}: blocks are leaked or lost: {statistics:?}");
    assert_eq!(statistics.keys, map.len() as u64, "{what}: keys are lost or doubled");
    check(user, map, what);
    // The objects of earlier trials' tenants are freed little by little.
    let since = Instant::now();
    while node.counters().objects != objects(&statistics) {
        assert!(
            since.elapsed().as_secs() < 20,
            "{what}: objects are leaked: {:?}, {statistics:?}",
            node.counters()
        );
    }
}

pub fn at_each_step(grain: Grain, deed: Deed, end: End) {
    at_each_step_in(FEW, grain, deed, end);
}

/// Runs the trials of an operation at each step, in a table with `keys` keys.
pub fn at_each_step_in(keys: u32, grain: Grain, deed: Deed, end: End) {
    let node = node(Mechanism::MemoryWindow);
    let done = (0..1_000).find(|&posts| trial(&node, grain, keys, deed, end, posts));
    assert!(done.is_some_and(|steps| steps >= 5), "an operation of {done:?} steps");
}

pub fn at_each_step_of_a_split(grain: Grain, end: End) {
    let node = node(Mechanism::MemoryWindow);
    let keys = keys_before_a_split(&node, grain);
    // A split has hundreds of steps: `make test` tries every seventh, and `make test-all` tries all.
    let stride = if std::env::var("PORTCULLIS_TESTS").is_ok_and(|extent| extent == "all") { 1 } else { 7 };
    let mut steps = (0..5_000).step_by(stride);
    let done = steps.find(|&posts| trial(&node, grain, keys, Deed::Insert, end, posts));
    assert!(done.is_some_and(|steps| steps >= 60), "a split of {done:?} steps");
}

/// Checks that without a death, a value that is replaced gives its block back at once.
pub fn many_updates_leak_nothing() {
    let node = node(Mechanism::MemoryWindow);
    let (user, _) = table_of(&node, "red", Grain::Extent, 1);
    for number in 0..1_000u32 {
        assert!(user.run(user.table.update(&key(0), &number.to_le_bytes())));
    }
    assert!(user.run(user.table.remove(&key(0))));
    // The stock has up to 64 blocks.
    let statistics = user.run(user.table.statistics());
    assert!(statistics.unlinked <= 64, "blocks are leaked: {statistics:?}");
}

/// Checks that changes of one key by one handle, of which several are under way, are made in the order in which they
/// began.
pub fn changes_of_one_key_are_made_in_their_order() {
    const CHANGES: usize = 300;
    let node = node(Mechanism::MemoryWindow);
    let (user, _) = table_of(&node, "red", Grain::Extent, 1);
    // Some values are short, others have several blocks.
    let values: Vec<_> = (0..=CHANGES)
        .map(|number| number.to_string().repeat(if number % 20 == 7 { 30_000 } else { 1 }))
        .collect();
    assert!(user.run(user.table.update(&key(0), values[0].as_bytes())));
    let key = key(0);
    let exchanges = values.windows(2).map(|values| {
        let [old, new] = [0, 1].map(|place| values[place].as_bytes());
        user.table.compare_and_set(&key, old, new)
    });
    user.pipeline.run(16, exchanges, |done| assert_eq!(done, Ok(true), "out of order"));
    assert_eq!(user.get(&key).as_deref(), Some(values[CHANGES].as_bytes()));
    let in_turns = (0..2 * CHANGES).map(|number| {
        let (table, key, value) = (&user.table, &key, values[number / 2].as_bytes());
        async move {
            if number % 2 == 0 {
                table.upsert(key, value).await.expect("a change");
            } else {
                assert_eq!(table.take(key).await, Ok(Some(value.to_vec())), "out of order");
            }
        }
    });
    user.pipeline.run(16, in_turns, |()| {});
}

/// Checks that a change counts on no slot in which its handle has once stored the key: other clients change keys too.
pub fn a_remembered_slot_is_a_guess() {
    let node = node(Mechanism::MemoryWindow);
    let (user, _) = table_of(&node, "red", Grain::Extent, 1);
    let other = User::open(&node, "red", user.table.head(), Access::Write);
    let key = key(0);
    let is_kept = |value: &[u8]| {
        assert_eq!(other.get(&key).as_deref(), Some(value), "a value is lost");
        assert_eq!(user.get(&key).as_deref(), Some(value), "a value is lost");
    };
    for round in 0..50u32 {
        let [first, second, third] = [0, 1, 2].map(|part| (round * 3 + part).to_le_bytes());
        assert_eq!(user.run(user.table.upsert(&key, &first)), Stored::Replaced);
        is_kept(&first);
        assert!(other.run(other.table.update(&key, &second)));
        is_kept(&second);
        assert!(user.run(user.table.update(&key, &third)), "a value is lost");
        is_kept(&third);
        assert!(other.run(other.table.remove(&key)));
        assert!(!user.run(user.table.update(&key, &first)), "a removal is lost");
        assert_eq!(user.run(user.table.upsert(&key, &first)), Stored::Inserted, "a removal is lost");
        is_kept(&first);
    }
    // The keys move when the table grows.
    for number in 1..600u32 {
        assert_eq!(other.run(other.table.upsert(&self::key(number), b"grows")), Stored::Inserted);
        let value = number.to_le_bytes();
        assert_eq!(user.run(user.table.upsert(&key, &value)), Stored::Replaced);
        assert_eq!(other.get(&key).as_deref(), Some(&value[..]), "a value is lost");
    }
}

/// Polls a change once, in which it begins its requests.
fn begin(change: Pin<&mut impl Future<Output = Result<bool, TableError>>>) {
    assert!(change.poll(&mut Context::from_waker(Waker::noop())).is_pending(), "a change needs the node");
}

/// Checks that a change of a key that its handle has just stored needs one round trip: the node makes the change, whose
/// client does nothing more after the first posts.
pub fn a_change_takes_one_round_trip() {
    let node = node(Mechanism::MemoryWindow);
    let options = TableOptions { lease: Lifetime::seconds(10), ..TableOptions::default() };
    let creator = User::create(&node, "red", &options);
    let head = creator.table.head();
    let other = User::open(&node, "red", head, Access::Read);
    let key = key(0);
    for round in 0..40u32 {
        let user = User::open(&node, "red", head, Access::Write);
        user.run(user.table.upsert(&key, b"old"));
        // The first change of a handle leaves three blocks in its stock. Whether a refill has brought more depends on the
        // speed of the node.
        for number in 0..3 {
            let value = (3 * round + number).to_le_bytes();
            let mut change = pin!(user.table.update(&key, &value));
            begin(change.as_mut());
            // This posts what the change has begun.
            user.pipeline.block_on(async {});
            let begun = Instant::now();
            while other.get(&key).as_deref() != Some(&value) {
                let waited = begun.elapsed();
                assert!(
                    waited < Duration::from_secs(20),
                    "round {round}: the node does not make change {number}"
                );
            }
            assert!(user.run(change));
        }
    }
}

/// Checks that a change that its client posts late, when a sweep has freed its block and another client has used the
/// block, harms no key.
pub fn a_change_is_posted_late() {
    const KEYS: u32 = 24;
    let node = node(Mechanism::MemoryWindow);
    let (user, mut map) = table_of(&node, "red", Grain::Extent, 1);
    let other = User::open(&node, "red", user.table.head(), Access::Write);
    for round in 0..20u32 {
        let (key, value) = (key(0), (1_000 * round).to_le_bytes());
        assert_eq!(user.run(user.table.upsert(&key, b"before")), Stored::Replaced);
        let mut change = pin!(user.table.update(&key, &value));
        begin(change.as_mut());
        std::thread::sleep(Duration::from(LEASE) * 3);
        other.run(other.table.sweep());
        for number in 1..KEYS {
            let (key, value) = (self::key(number), (round + number).to_le_bytes());
            assert_ne!(other.run(other.table.upsert(&key, &value)), Stored::Unchanged);
            map.insert(key, value.to_vec());
        }
        assert!(user.run(change), "round {round}: the key is lost");
        map.insert(key.clone(), value.to_vec());
        check(&other, &map, &format!("round {round}"));
    }
    sweep(&node, &other, &map, "at the end");
}

/// Checks that a change has ended only when its value or a later one is stored, if several share a turn.
pub fn changes_that_share_a_turn_are_stored() {
    const CHANGES: u32 = 2_000;
    let node = node(Mechanism::MemoryWindow);
    let (user, _) = table_of(&node, "red", Grain::Extent, 1);
    let key = key(0);
    let (table, key) = (&user.table, &key);
    let number_of = |value: Option<Vec<u8>>| {
        value.and_then(|value| Some(u32::from_le_bytes(value.try_into().ok()?))).expect("a number")
    };
    user.run(table.upsert(key, &0u32.to_le_bytes()));
    let changes = (1..=CHANGES).map(async |number| {
        match number % 3 {
            0 => assert_eq!(table.update(key, &number.to_le_bytes()).await, Ok(true)),
            _ => assert_eq!(table.upsert(key, &number.to_le_bytes()).await, Ok(Stored::Replaced)),
        }
        let found = number_of(table.get(key).await.expect("it is served"));
        assert!(found >= number, "a value is lost: {found} after {number}");
    });
    user.pipeline.run(16, changes, |()| {});
    assert_eq!(number_of(user.get(key)), CHANGES);
    assert!(user.run(user.table.remove(key)));
    let at_once = (0..16u32).map(async |number| table.upsert(key, &number.to_le_bytes()).await);
    let mut inserted = Vec::new();
    user.pipeline.run(16, at_once, |stored| inserted.push(stored == Ok(Stored::Inserted)));
    assert_eq!(inserted.iter().filter(|inserted| **inserted).count(), 1, "one of them inserts the key");
}

/// Checks that a refill that stands still between two calls of its pipeline, until a sweep has freed its claims and another
/// client has used the blocks, brings no block into the stock.
pub fn a_refill_stands_still() {
    const KEYS: u32 = 40;
    let node = node(Mechanism::MemoryWindow);
    let (user, mut map) = table_of(&node, "red", Grain::Extent, KEYS);
    let other = User::open(&node, "red", user.table.head(), Access::Write);
    for round in 0..30u32 {
        // The last of these stores begin refills at different steps, and none goes on before the next round.
        for number in 0..10 + round {
            let (key, value) = (key(number % KEYS), (1_000 * round + number).to_le_bytes());
            assert_ne!(user.run(user.table.upsert(&key, &value)), Stored::Unchanged);
            map.insert(key, value.to_vec());
        }
        std::thread::sleep(Duration::from(LEASE) * 3);
        other.run(other.table.sweep());
        for number in 0..KEYS {
            let (key, value) = (key(100 + number), (round + number).to_le_bytes());
            assert_ne!(other.run(other.table.upsert(&key, &value)), Stored::Unchanged);
            map.insert(key, value.to_vec());
        }
        check(&other, &map, &format!("round {round}"));
    }
    check(&user, &map, "at the end");
    sweep(&node, &other, &map, "at the end");
}

/// Checks that a client that changes one key after another sends few messages: its blocks come from its stock.
pub fn a_write_takes_no_message_of_its_own() {
    const CHANGES: u32 = 1_000;
    let node = node(Mechanism::MemoryWindow);
    // On a busy machine, shorter leases end between two changes.
    let options = TableOptions { lease: Lifetime::seconds(10), ..TableOptions::default() };
    let user = User::create(&node, "red", &options);
    for number in 0..100 {
        assert!(user.run(user.table.insert(&key(number), b"old")));
    }
    let before = node.counters().control_messages;
    for number in 0..CHANGES {
        assert!(user.run(user.table.update(&key(number % 100), &number.to_le_bytes())));
    }
    let messages = node.counters().control_messages - before;
    assert!(messages <= u64::from(CHANGES) / 4, "{messages} messages for {CHANGES} changes");
}

/// Returns a value of which eight fill an extent.
fn eighth(fill: u8) -> Vec<u8> {
    vec![fill; 30 << 10]
}

/// Lets a reader stand still at each step of a get, while another client calls `meanwhile`. The key's value is an
/// eighth of ones, beside the other values that `before` stores, and it is `after` when the reader goes on.
fn a_reader_is_late(before: impl Fn(&User), meanwhile: impl Fn(&User), after: &[u8]) {
    let node = node(Mechanism::MemoryWindow);
    let options = TableOptions { lease: Lifetime::millis(800), seed: Some(0), ..TableOptions::default() };
    for posts in 0..100 {
        let tenant = format!("trial-{posts}");
        let other = User::create(&node, &tenant, &options);
        assert!(other.run(other.table.insert(b"read", &eighth(1))));
        before(&other);
        let User { pipeline, table } = User::open(&node, &tenant, other.table.head(), Access::Read);
        pipeline.halt_after(Some(posts));
        let mut get = pin!(table.get(b"read"));
        if let Some(found) = pipeline.drive(get.as_mut()) {
            assert_eq!(found, Ok(Some(eighth(1))));
            assert!(posts >= 3, "a get of {posts} steps");
            return;
        }
        assert!(other.run(other.table.update(b"read", after)));
        meanwhile(&other);
        pipeline.halt_after(None);
        let found = pipeline.drive(get.as_mut()).expect("it goes on").expect("a value");
        let found =
            found.unwrap_or_else(|| panic!("after {posts} posts: a key that was always there is lost"));
        assert!(
            found == eighth(1) || found == after,
            "after {posts} posts: a value that was never the key's"
        );
    }
    panic!("a get never ends");
}

/// Lets a reader stand still at each step of a get, while the block of its key is used for other keys.
pub fn a_reader_is_late_at_each_step() {
    let use_all_blocks = |other: &User| {
        for number in 0..24u32 {
            assert_eq!(
                other.run(other.table.upsert(&key(number % 3), &eighth(3))),
                match number {
                    0..3 => Stored::Inserted,
                    _ => Stored::Replaced,
                }
            );
        }
    };
    a_reader_is_late(|_| (), use_all_blocks, &eighth(2));
}

/// Lets a reader stand still at each step of a get, while the extent of its key's value goes back to the node and
/// another extent gets the number.
pub fn a_reader_is_late_while_its_extent_goes() {
    let store_beside = |other: &User| assert!(other.run(other.table.insert(b"beside", &eighth(2))));
    let replace_extent = |other: &User| {
        let vacated = other.run(other.table.vacate(b"beside", |_| ()));
        assert!(matches!(vacated, Vacated::GivenBack { .. }), "{vacated:?}");
        // All blocks of the next extent are used, among them the one that the reader's slot names.
        for number in 0..8 {
            assert!(other.run(other.table.insert(&key(number), &eighth(3))));
        }
    };
    a_reader_is_late(store_beside, replace_extent, b"short");
}

/// Lets a client that removes expired keys end at each step, while another one stores one of those keys again.
pub fn a_removal_of_what_has_expired_ends_at_each_step(end: End) {
    let node = node(Mechanism::MemoryWindow);
    let options =
        TableOptions { lease: LEASE, groups: 1, depth_max: 6, seed: Some(0), ..TableOptions::default() };
    for posts in 0..500 {
        let what = format!("a removal of what has expired, {end:?} after {posts} posts");
        let tenant = format!("trial-{posts}");
        let other = User::create(&node, &tenant, &options);
        let (fresh, kept) = (key(PRESENT), b"kept".to_vec());
        for number in 0..FEW {
            let key = key(number);
            let store = other.table.store(&key, b"old", Condition::Always, Some(Lifetime(1)));
            assert_eq!(other.run(store), Stored::Inserted);
        }
        assert!(other.run(other.table.insert(&kept, b"kept")));
        while (0..FEW).any(|number| other.get(&key(number)).is_some()) {
            std::thread::yield_now();
        }
        // A handle's clock is ahead by the time that the grant of its permission took, which is less than a permission
        // lives.
        other.pipeline.block_on(other.pipeline.sleep(LEASE)).expect("the node is there");
        let User { pipeline, table } = User::open(&node, &tenant, other.table.head(), Access::Write);
        pipeline.halt_after(Some(posts));
        let mut removal = Box::pin(table.remove_expired(|_| ()));
        let done = pipeline.drive(removal.as_mut());
        if done.is_none() {
            assert_eq!(other.run(other.table.upsert(&fresh, b"new")), Stored::Inserted, "{what}");
        }
        if done.is_none() && end == End::Late {
            pipeline.halt_after(None);
            let removed = pipeline.drive(removal.as_mut()).expect("it goes on");
            assert!(removed.is_ok_and(|removed| removed <= u64::from(FEW)), "{what}: {removed:?}");
        }
        drop(removal);
        drop((table, pipeline));
        let mut map = Map::from([(kept, b"kept".to_vec())]);
        if done.is_none() {
            map.insert(fresh, b"new".to_vec());
        }
        check(&other, &map, &what);
        // The clocks of two handles differ by the time that the grant of a permission took. So the first removal may
        // have been too early for some keys.
        let since = Instant::now();
        while other.run(other.table.statistics()).keys > map.len() as u64 {
            assert!(since.elapsed().as_secs() < 20, "{what}: what has expired stays");
            other.run(other.table.remove_expired(|_| ()));
        }
        sweep(&node, &other, &map, &what);
        if done.is_some() {
            assert!(posts > 40, "a removal of {posts} steps");
            return;
        }
    }
    panic!("a removal never ends");
}

/// Lets a writer stand still at each step of an update, while another client sweeps and uses all blocks again.
pub fn a_writer_is_late_at_each_step() {
    let node = node(Mechanism::MemoryWindow);
    let options =
        TableOptions { lease: LEASE, groups: 1, depth_max: 6, seed: Some(0), ..TableOptions::default() };
    for posts in 0..100 {
        let what = format!("an update that is late after {posts} posts");
        let tenant = format!("trial-{posts}");
        let other = User::create(&node, &tenant, &options);
        assert!(other.run(other.table.insert(b"written", &eighth(1))));
        let User { pipeline, table } = User::open(&node, &tenant, other.table.head(), Access::Write);
        pipeline.halt_after(Some(posts));
        let new = eighth(2);
        let mut update = pin!(table.update(b"written", &new));
        if let Some(done) = pipeline.drive(update.as_mut()) {
            assert_eq!(done, Ok(true));
            assert!(posts >= 5, "an update of {posts} steps");
            return;
        }
        other.run(other.table.sweep());
        for number in 0..24 {
            other.run(other.table.upsert(&key(number % 3), &eighth(3)));
        }
        pipeline.halt_after(None);
        assert_eq!(pipeline.drive(update.as_mut()), Some(Ok(true)), "{what}");
        let found = other.get(b"written");
        assert!(found == Some(eighth(2)), "{what}: the value is lost");
        for number in 0..3 {
            assert!(other.get(&key(number)) == Some(eighth(3)), "{what}: another key's value is lost");
        }
        let statistics = other.run(other.table.statistics());
        assert_eq!(statistics.dangling, 0, "{what}: blocks are leaked or lost: {statistics:?}");
    }
    panic!("an update never ends");
}

/// Checks that a sweep frees no block to which a key leads: no short value, none that fills a block, and no piece of a
/// long one.
pub fn a_sweep_leaves_what_keys_lead_to() {
    let node = node(Mechanism::MemoryWindow);
    let (user, mut map) = table_of(&node, "red", Grain::Extent, FEW);
    for (number, length) in (100..).zip([1_000, 30 << 10, 100_000, 400_000]) {
        let value = vec![7; length];
        assert!(user.run(user.table.insert(&key(number), &value)));
        map.insert(key(number), value);
    }
    for _ in 0..2 {
        user.run(user.table.sweep());
    }
    check(&user, &map, "after two sweeps");
}

/// Lets a client die or stand still at each step of `deed`, in a table whose values of 30 KB were all removed, beside a
/// long value. Another client goes on with it, and after a sweep no key is lost and no memory is leaked.
pub fn a_change_of_extents_ends_at_each_step(deed: ExtentDeed, end: End) {
    let node = node(Mechanism::MemoryWindow);
    let options = TableOptions { lease: LEASE, groups: 1, depth_max: 6, ..TableOptions::default() };
    for posts in 0..3_000 {
        let what = format!("{deed:?}, {end:?} after {posts} posts");
        let tenant = format!("trial-{posts}");
        let other = User::create(&node, &tenant, &options);
        let mut map = Map::new();
        let block = eighth(1);
        for number in 0..10 {
            assert!(other.run(other.table.insert(&key(number), &block)));
        }
        for number in 0..8 {
            assert!(other.run(other.table.remove(&key(number))));
        }
        map.extend((8..10).map(|number| (key(number), block.clone())));
        let User { pipeline, table } = User::open(&node, &tenant, other.table.head(), Access::Write);
        let long = vec![7; 100_000];
        pipeline.halt_after(Some(posts));
        let mut operation = Box::pin(async {
            match deed {
                ExtentDeed::Vacate => table.vacate(&key(8), |_| ()).await.map(|_| ()),
                ExtentDeed::LongValue => table.upsert(b"long", &long).await.map(|_| ()),
            }
        });
        let done = pipeline.drive(operation.as_mut());
        let others = |map: &mut Map| {
            for number in 20..32 {
                assert!(other.run(other.table.insert(&key(number), &block)), "{what}");
                map.insert(key(number), block.clone());
            }
        };
        if done.is_none() {
            others(&mut map);
        }
        if done.is_none() && end == End::Late {
            other.pipeline.block_on(other.pipeline.sleep(LEASE)).expect("the session lives");
            other.run(other.table.sweep());
            pipeline.halt_after(None);
            let late = pipeline.drive(operation.as_mut()).expect("it goes on");
            assert_eq!(late, Ok(()), "{what}");
        }
        drop(operation);
        drop((table, pipeline));
        // The client's deed has happened or not. All other keys stay.
        let found = other.all();
        match deed {
            // A client that goes on late also removes the keys that the other client has put into the extent meanwhile.
            ExtentDeed::Vacate => {
                map.retain(|its, _| {
                    found.contains_key(its) || end == End::Killed && *its > key(10) && *its < key(8)
                });
            }
            ExtentDeed::LongValue => map.extend(found.get_key_value(&b"long"[..]).map(|(key, value)| {
                assert!(*value == long, "{what}: a torn value");
                (key.clone(), value.clone())
            })),
        }
        if done.is_some() || end == End::Late {
            assert_eq!(found.contains_key(&b"long"[..]), deed == ExtentDeed::LongValue, "{what}");
        }
        check(&other, &map, &what);
        sweep(&node, &other, &map, &what);
        if done.is_some() {
            assert!(posts >= 8, "{deed:?} of {posts} steps");
            return;
        }
    }
    panic!("{deed:?} never ends");
}

/// The change of extents in whose middle a client ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ExtentDeed {
    Vacate,
    LongValue,
}
