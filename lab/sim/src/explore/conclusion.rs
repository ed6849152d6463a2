//! The end of a run: all that was begun ends, all clients leave, and nothing is left.

use super::watch::flaws;
use super::world::World;
use crate::clock::{MICROSECOND, Nanos};
use crate::oracle::Promise;

/// The time between two looks.
const STEP: Nanos = 50 * MICROSECOND;
/// The number of such steps within which everything must have ended. This is longer than any lease and any wait.
const STEPS_MAX: usize = 200;

impl World {
    /// Ends a run in which no event of the race is left.
    pub fn conclude(&mut self) {
        self.racing = false;
        self.settle();
        for _ in 0..STEPS_MAX {
            if self.actors.iter().all(|actor| actor.pending() == 0) {
                break;
            }
            self.now += STEP;
            self.settle();
        }
        let waits = self.actors.iter().position(|actor| actor.pending() > 0);
        if let Some(client) = waits {
            let what = format!("client {client} has not ended its work: it received {:?}", self.told(client));
            self.oracle.fail(Promise::Progress, self.now, what);
        }
        for (promise, what) in flaws(&self.actors, self.node.counters().extensions) {
            self.oracle.fail(promise, self.now, what);
        }
        for client in 0..self.actors.len() {
            self.actors[client].library = None;
            self.oracle.client_ended(self.actors[client].session);
            self.let_go(client);
        }
        self.now += STEP;
        self.settle();
        let moment = self.moment();
        let pool = self.nic.hook.pool.as_ref().map(|(pool, _)| (pool.unnoted(), moment));
        self.oracle.look(self.now, &[pool], true);
        self.oracle.at_rest(self.now);
        self.check_rest();
    }

    /// Returns all answers that the clients got, as a text.
    pub fn outcome(&self) -> String {
        let of = |actor: &super::actor::Actor| {
            let told: Vec<String> = actor.told.iter().map(ToString::to_string).collect();
            if told.is_empty() { "nothing".to_owned() } else { told.join(", ") }
        };
        self.actors.iter().map(of).collect::<Vec<_>>().join(" | ")
    }

    fn told(&self, client: usize) -> &[super::actor::Told] {
        &self.actors[client].told
    }

    fn check_rest(&mut self) {
        let left = self.node.counters();
        let held = [left.permissions, left.objects, left.bytes_used, left.headers_used, left.windows];
        let there = [left.clients, left.tenants, left.postponed];
        let objects = self.nic.nic.core().objects();
        let bare = objects.domains == 0 && objects.keys == 0 && objects.queue_pairs == 0;
        if held != [0; 5] || there != [0; 3] || !bare {
            let what = format!("the node keeps {left:?}, its NIC {objects:?}");
            self.oracle.fail(Promise::Rest, self.now, what);
        }
    }
}
