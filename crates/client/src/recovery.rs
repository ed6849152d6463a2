//! Rebuilds of broken queue pairs, in the background (Patronus §5.5).

use crate::Error;
use crate::control::Purpose;
use crate::data_path::DataPath;
use portcullis_nic::{QpId, VerbsEndpoint};
use portcullis_protocol::{Lifetime, Moment, QueuePairRequest, Refusal, ReplyBody};

/// The shortest time between two requests for one rebuild, so that the client sends no requests in a loop to a node
/// that answers with a wait of zero.
const REBUILD_PAUSE: Lifetime = Lifetime::micros(100);

impl<E: VerbsEndpoint> DataPath<E> {
    /// Requests the rebuilds that are due, as far as there is room for messages.
    pub(crate) fn ask_for_rebuilds(&mut self, now: Moment) {
        let Self { link, routes, .. } = self;
        while let Some(queue_pair) = routes.to_rebuild(now) {
            let body = QueuePairRequest::Recover { queue_pair }.into();
            if !link.control.ask(&mut link.endpoint, body, &[], Purpose::Recover(queue_pair)) {
                return;
            }
            if let Some(queue_pairs) = routes.queue_pairs_with(QpId(queue_pair)) {
                queue_pairs.rebuilding(queue_pair);
            }
        }
    }

    /// Handles the node's answer to a request for a rebuild.
    ///
    /// # Errors
    /// [`Error::Barred`] or [`Error::SessionLost`]: no queue pair is left, so the session is over.
    pub(crate) fn rebuild_answered(
        &mut self,
        now: Moment,
        queue_pair: u32,
        body: ReplyBody,
    ) -> Result<(), Error> {
        let Self { link, routes, .. } = self;
        let Some(queue_pairs) = routes.queue_pairs_with(QpId(queue_pair)) else { return Ok(()) };
        queue_pairs.stopped(link, queue_pair, now);
        match body {
            ReplyBody::Done => queue_pairs.rebuilt(link, queue_pair, now),
            ReplyBody::Refused(Refusal::Paused { wait }) => {
                queue_pairs.ask_again(queue_pair, now.after(wait.max(REBUILD_PAUSE)));
            }
            other => {
                if queue_pairs.lost(queue_pair) {
                    let barred = other == ReplyBody::Refused(Refusal::Barred);
                    return Err(if barred { Error::Barred } else { Error::SessionLost });
                }
            }
        }
        Ok(())
    }
}
