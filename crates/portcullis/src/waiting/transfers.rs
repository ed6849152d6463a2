//! Accesses that wait: transfers with a copy, in place, and scattered over several parts; and atomics.

use super::WaitingClient;
use crate::Clock;
use portcullis_client::{Access, Buffer, Error, Operation, Outcome, Permission};
use portcullis_nic::{Memory, VerbsEndpoint};
use portcullis_protocol::Rights;
use std::collections::VecDeque;

/// The most bytes that one operation of [`WaitingClient::read`] and [`WaitingClient::write`] moves.
const PIECE_BYTES: usize = 256 << 10;
/// The most pieces of one call that are under way at once.
const PIECES_MAX: usize = 4;

impl<E: VerbsEndpoint, C: Clock> WaitingClient<E, C> {
    /// Reads bytes of the permission's memory into `into`, starting at `offset`.
    ///
    /// # Errors
    /// The permission does not cover these bytes: nothing was read. The permission has ended, or the node is gone:
    /// parts of `into` may have been overwritten.
    pub fn read(&mut self, permission: &Permission, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        permission.check_span(offset, into.len() as u64, Rights::READ)?;
        self.in_pieces(
            offset,
            into.chunks_mut(PIECE_BYTES),
            |client, at, piece| {
                let buffer = client.buffer(length_of(piece.len()))?;
                client.begin(Access::read(permission, at, buffer)).map_err(|refused| refused.error)
            },
            |buffer, piece| buffer.read(0, piece),
        )
    }

    /// Writes `bytes` to the permission's memory, starting at `offset`.
    ///
    /// # Errors
    /// The permission does not cover these bytes: nothing was written. The permission has ended, or the node is gone:
    /// parts of `bytes` may have been written.
    pub fn write(&mut self, permission: &Permission, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        permission.check_span(offset, bytes.len() as u64, Rights::WRITE)?;
        self.in_pieces(
            offset,
            bytes.chunks(PIECE_BYTES),
            |client, at, piece| {
                let mut buffer = client.buffer(length_of(piece.len()))?;
                buffer.write(0, piece);
                client.begin(Access::write(permission, at, buffer)).map_err(|refused| refused.error)
            },
            |_, _| (),
        )
    }

    /// Moves pieces of [`PIECE_BYTES`] in order, several at a time. When this returns, no piece is under way.
    fn in_pieces<P>(
        &mut self,
        offset: u64,
        pieces: impl Iterator<Item = P>,
        begin: impl Fn(&mut Self, u64, &P) -> Result<Operation, Error>,
        land: impl Fn(&Buffer<E::Memory>, P),
    ) -> Result<(), Error> {
        let mut under_way = VecDeque::new();
        let mut failed = None;
        for (piece, at) in pieces.zip((offset..).step_by(PIECE_BYTES)) {
            if under_way.len() == PIECES_MAX
                && let Some((operation, piece)) = under_way.pop_front()
            {
                failed = self.finish_piece(operation, piece, &land).err();
            }
            if failed.is_none() {
                match begin(self, at, &piece) {
                    Ok(operation) => under_way.push_back((operation, piece)),
                    Err(error) => failed = Some(error),
                }
            }
            if failed.is_some() {
                break;
            }
        }
        for (operation, piece) in under_way {
            failed = self.finish_piece(operation, piece, &land).err().or(failed);
        }
        failed.map_or(Ok(()), Err)
    }

    fn finish_piece<P>(
        &mut self,
        operation: Operation,
        piece: P,
        land: impl Fn(&Buffer<E::Memory>, P),
    ) -> Result<(), Error> {
        let outcome = self.wait(operation)?;
        outcome.result?;
        if let Some(buffer) = outcome.buffer {
            land(&buffer, piece);
        }
        Ok(())
    }

