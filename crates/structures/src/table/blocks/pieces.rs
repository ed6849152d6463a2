//! Values in several blocks.
//!
//! A value that is too long for one block has pieces, and a first block that has their names. The pieces are claimed
//! and written before the first block is written, and only the first block gets into a slot. So a reader finds all of a
//! value or nothing of it.
//!
//! While a value is written, its client renews the claim of the first block repeatedly. A sweep spares the pieces of a
//! first block that is in a slot, or whose claim is renewed. No client renews the claims that a dead client leaves, so
//! a sweep frees those blocks.

use super::Blocks;
use super::block;
use super::chunks::Chunks;
use super::claimed::Claimed;
use super::sizes::{SizeClass, WHOLE_BYTES_MAX, piece_bytes};
use crate::pipeline::join;
use crate::table::TableError;
use crate::table::leases::Leased;
use crate::table::shape::LONG_VALUE_BYTES_MAX;
use crate::table::words::{Claim, Slot};
use portcullis::{Acquire, Clock, Error, Lifetime, VerbsEndpoint};
use std::rc::Rc;

/// Number of pieces that are written or read at a time: they are in the arena together.
const PIECES_AT_ONCE: usize = 8;

/// The part of a value that is in the block of its key.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(in crate::table) struct Value {
    /// The names of the pieces that come before `rest`.
    pub pieces: Vec<Slot>,
    pub rest: Vec<u8>,
    /// Number of times that the claim of the key's block was renewed.
    pub renewals: u8,
}

impl Value {
    pub fn of(content: &block::Content<'_>) -> Self {
        let pieces = if content.pieces.is_empty() { Vec::new() } else { content.piece_names().collect() };
        Self { pieces, rest: content.value.to_vec(), renewals: content.renewals }
    }
}

/// The layout of a value over blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    pieces: usize,
    /// Number of bytes of the value in each piece.
    bytes_of_each: usize,
}

impl Layout {
    /// Computes the layout. `longest`: the most bytes of a block.
    fn new(key_bytes: usize, value_bytes: usize, longest: u64) -> Self {
        let whole = Self { pieces: 0, bytes_of_each: 0 };
        let piece = piece_bytes(value_bytes).min(longest);
        let bytes_of_each = usize::try_from(piece).unwrap_or(0).saturating_sub(block::HEADER_BYTES);
        if block::bytes_of(key_bytes, 0, value_bytes) <= WHOLE_BYTES_MAX.min(longest) || bytes_of_each == 0 {
            return whole;
        }
        Self { pieces: value_bytes / bytes_of_each, bytes_of_each }
    }

    fn bytes_in_pieces(&self) -> usize {
        self.pieces * self.bytes_of_each
    }

    /// Returns the number of bytes of the block that a slot names.
    fn first_bytes(&self, key_bytes: usize, value_bytes: usize) -> u64 {
        block::bytes_of(key_bytes, self.pieces, value_bytes - self.bytes_in_pieces())
    }
}

/// Returns the number of bytes of the largest block that a key and its value take. The memory of a removed key is used
/// first for others of as many bytes.
#[must_use]
pub fn block_bytes(key_bytes: usize, value_bytes: usize) -> u64 {
    let layout = Layout::new(key_bytes, value_bytes, u64::MAX);
    let first = SizeClass::of(layout.first_bytes(key_bytes, value_bytes)).bytes();
    if layout.pieces == 0 { first } else { first.max(piece_bytes(value_bytes)) }
}

/// Returns the number of bytes of all blocks that a key and its value take.
#[must_use]
pub fn stored_bytes(key_bytes: usize, value_bytes: usize) -> u64 {
    let layout = Layout::new(key_bytes, value_bytes.min(LONG_VALUE_BYTES_MAX), u64::MAX);
    let first = SizeClass::of(layout.first_bytes(key_bytes, value_bytes.min(LONG_VALUE_BYTES_MAX))).bytes();
    first + layout.pieces as u64 * piece_bytes(value_bytes)
}

