//! The content of a block: each word is computed from the block's number and the word's index.

const WORD: usize = 8;

/// The word at `index` of the block with this number.
fn word(number: u64, index: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index)
}

/// Fills a block.
pub fn fill(number: u64, bytes: &mut [u8]) {
    for (index, chunk) in (0..).zip(bytes.chunks_exact_mut(WORD)) {
        chunk.copy_from_slice(&word(number, index).to_le_bytes());
    }
}

/// Returns whether all bytes belong to the block with this number.
pub fn is(number: u64, bytes: &[u8]) -> bool {
    let words = bytes.as_chunks::<WORD>().0;
    (0..)
        .zip(words)
        .fold(0, |differs, (index, found)| differs | (u64::from_le_bytes(*found) ^ word(number, index)))
        == 0
}
