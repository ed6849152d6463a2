//! The work of the node's CPU: it frees what dead clients held, rebuilds a pool in which a worker has broken, and
//! takes chunks out of the pool and gives them back.

use super::arena::ArenaMemory;
use super::members::Life;
use super::world::{Breakage, Move, Part, Worker, World, queue};
use crate::asking::NOW;
use portcullis_nic::{Nic, QpChange, QpState};
use portcullis_offload::{Progress, Reclaim};
use std::rc::Rc;

impl<const G: usize> World<G> {
    /// Continues the node's work for a client that is gone, or as a client. Returns whether the node could do
    /// anything.
    pub fn look_after(&mut self, place: usize) -> bool {
        match self.members[place].life {
            Life::Gone(_) => self.reclaim(place),
            Life::Node(_) => self.go_on_changing(place),
            Life::Alive(_) | Life::Forgotten => false,
        }
    }

    fn reclaim(&mut self, place: usize) -> bool {
        let before: Vec<_> = self.workers(place).iter().map(|worker| worker.parts.chain).collect();
        let pool = Rc::make_mut(&mut self.pool);
        let member = &mut Rc::make_mut(&mut self.members)[place];
        let Life::Gone(reclaims) = &mut member.life else { return false };
        // If a client has several pairs of workers, all must be at rest before the first chunk is freed.
        let pending = |reclaim: &Reclaim<ArenaMemory, G>| reclaim.parts().len() == 2;
        if reclaims.len() > 1 && reclaims.iter().all(pending) {
            return false;
        }
        let mut done = true;
        let mut asked = false;
        for reclaim in reclaims {
            match reclaim.proceed(pool, &mut self.nic) {
                Ok(Progress::Done) => {}
                Ok(Progress::Pending) => done = false,
                // The pool will be rebuilt.
                Err(_) if self.breakage == Breakage::Broken => return false,
                Err(error) => {
                    self.broken.get_or_insert(format!("the node cannot free: {error}"));
                }
            }
            if let Some(qp) = reclaim.asking_queue_pair() {
                asked |= self.nic.core().execute_one(qp, NOW);
            }
        }
        if done {
            member.life = Life::Forgotten;
        }
        let after: Vec<_> = self.workers(place).iter().map(|worker| worker.parts.chain).collect();
        done || asked || before != after
    }

    /// Begins to take a chunk for the node, or to give one back.
    pub fn change_reserve(&mut self, place: usize, takes: bool) -> bool {
        let pool = Rc::make_mut(&mut self.pool);
        let member = &mut Rc::make_mut(&mut self.members)[place];
        let Life::Node(reserve) = &mut member.life else { return false };
        let begun = if takes { reserve.take(&mut self.nic) } else { reserve.give(pool, &mut self.nic) };
        if let Err(error) = begun {
            self.broken.get_or_insert(format!("the node cannot change the pool's size: {error}"));
        }
        self.execute_of_node(place);
        true
    }

    /// Continues to take a chunk or to give one back.
    fn go_on_changing(&mut self, place: usize) -> bool {
        let member = &mut Rc::make_mut(&mut self.members)[place];
        let Life::Node(reserve) = &mut member.life else { return false };
        let before = reserve.under_way();
        match reserve.proceed(&self.pool, &mut self.nic) {
            Ok(_) => {}
            Err(_) if self.breakage == Breakage::Broken => return false,
            Err(error) => {
                self.broken.get_or_insert(format!("the node cannot change the pool's size: {error}"));
            }
        }
        let moved = reserve.under_way() != before;
        self.execute_of_node(place);
        moved
    }

    /// Executes the node's requests, which arrive at once, and its own binds.
    fn execute_of_node(&mut self, place: usize) {
        let Life::Node(reserve) = &self.members[place].life else { return };
        for qp in reserve.asking_queue_pairs().into_iter().chain([reserve.anchor()]) {
            while self.nic.core().execute_one(qp, NOW) {}
        }
    }

    /// Adds the breaks of a client's workers that are possible now, in cases in which workers may break.
    pub fn breaks(&mut self, place: usize, workers: &[Worker], moves: &mut Vec<Move>) {
        if !self.case.breaks || self.breakage != Breakage::None {
            return;
        }
        let small = |number| u8::try_from(number).expect("cases are small");
        for (number, _) in workers.iter().enumerate() {
            let (member, worker) = (small(place), small(number));
            moves.extend([Part::Chain, Part::Binds].map(|part| Move::Break { member, worker, part }));
        }
    }

    /// Makes a queue of a worker fail.
    pub fn break_worker(&mut self, member: usize, place: usize, part: Part) -> bool {
        let qp = queue(self.workers(member)[place], part);
        self.breakage = Breakage::Broken;
        self.nic.core().state(qp) == Some(QpState::ReadyToSend)
            && self.nic.modify_qp(qp, QpChange::Error).is_ok()
    }

    /// Rebuilds the pool, and makes all clients request workers again.
    pub fn rebuild(&mut self) -> bool {
        self.breakage = Breakage::Rebuilt;
        if let Err(error) = self.try_rebuild() {
            self.fail(format!("the pool cannot be rebuilt: {error}"));
        }
        true
    }

    fn try_rebuild(&mut self) -> Result<(), portcullis_nic::VerbsError> {
        let pool = Rc::make_mut(&mut self.pool);
        let members = Rc::make_mut(&mut self.members);
        let nic = &mut self.nic;
        let mut workers = Vec::new();
        for member in members.iter_mut() {
            match &mut member.life {
                Life::Alive(own) => workers.append(own),
                Life::Gone(reclaims) => {
                    for reclaim in reclaims {
                        let resumed = Reclaim::resume(reclaim.client(), reclaim.group().to_vec());
                        std::mem::replace(reclaim, resumed).abandon(pool, nic)?;
                    }
                }
                Life::Node(reserve) => workers.extend(reserve.stop(nic)?),
                Life::Forgotten => {}
            }
        }
        pool.rebuild_with(nic, workers, self.case.design.rebuild())?;
        for member in members.iter_mut() {
            match &mut member.life {
                Life::Alive(_) => {
                    // The client may again free a chunk whose freeing it had requested and that is still its own.
                    let held = pool.chunks_of(member.number);
                    let unsure = std::mem::take(&mut member.unsure);
                    member.known.extend(unsure.into_iter().filter(|chunk| held.contains(chunk)));
                    member.join(nic, pool, &self.case);
                }
                Life::Node(reserve) => reserve.resume(pool, nic)?,
                Life::Gone(_) | Life::Forgotten => {}
            }
        }
        let starter = pool.parts().starter;
        while nic.core().execute_one(starter, NOW) {}
        Ok(())
    }
}
