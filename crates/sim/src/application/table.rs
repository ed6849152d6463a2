//! A program that works on a hash table which all programs of its run share.

use super::{Board, Commons, SimSession};
use crate::clock::MICROSECOND;
use crate::dice::Dice;
use crate::endpoint::SimEndpoint;
use crate::oracle::Promise;
use crate::strand::StrandClock;
use portcullis_histories::key::Event;
use portcullis_protocol::Lifetime;
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Grain, Stored, TableError, TableOptions};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;

type SimPipeline = Rc<Pipeline<SimEndpoint, StrandClock>>;
type SimTable = portcullis_structures::table::Table<SimEndpoint, StrandClock>;

/// Keys that all programs change. Others come only to make the table grow.
const HOT: u64 = 4;
const KEYS: u64 = 90;
/// A value's length goes up in steps of so many bytes. An extent has few blocks of the longer ones, so they are soon used
/// again.
const STEP_BYTES: usize = 10 << 10;
/// The most operations that a program has in flight.
const LANES: usize = 4;
/// How often the founder tries a last look at the table.
const LAST_LOOKS: u32 = 8;

/// What runs on the program's strand.
pub(super) struct TableUser {
    pub clock: StrandClock,
    pub dice: RefCell<Dice>,
    pub commons: Commons,
    pub board: Board,
}

fn number(value: &[u8]) -> u64 {
    value.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// The bytes of a value. A torn one shows.
fn bytes_of(number: u64) -> Vec<u8> {
    let steps = usize::try_from(number % 4).expect("it is small");
    number.to_le_bytes().into_iter().cycle().take(8 + steps * STEP_BYTES).collect()
}

async fn perform(table: &SimTable, key: u64, event: Event) -> Result<Event, TableError> {
    let key = &key.to_le_bytes();
    Ok(match event {
        Event::Get(_) => {
            let found = table.get(key).await?;
            let whole = found.as_ref().filter(|it| **it == bytes_of(number(it)));
            // A torn value is one that nobody has stored.
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

impl TableUser {
    pub fn run(self, session: SimSession, is_founder: bool) {
        let pipeline = Rc::new(Pipeline::new(session));
        let at_work = self.commons.go_to_work();
        let Some(table) = self.open(&pipeline, is_founder) else { return };
        let lanes = self.dice.borrow_mut().index(LANES) + 1;
        let mut under_way: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        under_way.extend((0..lanes).map(|_| Box::pin(self.work(&pipeline, &table)) as _));
        if is_founder {
            under_way.push(Box::pin(self.sweep(&pipeline, &table)));
        }
        pipeline.run(under_way.len(), under_way, |()| ());
        drop(at_work);
        if is_founder {
            self.look_at_the_end(&pipeline, &table);
        }
    }

    /// Makes the table, or opens the one that the founder has made.
    fn open(&self, pipeline: &SimPipeline, is_founder: bool) -> Option<SimTable> {
        while !self.board.winds_down() {
            let table = match self.commons.head() {
                Some(head) => pipeline.block_on(SimTable::open(pipeline, head, Access::Write)),
                None if is_founder => pipeline.block_on(SimTable::create(pipeline, &self.options())),
                None => {
                    self.clock.pass(100 * MICROSECOND);
                    continue;
                }
            };
            if let Some(table) = self.note("a table", table) {
                self.commons.found(table.head());
                return Some(table);
            }
            if pipeline.is_over() {
                return None;
            }
            self.clock.pass(100 * MICROSECOND);
        }
        None
    }

    fn options(&self) -> TableOptions {
        let mut dice = self.dice.borrow_mut();
        TableOptions {
            grain: if dice.per_mille(700) { Grain::Extent } else { Grain::Block },
            lease: Lifetime(dice.of(1_000..4_000)),
            groups: 1,
            depth_max: 8,
            seed: dice.any(),
            ..TableOptions::default()
        }
    }

    /// One operation after another, until the run winds down.
    async fn work(&self, pipeline: &SimPipeline, table: &SimTable) {
        let mut seen = 0;
        while !self.board.winds_down() && !pipeline.is_over() {
            let (key, event) = self.draw(seen);
            if let Some(Event::Get(Some(value))) = self.tell(table, key, event).await {
                seen = value;
            }
            let pause = self.dice.borrow_mut().magnitude(1..60);
            pipeline.sleep(Lifetime(pause)).await;
        }
    }

    /// Frees what others have left, again and again.
    async fn sweep(&self, pipeline: &SimPipeline, table: &SimTable) {
        while !self.board.winds_down() && !pipeline.is_over() {
            self.note("a sweep", table.sweep().await);
            pipeline.sleep(Lifetime::micros(100)).await;
        }
    }

    fn draw(&self, seen: u64) -> (u64, Event) {
        let mut dice = self.dice.borrow_mut();
        let key = if dice.per_mille(700) { dice.of(0..HOT) } else { dice.of(HOT..KEYS) };
        let new = self.commons.new_value();
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

    /// Carries an operation out, and notes what it was told.
    async fn tell(&self, table: &SimTable, key: u64, event: Event) -> Option<Event> {
        let place = self.commons.begin_on_key(key, event);
        let told = self.note("an operation on a key", perform(table, key, event).await)?;
        self.commons.end_on_key(place, told);
        Some(told)
    }

    /// When all others are done, no key is lost or doubled, and after a sweep nothing is leaked.
    fn look_at_the_end(&self, pipeline: &SimPipeline, table: &SimTable) {
        while self.commons.is_anybody_at_work() {
            self.clock.pass(100 * MICROSECOND);
        }
        for _ in 0..LAST_LOOKS {
            let looked = pipeline.block_on(self.look(table));
            if pipeline.is_over() || self.note("the last look", looked).is_some() {
                return;
            }
        }
    }

    async fn look(&self, table: &SimTable) -> Result<(), TableError> {
        // What the first sweep takes out of slots, the second one frees.
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
            self.wrong(Promise::Order, format!("key {key} is there twice"));
        }
        for key in 0..KEYS {
            let told = self.tell(table, key, Event::Get(None)).await;
            if told.is_some_and(|told| told != Event::Get(found.get(&key).copied())) {
                self.wrong(
                    Promise::Order,
                    format!("key {key}: {told:?}, but a scan finds {:?}", found.get(&key)),
                );
            }
        }
        let statistics = table.statistics().await?;
        if (statistics.unlinked, statistics.dangling, statistics.keys) != (0, 0, found.len() as u64) {
            self.wrong(
                Promise::Rest,
                format!("blocks are leaked or lost: {statistics:?}, {} keys", found.len()),
            );
        }
        Ok(())
    }

    fn wrong(&self, promise: Promise, what: String) {
        self.board.told().wrong.push((promise, what));
    }

    /// Reports an error. Returns what there is without one.
    fn note<T>(&self, what: &str, done: Result<T, TableError>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(TableError::Session(error)) => {
                self.board.told().errors.push((error, what.to_owned()));
                None
            }
            Err(error) => {
                self.wrong(Promise::Order, format!("{what} ended with: {error}"));
                None
            }
        }
    }
}
