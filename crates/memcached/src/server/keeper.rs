//! The thread that keeps the table in order: it learns which keys exist, removes expired items, and frees memory that
//! dead gateways have left. While no client sends commands, it does so more and more rarely, and nothing in between.

use super::table::{TableStore, options, takes};
use super::wake::Wake;
use super::{Common, GatewayOptions, settings};
use crate::GatewayError;
use crate::cache::{Cache, FLUSH_KEY};
use portcullis::Lifetime;
use portcullis_structures::Pipeline;
use portcullis_structures::table::TableError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Interval in which the keeper frees memory that dead clients have left.
const SWEPT_EVERY: Duration = Duration::from_secs(60);
/// Minimum interval between two scans of the table's keys, while an item finds no room.
const LEARNT_EVERY: Duration = Duration::from_secs(1);
/// Interval between two scans of the table's keys while there is room: items of other gateways have expired meanwhile.
const LEARNT_WITHIN: Duration = Duration::from_secs(600);
/// Maximum interval of these tasks in a gateway without clients' commands. The interval doubles up to this.
const IDLE_PAUSE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Interval in which the keeper checks for work. The check does not access the node.
const RESTS_FOR: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Interval in which the keeper checks whether the gateway stops.
const LOOKED_EVERY: Lifetime = Lifetime::millis(20);

/// Schedule of a task that is useful only while clients send commands.
struct Schedule {
    every: Duration,
    pause: Duration,
    done: Instant,
}

impl Schedule {
    fn new(every: Duration) -> Self {
        Self { every, pause: every, done: Instant::now() }
    }

    /// Whether the task is due. `is_active`: clients have sent commands since the last check.
    fn is_due(&mut self, is_active: bool) -> bool {
        if is_active {
            self.pause = self.every;
        }
        self.since() >= self.pause
    }

    /// Time since the task was last done.
    fn since(&self) -> Duration {
        self.done.elapsed()
    }

    fn note_done(&mut self) {
        self.done = Instant::now();
        self.pause = (self.pause * 2).min(IDLE_PAUSE_MAX);
    }
}

pub struct Keeper {
    common: Arc<Common>,
    wake: Arc<Wake>,
}

