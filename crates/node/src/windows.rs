//! A tenant's memory windows: ready ones, ones that linger, ones that rest.
//!
//! Keys always move: every bind and unbind takes the window's next key. After 256 of them they would repeat, so the
//! window rests and is then replaced by another. Windows are allocated when there is nothing else to do, since that
//! takes far longer than a bind (Patronus §5.6).

use crate::slabs::ObjectId;
use portcullis_nic::{Nic, PdId, RemoteAddress, Rkey, VerbsError, WindowId, WindowKind};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Lifetime, Moment};
use std::collections::VecDeque;

/// Keys of a window: the low byte of its rkey.
const KEYS: u16 = 256;
/// Windows allocated or ended in one idle turn.
const PER_TURN: usize = 16;

/// Where a window stands in its tenant's table: what the paper's headers call its location.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowIndex(pub u32);

/// What an ended permission leaves behind until its window is known to be bound no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Residue {
    /// Its header.
    pub header: Option<RemoteAddress>,
    /// The object that its buffer's window exposes.
    pub object: Option<ObjectId>,
    /// Nobody gets at the memory before the residue is gone, so the unbind may wait (Patronus §5.4).
    pub may_linger: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    window: WindowId,
    rkey: Rkey,
    used: u16,
}

/// The windows of one tenant.
#[derive(Debug)]
pub(crate) struct Windows {
    pd: PdId,
    limit: u32,
    slots: Vec<Option<Slot>>,
    vacant: Vec<u32>,
    idle: VecDeque<WindowIndex>,
    lingering: VecDeque<(WindowIndex, Residue, Moment)>,
    resting: VecDeque<(WindowIndex, Moment)>,
}

impl Windows {
    pub fn new(pd: PdId, limit: u32) -> Self {
        Self {
            pd,
            limit,
            slots: Vec::new(),
            vacant: Vec::new(),
            idle: VecDeque::new(),
            lingering: VecDeque::new(),
            resting: VecDeque::new(),
        }
    }

    /// Windows, in any state.
    pub fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    fn allocate(&mut self, nic: &mut impl Nic) -> Result<WindowIndex, VerbsError> {
        if self.len() >= self.limit as usize {
            return Err(VerbsError::Exhausted { what: "windows", limit: self.limit.into() });
        }
        let window = nic.allocate_window(self.pd, WindowKind::One)?;
        let slot = Some(Slot { window: window.id, rkey: window.rkey, used: 0 });
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        self.slots[index as usize] = slot;
        Ok(WindowIndex(index))
    }

    /// A window to bind, and what it still exposes. Ones that linger go first: binding them anew is their unbind.
    pub fn take(&mut self, nic: &mut impl Nic) -> Result<(WindowIndex, Residue), VerbsError> {
        if let Some((window, residue, _)) = self.lingering.pop_front() {
            return Ok((window, residue));
        }
        let window = match self.idle.pop_front() {
            Some(window) => window,
            None => self.allocate(nic)?,
        };
        Ok((window, Residue::default()))
    }

    /// The next key of a window, which the caller binds or unbinds it with, and the window's id.
    pub fn advance(&mut self, window: WindowIndex) -> Option<(WindowId, Rkey)> {
        let slot = self.slots.get_mut(window.0 as usize)?.as_mut()?;
        if !planted::is(Fault::KeyNotAdvanced) {
            slot.rkey = slot.rkey.advanced();
        }
        slot.used += 1;
        Some((slot.window, slot.rkey))
    }

    /// The window's present key.
    pub fn rkey(&self, window: WindowIndex) -> Option<Rkey> {
        self.slots.get(window.0 as usize)?.as_ref().map(|slot| slot.rkey)
    }

    /// Whether one more bind would leave no key for its unbind.
    pub fn is_worn(&self, window: WindowIndex) -> bool {
        self.slots[window.0 as usize].is_none_or(|slot| slot.used + 2 > KEYS)
    }

    /// The window is known to be bound no more.
    pub fn give(&mut self, window: WindowIndex, now: Moment, rest: Lifetime) {
        if self.is_worn(window) {
            self.resting.push_back((window, now.after(rest)));
        } else {
            self.idle.push_back(window);
        }
    }

    /// The window stays bound for now; nobody gets at what it exposes.
    pub fn linger(&mut self, window: WindowIndex, residue: Residue, now: Moment) {
        self.lingering.push_back((window, residue, now));
    }

    /// A window that has lingered since `before` or longer.
    pub fn lingered(&mut self, before: Moment) -> Option<(WindowIndex, Residue)> {
        let &(window, residue, since) = self.lingering.front()?;
        (since <= before).then(|| {
            self.lingering.pop_front();
            (window, residue)
        })
    }

    /// When the oldest lingering window began to.
    pub fn lingering_since(&self) -> Option<Moment> {
        self.lingering.front().map(|&(_, _, since)| since)
    }

    /// Ends a window, whatever it is bound to: its keys open nothing from here on.
    pub fn retire(&mut self, nic: &mut impl Nic, window: WindowIndex) {
        if let Some(slot) = self.slots.get_mut(window.0 as usize).and_then(Option::take) {
            let _ = nic.deallocate_window(slot.window);
            self.vacant.push(window.0);
        }
    }

    /// Ends windows that have rested and fills the pool up to `ready`: a little of it, off the critical path.
    /// Returns whether there is more to do.
    pub fn tend(&mut self, nic: &mut impl Nic, now: Moment, ready: u32) -> bool {
        let mut left = PER_TURN;
        while left > 0 && self.resting.front().is_some_and(|&(_, until)| until <= now) {
            if let Some((window, _)) = self.resting.pop_front() {
                self.retire(nic, window);
            }
            left -= 1;
        }
        while left > 0 && self.idle.len() + self.lingering.len() < ready as usize {
            match self.allocate(nic) {
                Ok(window) => self.idle.push_back(window),
                Err(_) => break,
            }
            left -= 1;
        }
        left == 0
    }

    /// Ends all of them, and says what lingered.
    pub fn end(&mut self, nic: &mut impl Nic) -> Vec<Residue> {
        for slot in self.slots.drain(..).flatten() {
            let _ = nic.deallocate_window(slot.window);
        }
        self.vacant.clear();
        self.idle.clear();
        self.resting.clear();
        self.lingering.drain(..).map(|(_, residue, _)| residue).collect()
    }
}
