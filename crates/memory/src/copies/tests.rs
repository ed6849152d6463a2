//! Both ways of copying, the processor's own and that by words, make the same promise.

use crate::{Mapping, Memory};
use proptest::prelude::*;

type Copy = fn(&Mapping, u64, &Mapping, u64, u64);

const WAYS: [(&str, Copy); 2] =
    [("the processor's", Mapping::copy_by_processor), ("words", Mapping::copy_by_words)];
const BYTES: u64 = 8192;
/// Value of the bytes around a span.
const GUARD: u8 = 0xee;

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset in a small mapping")
}

/// Returns the byte that is at a place of a source: never that of a guard, and another one than at the places nearby.
fn pattern(place: u64) -> u8 {
    u8::try_from(place * 7 % 223).expect("less than 223")
}

fn filled(byte: impl Fn(u64) -> u8) -> Mapping {
    let mapping = Mapping::private(BYTES).expect("two pages");
    mapping.write(0, &(0..BYTES).map(byte).collect::<Vec<_>>());
    mapping
}

fn contents(mapping: &Mapping, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; index(length)];
    mapping.read(0, &mut bytes);
    bytes
}

/// Copies a span of pattern bytes between guards, and compares all bytes with those of a plain copy.
fn check(copy: Copy, (from, at, length): (u64, u64, u64), (source, target): (&Mapping, &Mapping)) -> bool {
    let end = at.max(from) + length + 16;
    target.write(0, &vec![GUARD; index(end)]);
    copy(source, from, target, at, length);
    let mut expected = vec![GUARD; index(end)];
    let plain = contents(source, end);
    expected[index(at)..index(at + length)].copy_from_slice(&plain[index(from)..index(from + length)]);
    contents(target, end) == expected
}

#[test]
fn short_spans_arrive_whole_and_alone_at_every_alignment() {
    let (source, target) = (filled(pattern), filled(|_| GUARD));
    for (name, copy) in WAYS {
        for (from, at) in (16..32).flat_map(|from| (16..32).map(move |at| (from, at))) {
            for length in 0..150 {
                let span = (from, at, length);
                assert!(check(copy, span, (&source, &target)), "{name}: {length} bytes from {from} to {at}");
            }
        }
    }
}

proptest! {
    #[test]
    fn spans_arrive_whole_and_alone(from in 0u64..100, at in 0u64..100, length in 0u64..5000) {
        let (source, target) = (filled(pattern), filled(|_| GUARD));
        for (name, copy) in WAYS {
            prop_assert!(check(copy, (from, at, length), (&source, &target)), "{}", name);
        }
    }

    /// A NIC promises nothing about the order in which a transfer onto itself moves bytes. No byte comes from outside
    /// the source, and none outside the target changes.
    #[test]
    fn spans_that_overlap_mix_only_their_own_bytes(
        from in 0u64..300, at in 0u64..300, length in 0u64..1000,
    ) {
        let is_in = |start: u64, place: u64| (start..start + length).contains(&place);
        let before = |place| if is_in(from, place) { pattern(place) } else { GUARD };
        for (name, copy) in WAYS {
            let mapping = filled(before);
            copy(&mapping, from, &mapping, at, length);
            for (place, byte) in (0..).zip(contents(&mapping, 1500)) {
                let is_right = if is_in(at, place) { byte != GUARD } else { byte == before(place) };
                prop_assert!(is_right, "{}: byte {} is {:#x}", name, place, byte);
            }
        }
    }
}

/// A peer changes bytes while they are copied: each arrives as it was or as it is now, at its own place. Each round
/// lies differently.
#[test]
fn bytes_that_change_meanwhile_arrive_old_or_new() {
    let source = filled(pattern);
    let copies = || {
        let (target, mut changed, mut round) = (filled(|_| GUARD), [0; WAYS.len()], 0);
        // The threads may run on one processor in turns.
        while round < 2000 || changed.contains(&0) {
            round += 1;
            let (from, at) = (round % 17, 16 + round / 17 % 16);
            for ((name, copy), changed) in WAYS.into_iter().zip(&mut changed) {
                copy(&source, from, &target, at, 700);
                let mut bytes = [0; 700];
                target.read(at, &mut bytes);
                for (place, byte) in (from..).zip(bytes) {
                    let old = pattern(place);
                    assert!(byte == old || byte == !old, "{name}: byte {place} is {byte:#x}, not {old:#x}");
                    *changed += u32::from(byte != old);
                }
            }
        }
    };
    std::thread::scope(|threads| {
        let copying = threads.spawn(copies);
        while !copying.is_finished() {
            // Peers write words and single bytes.
            (0..1024).step_by(8).for_each(|place| source.store(place, !source.load(place)));
            for place in 0..1024 {
                let mut byte = [0];
                source.read(place, &mut byte);
                source.write(place, &[!byte[0]]);
            }
        }
    });
}

/// Pages that cannot be accessed lie around each span.
#[test]
fn a_span_may_begin_and_end_with_its_mapping() {
    let page = 4096;
    let (source, target) = (Fenced::new(), Fenced::new());
    for (from, at) in (0..9).flat_map(|from| (0..9).map(move |at| (from, at))) {
        for length in (0..40).chain([500, page - 20]) {
            for copy in [crate::copies::copy, crate::copies::copy_by_words] {
                // SAFETY: both spans lie inside their page.
                unsafe { copy(source.byte(from), target.byte(at), length) };
                let (from, at) = (page - from - length, page - at - length);
                // SAFETY: as above.
                unsafe { copy(source.byte(from), target.byte(at), length) };
            }
        }
    }
}

/// A page between two that cannot be accessed.
struct Fenced(*mut u8);

impl Fenced {
    fn new() -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let flags = MapFlags::PRIVATE;
        // SAFETY: the kernel chooses the address.
        let pages = unsafe { mmap_anonymous(std::ptr::null_mut(), 3 * 4096, ProtFlags::empty(), flags) };
        // SAFETY: three pages were mapped.
        let page = unsafe { pages.expect("three pages").byte_add(4096) };
        // SAFETY: the page in the middle, which nothing uses yet.
        let opened = unsafe { mprotect(page, 4096, MprotectFlags::READ | MprotectFlags::WRITE) };
        opened.expect("a page that is mapped");
        Self(page.cast())
    }

    fn byte(&self, offset: usize) -> *mut u8 {
        assert!(offset <= 4096, "a place in the page, or its end");
        // SAFETY: inside the page, or one past its end.
        unsafe { self.0.add(offset) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the three pages that new() mapped begin here.
        let pages = unsafe { self.0.sub(4096) };
        // SAFETY: nothing uses them any more.
        let unmapped = unsafe { rustix::mm::munmap(pages.cast(), 3 * 4096) };
        unmapped.expect("pages that were mapped");
    }
}