impl Keeper {
    /// Opens or makes the table, reports the result, and keeps the table until the gateway stops.
    pub fn start(common: Arc<Common>, wake: Arc<Wake>, started: &Sender<Result<(), GatewayError>>) {
        settings::begin();
        let keeper = Self { common, wake };
        let opened = keeper.open();
        let first = match opened {
            Ok(cache) => {
                let _ = started.send(Ok(()));
                cache
            }
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        keeper.keep(first);
        while !keeper.common.is_stopping() {
            tracing::warn!("the node is gone: clients get SERVER_ERROR until it is back");
            let Some(cache) = keeper.reopen() else { return };
            tracing::warn!("the node is back");
            keeper.keep(cache);
        }
    }

    /// Opens the table after the node was lost and is available again. Returns `None` if the gateway stops.
    fn reopen(&self) -> Option<Cache<TableStore>> {
        let mut told = String::new();
        while !self.common.is_stopping() {
            let error = match self.open() {
                Ok(cache) => return Some(cache),
                Err(error) => error.to_string(),
            };
            if error != told {
                tracing::warn!("the table cannot be opened: {error}");
                told = error;
            }
            self.rest(&RESTS_FOR);
        }
        None
    }

    fn open(&self) -> Result<Cache<TableStore>, GatewayError> {
        let cache = open(&self.common)?;
        // Before clients are served: they must not see items that other gateways have flushed. If this fails, the node
        // is lost again.
        let _ = cache.store().pipeline.block_on(cache.begin(settings::now()));
        Ok(cache)
    }

    /// Keeps the table until the node is lost or the gateway stops.
    fn keep(&self, cache: Cache<TableStore>) {
        self.try_to_learn(&cache);
        let (mut sweeps, mut looks) = (Schedule::new(SWEPT_EVERY), Schedule::new(LEARNT_WITHIN));
        let shared = &self.common.shared;
        let mut served = shared.flush.read_at();
        while !self.common.is_stopping() && !cache.store().pipeline.look_for_node() {
            // Every command updates this time now and then.
            let is_active = std::mem::replace(&mut served, shared.flush.read_at()) != served;
            if sweeps.is_due(is_active) {
                if let Some(Err(error)) = self.unless_stopped(&cache, cache.store().table.sweep()) {
                    tracing::warn!("cannot sweep the table: {error}");
                }
                sweeps.note_done();
            }
            let wants_to_learn =
                looks.since() >= LEARNT_EVERY && shared.wants_to_learn.swap(false, Ordering::Relaxed);
            if wants_to_learn || looks.is_due(is_active) {
                self.try_to_learn(&cache);
                looks.note_done();
            }
            self.rest(&RESTS_FOR);
        }
        close(cache);
    }

    fn try_to_learn(&self, cache: &Cache<TableStore>) {
        if let Some(Err(error)) = self.unless_stopped(cache, self.learn(cache)) {
            tracing::warn!("cannot read which items are in the table: {error}");
        }
    }

    /// Scans the table for its keys. Expired keys are removed first: perhaps no gateway knows them, and then none would
    /// ever evict them.
    async fn learn(&self, cache: &Cache<TableStore>) -> Result<(), TableError> {
        let seconds = settings::now().seconds();
        let age = &self.common.shared.age;
        let note = |key: &[u8], length: usize| {
            if key != FLUSH_KEY {
                age.found(key, takes(key.len(), length), seconds);
            }
        };
        let table = &cache.store().table;
        // A key that is stored again at this moment is found below.
        table.remove_expired(|key| age.forget(key)).await?;
        table.for_each_length(note).await
    }

    /// Carries out a long operation. Returns `None` if the gateway stops.
    fn unless_stopped<T>(&self, cache: &Cache<TableStore>, long: impl Future<Output = T>) -> Option<T> {
        cache.store().pipeline.block_on_while(long, LOOKED_EVERY, async || !self.common.is_stopping())
    }

    fn rest(&self, time: &Timespec) {
        let _ = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(time));
    }
}

/// Opens a session of its own, with a handle on the gateway's table.
pub fn open(common: &Common) -> Result<Cache<TableStore>, GatewayError> {
    let pipeline = Rc::new(Pipeline::new((common.options.connect)()?));
    let GatewayOptions { table, keep, item_bytes_max, .. } = common.options;
    let shared = Arc::clone(&common.shared);
    let store = TableStore::open_or_make(pipeline, (table, &options(keep)), item_bytes_max, shared)?;
    Ok(Cache::new(store, Arc::clone(&common.shared)))
}

/// Returns the memory that a handle keeps ready.
pub fn close(cache: Cache<TableStore>) {
    let TableStore { pipeline, table, .. } = cache.into_store();
    // A node that does not answer would not answer this either: a sweep frees what is left.
    if !pipeline.is_over()
        && !pipeline.is_silent()
        && let Err(error) = pipeline.block_on(table.close())
    {
        tracing::debug!("a handle was not closed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_clients_work_is_done_ever_more_rarely_and_with_them_as_often_as_before() {
        let mut schedule = Schedule::new(SWEPT_EVERY);
        let pass = |schedule: &mut Schedule, time| {
            schedule.done = schedule.done.checked_sub(time).expect("a moment")
        };
        assert!(!schedule.is_due(true));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let pause = schedule.pause;
            pass(&mut schedule, pause);
            assert!(schedule.is_due(false));
            schedule.note_done();
            assert!(!schedule.is_due(false));
            pauses.push(pause);
        }
        assert!(pauses.windows(2).all(|two| two[1] == (two[0] * 2).min(IDLE_PAUSE_MAX)), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&IDLE_PAUSE_MAX));
        pass(&mut schedule, SWEPT_EVERY);
        assert!(!schedule.is_due(false));
        assert!(schedule.is_due(true));
    }
}