impl<E: VerbsEndpoint, C: Clock> Blocks<E, C> {
    /// Claims blocks for a key and its value, and writes them.
    ///
    /// # Errors
    /// [`Error::Expired`]: this client was so slow that a sweep has freed the blocks, and has given their extent back.
    pub async fn write_new(&self, content: &block::Content<'_>) -> Result<Claimed, TableError> {
        match self.try_write_new(content).await {
            Err(error) if error.is_gone() => Err(Error::Expired.into()),
            written => written,
        }
    }

    /// Takes a claimed block for a content without a request, and encodes the content for it. `None`: the handle has no
    /// such block, or the content lies in several.
    pub fn encode_new(&self, content: &block::Content<'_>) -> Option<(Claimed, Vec<u8>)> {
        let layout = Layout::new(content.key.len(), content.value.len(), u64::MAX);
        if layout.pieces > 0 {
            return None;
        }
        let claimed = self.take_usable(layout.first_bytes(content.key.len(), content.value.len()))?;
        let bytes = block::encode(content, claimed.version, claimed.block_id);
        Some((claimed, bytes))
    }

    async fn try_write_new(&self, content: &block::Content<'_>) -> Result<Claimed, TableError> {
        let longest = self.chunks.as_ref().map_or(u64::MAX, Chunks::longest);
        let layout = Layout::new(content.key.len(), content.value.len(), longest);
        let mut first = self.claim(layout.first_bytes(content.key.len(), content.value.len())).await?;
        if let Err(error) = self.write_all(content, layout, &mut first).await {
            // If this fails as well, a sweep finds the blocks.
            let _ = self.give_back(first).await;
            return Err(error);
        }
        Ok(first)
    }

