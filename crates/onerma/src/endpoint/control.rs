//! Control messages of a client's end. Other ends post them to a control queue pair; here they travel over a link.

use portcullis_memory::{ArenaMemory, Memory};
use portcullis_nic::{
    Completion, CompletionKind, LocalSpan, Operation, ReceiveRequest, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::message_in;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// Interval, in calls, of checks for a message that answers no request. Each check costs a system call.
const LOOK_EVERY: u32 = 256;

/// A link that carries control messages to the node and back. No call waits.
pub trait ControlLink: Debug + Send {
    /// Sends a message, now or with a later call.
    fn say(&mut self, message: &[u8]);

    /// Sends pending messages for which there was no room.
    fn go_on(&mut self);

    /// Whether messages wait for room.
    fn is_behind(&self) -> bool;

    /// Returns the next message of the node, if one has arrived.
    fn hear(&mut self) -> Option<Vec<u8>>;

    /// Whether the node still held its end when the link was last used.
    fn is_alive(&self) -> bool;

    /// Returns a descriptor that becomes readable when a message has arrived, or the node has left.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// The control messages of one end.
#[derive(Debug)]
pub(super) struct Control {
    link: Box<dyn ControlLink>,
    receives: VecDeque<ReceiveRequest>,
    /// Requests without an answer.
    unanswered: u32,
    looks: u32,
}

impl Control {
    pub fn new(link: Box<dyn ControlLink>) -> Self {
        Self { link, receives: VecDeque::new(), unanswered: 0, looks: 0 }
    }

    pub fn post(
        &mut self,
        arena: &ArenaMemory,
        requests: &[WorkRequest],
        completions: &mut VecDeque<Completion>,
    ) -> usize {
        for request in requests {
            let Operation::Send { local } = request.operation else {
                unreachable!("a control queue pair carries messages only: {request:?}")
            };
            let mut message = vec![0; local.length as usize];
            arena.read(local.address, &mut message);
            // All messages over a connection have one length, so short ones are extended to it.
            if let Some(whole) = message_in(&message)
                && message.len() < whole.len()
            {
                message = whole.to_vec();
            }
            self.link.say(&message);
            self.unanswered += 1;
            if request.signalled {
                completions.push_back(completion(request.id, CompletionKind::Send));
            }
        }
        requests.len()
    }

    pub fn post_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        self.receives.extend(requests);
        requests.len()
    }

    /// Receives messages that have arrived, as far as receives are posted for them.
    pub fn proceed(&mut self, arena: &ArenaMemory, completions: &mut VecDeque<Completion>) {
        self.looks = self.looks.wrapping_add(1);
        if self.unanswered == 0 && !self.looks.is_multiple_of(LOOK_EVERY) {
            return;
        }
        self.link.go_on();
        while !self.receives.is_empty()
            && let Some(message) = self.link.hear()
        {
            self.unanswered = self.unanswered.saturating_sub(1);
            let receive = self.receives.pop_front().expect("there is one");
            let LocalSpan { address, length, .. } = receive.local;
            // A node whose message is too long breaks the protocol. The client detects that, because the rest is
            // missing.
            let there = message.len().min(length as usize);
            arena.write(address, &message[..there]);
            let length = u32::try_from(there).expect("it fits a span");
            completions
                .push_back(completion(receive.id, CompletionKind::Receive { length, invalidated: None }));
        }
    }

    /// Makes the next [`proceed`](Self::proceed) check the link in any case.
    pub fn look(&mut self) {
        self.looks = LOOK_EVERY - 1;
    }

    pub fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    pub fn is_behind(&self) -> bool {
        self.link.is_behind()
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.descriptor()
    }
}

fn completion(request: u64, kind: CompletionKind) -> Completion {
    let queue_pair = super::UdpEndpoint::CONTROL;
    Completion { request, queue_pair, status: Status::Success, kind }
}
