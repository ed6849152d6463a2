//! The carrier of mechanism `node-copy`: every access is sent as messages, and the node's CPU checks and copies.

use crate::access::{Action, AddressedAccess};
use crate::carrier::{Carrier, LINKS_NOTHING, Link, Outgoing, Posting};
use crate::control::{Piece, Purpose};
use crate::{ClientConfig, Error};
use portcullis_nic::{Memory, Status, VerbsEndpoint};
use portcullis_protocol::{
    CopyRequest, DATA_BYTES_MAX, Moment, PermissionId, Refusal, ReplyBody, RequestBody,
};
use std::collections::VecDeque;

/// An access whose messages are not all sent yet.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    operation: u64,
    permission: PermissionId,
    action: Action,
    /// Offset of the first byte in the permission, and number of bytes.
    offset: u64,
    length: u64,
    /// Number of bytes for which messages have been sent.
    sent: u64,
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Offset of the operation's bytes in the arena.
    local: u64,
    outstanding: u32,
    all_sent: bool,
    action: Action,
    result: Result<u64, Error>,
}

/// The operations that travel as messages.
pub(crate) struct Messages {
    waiting: VecDeque<Transfer>,
    /// Transfers of a batch that is being collected.
    staged: Vec<Transfer>,
    progress: Vec<Progress>,
    /// Intermediate buffer for copies between the arena's buffers and its messages.
    bytes: Vec<u8>,
    config: ClientConfig,
}

fn slot_of(operation: u64) -> usize {
    (operation & 0xFFFF_FFFF) as usize
}

/// The most bytes of a piece; zero if the client's messages have no room for data.
fn piece_bytes<E: VerbsEndpoint>(link: &Link<E>) -> u64 {
    link.control.data_bytes().min(DATA_BYTES_MAX as u64)
}

impl<E: VerbsEndpoint> Carrier<E> for Messages {
    fn take_in(&mut self, link: &mut Link<E>, begun: Outgoing<'_>, posting: Posting) -> Result<(), Error> {
        let Outgoing { operation, local, access } = begun;
        let Some(permission) = access.permission else {
            // Messages name the permission, and an unchecked access has none.
            return Err(Error::LocalFault(Status::LocalProtectionError));
        };
        if !access.action.is_atomic() && piece_bytes(link) == 0 {
            return Err(Error::LocalFault(Status::LocalLengthError));
        }
        let Some(is_staged) = posting.is_staged() else { return Err(LINKS_NOTHING) };
        let begun = if is_staged { self.staged.len() } else { 0 };
        if self.waiting.len() + begun >= self.config.backlog_max {
            return Err(self.config.backlog_full());
        }
        self.make_room();
        self.progress[slot_of(operation)] = Progress {
            local: local.address,
            outstanding: 0,
            all_sent: false,
            action: access.action,
            result: Ok(access.length),
        };
        let AddressedAccess { action, offset, length, .. } = *access;
        let transfer = Transfer { operation, permission, action, offset, length, sent: 0 };
        if is_staged {
            self.staged.push(transfer);
        } else {
            self.waiting.push_back(transfer);
            self.send_pieces(link);
        }
        Ok(())
    }

    fn send_staged(&mut self, link: &mut Link<E>) {
        self.waiting.extend(self.staged.drain(..));
        self.send_pieces(link);
    }

    fn cancel_staged(&mut self, link: &mut Link<E>) {
        for transfer in self.staged.drain(..) {
            link.operations.cancel(transfer.operation);
        }
    }

    fn is_backed_up(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn pump(&mut self, link: &mut Link<E>, _: Moment) {
        self.send_pieces(link);
    }

    fn clear(&mut self) {
        self.staged.clear();
        self.waiting.clear();
    }
}

impl Messages {
    pub(crate) fn new(config: ClientConfig) -> Self {
        let (waiting, staged) = (VecDeque::new(), Vec::new());
        Self { waiting, staged, progress: Vec::new(), bytes: Vec::new(), config }
    }

    /// Allocates the tables at first use: most clients need none.
    fn make_room(&mut self) {
        if self.progress.is_empty() {
            let none =
                Progress { local: 0, outstanding: 0, all_sent: true, action: Action::Read, result: Ok(0) };
            self.progress = vec![none; self.config.operations_max as usize];
            self.bytes = vec![0; DATA_BYTES_MAX];
        }
    }