    /// Reads as many bytes as `buffer` has, starting at `offset`, without a copy. The caller reads them in place with
    /// [`Buffer::bytes`].
    ///
    /// # Errors
    /// As [`WaitingClient::read`]. The buffer goes back to the arena.
    pub fn read_buffer(
        &mut self,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Buffer<E::Memory>, Error> {
        buffer_of(self.complete(Access::read(permission, offset, buffer)))
    }

    /// Writes the bytes of `buffer`, starting at `offset`, without a copy. The caller fills the buffer in place with
    /// [`Buffer::bytes_mut`] before. Returns the buffer.
    ///
    /// # Errors
    /// As [`WaitingClient::write`]. The buffer goes back to the arena.
    pub fn write_buffer(
        &mut self,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Buffer<E::Memory>, Error> {
        buffer_of(self.complete(Access::write(permission, offset, buffer)))
    }

    /// Makes one access, and returns its buffer even if it fails. The outcome has no buffer only if the access needs
    /// none, the session was lost, or the access was given up: the NIC may still read or write the buffer.
    pub fn complete<P: AsRef<Permission>>(&mut self, access: Access<P, E::Memory>) -> Outcome<E::Memory> {
        match self.begin(access).map(|operation| self.wait(operation)) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Outcome { buffer: None, result: Err(error) },
            Err(refused) => Outcome { buffer: refused.ask.into_buffer(), result: Err(refused.error) },
        }
    }

    /// Writes `swap` to the 8-byte word at `offset` if the word equals `compare`. Returns the word's previous value.
    ///
    /// # Errors
    /// As [`WaitingClient::read`]. The word is unchanged then.
    pub fn compare_and_swap(
        &mut self,
        permission: &Permission,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Error> {
        self.complete(Access::compare_and_swap(permission, offset, compare, swap)).result
    }

    /// Adds `add` to the 8-byte word at `offset`, wrapping. Returns the word's previous value.
    ///
    /// # Errors
    /// As [`WaitingClient::compare_and_swap`].
    pub fn fetch_and_add(&mut self, permission: &Permission, offset: u64, add: u64) -> Result<u64, Error> {
        self.complete(Access::fetch_and_add(permission, offset, add)).result
    }

    /// Reads bytes, starting at `offset`, into the parts of `into` in order (scatter). Parts that fit into one transfer
    /// share it.
    ///
    /// # Errors
    /// As [`WaitingClient::read`].
    pub fn read_vectored(
        &mut self,
        permission: &Permission,
        offset: u64,
        into: &mut [std::io::IoSliceMut<'_>],
    ) -> Result<(), Error> {
        let mut at = offset;
        for run in runs(into, |part| part.len()) {
            let length: usize = into[run.clone()].iter().map(|part| part.len()).sum();
            match &mut into[run] {
                [alone] => self.read(permission, at, alone)?,
                parts => {
                    let buffer = self.buffer(length_of(length))?;
                    let buffer = self.read_buffer(permission, at, buffer)?;
                    let mut from = 0;
                    for part in parts {
                        buffer.read(from, part);
                        from += length_of(part.len());
                    }
                }
            }
            at = at.saturating_add(length as u64);
        }
        Ok(())
    }

    /// Writes the parts of `from` in order, starting at `offset` (gather). Parts that fit into one transfer share it.
    ///
    /// # Errors
    /// As [`WaitingClient::write`].
    pub fn write_vectored(
        &mut self,
        permission: &Permission,
        offset: u64,
        from: &[std::io::IoSlice<'_>],
    ) -> Result<(), Error> {
        let mut at = offset;
        for run in runs(from, |part| part.len()) {
            let length: usize = from[run.clone()].iter().map(|part| part.len()).sum();
            match &from[run] {
                [alone] => self.write(permission, at, alone)?,
                parts => {
                    let mut buffer = self.buffer(length_of(length))?;
                    let mut to = 0;
                    for part in parts {
                        buffer.write(to, part);
                        to += length_of(part.len());
                    }
                    self.write_buffer(permission, at, buffer)?;
                }
            }
            at = at.saturating_add(length as u64);
        }
        Ok(())
    }
}

fn buffer_of<M: Memory>(outcome: Outcome<M>) -> Result<Buffer<M>, Error> {
    outcome.result?;
    outcome.buffer.ok_or(Error::SessionLost)
}

/// Converts a length to the type that buffers use. A length that is too long becomes `u32::MAX`, and no arena has a
/// buffer of that length.
fn length_of(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Groups the parts of a list into transfers: as many parts as fit into one transfer, or one part that does not fit.
fn runs<T>(parts: &[T], length: impl Fn(&T) -> usize) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, part) in parts.iter().enumerate() {
        let more = length(part);
        match runs.last_mut() {
            Some(run) if bytes + more <= PIECE_BYTES => {
                run.end = index + 1;
                bytes += more;
            }
            _ => {
                runs.push(index..index + 1);
                bytes = more;
            }
        }
    }
    runs
}
