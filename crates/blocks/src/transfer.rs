//! The bytes of blocks on their way, in pieces.

use portcullis::{BarePermission, Buffer, Clock, Error, VerbsEndpoint};
use portcullis_structures::{Awaited, Pipeline};
use std::collections::VecDeque;
use std::rc::Rc;

/// Largest number of bytes of one access: the copy of a piece goes through a processor's cache.
const PIECE_BYTES: usize = 256 << 10;

/// Number of bytes that are on their way at a time, if no single piece is longer. The client copies one piece while the
/// NIC copies the next.
const WINDOW_BYTES: usize = 1 << 20;

/// The least bytes of a piece that is posted by itself: its copy takes longer than a doorbell.
const LONG_BYTES: usize = 32 << 10;

/// Number of pieces that are on their way at a time.
const WINDOW_PIECES: usize = 64;

/// Returns the pieces of blocks with these lengths: number of the block, offset and length.
fn pieces(lengths: impl Iterator<Item = usize>) -> impl Iterator<Item = (usize, usize, usize)> {
    lengths.enumerate().flat_map(|(number, length)| {
        (0..length).step_by(PIECE_BYTES).map(move |at| (number, at, PIECE_BYTES.min(length - at)))
    })
}

/// The pieces that are on their way, in their order.
struct Window<A> {
    under_way: VecDeque<(usize, usize, usize, A)>,
    bytes: usize,
}

impl<A> Window<A> {
    fn new() -> Self {
        Self { under_way: VecDeque::new(), bytes: 0 }
    }

    fn has_room(&self, length: usize) -> bool {
        let (pieces, bytes) = (self.under_way.len(), self.bytes + length);
        pieces == 0 || pieces < WINDOW_PIECES && bytes <= WINDOW_BYTES
    }

    fn push(&mut self, piece: (usize, usize, usize), access: A) {
        let (number, at, length) = piece;
        self.bytes += length;
        self.under_way.push_back((number, at, length, access));
    }

    fn pop(&mut self) -> Option<(usize, usize, A)> {
        let (number, at, length, access) = self.under_way.pop_front()?;
        self.bytes -= length;
        Some((number, at, access))
    }
}

/// Posts a piece that is long, so that the NIC copies it while the client copies the next.
fn post_if_long<E: VerbsEndpoint, C: Clock>(pipeline: &Pipeline<E, C>, length: usize) {
    if length >= LONG_BYTES {
        pipeline.post();
    }
}

/// Writes blocks under their permissions, each from its first byte on. Returns the result for each.
pub(crate) async fn write<E: VerbsEndpoint, C: Clock>(
    pipeline: &Pipeline<E, C>,
    blocks: &[(&Rc<BarePermission>, &[u8])],
) -> Vec<Result<(), Error>> {
    let mut results = vec![Ok(()); blocks.len()];
    let mut window: Window<Awaited<'_, E, C, ()>> = Window::new();
    let mut pieces = pieces(blocks.iter().map(|(_, bytes)| bytes.len())).peekable();
    loop {
        let next = pieces.next_if(|(_, _, length)| window.has_room(*length));
        if let Some((number, at, length)) = next {
            if results[number].is_ok() {
                let (permission, bytes) = blocks[number];
                let access = pipeline.write(permission, at as u64, &bytes[at..at + length]);
                window.push((number, at, length), access);
                post_if_long(pipeline, length);
            }
            continue;
        }
        let Some((number, _, access)) = window.pop() else { return results };
        let done = access.await;
        pipeline.note_step();
        results[number] = results[number].and(done);
    }
}

/// Reads blocks under their permissions, each from its first byte on and for its whole buffer. Returns the result for
/// each. A buffer whose result is an error has any bytes.
pub(crate) async fn read<E: VerbsEndpoint, C: Clock>(
    pipeline: &Pipeline<E, C>,
    blocks: &mut [(&Rc<BarePermission>, &mut [u8])],
) -> Vec<Result<(), Error>> {
    let mut results = vec![Ok(()); blocks.len()];
    let mut window: Window<Awaited<'_, E, C, Buffer<E::Memory>>> = Window::new();
    let lengths: Vec<_> = blocks.iter().map(|(_, bytes)| bytes.len()).collect();
    let mut pieces = pieces(lengths.into_iter()).peekable();
    loop {
        let next = pieces.next_if(|(_, _, length)| window.has_room(*length));
        if let Some((number, at, length)) = next {
            if results[number].is_ok() {
                let bytes = u32::try_from(length).expect("a piece is short");
                let access = pipeline.read(blocks[number].0, at as u64, bytes);
                window.push((number, at, length), access);
                post_if_long(pipeline, length);
            }
            continue;
        }
        let Some((number, at, access)) = window.pop() else { return results };
        let done = access.await;
        pipeline.note_step();
        let copied = done.map(|buffer| {
            let length = buffer.len() as usize;
            buffer.read(0, &mut blocks[number].1[at..at + length]);
        });
        results[number] = results[number].and(copied);
    }
}
