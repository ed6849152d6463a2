//! The seed of a table's hashes: the table draws it, and no client that could choose keys by it learns it.

use crate::rig::{User, node};
use portcullis::{Lifetime, Mechanism};
use portcullis_structures::table::{Access, Grain, TableError, TableOptions};

const TENANT: &str = "red";

/// Options of a small table, which is split often.
fn small() -> TableOptions {
    TableOptions {
        grain: Grain::Extent,
        lease: Lifetime::millis(100),
        groups: 2,
        depth_max: 10,
        seed: Some(0),
        ..TableOptions::default()
    }
}

/// Returns keys that share their subtable, however often it is split, and their two combined buckets, in a table of
/// this shape with this seed.
fn keys_of_one_place(seed: u64, shape: &TableOptions) -> impl Iterator<Item = Vec<u8>> {
    let (choices, suffixes) = (shape.groups * 2, 1 << shape.depth_max);
    (0u32..).map(|number| number.to_le_bytes().to_vec()).filter(move |key| {
        let hash = twox_hash::XxHash3_128::oneshot_with_seed(seed, key);
        let word = |place: u32| u32::try_from(hash >> (32 * place) & u128::from(u32::MAX)).expect("32 bits");
        let (suffix, first, second) = (word(0), word(1) % choices, word(2) % (choices - 1));
        let second = (first + 1 + second) % choices;
        suffix % suffixes == 0 && [first.min(second), first.max(second)] == [0, 1]
    })
}

#[test]
fn keys_that_were_chosen_for_a_known_seed_do_not_fill_a_table_that_has_drawn_its_own() {
    let node = node(Mechanism::MemoryWindow);
    let shape = TableOptions { groups: 4, depth_max: 4, seed: None, ..small() };
    let insert_all = |options: &TableOptions| {
        let user = User::create(&node, TENANT, options);
        let keys: Vec<_> = keys_of_one_place(0, options).take(64).collect();
        let inserted =
            keys.iter().try_for_each(|key| user.pipeline.block_on(user.table.insert(key, b"")).map(|_| ()));
        (inserted, user.run(user.table.length()))
    };
    let (known, length) = insert_all(&TableOptions { seed: Some(0), ..shape });
    assert_eq!(known, Err(TableError::Full), "the keys are chosen well");
    assert!(length < 32, "of the 1,344 places of the table: {length}");
    assert_eq!(insert_all(&shape), (Ok(()), 64));
}

#[test]
fn a_handle_does_not_print_the_seed_of_its_table() {
    let node = node(Mechanism::MemoryWindow);
    let seed = Some(0x1234_5678_9ABC_DEF0);
    let one = User::create(&node, TENANT, &TableOptions { seed, ..small() });
    let two = User::open(&node, TENANT, one.table.head(), Access::Write);
    for printed in [format!("{:?}", one.table), format!("{:?}", two.table)] {
        assert!(printed.contains("seed: None"), "{printed}");
        assert!(!printed.contains(&0x1234_5678_9ABC_DEF0_u64.to_string()), "{printed}");
    }
}

#[test]
fn a_handle_that_opens_a_table_finds_its_keys_whatever_seed_was_drawn() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &TableOptions { seed: None, ..small() });
    for number in 0..100u32 {
        assert!(one.run(one.table.insert(&number.to_le_bytes(), &number.to_be_bytes())));
    }
    let other = User::open(&node, TENANT, one.table.head(), Access::Read);
    for number in 0..100u32 {
        let value = other.run(other.table.get(&number.to_le_bytes()));
        assert_eq!(value.as_deref(), Some(&number.to_be_bytes()[..]));
    }
}
