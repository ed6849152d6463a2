//! The cache over a store in this process: changes by other clients in the middle of a change, and a full store.

use super::*;
use crate::protocol::{Command, Limits, Parser};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const NOW: Now = Now { micros: 1_700_000_000_000_000 };
/// Sizes of the store's blocks are multiples of this.
const STEP: usize = 64;

/// A store with room for a fixed number of blocks. Blocks keep their size until an item is vacated together with the
/// items beside it: then all free blocks of its size become available for others.
#[derive(Default)]
struct Memory {
    values: RefCell<BTreeMap<Vec<u8>, Vec<u8>>>,
    blocks: RefCell<BTreeMap<u64, usize>>,
    blocks_max: usize,
    /// Number of next conditions before which other clients change the key.
    rivals: Cell<u32>,
}

impl Memory {
    fn used(&self, size: u64) -> usize {
        let values = self.values.borrow();
        values.iter().filter(|(key, value)| self.takes(key.len(), value.len()).size == size).count()
    }

    fn claim(&self, takes: u64) -> Result<(), StoreError> {
        let mut blocks = self.blocks.borrow_mut();
        if self.used(takes) < blocks.get(&takes).copied().unwrap_or(0) {
            return Ok(());
        }
        if blocks.values().sum::<usize>() >= self.blocks_max {
            return Err(StoreError::NoRoom);
        }
        *blocks.entry(takes).or_default() += 1;
        Ok(())
    }
}

impl Store for Memory {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.values.borrow().get(key).cloned())
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        Ok(keys.iter().map(|key| self.values.borrow().get(*key).cloned()).collect())
    }

    async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
        _live: Option<Lifetime>,
    ) -> Result<Stored, StoreError> {
        if let Some(rivals) = self.rivals.get().checked_sub(1) {
            self.rivals.set(rivals);
            let number = Item { stamp: 1, cas: rivals.into(), ..Item::default() }.with(b"100");
            self.values.borrow_mut().insert(key.to_vec(), number);
        }
        let before = self.values.borrow().get(key).cloned();
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => before.is_none(),
            Condition::Present => before.is_some(),
            Condition::Equals(expected) => before.as_deref() == Some(expected),
        };
        if !holds {
            return Ok(Stored::Unchanged);
        }
        self.claim(self.takes(key.len(), value.len()).size)?;
        self.values.borrow_mut().insert(key.to_vec(), value.to_vec());
        Ok(if before.is_some() { Stored::Replaced } else { Stored::Inserted })
    }

    async fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.values.borrow_mut().remove(key))
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.values.borrow_mut().remove(key).is_some())
    }

    async fn vacate(&self, key: &[u8], mut removed: impl FnMut(&[u8])) -> Result<u64, StoreError> {
        let Some(value) = self.values.borrow_mut().remove(key) else { return Ok(0) };
        removed(key);
        let takes = self.takes(key.len(), value.len());
        *self.blocks.borrow_mut().entry(takes.size).or_default() -= 1;
        Ok(takes.bytes)
    }

    async fn anything(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn wake_waiting(&self) {}

    fn takes(&self, key_bytes: usize, value_bytes: usize) -> Takes {
        let size = (key_bytes + value_bytes).next_multiple_of(STEP) as u64;
        Takes { size, bytes: size }
    }
}

fn cache(store: Memory) -> Cache<Memory> {
    let shared = Shared {
        age: Age::default(),
        counters: Counters::default(),
        classes: Classes::default(),
        limit_bytes: 0.into(),
        dumps: false.into(),
        stamps: Stamps::new(1),
        flush: Flush::default(),
        wants_to_learn: false.into(),
    };
    Cache::new(store, Arc::new(shared))
}

/// Returns the bytes of a command's answer. The store never waits.
fn done(cache: &Cache<Memory>, line: &str) -> String {
    let limits = Limits { item_bytes: 1 << 20, get_bytes: 1 << 20, headroom: HEADER_BYTES };
    let bytes = format!("{line}\r\n");
    let Some(Command::Request(mut request)) = Parser::new(limits).take(&mut bytes.as_bytes(), usize::MAX)
    else {
        panic!("{line:?} is no request");
    };
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(result) = pin!(cache.perform(&mut request, NOW)).poll(&mut context) else {
        panic!("the store never waits");
    };
    let mut out = Vec::new();
    match result {
        Ok(reply) => reply.encode(&mut out),
        Err(error) => out = format!("{error:?}").into_bytes(),
    }
    String::from_utf8(out).expect("text").trim_end().to_owned()
}

