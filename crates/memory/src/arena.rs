//! A client's arena: the part of a mapping that holds the client's buffers, and loans of bytes in it.
//!
//! Lent bytes are plain bytes to the borrower. Nothing else in this process touches them through the arena meanwhile:
//! each access holds a lock and checks the list of loans. The other end of the NIC writes to an arena only at the place
//! that an operation of its client names, and only while that operation is in progress.

use crate::{Lend, Mapping, Memory};
use std::fmt::Debug;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

/// The arena's part of a port's memory. Offsets count from the arena's start.
#[derive(Clone, Debug)]
pub struct ArenaMemory {
    /// Values of [`ArenaMemory::keep_until_unmapped`]. This field is dropped before `memory`: the last handle on the
    /// arena drops the values while it still holds the mapping.
    kept: Arc<Mutex<Vec<Box<dyn Debug + Send + Sync>>>>,
    memory: Mapping,
    start: u64,
    length: u64,
    loans: Arc<Loans>,
}

/// The spans of an arena that are lent. Every access to the arena holds the lock for its whole duration.
#[derive(Debug, Default)]
struct Loans(RwLock<Vec<Span>>);

#[derive(Debug, PartialEq, Eq)]
struct Span {
    bytes: Range<u64>,
    exclusive: bool,
}

impl Loans {
    /// Enters a loan. It waits for accesses in progress.
    ///
    /// # Panics
    /// Some of its bytes are lent already, and one of the two loans is exclusive.
    fn enter(&self, bytes: Range<u64>, exclusive: bool) {
        let mut spans = self.0.write().unwrap_or_else(PoisonError::into_inner);
        refuse_overlap(&spans, &bytes, exclusive);
        spans.push(Span { bytes, exclusive });
    }

    fn leave(&self, bytes: &Range<u64>, exclusive: bool) {
        let mut spans = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let found = spans.iter().position(|it| it.bytes == *bytes && it.exclusive == exclusive);
        spans.swap_remove(found.expect("a loan is entered until it ends"));
    }

    /// Checks an access against the loans. No loan can begin until the guard is dropped.
    ///
    /// # Panics
    /// The access would change lent bytes, or read exclusively lent ones.
    #[inline]
    fn access(&self, bytes: &Range<u64>, writes: bool) -> RwLockReadGuard<'_, Vec<Span>> {
        let spans = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if !spans.is_empty() {
            refuse_overlap(&spans, bytes, writes);
        }
        spans
    }
}

#[cold]
fn refuse_overlap(spans: &[Span], bytes: &Range<u64>, writes: bool) {
    let clash = spans.iter().any(|it| (it.exclusive || writes) && overlap(&it.bytes, bytes));
    assert!(!clash, "bytes {bytes:?} of an arena are lent");
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl ArenaMemory {
    /// An arena of the `length` bytes of a mapping from `start` on.
    ///
    /// # Panics
    /// The mapping is shorter.
    #[must_use]
    pub fn part(memory: Mapping, start: u64, length: u64) -> Self {
        let inside = start <= memory.length() && length <= memory.length() - start;
        assert!(inside, "{} bytes have no arena of {length} at {start}", memory.length());
        Self { kept: Arc::default(), memory, start, length, loans: Arc::default() }
    }

    /// An arena over a whole mapping, without the bytes that were added to round up the mapping's length.
    ///
    /// # Panics
    /// The mapping is shorter.
    #[must_use]
    pub fn whole(memory: Mapping, length: u64) -> Self {
        Self::part(memory, 0, length)
    }

    /// Address of the arena's first byte in this process, for a device's driver and for other languages. The address
    /// stays valid until the last handle on the arena, such as a buffer, is dropped.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.memory.pointer(self.start, self.length, 1)
    }

    /// Keeps a value until the last handle on the arena is dropped. The value is dropped before the memory is unmapped.
    /// A registration of the memory with a device's driver is such a value.
    pub fn keep_until_unmapped(&self, value: impl Debug + Send + Sync + 'static) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(value));
    }

    /// Offset in the mapping of the `length` bytes from `offset` on.
    #[inline]
    fn at(&self, offset: u64, length: u64) -> u64 {
        let inside = offset <= self.length && length <= self.length - offset;
        assert!(inside, "{length} bytes at {offset} lie outside an arena of {}", self.length);
        self.start + offset
    }

    /// Reads some bytes while they cannot be lent exclusively.
    #[inline]
    fn look<T>(&self, offset: u64, length: u64, look: impl FnOnce(&Mapping, u64) -> T) -> T {
        let at = self.at(offset, length);
        let _unlent = self.loans.access(&(offset..offset + length), false);
        look(&self.memory, at)
    }

    /// Changes some bytes while they cannot be lent.
    #[inline]
    fn change(&self, offset: u64, length: u64, change: impl FnOnce(&Mapping, u64)) {
        let at = self.at(offset, length);
        let _unlent = self.loans.access(&(offset..offset + length), true);
        change(&self.memory, at);
    }

    fn lent(&self, offset: u64, length: u64, exclusive: bool) -> Loan<'_> {
        let at = self.at(offset, length);
        let bytes = offset..offset + length;
        self.loans.enter(bytes.clone(), exclusive);
        Loan { arena: self, at, bytes, exclusive }
    }
}