    async fn write_all(
        &self,
        content: &block::Content<'_>,
        layout: Layout,
        first: &mut Claimed,
    ) -> Result<(), TableError> {
        let (in_pieces, rest) = content.value.split_at(layout.bytes_in_pieces());
        let pieces: Vec<_> = in_pieces.chunks(layout.bytes_of_each.max(1)).collect();
        let name = first.slot(0);
        for some in pieces.chunks(PIECES_AT_ONCE) {
            self.pipeline.note_step();
            self.renew(first).await?;
            let mut failed = None;
            for written in join(some.iter().map(|bytes| self.write_piece(bytes, name))).await {
                match written {
                    Ok(piece) => first.pieces.push(piece),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        if first.renewals > 0 {
            self.write_again(first).await?;
        }
        let pieces = block::list_of_pieces(content.value.len(), &first.pieces);
        let content = block::Content { value: rest, pieces: &pieces, renewals: first.renewals, ..*content };
        let bytes = block::encode(&content, first.version, first.block_id);
        Ok(self.pipeline.write(&first.permission, first.at, &bytes).await?)
    }

    async fn write_piece(&self, bytes: &[u8], first: Slot) -> Result<Slot, TableError> {
        let claimed = self.claim(block::bytes_of(0, 0, bytes.len())).await?;
        let name = claimed.slot(0);
        let block = block::encode_piece(bytes, first, claimed.version, claimed.block_id);
        match self.pipeline.write(&claimed.permission, claimed.at, &block).await {
            Ok(()) => {
                self.end_writing(claimed);
                Ok(name)
            }
            Err(error) => {
                let _ = self.give_back(claimed).await;
                Err(error.into())
            }
        }
    }

    /// Renews the claim of a first block whose client has been writing for a while.
    ///
    /// # Errors
    /// [`Error::Expired`]: a sweep has freed the block.
    async fn renew(&self, first: &mut Claimed) -> Result<(), TableError> {
        let now = self.pipeline.now();
        if now.after(Lifetime(self.options.lease.0 / 2)) < first.until {
            return Ok(());
        }
        if self.chunks.is_none() {
            let (old, renewals) = (first.claim(), first.renewals.wrapping_add(1));
            let new = Claim::renewed(first.version, renewals);
            let at = u64::from(first.block_id.block) * 8;
            let before = self.extents.claims_of(first.block_id.extent).swap(at, old.0, new.0).await?;
            if before != old.0 {
                return Err(Error::Expired.into());
            }
            first.renewals = renewals;
        }
        first.until = self.options.claimed_until(now);
        Ok(())
    }

    /// Acquires a permission to write a first block whose claim was renewed: the one that came with the claim ends too
    /// soon.
    async fn write_again(&self, first: &mut Claimed) -> Result<(), TableError> {
        let (object, shape) = self.extents.find(first.block_id.extent).await?;
        let ask = self.extents.ask_to_write(object, &shape, first.block_id);
        // If a block may have only one holder, the holder is this client, until its permission ends.
        let ask = Acquire { wait: Lifetime(self.options.lease.0 * 2), ..ask };
        let permission = Rc::new(self.pipeline.acquire(ask).await?);
        self.extents.end_writing(std::mem::replace(&mut first.permission, permission));
        self.renew(first).await
    }

    /// Frees the pieces of a value to which no slot leads any more. Does not wait for the result.
    pub async fn free_pieces(&self, pieces: &[Slot]) -> Result<(), TableError> {
        for piece in pieces {
            self.pipeline.note_step();
            self.leases.let_go_of_block(piece.block_id());
            self.free(piece.block_id(), Claim::of(piece.version())).await?;
        }
        Ok(())
    }

    /// Reads all bytes of a value whose first block has this name. `None`: a piece's block was used again, so the slot
    /// that leads to the value must have changed since.
    pub async fn whole(&self, value: &Value, first: Slot) -> Result<Option<Vec<u8>>, TableError> {
        if value.pieces.is_empty() {
            return Ok(Some(value.rest.clone()));
        }
        let mut bytes = Vec::new();
        for some in value.pieces.chunks(PIECES_AT_ONCE) {
            // A failed attempt is repeated only if another client has written another whole value.
            self.pipeline.note_step();
            let read = join(some.iter().map(|piece| self.read_piece(*piece, first))).await;
            for (name, piece) in some.iter().zip(read) {
                match piece? {
                    Some(piece) => bytes.extend_from_slice(&piece),
                    None => {
                        self.look_anew(name.block_id()).await?;
                        return Ok(None);
                    }
                }
            }
        }
        bytes.extend_from_slice(&value.rest);
        Ok(Some(bytes))
    }

    /// Reads the bytes of a piece. `None`: its block was used again.
    async fn read_piece(&self, name: Slot, first: Slot) -> Result<Option<Vec<u8>>, TableError> {
        loop {
            match self.read_block(name).await {
                Ok(None) => return Ok(None),
                Ok(Some(block)) => {
                    return Ok(self.pipeline.look(block, |bytes| {
                        block::decode_piece(bytes, name, first.name()).map(<[u8]>::to_vec)
                    }));
                }
                Err(error) => self.leases.mend(error).await?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::shape::KEY_BYTES_MAX;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_of_any_length_lies_in_blocks_that_waste_an_eighth_at_most(
            key in 0..=250usize, power in 10u32..27, per_mille in 0usize..1000,
        ) {
            let value = (1 << power) + (1 << power) * per_mille / 1000;
            let value = value.min(LONG_VALUE_BYTES_MAX);
            let taken = stored_bytes(key, value);
            let needed = (key + value + block::HEADER_BYTES) as u64;
            prop_assert!(taken >= needed && taken <= needed + needed / 7 + 8, "{taken} for {needed}");
            prop_assert!(block_bytes(key, value) <= taken);
        }

        #[test]
        fn the_pieces_and_the_rest_are_the_value(
            key in 0..=KEY_BYTES_MAX, value in 0..=LONG_VALUE_BYTES_MAX, longest in prop::sample::select(vec![4096, 65_536, u64::MAX]),
        ) {
            let layout = Layout::new(key, value, longest);
            prop_assert!(layout.bytes_in_pieces() <= value);
            let rest = value - layout.bytes_in_pieces();
            prop_assert!(layout.pieces == 0 || rest < layout.bytes_of_each);
            prop_assert!(block::bytes_of(0, 0, layout.bytes_of_each) <= longest);
        }
    }
}
