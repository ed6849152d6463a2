//! The way to one node: the requests that wait for its worker, and the state of the node.

use super::batch::Ask;
use crate::Counters;
use portcullis::Lifetime;
use portcullis_errors::{Coded, ErrorCode};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The state of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    /// The worker reaches the node.
    Open,
    /// The node is not reached, or not yet.
    Lost(Reason),
    /// The worker ends when it has carried out the requests.
    Closed,
}

struct Inbox {
    state: LinkState,
    asks: VecDeque<Ask>,
}

/// The reason why a node is not reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reason {
    pub text: String,
    pub code: ErrorCode,
}

impl Reason {
    pub fn of(error: &impl Coded) -> Self {
        Self { text: error.to_string(), code: error.code() }
    }
}

/// The way to one node.
pub(super) struct Link {
    /// The name by which keys are ranked.
    pub name: String,
    /// The address to which a session is opened.
    pub address: String,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    is_near: AtomicBool,
    /// When the node's store was made, as far as it is known.
    made: Mutex<Option<Instant>>,
    counters: Mutex<Counters>,
}

impl Link {
    pub fn new(name: String, address: String) -> Self {
        let state =
            LinkState::Lost(Reason { text: "it was not reached yet".to_owned(), code: ErrorCode::NodeGone });
        Self {
            name,
            address,
            inbox: Mutex::new(Inbox { state, asks: VecDeque::new() }),
            arrived: Condvar::new(),
            is_near: AtomicBool::new(false),
            made: Mutex::default(),
            counters: Mutex::default(),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn state(&self) -> LinkState {
        self.inbox().state.clone()
    }

    pub fn is_open(&self) -> bool {
        self.inbox().state == LinkState::Open
    }

    pub fn is_closed(&self) -> bool {
        self.inbox().state == LinkState::Closed
    }

    /// Whether the link is closed and no request waits.
    pub fn is_done(&self) -> bool {
        let inbox = self.inbox();
        inbox.state == LinkState::Closed && inbox.asks.is_empty()
    }

    /// Whether the node is on this machine.
    pub fn is_near(&self) -> bool {
        self.is_near.load(Ordering::Relaxed)
    }

    /// Returns when the node's store was made. `None`: it is not known.
    pub fn made(&self) -> Option<Instant> {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn counters(&self) -> Counters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_counters(&self, counters: Counters) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    /// Hands a request to the worker.
    ///
    /// # Errors
    /// The node is lost. The error is the request.
    pub fn push(&self, ask: Ask) -> Result<(), Ask> {
        let mut inbox = self.inbox();
        if inbox.state != LinkState::Open {
            return Err(ask);
        }
        inbox.asks.push_back(ask);
        drop(inbox);
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes the next request.
    pub fn take(&self) -> Option<Ask> {
        self.inbox().asks.pop_front()
    }

    /// Notes that the worker reaches the node.
    pub fn open(&self, is_near: bool, age: Lifetime) {
        let made = Instant::now().checked_sub(age.into());
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = made;
        self.is_near.store(is_near, Ordering::Relaxed);
        let mut inbox = self.inbox();
        if inbox.state != LinkState::Closed {
            inbox.state = LinkState::Open;
        }
    }

    /// Notes that the node is lost. Requests that wait are answered so.
    pub fn lose(&self, reason: Reason) {
        self.leave(LinkState::Lost(reason));
    }

    /// Makes the worker end when it has carried out the requests.
    pub fn close(&self) {
        self.inbox().state = LinkState::Closed;
        self.arrived.notify_all();
    }

    fn leave(&self, state: LinkState) {
        let asks = {
            let mut inbox = self.inbox();
            if inbox.state != LinkState::Closed {
                inbox.state = state;
            }
            std::mem::take(&mut inbox.asks)
        };
        // A request that is dropped goes on with its batch, which may hand requests to this link.
        drop(asks);
    }

    /// Waits until there is a request, the link is closed, or this time has passed.
    pub fn wait(&self, at_most: Duration) {
        let is_idle = |inbox: &mut Inbox| inbox.asks.is_empty() && inbox.state != LinkState::Closed;
        let waited = self.arrived.wait_timeout_while(self.inbox(), at_most, is_idle);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