    /// Sends as many pieces of waiting operations as there is room for, in order.
    fn send_pieces<E: VerbsEndpoint>(&mut self, link: &mut Link<E>) {
        while let Some(&transfer) = self.waiting.front() {
            let slot = slot_of(transfer.operation);
            // A refused operation sends no further pieces.
            if self.progress[slot].result.is_ok() {
                if !link.control.has_room(false) || !self.send_piece(link, &transfer) {
                    return;
                }
                let Transfer { action, length, .. } = transfer;
                // An atomic is one message, however little data messages carry: a second would change the word again.
                let piece = if action.is_atomic() { length } else { piece_bytes(link) };
                let sent = (transfer.sent + piece).min(length);
                self.progress[slot].outstanding += 1;
                if sent < length {
                    if let Some(front) = self.waiting.front_mut() {
                        front.sent = sent;
                    }
                    continue;
                }
            }
            self.waiting.pop_front();
            self.progress[slot].all_sent = true;
            self.end_if_over(link, transfer.operation);
        }
    }

    fn send_piece<E: VerbsEndpoint>(&mut self, link: &mut Link<E>, transfer: &Transfer) -> bool {
        let Transfer { operation, permission, action, sent, .. } = *transfer;
        let offset = transfer.offset + sent;
        let length = piece_bytes(link).min(transfer.length - sent);
        let mut piece = Piece { operation, offset: sent, length: 0 };
        let mut data = 0;
        let body = match action {
            Action::Read => {
                piece.length = length;
                RequestBody::Copy(CopyRequest::Read { permission, offset, length })
            }
            Action::Write => {
                data = usize::try_from(length).unwrap_or(0);
                let from = self.progress[slot_of(operation)].local + sent;
                link.endpoint.arena().read(from, &mut self.bytes[..data]);
                RequestBody::Copy(CopyRequest::Write { permission, offset, length })
            }
            Action::CompareAndSwap { compare, swap } => {
                RequestBody::Copy(CopyRequest::CompareAndSwap { permission, offset, compare, swap })
            }
            Action::FetchAndAdd { add } => {
                RequestBody::Copy(CopyRequest::FetchAndAdd { permission, offset, add })
            }
        };
        link.control.ask(&mut link.endpoint, body, &self.bytes[..data], Purpose::Piece(piece))
    }

    pub(crate) fn piece_answered<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        now: Moment,
        piece: Piece,
        body: ReplyBody,
        (at, came): (u64, u64),
    ) {
        let slot = slot_of(piece.operation);
        let action = self.progress[slot].action;
        let result = match (action, body) {
            (Action::Read, ReplyBody::Data(length)) if length == piece.length && came >= length => {
                self.copy_in(link, piece, at);
                None
            }
            (Action::Write, ReplyBody::Done) => None,
            (Action::CompareAndSwap { .. } | Action::FetchAndAdd { .. }, ReplyBody::Value(value)) => {
                Some(Ok(value))
            }
            (_, ReplyBody::Refused(Refusal::NotLive)) => {
                Some(Err(link.operations.refused(piece.operation, now)))
            }
            (_, ReplyBody::Refused(refusal)) => Some(Err(refusal.into())),
            // The answer does not fit the request.
            _ => Some(Err(Error::SessionLost)),
        };
        let progress = &mut self.progress[slot];
        progress.outstanding -= 1;
        if let Some(result) = result
            && progress.result.is_ok()
        {
            progress.result = result;
        }
        self.end_if_over(link, piece.operation);
    }

    fn copy_in<E: VerbsEndpoint>(&mut self, link: &Link<E>, piece: Piece, at: u64) {
        let to = self.progress[slot_of(piece.operation)].local + piece.offset;
        let length = usize::try_from(piece.length).unwrap_or(0).min(DATA_BYTES_MAX);
        let bytes = &mut self.bytes[..length];
        link.endpoint.arena().read(at, bytes);
        link.endpoint.arena().write(to, bytes);
    }

    fn end_if_over<E: VerbsEndpoint>(&mut self, link: &mut Link<E>, operation: u64) {
        let progress = self.progress[slot_of(operation)];
        if progress.all_sent && progress.outstanding == 0 {
            link.operations.finish(operation, progress.result);
        }
    }
}
