//! Access to mapped memory by atomics and by copies that are opaque to the compiler.

use crate::copies;
use crate::mapping::PAGE_BYTES;
use crate::memory::words_by_bytes;
use crate::{Bytes, Mapping, Memory};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Length from which a copy of aligned words uses the processor's way: to begin costs the string instruction more than a
/// few words cost.
const LONG_COPY_BYTES: u64 = 512;

/// Bytes of a line of the processor's cache.
pub const LINE_BYTES: usize = 64;

/// Hints to the processor that a value will be read soon. The processor fetches the value's cache lines, and the caller
/// does not wait for them.
#[inline]
pub fn prefetch<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    // A value may begin in the middle of a line. Then its end lies in one line more.
    for offset in (0..size_of::<T>()).step_by(LINE_BYTES).chain([size_of::<T>().saturating_sub(1)]) {
        prefetch_line(start.wrapping_add(offset));
    }
}

#[inline]
fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address faults on nothing and changes nothing that a program can see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

impl Mapping {
    /// Returns the offset as a `usize`. Panics unless `length` bytes from `offset` on lie in the mapping.
    #[inline]
    fn check(&self, offset: u64, length: u64) -> usize {
        let inside = offset <= self.length && length <= self.length - offset;
        assert!(inside, "{length} bytes at {offset} lie outside a mapping of {}", self.length);
        // A mapping's length came from a usize, and the offset is not beyond it.
        usize::try_from(offset).unwrap_or(usize::MAX)
    }

    #[inline]
    pub(crate) fn pointer(&self, offset: u64, length: u64, align: u64) -> *mut u8 {
        let count = self.check(offset, length);
        assert!(offset.is_multiple_of(align), "an atomic access at {offset} is not aligned");
        // SAFETY: the count was checked to lie inside the mapping, which is one allocation.
        unsafe { self.start.as_ptr().add(count) }
    }

    /// The aligned word at `offset`, as an atomic.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        let pointer = self.pointer(offset, 8, 8).cast::<u64>();
        // SAFETY: eight aligned bytes inside a live mapping, which lives as long as self; only atomics touch them.
        unsafe { AtomicU64::from_ptr(pointer) }
    }

    /// The aligned half word at `offset`, as an atomic. Futexes have this width.
    #[inline]
    #[must_use]
    pub fn half_word(&self, offset: u64) -> &AtomicU32 {
        let pointer = self.pointer(offset, 4, 4).cast::<u32>();
        // SAFETY: four aligned bytes inside a live mapping, which lives as long as self; only atomics touch them.
        unsafe { AtomicU32::from_ptr(pointer) }
    }

    #[inline]
    fn byte(&self, offset: u64) -> &AtomicU8 {
        let pointer = self.pointer(offset, 1, 1);
        // SAFETY: one byte inside a live mapping, which lives as long as self; only atomics touch it.
        unsafe { AtomicU8::from_ptr(pointer) }
    }

    /// `count` aligned words from `offset` on, as atomics.
    #[inline]
    fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        let pointer = self.pointer(offset, count as u64 * 8, 8).cast::<AtomicU64>();
        // SAFETY: count aligned words inside a live mapping, which lives as long as self; only atomics touch them.
        unsafe { std::slice::from_raw_parts(pointer, count) }
    }

    /// The words of an aligned span that is too short for the processor's way of copying, and the offset of the bytes
    /// after them.
    #[inline]
    fn short_span(&self, offset: u64, length: usize) -> Option<(&[AtomicU64], u64)> {
        if !offset.is_multiple_of(8) || length as u64 >= LONG_COPY_BYTES {
            return None;
        }
        let words = self.words(offset, length / 8);
        Some((words, offset + words.len() as u64 * 8))
    }

    /// Copies `length` bytes from `from` here to `at` in `to` in the way of this kind of processor, however few they
    /// are: [`Bytes::copy`] copies so from some length on. It is there for tests and measurements.
    ///
    /// # Panics
    /// A span lies outside its mapping.
    pub fn copy_by_processor(&self, from: u64, to: &Self, at: u64, length: u64) {
        let (source, target, count) = self.spans(from, to, at, length);
        // SAFETY: spans() checked both.
        unsafe { copies::copy(source, target, count) };
    }

    /// Copies `length` bytes from `from` here to `at` in `to` in the way of processors for which Portcullis has no
    /// copy of their own: by words. It is there for tests and measurements on processors that have one.
    ///
    /// # Panics
    /// A span lies outside its mapping.
    pub fn copy_by_words(&self, from: u64, to: &Self, at: u64, length: u64) {
        let (source, target, count) = self.spans(from, to, at, length);
        // SAFETY: spans() checked both.
        unsafe { copies::copy_by_words(source, target, count) };
    }

    /// Returns the ends and the length of a copy. Panics if a span lies outside its mapping.
    #[inline]
    fn spans(&self, from: u64, to: &Self, at: u64, length: u64) -> (*const u8, *mut u8, usize) {
        let (source, target) = (self.pointer(from, length, 1), to.pointer(at, length, 1));
        // The mapping's length came from a usize, and the span is not longer.
        (source, target, usize::try_from(length).unwrap_or(0))
    }

    #[inline]
    fn read_bytes(&self, offset: u64, into: &mut [u8]) {
        if let Some((words, rest)) = self.short_span(offset, into.len()) {
            let (whole, tail) = into.split_at_mut(words.len() * 8);
            for (bytes, word) in whole.chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            for (byte, at) in tail.iter_mut().zip(rest..) {
                *byte = self.byte(at).load(Ordering::Relaxed);
            }
            return;
        }
        let from = self.pointer(offset, into.len() as u64, 1);
        // SAFETY: pointer() checked the mapping's span; the other is a slice of the same length.
        unsafe { copies::copy(from, into.as_mut_ptr(), into.len()) };
    }

    #[inline]
    fn write_bytes(&self, offset: u64, from: &[u8]) {
        if let Some((words, rest)) = self.short_span(offset, from.len()) {
            let (whole, tail) = from.split_at(words.len() * 8);
            for (bytes, word) in whole.chunks_exact(8).zip(words) {
                let bytes = bytes.try_into().expect("eight bytes");
                word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            }
            for (byte, at) in tail.iter().zip(rest..) {
                self.byte(at).store(*byte, Ordering::Relaxed);
            }
            return;
        }
        let to = self.pointer(offset, from.len() as u64, 1);
        // SAFETY: pointer() checked the mapping's span; the other is a slice of the same length.
        unsafe { copies::copy(from.as_ptr(), to, from.len()) };
    }
}