impl Memory for ArenaMemory {
    fn length(&self) -> u64 {
        self.length
    }

    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) {
        self.look(offset, into.len() as u64, |memory, at| memory.read(at, into));
    }

    #[inline]
    fn write(&self, offset: u64, from: &[u8]) {
        self.change(offset, from.len() as u64, |memory, at| memory.write(at, from));
    }

    #[inline]
    fn read_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        self.look(offset, 8 * N as u64, Mapping::read_words)
    }

    fn zero(&self, offset: u64, length: u64) {
        self.change(offset, length, |memory, at| memory.zero(at, length));
    }

    fn load(&self, offset: u64) -> u64 {
        self.look(offset, 8, Mapping::load)
    }

    fn store(&self, offset: u64, value: u64) {
        self.change(offset, 8, |memory, at| memory.store(at, value));
    }

    #[inline]
    fn prefetch(&self, offset: u64, length: u64) {
        self.memory.prefetch(self.at(offset, length), length);
    }
}

impl Lend for ArenaMemory {
    type Bytes<'a> = LentBytes<'a>;
    type BytesMut<'a> = LentBytesMut<'a>;

    fn lend(&self, offset: u64, length: u64) -> LentBytes<'_> {
        LentBytes(self.lent(offset, length, false))
    }

    fn lend_mut(&self, offset: u64, length: u64) -> LentBytesMut<'_> {
        LentBytesMut(self.lent(offset, length, true))
    }
}

/// A loan in the arena's list. Dropping it removes it from the list.
#[derive(Debug)]
struct Loan<'a> {
    arena: &'a ArenaMemory,
    /// Offset in the mapping.
    at: u64,
    bytes: Range<u64>,
    exclusive: bool,
}

impl Loan<'_> {
    fn length(&self) -> usize {
        usize::try_from(self.bytes.end - self.bytes.start).unwrap_or(0)
    }

    fn pointer(&self) -> *mut u8 {
        self.arena.memory.pointer(self.at, self.bytes.end - self.bytes.start, 1)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: pointer() checked that the span lies in the mapping, which lives as long as the arena that the loan
        // borrows. The loan is entered, so every access to these bytes in this process refuses to change them until the
        // loan ends. The other end of the NIC, which the client trusts, writes here only while an operation on these
        // bytes is in progress. An operation keeps its buffer, so the bytes cannot be borrowed then.
        unsafe { std::slice::from_raw_parts(self.pointer().cast_const(), self.length()) }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.arena.loans.leave(&self.bytes, self.exclusive);
    }
}

/// Bytes of an arena, in place. They do not change while this value lives.
#[derive(Debug)]
pub struct LentBytes<'a>(Loan<'a>);

