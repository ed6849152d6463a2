//! What keeps the table in order: it learns which keys are there, hears what other gateways have flushed, removes items whose time
//! has come, and frees what dead gateways have left.

use super::table::{TableStore, options, takes};
use super::wake::Wake;
use super::{Common, Options, settings};
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

/// How soon a gateway hears of another's `flush_all`.
const HEARD_WITHIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How often the keeper frees what dead clients have left.
const SWEPT_EVERY: Duration = Duration::from_secs(60);
/// How often it learns which keys are in the table, at the most, where there is no room for an item.
const LEARNT_EVERY: Duration = Duration::from_secs(1);
/// How often it learns that where there is room: items of other gateways have expired meanwhile.
const LEARNT_WITHIN: Duration = Duration::from_secs(600);
/// How often it looks whether the gateway stops.
const LOOKED_EVERY: Lifetime = Lifetime::millis(20);

pub struct Keeper {
    common: Arc<Common>,
    wake: Arc<Wake>,
}

impl Keeper {
    /// Opens or makes the table, says what came of it, and keeps the table until the gateway stops.
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
            match keeper.open() {
                Ok(cache) => keeper.keep(cache),
                Err(_) => keeper.rest(&Timespec { tv_sec: 1, tv_nsec: 0 }),
            }
        }
    }

    fn open(&self) -> Result<Cache<TableStore>, GatewayError> {
        let cache = open(&self.common)?;
        // Before clients are served: what others have flushed is not theirs to see. Where this fails, the node is gone again.
        let _ = cache.store().pipeline.block_on(cache.begin());
        Ok(cache)
    }

    /// Keeps the table until the node is gone or the gateway stops.
    fn keep(&self, cache: Cache<TableStore>) {
        self.try_to_learn(&cache);
        let (mut swept, mut learnt) = (Instant::now(), Instant::now());
        while !self.common.is_stopping() && !cache.store().pipeline.is_over() {
            let _ = cache.store().pipeline.block_on(cache.hear_of_flushes());
            if swept.elapsed() >= SWEPT_EVERY {
                if let Some(Err(error)) = self.unless_stopped(&cache, cache.store().table.sweep()) {
                    tracing::warn!("cannot sweep the table: {error}");
                }
                swept = Instant::now();
            }
            let wants_to_learn = &self.common.shared.wants_to_learn;
            if learnt.elapsed() >= LEARNT_WITHIN
                || learnt.elapsed() >= LEARNT_EVERY && wants_to_learn.swap(false, Ordering::Relaxed)
            {
                self.try_to_learn(&cache);
                learnt = Instant::now();
            }
            self.rest(&HEARD_WITHIN);
        }
        close(cache);
    }

    fn try_to_learn(&self, cache: &Cache<TableStore>) {
        if let Some(Err(error)) = self.unless_stopped(cache, self.learn(cache)) {
            tracing::warn!("cannot learn which items are in the table: {error}");
        }
    }

    /// Learns which keys are in the table. Those whose time has come go before: perhaps no gateway knows them, and then nothing
    /// would ever evict them.
    async fn learn(&self, cache: &Cache<TableStore>) -> Result<(), TableError> {
        let seconds = settings::now().seconds();
        let age = &self.common.shared.age;
        let note = |key: &[u8], length: usize| {
            if key != FLUSH_KEY {
                age.found(key, takes(key.len(), length), seconds);
            }
        };
        let table = &cache.store().table;
        // A key that is stored again just now is found below.
        table.remove_expired(|key| age.forget(key)).await?;
        table.for_each_length(note).await
    }

    /// Carries something long out, and hears of flushes meanwhile. `None`: the gateway stops.
    fn unless_stopped<T>(&self, cache: &Cache<TableStore>, long: impl Future<Output = T>) -> Option<T> {
        cache.store().pipeline.block_on_while(long, LOOKED_EVERY, async || {
            let _ = cache.hear_of_flushes().await;
            !self.common.is_stopping()
        })
    }

    fn rest(&self, time: &Timespec) {
        let _ = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(time));
    }
}

/// A session of its own, with a handle on the gateway's table.
pub fn open(common: &Common) -> Result<Cache<TableStore>, GatewayError> {
    let pipeline = Rc::new(Pipeline::new((common.options.connect)()?));
    let Options { table, keep, item_bytes_max, .. } = common.options;
    let shared = Arc::clone(&common.shared);
    let store = TableStore::open_or_make(pipeline, (table, &options(keep)), item_bytes_max, shared)?;
    Ok(Cache::new(store, Arc::clone(&common.shared)))
}

/// Gives back what a handle keeps ready.
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
