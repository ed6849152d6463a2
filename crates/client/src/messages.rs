//! The data path of mechanism `node-copy`: every access is messages, and the node's CPU checks and copies.

use crate::control::{Piece, Purpose};
use crate::data_path::Shape;
use crate::{Client, ClientConfig, Error};
use portcullis_nic::{Endpoint, Memory};
use portcullis_protocol::{DATA_BYTES_MAX, Moment, PermissionId, Refusal, ReplyBody, RequestBody};
use std::collections::VecDeque;

/// An operation whose messages are not all sent yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) operation: u64,
    pub(crate) permission: PermissionId,
    pub(crate) shape: Shape,
    /// Where in the permission's buffer.
    pub(crate) offset: u64,
    /// Bytes in all.
    pub(crate) length: u64,
    /// Bytes that messages have been sent for.
    pub(crate) sent: u64,
}

/// How far an operation is, by its slot.
#[derive(Clone, Copy, Debug)]
struct Progress {
    outstanding: u32,
    all_sent: bool,
    shape: Shape,
    result: Result<u64, Error>,
}

/// The operations that are messages.
pub(crate) struct Messages {
    waiting: VecDeque<Job>,
    progress: Vec<Progress>,
    /// Between the arena's buffers and its messages.
    bytes: Vec<u8>,
    config: ClientConfig,
}

fn slot_of(operation: u64) -> usize {
    (operation & 0xFFFF_FFFF) as usize
}

impl Messages {
    pub(crate) fn new(config: ClientConfig) -> Self {
        Self { waiting: VecDeque::new(), progress: Vec::new(), bytes: Vec::new(), config }
    }

    pub(crate) fn room(&self) -> usize {
        self.config.backlog_max.saturating_sub(self.waiting.len())
    }

    pub(crate) fn push(&mut self, job: Job) {
        if self.progress.is_empty() {
            let none = Progress { outstanding: 0, all_sent: true, shape: Shape::Read, result: Ok(0) };
            self.progress = vec![none; self.config.operations_max as usize];
            self.bytes = vec![0; DATA_BYTES_MAX];
        }
        self.progress[slot_of(job.operation)] =
            Progress { outstanding: 0, all_sent: false, shape: job.shape, result: Ok(job.length) };
        self.waiting.push_back(job);
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

impl<E: Endpoint> Client<E> {
    /// The most bytes of a piece; zero where this session has no room for data in its messages.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.control.data_bytes().min(DATA_BYTES_MAX as u64)
    }

    /// Sends as many pieces of waiting operations as there is room for, in order.
    pub(crate) fn send_pieces(&mut self) {
        while let Some(&job) = self.messages.waiting.front() {
            let slot = slot_of(job.operation);
            // A refused operation is not carried on with.
            if self.messages.progress[slot].result.is_ok() {
                if !self.control.has_room(false) || !self.send_piece(&job) {
                    return;
                }
                let sent = (job.sent + self.piece_bytes()).min(job.length);
                self.messages.progress[slot].outstanding += 1;
                if sent < job.length {
                    if let Some(front) = self.messages.waiting.front_mut() {
                        front.sent = sent;
                    }
                    continue;
                }
            }
            self.messages.waiting.pop_front();
            self.messages.progress[slot].all_sent = true;
            self.end_if_over(job.operation);
        }
    }

    fn send_piece(&mut self, job: &Job) -> bool {
        let Job { permission, operation, .. } = *job;
        let offset = job.offset + job.sent;
        let length = self.piece_bytes().min(job.length - job.sent);
        let mut piece = Piece { operation, offset: job.sent, length: 0 };
        let mut data = 0;
        let body = match job.shape {
            Shape::Read => {
                piece.length = length;
                RequestBody::Read { permission, offset, length }
            }
            Shape::Write => {
                data = usize::try_from(length).unwrap_or(0);
                let from = self.operations.buffer_at(operation).unwrap_or(0) + job.sent;
                self.endpoint.arena().read(from, &mut self.messages.bytes[..data]);
                RequestBody::Write { permission, offset, length }
            }
            Shape::CompareAndSwap { compare, swap } => {
                RequestBody::CompareAndSwap { permission, offset, compare, swap }
            }
            Shape::FetchAndAdd { add } => RequestBody::FetchAndAdd { permission, offset, add },
        };
        let data = &self.messages.bytes[..data];
        self.control.ask(&mut self.endpoint, body, data, Purpose::Piece(piece))
    }

    pub(crate) fn piece_answered(
        &mut self,
        now: Moment,
        piece: Piece,
        body: ReplyBody,
        (at, came): (u64, u64),
    ) {
        let slot = slot_of(piece.operation);
        let shape = self.messages.progress[slot].shape;
        let result = match (shape, body) {
            (Shape::Read, ReplyBody::Data(length)) if length == piece.length && came >= length => {
                self.copy_in(piece, at);
                None
            }
            (Shape::Write, ReplyBody::Done) => None,
            (Shape::CompareAndSwap { .. } | Shape::FetchAndAdd { .. }, ReplyBody::Value(value)) => {
                Some(Ok(value))
            }
            (_, ReplyBody::Refused(Refusal::NotLive)) => {
                Some(Err(self.operations.refused(piece.operation, now)))
            }
            (_, ReplyBody::Refused(refusal)) => Some(Err(refusal.into())),
            // An answer to another question.
            _ => Some(Err(Error::SessionLost)),
        };
        let progress = &mut self.messages.progress[slot];
        progress.outstanding -= 1;
        if let Some(result) = result
            && progress.result.is_ok()
        {
            progress.result = result;
        }
        self.end_if_over(piece.operation);
    }

    fn copy_in(&mut self, piece: Piece, at: u64) {
        let Some(buffer) = self.operations.buffer_at(piece.operation) else { return };
        let length = usize::try_from(piece.length).unwrap_or(0).min(DATA_BYTES_MAX);
        let bytes = &mut self.messages.bytes[..length];
        self.endpoint.arena().read(at, bytes);
        self.endpoint.arena().write(buffer + piece.offset, bytes);
    }

    fn end_if_over(&mut self, operation: u64) {
        let progress = self.messages.progress[slot_of(operation)];
        if progress.all_sent && progress.outstanding == 0 {
            self.operations.finish(operation, progress.result);
        }
    }
}
