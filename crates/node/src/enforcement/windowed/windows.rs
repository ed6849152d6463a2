//! A tenant's memory windows: those that are ready, those that linger and those that rest.
//!
//! Every bind and unbind takes another key. After 256 keys the window rests, and another window then replaces it. The
//! next window is drawn at random, and so is the key if the NIC lets the node choose keys: earlier keys do not reveal
//! the next ones. Windows are allocated when there is nothing else to do, because an allocation takes far longer than a
//! bind (Patronus §5.6).

use crate::books::Residue;
use portcullis_nic::{Nic, PdId, Rkey, VerbsError, WindowId, WindowKind};
use portcullis_planted::planted;
use portcullis_protocol::{Lifetime, Moment};
use portcullis_slots::{Reuse, Slots};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{HashMap, VecDeque};

/// Number of keys of a window: the values of the low byte of its rkey.
const KEYS: u16 = 256;
/// Number of windows allocated or deallocated in one idle turn.
const PER_TURN: usize = 16;
/// Number of the oldest lingering windows from which one is drawn. The others have not lingered long.
const DRAWN_FROM: usize = 16;

/// The place of a window in its tenant's table: the location of the window in the headers of Patronus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowIndex(pub u32);

portcullis_slots::number_key!(WindowIndex);

#[derive(Clone, Copy, Debug)]
struct Slot {
    window: WindowId,
    rkey: Rkey,
    /// Number of keys that the window has had.
    used: u16,
    past: PastKeys,
}

/// Keys that a place on the NIC had lately. No key is used again before 128 others.
#[derive(Clone, Copy, Debug, Default)]
struct PastKeys {
    latest: [u64; 4],
    /// Number of keys in `latest`.
    count: u16,
    before: [u64; 4],
}

impl PastKeys {
    fn spend(&mut self, key: u8) {
        let (word, bit) = (&mut self.latest[usize::from(key / 64)], 1 << (key % 64));
        self.count += u16::from(*word & bit == 0);
        *word |= bit;
        if self.count >= KEYS / 2 {
            *self = Self { latest: [0; 4], count: 0, before: self.latest };
        }
    }

    /// Draws one of the other keys at random.
    fn draw(&self, lots: &mut StdRng) -> u8 {
        // The first free key of some random keys is as random among the free ones as a key that is counted off. It is
        // found sooner, unless few are free.
        let tried = lots.random::<u64>().to_le_bytes();
        tried.into_iter().find(|&key| self.is_free(key)).unwrap_or_else(|| self.count_off(lots))
    }

    fn is_free(&self, key: u8) -> bool {
        let word = usize::from(key / 64);
        (self.latest[word] | self.before[word]) >> (key % 64) & 1 == 0
    }

    fn count_off(&self, lots: &mut StdRng) -> u8 {
        let free: [u64; 4] = std::array::from_fn(|word| !(self.latest[word] | self.before[word]));
        let mut drawn = lots.random_range(0..free.iter().map(|word| word.count_ones()).sum());
        for (word, mut left) in (0u8..).zip(free) {
            if drawn >= left.count_ones() {
                drawn -= left.count_ones();
                continue;
            }
            for _ in 0..drawn {
                left &= left - 1;
            }
            return 64 * word + u8::try_from(left.trailing_zeros()).unwrap_or(63);
        }
        unreachable!("at least one key is free")
    }
}

/// The past keys of deallocated windows, by place on the NIC: another window may get that place soon.
#[derive(Debug, Default)]
pub(crate) struct GoneWindows(HashMap<u32, PastKeys>);

impl GoneWindows {
    fn keep(&mut self, slot: &Slot) {
        self.0.insert(slot.rkey.index(), slot.past);
    }
}

/// The windows of one tenant.
#[derive(Debug)]
pub(crate) struct Windows {
    pd: PdId,
    kind: WindowKind,
    limit: u32,
    /// Whether the NIC accepts any key for a bind.
    chosen_keys: bool,
    lots: StdRng,
    slots: Slots<WindowIndex, Slot>,
    idle: VecDeque<WindowIndex>,
    lingering: VecDeque<(WindowIndex, Residue, Moment)>,
    resting: VecDeque<(WindowIndex, Moment)>,
}

impl Windows {
    /// Creates a set of at most `limit` windows of a domain. Windows and keys are drawn from `secret`, which only the
    /// node knows.
    pub fn new((pd, kind): (PdId, WindowKind), limit: u32, chosen_keys: bool, secret: &mut StdRng) -> Self {
        Self {
            pd,
            kind,
            limit,
            chosen_keys,
            lots: StdRng::from_rng(secret),
            slots: Slots::new(Reuse::LatestFirst, limit),
            idle: VecDeque::new(),
            lingering: VecDeque::new(),
            resting: VecDeque::new(),
        }
    }

