//! Requests of chains: they wait for counts, set limits, and bind windows for other queue pairs.
//!
//! Only queue pairs that their owner has made for chains may post these requests. A request that waits is in a list of
//! its completion queue, and its queue pair is not visited meanwhile.

use super::Progress;
use crate::core::objects::Core;
use crate::core::queue_pair::QueuePair;
use portcullis_memory::Bytes;
use portcullis_nic::{ChainVerb, CqId, QpId, QpState, Status, WindowBinding};

impl<M: Bytes> Core<M> {
    /// Executes a request of a chain for queue pair `id`, which is lent. [`Progress::NotReady`]: the request waits, and
    /// the queue pair is rung when the count is reached.
    pub(in crate::core) fn execute_chain_verb(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        verb: ChainVerb,
    ) -> Result<Progress, Status> {
        if !pair.role.privileged {
            return Err(Status::LocalQpOperationError);
        }
        match verb {
            ChainVerb::Nop => Ok(Progress::Done),
            ChainVerb::Wait { cq, threshold } => self.wait(id, cq, threshold),
            ChainVerb::Enable { queue_pair, limit } if queue_pair == id => {
                pair.send.enable(limit).then_some(Progress::Done).ok_or(Status::LocalQpOperationError)
            }
            ChainVerb::Enable { queue_pair, limit } => {
                let other = self.qps.get_mut(queue_pair.0).ok_or(Status::LocalQpOperationError)?;
                if !other.send.enable(limit) {
                    return Err(Status::LocalQpOperationError);
                }
                self.ring(queue_pair);
                Ok(Progress::Done)
            }
            ChainVerb::EnableReceive { queue_pair, limit } => self.enable_receive(queue_pair, limit),
            ChainVerb::BindWindow { binding, queue_pair } => self.bind_for(id, pair, queue_pair, &binding),
            ChainVerb::LocalInvalidate { rkey, queue_pair } => {
                let freed = self.keys.invalidate(pair.pd, queue_pair, rkey);
                freed.map(|()| Progress::Done).map_err(|_| Status::LocalQpOperationError)
            }
        }
    }

    fn wait(&mut self, id: QpId, cq: CqId, threshold: u32) -> Result<Progress, Status> {
        let counter = self.counter_mut(cq.0).ok_or(Status::LocalQpOperationError)?;
        if counter.has_reached(threshold) {
            return Ok(Progress::Done);
        }
        counter.waiters.insert((threshold, id.0));
        Ok(Progress::NotReady)
    }

    fn enable_receive(&mut self, queue_pair: QpId, limit: u64) -> Result<Progress, Status> {
        let pair = self.qps.get_mut(queue_pair.0).ok_or(Status::LocalQpOperationError)?;
        let receive = pair.receive.as_mut().ok_or(Status::LocalQpOperationError)?;
        if !receive.enable(limit) {
            return Err(Status::LocalQpOperationError);
        }
        let sender = if pair.state == QpState::Error { Some(queue_pair) } else { pair.peer };
        // A message may have waited for this limit.
        sender.into_iter().for_each(|sender| self.ring(sender));
        Ok(Progress::Done)
    }

    fn bind_for(
        &mut self,
        id: QpId,
        pair: &QueuePair<M>,
        queue_pair: QpId,
        binding: &WindowBinding,
    ) -> Result<Progress, Status> {
        let pd = if queue_pair == id { Some(pair.pd) } else { self.qps.get(queue_pair.0).map(|it| it.pd) };
        if pd != Some(pair.pd) || !self.keys.is_type_2(binding.window) {
            return Err(Status::WindowBindError);
        }
        // A window of type 2 that is bound cannot be bound again: this ends no access.
        self.keys.bind(pair.pd, queue_pair, binding).map(|_| Progress::Done)
    }
}
