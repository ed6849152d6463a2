//! Requests that wait for holders of an object to release it (Patronus §5.1), or for memory that is about to be freed.

use crate::books::leases::Leases;
use crate::books::pool::ObjectId;
use crate::books::requests::{NewObject, Wish};
use portcullis_protocol::{ClientId, Moment, Refusal, TenantId};
use portcullis_slots::{Reuse, Slots};
use std::collections::{HashMap, VecDeque};

/// The place of a waiting request. Slots are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaiterSlot(pub u32);

portcullis_slots::number_key!(WaiterSlot);

/// A request for a permission that conflicts with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub wish: Wish,
    pub object: ObjectId,
    pub since: Moment,
    /// Moment at which the request is refused if it still waits.
    pub timeout: Moment,
}

/// A request for memory that must be freed first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub wish: Wish,
    pub memory: NewObject,
}

/// All requests that wait.
pub(crate) struct Postponed {
    limit: u32,
    waiters: Slots<WaiterSlot, Waiter>,
    timeouts: Leases,
    parked: VecDeque<Parked>,
    /// Number of these requests for each tenant.
    by_tenant: HashMap<TenantId, u32>,
}

impl Postponed {
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            waiters: Slots::new(Reuse::LatestFirst, limit),
            timeouts: Leases::default(),
            parked: VecDeque::new(),
            by_tenant: HashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.waiters.len() + self.parked.len()
    }

    /// Counts one more request of a tenant. Refuses it if the tenant has as many as there are free places, so that as
    /// many stay free for others.
    fn enter(&mut self, tenant: TenantId) -> Result<(), Refusal> {
        let free = (self.limit as usize).saturating_sub(self.len());
        let its = self.by_tenant.get(&tenant).copied().unwrap_or(0);
        if free == 0 || its as usize >= free {
            return Err(Refusal::NodeFull { limit: self.limit.into() });
        }
        self.by_tenant.insert(tenant, its + 1);
        Ok(())
    }

    fn leave(&mut self, tenant: TenantId) {
        if let Some(its) = self.by_tenant.get_mut(&tenant) {
            *its -= 1;
            if *its == 0 {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// Keeps a request until it is taken, or until its timeout.
    pub fn insert(&mut self, waiter: Waiter) -> Result<WaiterSlot, Refusal> {
        self.enter(waiter.wish.from.tenant)?;
        let Waiter { since, timeout, .. } = waiter;
        let slot = self.waiters.insert(waiter);
        self.timeouts.schedule(timeout, slot.0, since);
        Ok(slot)
    }

    /// Takes a request out: it is its turn, or its time is over.
    pub fn take(&mut self, slot: WaiterSlot) -> Waiter {
        let waiter = self.waiters.remove(slot).expect("each request is taken out once");
        self.timeouts.forget(slot.0);
        self.leave(waiter.wish.from.tenant);
        waiter
    }

    /// Returns a request that still waits.
    pub fn get(&self, slot: WaiterSlot) -> &Waiter {
        &self.waiters[slot]
    }

    /// Whether the slot, which was noted some time ago, still holds a request of this client.
    pub fn is_of(&self, slot: WaiterSlot, client: ClientId) -> bool {
        self.waiters.get(slot).is_some_and(|waiter| waiter.wish.from.client == client)
    }

    /// Returns a request whose time is over. It stays until it is taken.
    pub fn timed_out(&mut self, now: Moment) -> Option<WaiterSlot> {
        self.timeouts.due(now).map(WaiterSlot)
    }

    pub fn next_timeout(&self) -> Option<Moment> {
        self.timeouts.next()
    }

    /// Returns the requests of a client, by slot.
    pub fn of_client(&self, client: ClientId) -> Vec<WaiterSlot> {
        let its = self.waiters.iter().filter(|(_, waiter)| waiter.wish.from.client == client);
        its.map(|(slot, _)| slot).collect()
    }

    /// Keeps a request for memory.
    pub fn park(&mut self, wish: Wish, memory: NewObject) -> Result<(), Refusal> {
        self.enter(wish.from.tenant)?;
        self.parked.push_back(Parked { wish, memory });
        Ok(())
    }

    /// Takes out the first requests for memory, at most `most`.
    pub fn unpark(&mut self, most: usize) -> Vec<Parked> {
        let parked: Vec<Parked> = self.parked.drain(..most.min(self.parked.len())).collect();
        for it in &parked {
            self.leave(it.wish.from.tenant);
        }
        parked
    }

    /// Whether requests wait for memory.
    pub fn is_thirsty(&self) -> bool {
        !self.parked.is_empty()
    }
}
