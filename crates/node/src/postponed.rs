//! Requests that wait: for holders of an object to let go (Patronus §5.1), or for memory that is on its way back.

use crate::leases::Leases;
use crate::requests::{NewObject, Wish};
use crate::slabs::ObjectId;
use portcullis_protocol::{Moment, Refusal};
use std::collections::{HashMap, VecDeque};

/// A request for a permission that conflicts with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub wish: Wish,
    pub object: ObjectId,
    pub since: Moment,
    /// When the request has waited for long enough.
    pub timeout: Moment,
}

/// A request for memory that has to come back first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub wish: Wish,
    pub memory: NewObject,
}

/// All requests that wait.
pub(crate) struct Postponed {
    limit: u32,
    waiters: Vec<Option<Waiter>>,
    vacant: Vec<u32>,
    timeouts: Leases,
    parked: VecDeque<Parked>,
    /// Requests of each tenant among them.
    by_tenant: HashMap<u32, u32>,
}

impl Postponed {
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            waiters: Vec::new(),
            vacant: Vec::new(),
            timeouts: Leases::default(),
            parked: VecDeque::new(),
            by_tenant: HashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.waiters.len() - self.vacant.len() + self.parked.len()
    }

    /// Counts one more request of a tenant. However many it has, as many places stay free for others.
    fn enter(&mut self, tenant: u32) -> Result<(), Refusal> {
        let free = (self.limit as usize).saturating_sub(self.len());
        let its = self.by_tenant.get(&tenant).copied().unwrap_or(0);
        if free == 0 || its as usize >= free {
            return Err(Refusal::NodeFull { limit: self.limit.into() });
        }
        self.by_tenant.insert(tenant, its + 1);
        Ok(())
    }

    fn leave(&mut self, tenant: u32) {
        if let Some(its) = self.by_tenant.get_mut(&tenant) {
            *its -= 1;
            if *its == 0 {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// Keeps a request until it is taken, or until its timeout.
    pub fn insert(&mut self, waiter: Waiter) -> Result<u32, Refusal> {
        self.enter(waiter.wish.tenant)?;
        let Waiter { since, timeout, .. } = waiter;
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.waiters.push(None);
            u32::try_from(self.waiters.len() - 1).unwrap_or(u32::MAX)
        });
        self.waiters[slot as usize] = Some(waiter);
        self.timeouts.schedule(timeout, slot, since);
        Ok(slot)
    }

    /// Takes a request out: its turn has come, or it is over.
    pub fn take(&mut self, slot: u32) -> Option<Waiter> {
        let waiter = self.waiters.get_mut(slot as usize)?.take()?;
        self.vacant.push(slot);
        self.timeouts.forget(slot);
        self.leave(waiter.wish.tenant);
        Some(waiter)
    }

    pub fn get(&self, slot: u32) -> Option<&Waiter> {
        self.waiters.get(slot as usize)?.as_ref()
    }

    /// A request whose time is over. It is still there.
    pub fn timed_out(&mut self, now: Moment) -> Option<u32> {
        self.timeouts.due(now)
    }

    pub fn next_timeout(&self) -> Option<Moment> {
        self.timeouts.next()
    }

    /// The requests of a client, by slot.
    pub fn of_client(&self, client: u64) -> Vec<u32> {
        let all = (0u32..).zip(&self.waiters);
        all.filter(|(_, waiter)| waiter.is_some_and(|it| it.wish.client == client))
            .map(|(slot, _)| slot)
            .collect()
    }

    /// Keeps a request for memory.
    pub fn park(&mut self, wish: Wish, memory: NewObject) -> Result<(), Refusal> {
        self.enter(wish.tenant)?;
        self.parked.push_back(Parked { wish, memory });
        Ok(())
    }

    /// Takes the first requests for memory out, so many at most.
    pub fn unpark(&mut self, most: usize) -> Vec<Parked> {
        let parked: Vec<Parked> = self.parked.drain(..most.min(self.parked.len())).collect();
        for it in &parked {
            self.leave(it.wish.tenant);
        }
        parked
    }

    /// Whether requests wait for memory.
    pub fn is_thirsty(&self) -> bool {
        !self.parked.is_empty()
    }
}
