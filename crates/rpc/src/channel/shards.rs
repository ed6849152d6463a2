//! The shards of a server: its threads, and the assignment of connections to them.
//!
//! A connection stays on the thread that it was assigned to, so its calls are served in order, and two threads need not
//! communicate.

use super::admission::News;
use portcullis_memory::{Waker, WakerError};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// State that one thread of a server shares with the threads that send it news.
#[derive(Debug)]
pub(super) struct ServerShard {
    pub waker: Waker,
    pub state: State,
    stop: AtomicBool,
    news: Mutex<Vec<News>>,
    /// Number of connections that the thread has, or will have if their clients complete the handshake.
    seats: AtomicU64,
}

/// Counters of a thread.
#[derive(Debug, Default)]
pub(super) struct State {
    pub connections: AtomicU64,
    pub calls: AtomicU64,
    pub failed: AtomicU64,
}

impl ServerShard {
    fn new() -> Result<Self, WakerError> {
        let (waker, state, seats) = (Waker::new()?, State::default(), AtomicU64::new(0));
        Ok(Self { waker, state, stop: AtomicBool::new(false), news: Mutex::default(), seats })
    }

    /// Sends news to the thread, and wakes it.
    pub fn tell(&self, news: News) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
        self.waker.wake();
    }

    /// Whether there is news that the thread has not taken yet.
    pub fn has_news(&self) -> bool {
        !self.news.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes the news. Returns none if another thread holds the lock at this moment.
    pub fn take_news(&self) -> Vec<News> {
        self.news.try_lock().map_or_else(|_| Vec::new(), |mut news| std::mem::take(&mut *news))
    }

    /// Makes the thread end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the thread is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// The shards of a server.
#[derive(Clone, Debug)]
pub(super) struct ServerShards {
    shards: Arc<[Arc<ServerShard>]>,
    /// Number of seats that were assigned so far.
    dealt: Arc<AtomicU64>,
}

impl ServerShards {
    /// Creates `threads` shards, at least one.
    pub fn new(threads: usize) -> Result<Self, WakerError> {
        let shards: Result<Vec<_>, _> =
            (0..threads.max(1)).map(|_| ServerShard::new().map(Arc::new)).collect();
        Ok(Self { shards: shards?.into(), dealt: Arc::default() })
    }

    /// Takes a seat in the shard with the fewest connections.
    pub fn deal(&self) -> Seat {
        let seats = |number: &usize| self.shards[*number].seats.load(Ordering::Relaxed);
        let number = (0..self.shards.len()).min_by_key(seats).expect("there is a shard");
        let shard = Arc::clone(&self.shards[number]);
        shard.seats.fetch_add(1, Ordering::Relaxed);
        let dealt = self.dealt.fetch_add(1, Ordering::Relaxed);
        Seat { shard, client: dealt * self.shards.len() as u64 + number as u64 }
    }

    /// The shard of a client.
    pub fn of(&self, client: u64) -> &ServerShard {
        let number = client % self.shards.len() as u64;
        &self.shards[usize::try_from(number).expect("it is less than how many shards there are")]
    }

    /// Makes all threads end.
    pub fn stop(&self) {
        self.shards.iter().for_each(|shard| shard.stop());
    }
}

impl Deref for ServerShards {
    type Target = [Arc<ServerShard>];

    fn deref(&self) -> &[Arc<ServerShard>] {
        &self.shards
    }
}

/// A connection's place in a shard, from the offer on. Dropping the seat gives it back.
#[derive(Debug)]
pub(super) struct Seat {
    shard: Arc<ServerShard>,
    client: u64,
}

impl Seat {
    /// The number of the client that has the seat. No other client ever has that number.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// The waker of the shard's thread.
    pub fn waker(&self) -> &Waker {
        &self.shard.waker
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shard.seats.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl ServerShards {
    /// Number of connections of each shard.
    pub fn seats(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.seats.load(Ordering::Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests;
