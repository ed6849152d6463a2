//! The threads of a server, and the assignment of connections to them.
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
pub(super) struct Lane {
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

impl Lane {
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

/// The lanes of a server.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    lanes: Arc<[Arc<Lane>]>,
    /// Number of seats that were assigned so far.
    dealt: Arc<AtomicU64>,
}

impl Lanes {
    /// Creates `threads` lanes, at least one.
    pub fn new(threads: usize) -> Result<Self, WakerError> {
        let lanes: Result<Vec<_>, _> = (0..threads.max(1)).map(|_| Lane::new().map(Arc::new)).collect();
        Ok(Self { lanes: lanes?.into(), dealt: Arc::default() })
    }

    /// Takes a seat on the lane with the fewest connections.
    pub fn deal(&self) -> Seat {
        let seats = |number: &usize| self.lanes[*number].seats.load(Ordering::Relaxed);
        let number = (0..self.lanes.len()).min_by_key(seats).expect("there is a lane");
        let lane = Arc::clone(&self.lanes[number]);
        lane.seats.fetch_add(1, Ordering::Relaxed);
        let dealt = self.dealt.fetch_add(1, Ordering::Relaxed);
        Seat { lane, client: dealt * self.lanes.len() as u64 + number as u64 }
    }

    /// The lane of a client.
    pub fn of(&self, client: u64) -> &Lane {
        let number = client % self.lanes.len() as u64;
        &self.lanes[usize::try_from(number).expect("it is less than how many lanes there are")]
    }

    /// Makes all threads end.
    pub fn stop(&self) {
        self.lanes.iter().for_each(|lane| lane.stop());
    }
}

impl Deref for Lanes {
    type Target = [Arc<Lane>];

    fn deref(&self) -> &[Arc<Lane>] {
        &self.lanes
    }
}

/// A connection's place on a lane, from the offer on. Dropping the seat gives it back.
#[derive(Debug)]
pub(super) struct Seat {
    lane: Arc<Lane>,
    client: u64,
}

impl Seat {
    /// The number of the client that has the seat. No other client ever has that number.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// The waker of the lane's thread.
    pub fn waker(&self) -> &Waker {
        &self.lane.waker
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lane.seats.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Lanes {
    /// Number of connections on each lane.
    pub fn seats(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.seats.load(Ordering::Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests;
