//! A client's writes into its mailbox: scopes, and behind them the lines that name them.

use super::mailbox::ARGUMENTS_AT;
use super::permissions::Permissions;
use super::sealed::REQUEST_WORDS;
use crate::heap::Heap;
use portcullis::{Access, Error, Operation, Session};
use portcullis_memory::Memory;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// The most bytes that one operation writes.
const PIECE_BYTES: u32 = 256 << 10;

/// A write that has not begun.
#[derive(Clone, Copy, Debug)]
enum Write {
    /// Bytes of the heap, from an offset on.
    Arguments { offset: u64, length: u32 },
    /// A request, which must not be seen before all earlier writes are known to be complete.
    Request { at: u64, words: [u64; REQUEST_WORDS], has_scope: bool },
    /// The word that cancels a call.
    Cancel { at: u64, call: u64 },
}

/// Writes, which are begun in their order.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    waiting: VecDeque<Write>,
    under_way: Vec<Operation>,
}

impl Outgoing {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    /// Whether a write has not begun.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds bytes of the heap. They are read when their write begins, which is before the call can have ended.
    pub fn add_arguments(&mut self, offset: u64, length: u64) {
        for done in (0..length).step_by(PIECE_BYTES as usize) {
            let piece = u32::try_from(length - done).unwrap_or(u32::MAX).min(PIECE_BYTES);
            self.waiting.push_back(Write::Arguments { offset: offset + done, length: piece });
        }
    }

    pub fn add_request(&mut self, at: u64, words: [u64; REQUEST_WORDS], has_scope: bool) {
        self.waiting.push_back(Write::Request { at, words, has_scope });
    }

    pub fn add_cancel(&mut self, at: u64, call: u64) {
        self.waiting.push_back(Write::Cancel { at, call });
    }

    /// Begins the writes that can begin, and takes the outcomes of those that have ended.
    ///
    /// # Errors
    /// A write has failed. No request that names its bytes has begun.
    pub fn go_on(
        &mut self,
        session: &mut Session,
        permissions: &Permissions,
        heap: &Heap,
    ) -> Result<(), Error> {
        let mut failed = Ok(());
        self.under_way.retain(|&operation| match session.client().take(operation) {
            None => true,
            Some(outcome) => {
                failed = failed.and(outcome.result.map(|_| ()));
                false
            }
        });
        failed?;
        while let Some(&next) = self.waiting.front() {
            let waits = matches!(next, Write::Request { has_scope: true, .. });
            if waits && !self.under_way.is_empty() && !session.client().keeps_order() {
                return Ok(());
            }
            match begin(session, permissions, heap, next) {
                Ok(operation) => self.under_way.push(operation),
                // There will be room when others have ended.
                Err(Error::QueueFull { .. } | Error::ArenaFull { .. }) if session.client().pending() > 0 => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            self.waiting.pop_front();
        }
        Ok(())
    }
}

fn begin(
    session: &mut Session,
    permissions: &Permissions,
    heap: &Heap,
    write: Write,
) -> Result<Operation, Error> {
    let (at, length) = match write {
        Write::Arguments { offset, length } => (ARGUMENTS_AT + offset, length),
        Write::Request { at, .. } => (at, 8 * u32::try_from(REQUEST_WORDS).unwrap_or(0)),
        Write::Cancel { at, .. } => (at, 8),
    };
    let mut buffer = session.buffer(length)?;
    match write {
        Write::Arguments { offset, .. } => heap.memory().read(offset, &mut buffer.bytes_mut()),
        Write::Request { words, .. } => buffer.write(0, words.as_bytes()),
        Write::Cancel { call, .. } => buffer.write(0, call.as_bytes()),
    }
    let now = session.now();
    let write = Access::write(permissions.writing()?, at, buffer);
    session.client().access(now, write).map_err(Error::from)
}