impl Memory for Mapping {
    fn length(&self) -> u64 {
        self.length
    }

    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) {
        // The first fence orders the bytes after the caller's earlier loads, and the second one before its later ones.
        fence(Ordering::Acquire);
        self.read_bytes(offset, into);
        fence(Ordering::Acquire);
    }

    #[inline]
    fn write(&self, offset: u64, from: &[u8]) {
        // The first fence orders the bytes after the caller's earlier stores, and the second one before its later ones.
        fence(Ordering::Release);
        self.write_bytes(offset, from);
        fence(Ordering::Release);
    }

    fn zero(&self, offset: u64, length: u64) {
        self.check(offset, length);
        fence(Ordering::Release);
        let end = offset + length;
        let first = offset.next_multiple_of(8).min(end);
        let last = (end - end % 8).max(first);
        for at in (offset..first).chain(last..end) {
            self.byte(at).store(0, Ordering::Relaxed);
        }
        let count = usize::try_from((last - first) / 8).unwrap_or(0);
        if count > 0 {
            for word in self.words(first, count) {
                word.store(0, Ordering::Relaxed);
            }
        }
        fence(Ordering::Release);
    }

    fn give_back(&self, offset: u64, length: u64) {
        self.check(offset, length);
        let end = offset + length;
        let first = offset.next_multiple_of(PAGE_BYTES).min(end);
        let last = (end - end % PAGE_BYTES).max(first);
        self.zero(offset, first - offset);
        self.zero(last, end - last);
        if !self.drop_pages(first, last - first) {
            self.zero(first, last - first);
        }
    }

    #[inline]
    fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    #[inline]
    fn read_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        if !offset.is_multiple_of(8) {
            return words_by_bytes(self, offset);
        }
        // The fences are those of `read`.
        fence(Ordering::Acquire);
        let words = self.load_words(offset).map(u64::from_le);
        fence(Ordering::Acquire);
        words
    }

    #[inline]
    fn prefetch(&self, offset: u64, length: u64) {
        let start = self.pointer(offset, length, 1).cast_const();
        // A mapping begins with a line.
        let lines = (offset % LINE_BYTES as u64 + length).div_ceil(LINE_BYTES as u64);
        for line in 0..usize::try_from(lines).unwrap_or(0) {
            prefetch_line(start.wrapping_add(line * LINE_BYTES));
        }
    }
}

