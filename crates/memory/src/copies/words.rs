//! The copy on processors that have no other: aligned words, by relaxed atomics.
//!
//! Source and target need not have the same alignment. Then the target's words are put together from two neighbouring
//! words of the source. Only words that lie in the span as a whole are read: a word that begins before the span or ends
//! after it could lie in a page that is not mapped. The bytes at both ends are copied one by one.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD_BYTES: usize = size_of::<u64>();
/// Words that are read before the first of them is written, so that the processor reads several at a time.
const WORDS_AT_ONCE: usize = 8;

/// Copies bytes between places that other threads and processes may write at the same time.
///
/// # Safety
/// Both spans lie inside live memory.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    let plan = Plan::new(from.addr(), to.addr(), length);
    let rest = plan.head + plan.words * WORD_BYTES;
    // SAFETY: the head is not longer than the spans, which the caller guarantees.
    unsafe { copy_bytes(from, to, plan.head) };
    if plan.words > 0 {
        // SAFETY: the source's words begin in the span, at its start or after it.
        let source = unsafe { from.add(plan.head - plan.skew) };
        // SAFETY: the target's words begin where the head ends.
        let target = unsafe { to.add(plan.head) };
        // SAFETY: the plan has as many aligned words of the target as lie in its span as a whole.
        let target = unsafe { words(target, plan.words) };
        // SAFETY: the same for the source, with one word more if its bytes lie across the target's words.
        let source = unsafe { words(source, plan.words + usize::from(plan.skew > 0)) };
        match plan.skew {
            0 => copy_words(source, target),
            skew => shift_words(source, target, skew),
        }
    }
    // SAFETY: head and words are not longer than the spans.
    let source = unsafe { from.add(rest) };
    // SAFETY: as above.
    let target = unsafe { to.add(rest) };
    // SAFETY: the last bytes of both spans.
    unsafe { copy_bytes(source, target, length - rest) };
}

/// Division of a copy.
struct Plan {
    /// Number of bytes before the target's first word.
    head: usize,
    /// Number of the target's words.
    words: usize,
    /// Number of bytes by which the source's words begin before the bytes of the target's words.
    skew: usize,
}

impl Plan {
    fn new(from: usize, to: usize, length: usize) -> Self {
        let skew = from.wrapping_sub(to) % WORD_BYTES;
        let aligned = to.wrapping_neg() % WORD_BYTES;
        // The source's first word must not begin before the span.
        let head = if aligned < skew { aligned + WORD_BYTES } else { aligned };
        // The source's last word must not end after the span.
        let source_words = (length + skew).saturating_sub(head) / WORD_BYTES;
        match source_words.saturating_sub(usize::from(skew > 0)) {
            0 => Self { head: length, words: 0, skew },
            words => Self { head, words, skew },
        }
    }
}

/// Returns `count` words as atomics.
///
/// # Safety
/// The words are aligned and lie inside memory that is live for as long as the result. Memory that cannot be written is
/// only read: a relaxed load of a word is allowed there.
#[inline]
unsafe fn words<'a>(start: *const u8, count: usize) -> &'a [AtomicU64] {
    // SAFETY: the caller guarantees aligned words inside live memory; this module accesses them by atomics.
    unsafe { std::slice::from_raw_parts(start.cast(), count) }
}

#[inline]
fn copy_words(source: &[AtomicU64], target: &[AtomicU64]) {
    let (sources, last_sources) = source.as_chunks::<WORDS_AT_ONCE>();
    let (targets, last_targets) = target.as_chunks::<WORDS_AT_ONCE>();
    for (source, target) in sources.iter().zip(targets) {
        let values = source.each_ref().map(|word| word.load(Ordering::Relaxed));
        for (word, value) in target.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }
    for (source, target) in last_sources.iter().zip(last_targets) {
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Fills the target's words. Word `n` consists of the last bytes of the source's word `n`, except for its first `skew`,
/// and of the first `skew` bytes of the word after it.
#[inline]
fn shift_words(source: &[AtomicU64], target: &[AtomicU64], skew: usize) {
    let [first, source @ ..] = source else { return };
    let mut before = first.load(Ordering::Relaxed);
    let (sources, last_sources) = source.as_chunks::<WORDS_AT_ONCE>();
    let (targets, last_targets) = target.as_chunks::<WORDS_AT_ONCE>();
    for (source, target) in sources.iter().zip(targets) {
        let values = source.each_ref().map(|word| word.load(Ordering::Relaxed));
        for (word, value) in target.iter().zip(values) {
            word.store(join(before, value, skew), Ordering::Relaxed);
            before = value;
        }
    }
    for (source, target) in last_sources.iter().zip(last_targets) {
        let value = source.load(Ordering::Relaxed);
        target.store(join(before, value, skew), Ordering::Relaxed);
        before = value;
    }
}

/// Returns the word that begins `skew` bytes after `word` begins, and ends in `next`.
#[inline]
fn join(word: u64, next: u64, skew: usize) -> u64 {
    let (skew, rest) = (8 * skew, 8 * (WORD_BYTES - skew));
    if cfg!(target_endian = "little") { word >> skew | next << rest } else { word << skew | next >> rest }
}

/// # Safety
/// Both spans lie inside live memory.
#[inline]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: bytes have no alignment, and the caller guarantees that they lie inside live memory. Only atomics access
    // them here, and bytes that cannot be written are only read, by relaxed loads.
    let source: &[AtomicU8] = unsafe { std::slice::from_raw_parts(from.cast(), length) };
    // SAFETY: as above.
    let target: &[AtomicU8] = unsafe { std::slice::from_raw_parts(to.cast(), length) };
    for (source, target) in source.iter().zip(target) {
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A word that begins before the span, or ends after it, would lie outside without an access that faults.
        #[test]
        fn words_lie_in_their_spans(from in 64usize..80, at in 64usize..80, length in 0usize..300) {
            let Plan { head, words, skew } = Plan::new(from, at, length);
            prop_assert!(head + words * 8 <= length, "the target's words end in the span");
            if words > 0 {
                prop_assert_eq!((at + head) % 8, 0, "the target's words are aligned");
                prop_assert!(skew <= head, "the source's words begin in the span");
                prop_assert_eq!((from + head - skew) % 8, 0, "the source's words are aligned");
                let source_words = words + usize::from(skew > 0);
                prop_assert!(head - skew + source_words * 8 <= length, "the source's words end in the span");
            }
            prop_assert!(words > 0 || length < 31, "words carry all but the ends");
            prop_assert!(length - words * 8 < 31, "the ends are short");
        }
    }
}
