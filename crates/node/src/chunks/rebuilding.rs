//! Rebuilds a pool in which a worker has broken. Other clients wait for a moment, and no client loses a chunk.
//!
//! All workers end, including the node's own and those of clients that have left. Clients learn of it by the errors of
//! their pending requests, and request workers again ([`JoinChunks`](portcullis_protocol::RequestBody::JoinChunks)). A
//! client keeps its chunks, with the same keys. An allocation whose reply had not left is undone. A free may have been
//! executed or not: the client sends the request again.

use super::watch::LockWatch;
use super::{Leaving, OffloadedChunks, chunks_by_key};
use portcullis_nic::{Memory, Nic, QpChange, QpId, VerbsError};
use portcullis_offload::Reclaim;
use portcullis_protocol::{ClientId, Lifetime, Moment};

/// The shortest time from one rebuild to the next. It bounds the node's time on a NIC on which every worker breaks.
const BETWEEN_REBUILDS: Lifetime = Lifetime::millis(10);

/// The rebuilds of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rebuilds {
    /// Whether a worker has broken.
    is_due: bool,
    /// The earliest moment of the next rebuild.
    not_before: Moment,
    pub count: u64,
}

impl Rebuilds {
    /// Requests a rebuild of the pool.
    pub fn ask(&mut self) {
        self.is_due = true;
    }

    /// Returns the moment of the next rebuild, if one is due.
    pub fn next(&self) -> Option<Moment> {
        self.is_due.then_some(self.not_before)
    }
}

impl<M: Memory> OffloadedChunks<M> {
    /// Handles the failure of a queue pair: it may be a worker's, and that worker may have the lock.
    pub fn handle_broken<N: Nic<Memory = M>>(&mut self, nic: &N) {
        let mut own = self.members.values().filter_map(|member| member.workers.as_ref());
        let mut hired = self.leaving.iter().map(|leaving| &leaving.reclaim);
        let broken = own.any(|workers| workers.is_broken(nic).unwrap_or(true))
            || hired.any(|reclaim| reclaim.is_broken(nic).unwrap_or(true))
            || self.sizing.as_ref().is_some_and(|it| it.reserve.is_broken(nic).unwrap_or(true));
        self.rebuilds.is_due |= broken;
    }

    /// Checks whether the pool stands still, and if so rebuilds it. Returns whether it did.
    pub fn watch<N: Nic<Memory = M>>(&mut self, nic: &mut N, now: Moment) -> bool {
        let counts = self.pool.lock_counts(nic).unwrap_or_default();
        self.rebuilds.is_due |= self.lock.look(counts, now);
        if self.rebuilds.next().is_none_or(|at| now < at) {
            return false;
        }
        for &qp in self.members.values().flat_map(|member| &member.ends.asking) {
            let _ = nic.modify_qp(qp, QpChange::Error);
        }
        // A pool that cannot be rebuilt serves no client until another attempt succeeds. Clients learn of it by their
        // requests' errors. A holder of a chunk has access to it as before.
        self.is_broken = self.rebuild(nic).is_err();
        self.rebuilds = Rebuilds {
            is_due: self.is_broken,
            not_before: now.after(BETWEEN_REBUILDS),
            count: self.rebuilds.count + 1,
        };
        self.lock = LockWatch::default();
        self.adoption.look_again();
        self.next_look = Some(now);
        true
    }

    /// Returns the queues that hold the chains of a client's workers, for tests in which one fails.
    pub fn chains_of(&self, client: ClientId) -> Vec<QpId> {
        let workers = self.members.get(&client).and_then(|member| member.workers.as_ref());
        workers.iter().flat_map(|workers| workers.parts()).map(|parts| parts.chain).collect()
    }

    fn rebuild<N: Nic<Memory = M>>(&mut self, nic: &mut N) -> Result<(), VerbsError> {
        let mut workers: Vec<_> =
            self.members.values_mut().filter_map(|member| member.workers.take()).collect();
        for Leaving { reclaim, .. } in &mut self.leaving {
            let resumed = Reclaim::resume(reclaim.client(), reclaim.group().to_vec());
            std::mem::replace(reclaim, resumed).abandon(&mut self.pool, nic)?;
        }
        if let Some(sizing) = &mut self.sizing {
            workers.extend(sizing.reserve.stop(nic)?);
        }
        self.pool.rebuild(nic, workers)?;
        if let Some(sizing) = &mut self.sizing {
            sizing.reserve.resume(&mut self.pool, nic)?;
        }
        self.chunk_of_key = chunks_by_key(&self.pool);
        Ok(())
    }
}