impl Bytes for Mapping {
    #[inline]
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64) {
        // A peer that sees these bytes must see what this thread has stored before, and what the thread loads later must
        // not be older than these bytes. Copies are otherwise unordered: x86-64 orders them all the same, others do not.
        fence(Ordering::Release);
        if (from | at | length).is_multiple_of(8) && length < LONG_COPY_BYTES {
            let count = usize::try_from(length / 8).unwrap_or(0);
            for (source, target) in self.words(from, count).iter().zip(to.words(at, count)) {
                target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        } else {
            let (source, target, count) = self.spans(from, to, at, length);
            // SAFETY: spans() checked both.
            unsafe { copies::copy(source, target, count) };
        }
        fence(Ordering::Acquire);
    }

    #[inline]
    fn compare_exchange(&self, offset: u64, old: u64, new: u64) -> u64 {
        match self.word(offset).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        }
    }

    #[inline]
    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.word(offset).fetch_add(add, Ordering::AcqRel)
    }

    #[inline]
    fn load_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        let words = self.words(offset, N);
        std::array::from_fn(|index| words[index].load(Ordering::Relaxed))
    }

    #[inline]
    fn store_words<const N: usize>(&self, offset: u64, values: [u64; N]) {
        for (word, value) in self.words(offset, N).iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_move_exactly_their_bytes(
            from in 0u64..600, at in 0u64..600, length in 0u64..1200, seed: u8,
        ) {
            let (source, target) = (Mapping::private(4096).unwrap(), Mapping::private(4096).unwrap());
            let pattern: Vec<u8> = (0..4096u32).map(|i| (i % 251).to_le_bytes()[0] ^ seed).collect();
            source.write(0, &pattern);
            target.write(0, &[0xee; 4096]);
            source.copy(from, &target, at, length);
            let mut got = vec![0; 4096];
            target.read(0, &mut got);
            let index = |offset: u64| usize::try_from(offset).unwrap();
            let (from, at, length) = (index(from), index(at), index(length));
            prop_assert_eq!(&got[at..at + length], &pattern[from..from + length]);
            prop_assert!(got[..at].iter().chain(&got[at + length..]).all(|&byte| byte == 0xee));
        }

        #[test]
        fn bytes_read_are_those_written_wherever_they_lie(
            offset in 0u64..64, length in 0usize..1200, start in 0usize..16, seed: u8,
        ) {
            let mapping = Mapping::private(4096).unwrap();
            mapping.write(0, &[0xee; 4096]);
            let bytes: Vec<u8> = (0..=250).cycle().skip(seed.into()).take(length).collect();
            mapping.write(offset, &bytes);
            let mut all = [0; 4096];
            mapping.read(0, &mut all);
            let from = usize::try_from(offset).unwrap();
            prop_assert_eq!(&all[from..from + length], &bytes[..]);
            prop_assert!(all[..from].iter().chain(&all[from + length..]).all(|&byte| byte == 0xee));
            let start = start.min(length);
            let mut part = vec![0; length - start];
            mapping.read(offset + start as u64, &mut part);
            prop_assert_eq!(&part[..], &bytes[start..]);
            let words = mapping.read_words::<9>(offset).map(u64::to_le_bytes);
            prop_assert_eq!(words.as_flattened(), &all[from..from + 72]);
        }

        #[test]
        fn zeroing_touches_exactly_its_bytes(offset in 0u64..64, length in 0u64..200) {
            let mapping = Mapping::private(4096).unwrap();
            mapping.write(0, &[0xff; 512]);
            mapping.zero(offset, length);
            let mut got = [0; 512];
            mapping.read(0, &mut got);
            for (index, byte) in got.iter().enumerate() {
                let inside = (offset..offset + length).contains(&(index as u64));
                prop_assert_eq!(*byte, if inside { 0 } else { 0xff });
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside a mapping")]
    fn an_offset_past_the_end_panics_like_a_slice() {
        Mapping::private(4096).unwrap().load(4096);
    }
}
