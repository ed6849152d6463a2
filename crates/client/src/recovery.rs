//! Rebuilds of broken queue pairs, in the background (Patronus §5.5).

use crate::control::Purpose;
use crate::{Client, Error};
use portcullis_nic::{QpId, VerbsEndpoint};
use portcullis_protocol::{Lifetime, Moment, QueuePairRequest, Refusal, ReplyBody};

/// The shortest time between two requests for one rebuild, so that the client sends no requests in a loop to a node
/// that answers with a wait of zero.
const REBUILD_PAUSE: Lifetime = Lifetime::micros(100);

impl<E: VerbsEndpoint> Client<E> {
    /// Requests the rebuilds that are due, as far as there is room for messages.
    pub(crate) fn ask_for_rebuilds(&mut self, now: Moment) {
        while let Some(queue_pair) = self.routes.to_rebuild(now) {
            let body = QueuePairRequest::Recover { queue_pair }.into();
            if !self.control.ask(&mut self.endpoint, body, &[], Purpose::Recover(queue_pair)) {
                return;
            }
            if let Some(queue_pairs) = self.routes.queue_pairs_with(QpId(queue_pair)) {
                queue_pairs.rebuilding(queue_pair);
            }
        }
    }

    pub(crate) fn rebuild_answered(&mut self, now: Moment, queue_pair: u32, body: ReplyBody) {
        let (routes, mut link) = self.routes();
        let Some(queue_pairs) = routes.queue_pairs_with(QpId(queue_pair)) else { return };
        queue_pairs.stopped(&mut link, queue_pair, now);
        match body {
            ReplyBody::Done => queue_pairs.rebuilt(&mut link, queue_pair, now),
            ReplyBody::Refused(Refusal::Paused { wait }) => {
                queue_pairs.ask_again(queue_pair, now.after(wait.max(REBUILD_PAUSE)));
            }
            other => {
                if queue_pairs.lost(queue_pair) {
                    let barred = other == ReplyBody::Refused(Refusal::Barred);
                    self.end(if barred { Error::Barred } else { Error::SessionLost });
                }
            }
        }
    }
}