    /// Returns the number of windows, in any state.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    fn allocate(&mut self, nic: &mut impl Nic, gone: &mut GoneWindows) -> Result<WindowIndex, VerbsError> {
        if self.len() >= self.limit as usize {
            return Err(VerbsError::Exhausted { what: "windows", limit: self.limit.into() });
        }
        let window = nic.allocate_window(self.pd, self.kind)?;
        let mut past = gone.0.remove(&window.rkey.index()).unwrap_or_default();
        past.spend(window.rkey.low_byte());
        Ok(self.slots.insert(Slot { window: window.id, rkey: window.rkey, used: 0, past }))
    }

    /// Takes a window to bind, with the residue that it still exposes. Lingering windows are taken first: binding them
    /// anew is their unbind.
    pub fn take(
        &mut self,
        nic: &mut impl Nic,
        gone: &mut GoneWindows,
    ) -> Result<(WindowIndex, Residue), VerbsError> {
        if !self.lingering.is_empty() {
            let drawn = self.lots.random_range(0..self.lingering.len().min(DRAWN_FROM));
            let (window, residue, _) = self.lingering.remove(drawn).expect("one of them was drawn");
            return Ok((window, residue));
        }
        if self.idle.is_empty() {
            return Ok((self.allocate(nic, gone)?, Residue::default()));
        }
        let drawn = self.lots.random_range(0..self.idle.len());
        Ok((self.idle.swap_remove_back(drawn).expect("one of them was drawn"), Residue::default()))
    }

    /// Returns the id of a window, and its next key, with which the caller must bind or unbind it.
    pub fn advance(&mut self, window: WindowIndex) -> (WindowId, Rkey) {
        let slot = &mut self.slots[window];
        let next = if self.chosen_keys {
            Rkey::new(slot.rkey.index(), slot.past.draw(&mut self.lots))
        } else {
            slot.rkey.advanced()
        };
        slot.past.spend(next.low_byte());
        slot.used += 1;
        if !planted!(KeyNotAdvanced) {
            slot.rkey = next;
        }
        (slot.window, slot.rkey)
    }

    /// Whether one more bind would leave no key for its unbind.
    pub fn is_worn(&self, window: WindowIndex) -> bool {
        self.slots.get(window).is_none_or(|slot| slot.used + 2 > KEYS)
    }

    /// Returns the present key of a bound window.
    pub fn key(&self, window: WindowIndex) -> Rkey {
        self.slots[window].rkey
    }

    /// Takes back a window that is known to be unbound.
    pub fn give(&mut self, window: WindowIndex, now: Moment, rest: Lifetime) {
        if self.is_worn(window) {
            self.resting.push_back((window, now.after(rest)));
        } else {
            self.idle.push_back(window);
        }
    }

    /// Lets a window stay bound. The memory that it exposes is not used again meanwhile.
    pub fn linger(&mut self, window: WindowIndex, residue: Residue, now: Moment) {
        self.lingering.push_back((window, residue, now));
    }

    /// Takes out a window that has lingered since `before` or longer.
    pub fn lingered(&mut self, before: Moment) -> Option<(WindowIndex, Residue)> {
        let &(window, residue, since) = self.lingering.front()?;
        (since <= before).then(|| {
            self.lingering.pop_front();
            (window, residue)
        })
    }

    /// Returns the moment since which the oldest lingering window lingers.
    pub fn lingering_since(&self) -> Option<Moment> {
        self.lingering.front().map(|&(_, _, since)| since)
    }

    /// Deallocates a window, to whatever it is bound. Its keys open nothing from here on.
    pub fn retire(&mut self, nic: &mut impl Nic, window: WindowIndex, gone: &mut GoneWindows) {
        if let Some(slot) = self.slots.remove(window) {
            let _ = nic.deallocate_window(slot.window);
            gone.keep(&slot);
        }
    }

    /// Deallocates at most `most` windows that are bound to nothing. Returns their number.
    pub fn retire_unused(&mut self, nic: &mut impl Nic, most: usize, gone: &mut GoneWindows) -> usize {
        let mut ended = 0;
        while ended < most {
            let resting = || self.resting.pop_front().map(|(window, _)| window);
            let Some(window) = self.idle.pop_front().or_else(resting) else { break };
            self.retire(nic, window, gone);
            ended += 1;
        }
        ended
    }

    /// Deallocates windows that have rested and fills the pool up to `ready`: a little at a time, off the critical
    /// path. Returns whether there is more to do.
    pub fn tend(&mut self, nic: &mut impl Nic, now: Moment, ready: u32, gone: &mut GoneWindows) -> bool {
        let mut left = PER_TURN;
        while left > 0 && self.resting.front().is_some_and(|&(_, until)| until <= now) {
            if let Some((window, _)) = self.resting.pop_front() {
                self.retire(nic, window, gone);
            }
            left -= 1;
        }
        while left > 0 && self.idle.len() + self.lingering.len() < ready as usize {
            match self.allocate(nic, gone) {
                Ok(window) => self.idle.push_back(window),
                Err(_) => break,
            }
            left -= 1;
        }
        left == 0
    }

    /// Deallocates all windows, and returns the residues of those that lingered.
    pub fn end(&mut self, nic: &mut impl Nic, gone: &mut GoneWindows) -> Vec<Residue> {
        for slot in self.slots.take_all() {
            let _ = nic.deallocate_window(slot.window);
            gone.keep(&slot);
        }
        self.idle.clear();
        self.resting.clear();
        self.lingering.drain(..).map(|(_, residue, _)| residue).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_comes_again_before_128_others_and_none_is_left_out() {
        let mut lots = StdRng::from_seed([3; 32]);
        let mut past = PastKeys::default();
        let mut last = [None::<u32>; 256];
        for count in 0..20_000 {
            let key = past.draw(&mut lots);
            let before = last[usize::from(key)].replace(count);
            assert!(before.is_none_or(|before| count - before > 128), "{key:#x} after {before:?} at {count}");
            past.spend(key);
        }
        assert!(last.iter().all(|last| last.is_some_and(|last| last > 18_000)), "some keys never come");
    }
}
