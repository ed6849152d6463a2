//! A tenant's memory windows: ready ones, ones that linger, ones that rest.
//!
//! Keys always move: every bind and unbind takes a key that the window has not had. After 256 of them they would repeat,
//! so the window rests and is then replaced by another. Which window comes next is drawn by lot, and where the NIC lets
//! keys be chosen, so is the key: who knows the keys of yesterday cannot tell those of tomorrow. Windows are allocated when there is nothing else to do, since that
//! takes far longer than a bind (Patronus §5.6).

use crate::slabs::ObjectId;
use portcullis_nic::{Nic, PdId, RemoteAddress, Rkey, VerbsError, WindowId, WindowKind};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Lifetime, Moment};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;

/// Keys of a window: the low byte of its rkey.
const KEYS: u16 = 256;
/// Windows allocated or ended in one idle turn.
const PER_TURN: usize = 16;
/// The eldest lingering windows that one is drawn from: the others have not lingered long.
const DRAWN_FROM: usize = 16;

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
    keys: Keys,
}

/// Keys that a window has had.
#[derive(Clone, Copy, Debug, Default)]
struct Keys {
    spent: [u64; 4],
    count: u16,
}

impl Keys {
    fn spend(&mut self, key: u8) {
        self.spent[usize::from(key / 64)] |= 1 << (key % 64);
        self.count += 1;
    }

    /// The unspent key before which `before` others are.
    fn unspent(&self, mut before: u32) -> u8 {
        for (word, spent) in (0u8..).zip(self.spent) {
            if before >= spent.count_zeros() {
                before -= spent.count_zeros();
                continue;
            }
            let mut left = !spent;
            for _ in 0..before {
                left &= left - 1;
            }
            return 64 * word + u8::try_from(left.trailing_zeros()).unwrap_or(63);
        }
        unreachable!("a window that is worn is not bound again")
    }
}

/// The windows of one tenant.
#[derive(Debug)]
pub(crate) struct Windows {
    pd: PdId,
    limit: u32,
    /// The NIC takes any key for a bind.
    chosen_keys: bool,
    lots: StdRng,
    slots: Vec<Option<Slot>>,
    vacant: Vec<u32>,
    idle: VecDeque<WindowIndex>,
    lingering: VecDeque<(WindowIndex, Residue, Moment)>,
    resting: VecDeque<(WindowIndex, Moment)>,
}

impl Windows {
    /// Windows of a domain, at most so many, drawn by lots that nobody else knows.
    pub fn new(pd: PdId, limit: u32, chosen_keys: bool, secret: &mut StdRng) -> Self {
        Self {
            pd,
            limit,
            chosen_keys,
            lots: StdRng::from_rng(secret),
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
        let mut keys = Keys::default();
        keys.spend(window.rkey.low_byte());
        let slot = Some(Slot { window: window.id, rkey: window.rkey, keys });
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        self.slots[index as usize] = slot;
        Ok(WindowIndex(index))
    }

    /// A window to bind, and what it still exposes. Ones that linger go first: binding them anew is their unbind.
    pub fn take(&mut self, nic: &mut impl Nic) -> Result<(WindowIndex, Residue), VerbsError> {
        if !self.lingering.is_empty() {
            let drawn = self.lots.random_range(0..self.lingering.len().min(DRAWN_FROM));
            let (window, residue, _) = self.lingering.remove(drawn).expect("one of them was drawn");
            return Ok((window, residue));
        }
        if self.idle.is_empty() {
            return Ok((self.allocate(nic)?, Residue::default()));
        }
        let drawn = self.lots.random_range(0..self.idle.len());
        Ok((self.idle.swap_remove_back(drawn).expect("one of them was drawn"), Residue::default()))
    }

    /// The next key of a window, which the caller binds or unbinds it with, and the window's id.
    pub fn advance(&mut self, window: WindowIndex) -> Option<(WindowId, Rkey)> {
        let slot = self.slots.get_mut(window.0 as usize)?.as_mut()?;
        let next = if self.chosen_keys {
            let drawn = self.lots.random_range(0..u32::from(KEYS - slot.keys.count));
            Rkey::new(slot.rkey.index(), slot.keys.unspent(drawn))
        } else {
            slot.rkey.advanced()
        };
        slot.keys.spend(next.low_byte());
        if !planted::is(Fault::KeyNotAdvanced) {
            slot.rkey = next;
        }
        Some((slot.window, slot.rkey))
    }

    /// The window's present key.
    pub fn rkey(&self, window: WindowIndex) -> Option<Rkey> {
        self.slots.get(window.0 as usize)?.as_ref().map(|slot| slot.rkey)
    }

    /// Whether one more bind would leave no key for its unbind.
    pub fn is_worn(&self, window: WindowIndex) -> bool {
        self.slots[window.0 as usize].is_none_or(|slot| slot.keys.count + 2 > KEYS)
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
