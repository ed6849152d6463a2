//! The routes to the node: one carrier for each way in which accesses travel, as far as the endpoint has it. No other
//! module of the client knows how many there are.

use crate::ClientConfig;
use crate::Error;
use crate::carrier::{Carrier, Link, Outgoing, Posting};
use crate::messages::Messages;
use crate::one_shots::OneShots;
use crate::queue_pairs::{Counters, QueuePairs};
use portcullis_nic::{Completion, EndpointQueue, QpId, Status, VerbsEndpoint};
use portcullis_protocol::{Credential, Moment};

/// The carriers of a client. The credential of an access selects its carrier.
pub(crate) struct Routes {
    /// Accesses with the keys of memory windows, on data queue pairs.
    data: Option<QueuePairs>,
    /// Accesses to chunks, on queue pairs of their own.
    chunks: Option<QueuePairs>,
    /// Accesses that the node's CPU carries out.
    pub(crate) messages: Messages,
    /// Accesses without queue pairs.
    one_shots: Option<OneShots>,
}

impl Routes {
    pub(crate) fn new(endpoint: &mut impl VerbsEndpoint, config: ClientConfig) -> Self {
        Self {
            data: QueuePairs::data(endpoint, config),
            chunks: QueuePairs::chunks(endpoint, config),
            messages: Messages::new(config),
            one_shots: OneShots::new(endpoint, config),
        }
    }

    /// Calls `act` for each carrier, in the order in which they send.
    #[inline(always)]
    fn for_each<E: VerbsEndpoint>(&mut self, mut act: impl FnMut(&mut dyn Carrier<E>)) {
        act(&mut self.data);
        act(&mut self.messages);
        act(&mut self.chunks);
        act(&mut self.one_shots);
    }

    /// Returns whether there is a carrier for accesses with the credential.
    pub(crate) fn can_carry(&self, credential: &Credential) -> bool {
        match credential {
            Credential::Keys { .. } | Credential::Group(_) => self.data.is_some(),
            Credential::Chunk(_) => self.chunks.is_some(),
            Credential::RegionKey { .. } => self.one_shots.is_some(),
            Credential::Node => true,
        }
    }

    /// Returns whether all accesses are carried out in the order in which they are sent.
    #[inline]
    pub(crate) fn keep_order(&self) -> bool {
        self.one_shots.is_none()
    }

