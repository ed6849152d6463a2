//! The conditions that must hold in every state, and those that must hold when nothing is under way.

use super::designs::Design;
use super::members::Life;
use super::world::{Breakage, CHUNK_BYTES, World};
use portcullis_nic::{Memory, Nic};
use portcullis_offload::chain::TOP_AT;
use portcullis_offload::record::{Layout, NEXT_AT, NIL};

impl<const G: usize> World<G> {
    /// Checks the present state. `quiet`: no queue can do anything.
    pub fn check(&mut self, quiet: bool) {
        if self.case.design.has_the_lock() && self.is_lock_free() {
            self.check_list();
        }
        if self.case.breaks {
            self.check_known(quiet);
        }
        if quiet {
            self.check_rest();
        }
        while let Some(event) = self.nic.poll_event() {
            let qp = event.queue_pair();
            let is_expected =
                self.breakage != Breakage::None || self.members.iter().any(|member| !member.life.is_alive());
            if !is_expected {
                self.fail(format!("queue pair {qp:?} failed"));
            }
        }
    }

    fn is_lock_free(&mut self) -> bool {
        self.pool.lock_counts(&mut self.nic).is_ok_and(|(tickets, releases)| tickets == releases)
    }

    /// Returns the chunks of the free list, or `None` if the list is malformed.
    fn listed(&mut self) -> Option<Vec<u64>> {
        let parts = self.pool.parts();
        let mut listed = Vec::new();
        let mut at = parts.words.load(TOP_AT);
        while at != NIL {
            let chunk = Layout::<G>::chunk_of(at).filter(|chunk| *chunk < self.case.chunks)?;
            if listed.contains(&chunk) {
                return None;
            }
            listed.push(chunk);
            at = parts.table.load(at + NEXT_AT);
        }
        Some(listed)
    }

    /// Checks that each chunk in the free list is unbound, zero and without an owner.
    fn check_list(&mut self) {
        let Some(listed) = self.listed() else { return self.fail("the free list makes no sense".to_owned()) };
        for chunk in listed {
            if (0..G).any(|number| self.window(chunk, number).is_some()) {
                self.fail(format!("free chunk {chunk} can be reached"));
            }
            if self.pool.chunks_memory().load(chunk * CHUNK_BYTES) != 0 {
                self.fail(format!("free chunk {chunk} is not zero"));
            }
            if let Some(owner) = self.owner(chunk) {
                self.fail(format!("free chunk {chunk} is {owner:?}'s"));
            }
        }
    }

    /// Checks that a client holds and reaches each chunk that it knows to hold. `quiet`: it also knows each chunk
    /// that it holds.
    fn check_known(&mut self, quiet: bool) {
        for place in 0..self.members.len() {
            let member = &self.members[place];
            let (number, group) = (member.number, member.group.clone());
            let (known, unsure) = (member.known.clone(), member.unsure.clone());
            if !matches!(member.life, Life::Alive(_)) {
                continue;
            }
            for &chunk in &known {
                if self.owner(chunk) != Some(number) {
                    self.fail(format!("client {place} has lost chunk {chunk}"));
                }
                if (0..G).any(|window| self.window(chunk, window) != Some(group[window])) {
                    self.fail(format!("client {place} does not reach chunk {chunk}, which it holds"));
                }
            }
            let mut held = self.pool.chunks_of(number).into_iter();
            let untold = held.find(|chunk| quiet && !known.contains(chunk) && !unsure.contains(chunk));
            if let Some(chunk) = untold {
                self.fail(format!("client {place} holds chunk {chunk} and does not know of it"));
            }
        }
    }

    /// Checks that every worker waits for a request. Every chunk must be in the list once, or belong to one client,
    /// which reaches it.
    fn check_rest(&mut self) {
        for member in 0..self.members.len() {
            let waits = match &self.members[member].life {
                Life::Alive(workers) => {
                    let at_rest = |workers| self.pool.is_at_rest(&mut self.nic, workers).unwrap_or(false);
                    !workers.iter().all(at_rest)
                }
                // Here the node waits for a worker that has died. The question is which other members wait.
                Life::Gone(_) => self.case.design != Design::WorkerDies,
                Life::Node(reserve) => reserve.under_way().is_some(),
                Life::Forgotten => false,
            };
            if waits {
                self.fail(format!("client {member}'s workers wait for ever"));
            }
        }
        let Some(listed) = self.free_chunks() else {
            return self.fail("the free list makes no sense".to_owned());
        };
        for chunk in 0..self.case.chunks {
            let owner = self.owner(chunk);
            let times = listed.iter().filter(|other| **other == chunk).count();
            match owner {
                None if times == 0 && self.case.design.may_lose() => {}
                None if times == 0 => self.fail(format!("chunk {chunk} is lost")),
                None if times > 1 => self.fail(format!("chunk {chunk} is free twice")),
                Some(_) if times > 0 => self.fail(format!("chunk {chunk} is free, and a client holds it")),
                _ => {}
            }
            for number in 0..G {
                let holder = self.window(chunk, number);
                let expected = owner.and_then(|owner| {
                    let member = self.members.iter().find(|member| member.number == owner)?;
                    member.group.get(number).copied()
                });
                if holder != expected {
                    self.fail(format!(
                        "window {number} of chunk {chunk} is bound to {holder:?}, not {expected:?}"
                    ));
                }
            }
        }
    }

    /// Returns the free chunks, in which a chunk may appear twice.
    fn free_chunks(&mut self) -> Option<Vec<u64>> {
        match self.case.design.ring_slots() {
            None => self.listed(),
            Some(ring) => {
                let records = ring.waiting(self.pool.parts().words);
                records.into_iter().filter(|at| *at != NIL).map(Layout::<G>::chunk_of).collect()
            }
        }
    }
}