impl Deref for LentBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Bytes of an arena, in place, to change. Only the borrower reads or changes them.
#[derive(Debug)]
pub struct LentBytesMut<'a>(Loan<'a>);

impl Deref for LentBytesMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for LentBytesMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in Loan::bytes. Besides, the loan is exclusive: no other loan overlaps it, every other access to
        // these bytes refuses even to read them, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.pointer(), self.0.length()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn arena() -> ArenaMemory {
        ArenaMemory::part(Mapping::private(8192).expect("memory"), 4096, 4096)
    }

    fn is_refused(access: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(access)).is_err()
    }

    #[test]
    fn lent_bytes_are_the_arenas_own() {
        let arena = arena();
        arena.write(100, b"in place");
        assert_eq!(&*arena.lend(100, 8), b"in place");
        arena.lend_mut(103, 5).copy_from_slice(b"PLACE");
        let mut bytes = [0; 8];
        arena.read(100, &mut bytes);
        assert_eq!(&bytes, b"in PLACE");
    }

    #[test]
    fn nothing_touches_bytes_while_they_are_lent_exclusively() {
        let arena = arena();
        let again = arena.clone();
        let lent = arena.lend_mut(64, 64);
        assert!(is_refused(|| again.write(127, &[1])));
        assert!(is_refused(|| again.read(64, &mut [0])));
        assert!(is_refused(|| assert_eq!(again.read_words(56), [0; 2])));
        assert!(is_refused(|| again.zero(0, 4096)));
        assert!(is_refused(|| assert_eq!(again.load(120), 0)));
        assert!(is_refused(|| again.store(64, 1)));
        assert!(is_refused(|| drop(again.lend(100, 1))));
        assert!(is_refused(|| drop(again.lend_mut(0, 65))));
        again.write(63, &[1]);
        again.write(128, &[1]);
        drop(again.lend_mut(128, 8));
        drop(lent);
        again.write(100, &[1]);
    }

    #[test]
    fn bytes_that_are_looked_at_can_be_looked_at_by_others() {
        let arena = arena();
        let (one, two) = (arena.lend(0, 64), arena.lend(32, 64));
        assert_eq!(one[32..], two[..32]);
        arena.read(0, &mut [0; 64]);
        assert!(is_refused(|| arena.write(95, &[1])));
        drop(two);
        arena.write(95, &[1]);
        assert!(is_refused(|| arena.write(63, &[1])));
    }

    /// A value that looks at the arena's memory when it is dropped.
    #[derive(Debug)]
    struct Looks {
        address: usize,
        saw: Arc<Mutex<Vec<bool>>>,
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel lists the mappings");
            let start = format!("{:x}", self.address - 4096);
            let is_mapped = maps.lines().any(|line| {
                let (from, rest) = line.split_once('-').expect("a range");
                let to = rest.split(' ').next().expect("an end");
                let number = |text| usize::from_str_radix(text, 16).expect("a number");
                (number(from)..number(to)).contains(&number(&start))
            });
            self.saw.lock().expect("no panic").push(is_mapped);
        }
    }

    #[test]
    fn a_kept_value_is_dropped_once_after_the_last_handle_and_before_the_memory_is_unmapped() {
        let arena = arena();
        let saw = Arc::default();
        arena.keep_until_unmapped(Looks { address: arena.address() as usize, saw: Arc::clone(&saw) });
        let another = arena.clone();
        drop(arena);
        assert_eq!(*saw.lock().expect("no panic"), [], "another handle is left");
        drop(another);
        assert_eq!(*saw.lock().expect("no panic"), [true]);
    }

    #[test]
    fn the_address_is_that_of_the_first_byte() {
        let arena = arena();
        assert_eq!(arena.address().cast_const(), arena.lend(0, 1).as_ptr());
    }

    #[test]
    fn a_loan_lies_within_the_arena() {
        let arena = arena();
        for (offset, length) in [(0, 4097), (4096, 1), (4095, 2), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(is_refused(|| drop(arena.lend(offset, length))), "{length} bytes at {offset}");
        }
        assert_eq!(arena.lend(4096, 0).len(), 0);
    }
}