    /// Hands an access to the carrier for its credential.
    ///
    /// # Errors
    /// As [`Carrier::take_in`].
    #[inline(always)]
    pub(crate) fn take_in<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        outgoing: Outgoing<'_>,
        posting: Posting,
    ) -> Result<(), Error> {
        let queue_pairs = match *outgoing.access.credential {
            Credential::Keys { .. } | Credential::Group(_) => &mut self.data,
            Credential::Chunk(_) => &mut self.chunks,
            Credential::RegionKey { .. } => return self.one_shots.take_in(link, outgoing, posting),
            Credential::Node => return self.messages.take_in(link, outgoing, posting),
        };
        queue_pairs.take_in(link, outgoing, posting)
    }

    /// Sends the staged accesses, and the messages to the node that were held back for them.
    pub(crate) fn send_staged<E: VerbsEndpoint>(&mut self, link: &mut Link<E>) {
        self.data.send_staged(link);
        link.control.release(&mut link.endpoint);
        self.messages.send_staged(link);
        self.chunks.send_staged(link);
        self.one_shots.send_staged(link);
    }

    /// Drops the staged accesses and their operations, which never began.
    pub(crate) fn cancel_staged<E: VerbsEndpoint>(&mut self, link: &mut Link<E>) {
        self.for_each(|carrier| carrier.cancel_staged(link));
    }

    /// Drops all accesses: the operations have ended.
    pub(crate) fn clear<E: VerbsEndpoint>(&mut self) {
        self.for_each::<E>(|carrier| carrier.clear());
    }

    /// Returns whether accesses wait that [`Routes::pump`] could send.
    #[inline]
    pub(crate) fn is_backed_up<E: VerbsEndpoint>(&self) -> bool {
        Carrier::<E>::is_backed_up(&self.data)
            || Carrier::<E>::is_backed_up(&self.chunks)
            || Carrier::<E>::is_backed_up(&self.messages)
            || Carrier::<E>::is_backed_up(&self.one_shots)
    }

    /// Sends what waited for room: see [`Carrier::pump`].
    pub(crate) fn pump<E: VerbsEndpoint>(&mut self, link: &mut Link<E>, now: Moment) {
        // Messages go first: the room in the control queue that they wait for is small.
        self.messages.pump(link, now);
        if Carrier::<E>::is_backed_up(&self.data) {
            self.data.pump(link, now);
        }
        if Carrier::<E>::is_backed_up(&self.chunks) {
            self.chunks.pump(link, now);
        }
        if Carrier::<E>::is_backed_up(&self.one_shots) {
            self.one_shots.pump(link, now);
        }
    }

    /// Handles a completion that does not depend on the time: an access was carried out. `is_first`: all completions
    /// before this one were handled. Returns whether this one was; otherwise [`Routes::completed`] handles it.
    #[inline]
    pub(crate) fn succeeded<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        completion: &Completion,
        is_first: bool,
    ) -> bool {
        // Completions of queue pairs keep their order.
        if is_first
            && let Some(data) = &mut self.data
            && data.has(completion.queue_pair)
            && data.succeeded(&mut link.operations, completion)
        {
            return true;
        }
        // Operations without queue pairs have no order.
        self.one_shots.as_mut().is_some_and(|one_shots| one_shots.succeeded(link, completion))
    }

    /// Handles any completion of an access.
    pub(crate) fn completed<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        now: Moment,
        completion: &Completion,
    ) {
        if EndpointQueue::of(completion.queue_pair) == EndpointQueue::OneShot {
            if let Some(one_shots) = &mut self.one_shots {
                one_shots.failed(link, now, completion);
            }
        } else if let Some(queue_pairs) = self.queue_pairs_with(completion.queue_pair) {
            queue_pairs.completed(link, now, completion);
        }
    }

    /// Returns whether the completion reports that the node refused an operation without a queue pair.
    pub(crate) fn refused_without_queue_pair(completion: &Completion) -> bool {
        EndpointQueue::of(completion.queue_pair) == EndpointQueue::OneShot
            && completion.status == Status::RemoteAccessError
    }

    /// Makes the next operation without a queue pair wait until all operations before it have ended.
    pub(crate) fn fence(&mut self) {
        if let Some(one_shots) = &mut self.one_shots {
            one_shots.fence();
        }
    }

    /// The carriers on queue pairs.
    fn queue_pairs(&self) -> impl Iterator<Item = &QueuePairs> {
        self.data.iter().chain(&self.chunks)
    }

    /// The carrier that a queue pair belongs to.
    pub(crate) fn queue_pairs_with(&mut self, queue_pair: QpId) -> Option<&mut QueuePairs> {
        self.data.iter_mut().chain(&mut self.chunks).find(|carrier| carrier.has(queue_pair))
    }

    /// Returns a queue pair whose rebuild the client is to request now.
    pub(crate) fn to_rebuild(&self, now: Moment) -> Option<u32> {
        self.queue_pairs().find_map(|carrier| carrier.to_rebuild(now))
    }

    /// Returns the moment of the next request for a rebuild, if any is due.
    pub(crate) fn next_rebuild(&self) -> Option<Moment> {
        self.queue_pairs().filter_map(QueuePairs::next_wake).min()
    }

    /// Returns how often queue pairs broke and what it cost.
    pub(crate) fn counters(&self) -> Counters {
        self.queue_pairs().map(QueuePairs::counters).fold(Counters::default(), Counters::and)
    }
}
