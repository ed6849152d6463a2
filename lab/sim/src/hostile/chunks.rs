//! A hostile client in runs in which the NIC hands out chunks. It requests the freeing of other clients' chunks, and
//! accesses them with their keys on its own queue pairs.

use crate::dice::Dice;
use crate::scene::{Scene, SimClient};
use portcullis_client::{Access, Answer, Call, ControlRequest, Operation, Permission, Unchecked};

/// The most chunks that the client holds, so that other clients have some.
const HELD_MAX: usize = 2;

/// The chunks that the client has, and the calls that it has begun.
#[derive(Debug, Default)]
pub(super) struct ChunkThief {
    held: Vec<Permission>,
    calls: Vec<Call>,
}

impl ChunkThief {
    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// Takes the answers that have arrived.
    pub fn take_in(&mut self, client: &mut SimClient) {
        let Self { held, calls } = self;
        calls.retain(|&call| match client.take_call(call) {
            None => true,
            Some(answer) => {
                if let Ok(Answer::Granted(chunk)) = answer {
                    held.push(chunk);
                }
                false
            }
        });
    }

    /// Executes one action. Returns the access that it has begun, if the action is one.
    pub fn act(&mut self, dice: &mut Dice, client: &mut SimClient, scene: &Scene<'_>) -> Option<Operation> {
        if client.chunk_terms().is_none() {
            self.calls.extend(client.call(scene.moment, ControlRequest::JoinChunks).ok());
            return None;
        }
        let seen = scene.gossip.chunks.iter().copied().collect::<Vec<_>>();
        let of_others = dice.pick(&seen).copied();
        match (dice.of(0..6), of_others) {
            (0, _) if self.held.len() < HELD_MAX => {
                self.calls.extend(client.call(scene.moment, ControlRequest::AllocateChunk).ok());
            }
            (0, _) => {
                let chunk = self.held.swap_remove(dice.index(self.held.len()));
                self.calls.extend(client.call(scene.moment, ControlRequest::FreeChunk(chunk)).ok());
            }
            (1 | 2, Some((address, ..))) => self.calls.extend(client.dangerous_free_chunk(address).ok()),
            (3.., Some((address, credential, length))) => {
                let length = u32::try_from(dice.of(1..length.min(64) + 1)).unwrap_or(1);
                let mut buffer = client.buffer(length).ok()?;
                let begun = if dice.per_mille(500) {
                    client.dangerous_access(Access::read(Unchecked::new(address, credential), 0, buffer))
                } else {
                    buffer.write(0, &vec![0xbb; length as usize]);
                    client.dangerous_access(Access::write(Unchecked::new(address, credential), 0, buffer))
                };
                return begun.ok();
            }
            _ => {}
        }
        None
    }
}