#[test]
fn a_change_is_made_to_what_others_have_made_of_the_item() {
    let cache = cache(Memory { blocks_max: 9, rivals: Cell::new(5), ..Memory::default() });
    let first = Item { stamp: 1, ..Item::default() };
    cache.store.values.borrow_mut().insert(b"n".to_vec(), first.with(b"1"));
    assert_eq!(done(&cache, "incr n 1"), "101");
    assert_eq!(cache.store.rivals.get(), 0);
}

#[test]
fn a_full_store_loses_its_oldest_and_keeps_what_was_used() {
    let cache = cache(Memory { blocks_max: 20, ..Memory::default() });
    for number in 0..20 {
        assert_eq!(done(&cache, &format!("set k{number:02} 0 0 1\r\n1")), "STORED");
    }
    assert_ne!(done(&cache, "get k00"), "END");
    assert_eq!(done(&cache, "set new 0 0 1\r\n1"), "STORED");
    assert_eq!(done(&cache, "get k01"), "END");
    assert_ne!(done(&cache, "get k00"), "END");
    assert!(cache.shared.counters.evictions.get() > 0);
}

#[test]
fn an_item_takes_the_place_of_items_of_any_other_size() {
    for (others, its) in [(3 * STEP, 1), (1, 3 * STEP), (20 * STEP, 1)] {
        let cache = cache(Memory { blocks_max: 4, ..Memory::default() });
        for number in 0..4 {
            let value = "x".repeat(others);
            assert_eq!(done(&cache, &format!("set k{number} 0 0 {others}\r\n{value}")), "STORED");
        }
        let value = "y".repeat(its);
        assert_eq!(done(&cache, &format!("set new 0 0 {its}\r\n{value}")), "STORED");
        assert_eq!(done(&cache, "get new"), format!("VALUE new 0 {its}\r\n{value}\r\nEND"));
        assert!(cache.shared.counters.evictions.get() > 0);
    }
}

#[test]
fn what_a_client_has_replaced_is_not_handed_out_where_the_new_value_finds_no_room() {
    let cache = cache(Memory { blocks_max: 1, ..Memory::default() });
    assert_eq!(done(&cache, "set a 0 0 1\r\n1"), "STORED");
    cache.store.blocks.borrow_mut().insert(7, 9);
    let larger = "x".repeat(9 * STEP);
    assert_eq!(done(&cache, &format!("add a 0 0 {}\r\n{larger}", larger.len())), "NOT_STORED");
    assert_ne!(done(&cache, "get a"), "END");
    assert_eq!(done(&cache, &format!("set a 0 0 {}\r\n{larger}", larger.len())), "NoRoom");
    assert_eq!(cache.shared.counters.store_no_memory.get(), 1);
    assert_eq!(done(&cache, "get a"), "END");
}

/// The table uses the node's clock. An item may be in the table for a moment after it has expired by this gateway's
/// clock.
#[test]
fn what_is_out_of_date_here_is_there_for_no_command_though_the_table_still_has_it() {
    let expired = || {
        let cache = cache(Memory { blocks_max: 9, ..Memory::default() });
        let item = Item { stamp: 1, cas: 1, expires: Some(NOW.seconds()), ..Item::default() };
        cache.store.values.borrow_mut().insert(b"a".to_vec(), item.with(b"1"));
        cache
    };
    for (line, answer) in [
        ("get a", "END"),
        ("add a 0 0 1\r\n2", "STORED"),
        ("replace a 0 0 1\r\n2", "NOT_STORED"),
        ("append a 0 0 1\r\n2", "NOT_STORED"),
        ("incr a 1", "NOT_FOUND"),
        ("touch a 100", "NOT_FOUND"),
        ("delete a", "NOT_FOUND"),
        ("ms a 1 ME\r\n2", "HD"),
        ("md a", "NF"),
    ] {
        assert_eq!(done(&expired(), line), answer, "{line}");
    }
}
