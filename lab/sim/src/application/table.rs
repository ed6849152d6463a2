//! A program that works on a hash table which all programs of its run share.

use super::SimSession;
use super::structure::{SimPipeline, User};
use crate::endpoint::SimEndpoint;
use crate::fiber::FiberClock;
use crate::oracle::Promise;
use portcullis_histories::key::Event;
use portcullis_protocol::Lifetime;
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Grain, Stored, TableError, TableOptions};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;

type SimTable = portcullis_structures::table::Table<SimEndpoint, FiberClock>;

/// Number of keys that all programs change. The other keys only make the table grow.
const HOT: u64 = 4;
const KEYS: u64 = 90;
/// Number of equal steps by which the lengths of values grow beyond their first eight bytes.
const STEPS: usize = 3;
/// The most operations that a program has in flight.
const TASKS_MAX: usize = 4;

/// User of the table, running on the program's fiber.
pub(super) struct TableUser {
    pub user: User,
    /// The most bytes of a value beyond its first eight.
    pub values_max: usize,
}

fn number(value: &[u8]) -> u64 {
    value.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

impl TableUser {
    pub fn run(self, session: SimSession) {
        let pipeline = Rc::new(Pipeline::new(session));
        let at_work = self.user.commons.go_to_work();
        let Some(table) = self.open(&pipeline) else { return };
        let tasks = self.user.dice.borrow_mut().index(TASKS_MAX) + 1;
        let mut under_way: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        under_way.extend((0..tasks).map(|_| Box::pin(self.work(&pipeline, &table)) as _));
        if self.user.is_founder {
            under_way.push(Box::pin(self.sweep(&pipeline, &table)));
        }
        pipeline.run(under_way.len(), under_way, |()| ());
        drop(at_work);
        if self.user.is_founder {
            self.user.look_at_the_end(&pipeline, async || self.look(&table).await);
        }
    }

    /// Returns the bytes of a value, in which a torn write shows.
    fn bytes_of(&self, number: u64) -> Vec<u8> {
        let steps = usize::try_from(number % (STEPS as u64 + 1)).expect("it is small");
        number.to_le_bytes().into_iter().cycle().take(8 + steps * self.values_max / STEPS).collect()
    }

    async fn perform(&self, table: &SimTable, key: u64, event: Event) -> Result<Event, TableError> {
        let key = &key.to_le_bytes();
        let bytes_of = |number| self.bytes_of(number);
        Ok(match event {
            Event::Get(_) => {
                let found = table.get(key).await?;
                let whole = found.as_ref().filter(|it| **it == bytes_of(number(it)));
                // A torn value counts as one that no program has stored.
                Event::Get(found.as_ref().map(|_| whole.map_or(u64::MAX, |it| number(it))))
            }
            Event::Insert(new, _) => Event::Insert(new, table.insert(key, &bytes_of(new)).await?),
            Event::Update(new, _) => Event::Update(new, table.update(key, &bytes_of(new)).await?),
            Event::Upsert(new) => {
                let stored = table.upsert(key, &bytes_of(new)).await?;
                assert_ne!(stored, Stored::Unchanged, "an upsert has no condition");
                Event::Upsert(new)
            }
            Event::Remove(_) => Event::Remove(table.remove(key).await?),
            Event::Exchange(old, new, _) => {
                Event::Exchange(old, new, table.compare_and_set(key, &bytes_of(old), &bytes_of(new)).await?)
            }
        })
    }

    fn open(&self, pipeline: &SimPipeline) -> Option<SimTable> {
        let make = || {
            let table = pipeline.block_on(SimTable::create(pipeline, &self.options()))?;
            let head = table.head();
            Ok((table, head))
        };
        self.user
            .open(pipeline, make, |head| pipeline.block_on(SimTable::open(pipeline, head, Access::Write)))
    }

    fn options(&self) -> TableOptions {
        let mut dice = self.user.dice.borrow_mut();
        TableOptions {
            grain: if dice.per_mille(700) { Grain::Extent } else { Grain::Block },
            lease: Lifetime(dice.of(1_000..4_000)).max(self.user.lease_min),
            groups: 1,
            depth_max: 8,
            seed: Some(dice.any()),
            ..TableOptions::default()
        }
    }

    /// Executes one operation after another, until the run winds down.
    async fn work(&self, pipeline: &SimPipeline, table: &SimTable) {
        let mut seen = 0;
        while self.user.goes_on(pipeline) {
            let (key, event) = self.draw(seen);
            if let Some(Event::Get(Some(value))) = self.tell(table, key, event).await {
                seen = value;
            }
            let pause = self.user.dice.borrow_mut().magnitude(1..60);
            // If the session is over, the loop ends.
            let _ = pipeline.sleep(Lifetime(pause)).await;
        }
    }

    /// Sweeps the table repeatedly, to free what other programs have left.
    async fn sweep(&self, pipeline: &SimPipeline, table: &SimTable) {
        while self.user.goes_on(pipeline) {
            self.user.note("a sweep", table.sweep().await);
            let _ = pipeline.sleep(Lifetime::micros(100)).await;
        }
    }

    fn draw(&self, seen: u64) -> (u64, Event) {
        let mut dice = self.user.dice.borrow_mut();
        let key = if dice.per_mille(700) { dice.of(0..HOT) } else { dice.of(HOT..KEYS) };
        let new = self.user.commons.new_value();
        let event = match dice.of(0..10) {
            0..3 => Event::Get(None),
            3 | 4 => Event::Insert(new, false),
            5 => Event::Update(new, false),
            6 | 7 => Event::Upsert(new),
            8 => Event::Remove(false),
            _ => Event::Exchange(seen, new, false),
        };
        (key, event)
    }

    /// Executes an operation, and records its result.
    async fn tell(&self, table: &SimTable, key: u64, event: Event) -> Option<Event> {
        let place = self.user.commons.begin_on_key(key, event);
        let told = self.user.note("an operation on a key", self.perform(table, key, event).await)?;
        self.user.commons.end_on_key(place, told);
        Some(told)
    }

    /// Checks that no key is lost or doubled, and that nothing is leaked after a sweep.
    async fn look(&self, table: &SimTable) -> Result<(), TableError> {
        // The second sweep frees what the first one takes out of slots.
        table.sweep().await?;
        table.sweep().await?;
        let mut found = BTreeMap::new();
        let mut twice = None;
        table
            .for_each(|key, value| {
                if found.insert(number(key), number(value)).is_some() {
                    twice = Some(number(key));
                }
            })
            .await?;
        if let Some(key) = twice {
            self.user.wrong(Promise::Order, format!("key {key} is there twice"));
        }
        for key in 0..KEYS {
            let told = self.tell(table, key, Event::Get(None)).await;
            if told.is_some_and(|told| told != Event::Get(found.get(&key).copied())) {
                self.user.wrong(
                    Promise::Order,
                    format!("key {key}: {told:?}, but a scan finds {:?}", found.get(&key)),
                );
            }
        }
        let statistics = table.statistics().await?;
        if (statistics.unlinked, statistics.dangling, statistics.keys) != (0, 0, found.len() as u64) {
            self.user.wrong(
                Promise::Rest,
                format!("blocks are leaked or lost: {statistics:?}, {} keys", found.len()),
            );
        }
        Ok(())
    }
}
