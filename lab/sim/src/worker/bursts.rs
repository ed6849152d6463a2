//! The bursts of a worker: batches of requests that share messages.

use super::{Purpose, Worker};
use crate::scene::{Scene, SimClient};
use portcullis_client::{ControlRequest, Permission};

/// How many of a thousand actions are bursts, if messages carry several requests.
const BURSTS: u64 = 150;

impl Worker {
    /// Begins several requests in one batch. Returns false, and draws nothing, if a message carries one request.
    pub(super) fn burst(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) -> bool {
        if client.calls_per_message() < 2 || !self.dice.per_mille(BURSTS) {
            return false;
        }
        let count = 2 + self.dice.index(30);
        let asks: Vec<_> = (0..count).filter_map(|_| self.part_of_burst(scene)).collect();
        let (mut batch, mut begun) = (client.batch(), Vec::new());
        for (request, purpose) in asks {
            match batch.call(scene.moment, request) {
                Ok(call) => begun.push((call, purpose)),
                Err(refused) => {
                    if let ControlRequest::Revoke { permission, .. } = *refused.ask {
                        self.keep(permission);
                    }
                }
            }
        }
        // A batch that is dropped has begun nothing. Its permissions end at their deadlines.
        if self.dice.per_mille(950) {
            batch.post();
            self.calls.extend(begun);
        }
        true
    }

    /// Returns a request for a burst.
    fn part_of_burst(&mut self, scene: &mut Scene<'_>) -> Option<(ControlRequest, Purpose)> {
        match self.dice.of(0..8) {
            0..3 if self.held.len() < self.held_max => {
                let ask = self.allocation();
                Some((ask.into(), Purpose::Grant { sharing: ask.sharing }))
            }
            3..5 if self.held.len() < self.held_max => {
                let ask = self.acquisition(scene)?;
                Some((ask.into(), Purpose::Grant { sharing: ask.sharing }))
            }
            _ => {
                let at = self.some_held()?;
                let permission = self.held.swap_remove(at);
                let id = permission.id();
                self.under_way.iter_mut().filter(|it| it.permission == id).for_each(|it| it.raced = true);
                Some((ControlRequest::Revoke { permission, free: self.dice.per_mille(300) }, Purpose::End))
            }
        }
    }

    fn keep(&mut self, permission: Permission) {
        self.first_end = self.first_end.min(permission.lease().deadline());
        self.held.push(permission);
    }
}
