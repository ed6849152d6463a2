//! An attacker on the path. It sees all datagrams, and loses, keeps, repeats, cuts, alters, reflects and makes up
//! some.

use super::paths::Datagram;
use super::{Label, address_of_node, label::HEADER_BYTES};
use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::network::MachineId;
use std::collections::{HashMap, VecDeque};

/// Number of datagrams that the attacker remembers.
const REMEMBERED: usize = 48;
/// The first bytes of a probe, which every node answers.
const PROBE: [u8; 4] = [1, 0xF0, 0, 0];

/// The rates of the attacker's actions, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Habits {
    /// The attacker loses a datagram.
    pub lose: u64,
    /// The attacker delays a datagram.
    pub hold: u64,
    /// The attacker sends a copy of a datagram that it remembers.
    pub repeat: u64,
    /// The attacker cuts, alters or reflects a copy, or makes a datagram up.
    pub forge: u64,
}

impl Habits {
    pub fn draw(dice: &mut Dice) -> Self {
        let mut rate = |most| if dice.per_mille(600) { dice.magnitude(1..most) } else { 0 };
        Self { lose: rate(500), hold: rate(500), repeat: rate(700), forge: rate(700) }
    }
}

/// The attacker on the path.
#[derive(Debug)]
pub(super) struct Attacker {
    /// Machines on whose path the attacker is, each with the end of that time and the habits there.
    at: HashMap<MachineId, (Nanos, Habits)>,
    habits: Habits,
    seen: VecDeque<Datagram>,
    dice: Dice,
}

impl Attacker {
    pub fn new(dice: Dice) -> Self {
        Self { at: HashMap::new(), habits: Habits::default(), seen: VecDeque::new(), dice }
    }

    pub fn begin(&mut self, machine: MachineId, until: Nanos, habits: Habits) {
        self.at.insert(machine, (until, habits));
    }

    pub fn end(&mut self) {
        self.at.clear();
    }

    /// Whether the attacker is on the path of a machine. If so, it takes on its habits there.
    pub fn is_at(&mut self, machine: MachineId, now: Nanos) -> bool {
        let there = self.at.get(&machine).filter(|(until, _)| *until > now);
        self.habits = there.map_or(self.habits, |&(_, habits)| habits);
        there.is_some()
    }

    /// Processes a datagram that reaches the attacker. Returns the datagrams that go on, each with its delay.
    pub fn meet(&mut self, datagram: Datagram) -> Vec<(Nanos, Datagram)> {
        let Habits { lose, hold, repeat, forge } = self.habits;
        let mut out = Vec::new();
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(datagram.clone());
        if self.dice.per_mille(forge) {
            out.push((self.dice.of(0..5 * MICROSECOND), self.forge(&datagram)));
        }
        if self.dice.per_mille(repeat) {
            let again = self.seen[self.dice.index(self.seen.len())].clone();
            out.push((self.dice.magnitude(1..2 * MILLISECOND), again));
        }
        if self.dice.per_mille(hold) {
            out.push((self.dice.magnitude(1..4 * MILLISECOND), datagram));
        } else if !self.dice.per_mille(lose) {
            out.push((0, datagram));
        }
        out
    }

    /// Makes a datagram out of one that the attacker has seen.
    fn forge(&mut self, like: &Datagram) -> Datagram {
        let mut forged = self.seen[self.dice.index(self.seen.len())].clone();
        if self.dice.per_mille(600) {
            forged = like.clone();
        }
        match self.dice.of(0..8) {
            0 => forged.bytes.truncate(self.dice.index(forged.bytes.len().max(1))),
            1 | 2 => self.alter(&mut forged.bytes),
            3 => std::mem::swap(&mut forged.from, &mut forged.to),
            // The datagram seems to come from another sender.
            4 => forged.from = self.seen[self.dice.index(self.seen.len())].from,
            // The datagram is an answer that a node sends without a seal.
            5 => self.say_unknown(&mut forged),
            6 => {
                let length = 12 + self.dice.index(1400);
                forged.bytes = PROBE.to_vec();
                forged.bytes.resize(length, 7);
                forged.to = address_of_node(0);
            }
            _ => {
                let length = self.dice.index(300);
                forged.bytes = (0..length).map(|_| self.dice.any().to_le_bytes()[0]).collect();
            }
        }
        forged
    }

    /// Alters a bit, or a field of the header.
    fn alter(&mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let most = if self.dice.per_mille(600) { bytes.len().min(HEADER_BYTES) } else { bytes.len() };
        let at = self.dice.index(most);
        bytes[at] ^= 1 << self.dice.of(0..8);
    }

    /// Turns a request into the answer that its key is not known.
    fn say_unknown(&mut self, forged: &mut Datagram) {
        if Label::read(&forged.bytes).is_some_and(|label| label.kind == Label::REQUEST) {
            forged.bytes.truncate(HEADER_BYTES);
            forged.bytes[1] = Label::UNKNOWN;
            std::mem::swap(&mut forged.from, &mut forged.to);
        } else {
            self.alter(&mut forged.bytes);
        }
    }
}
