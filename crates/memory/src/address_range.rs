//! Ranges of addresses that this process keeps free, so that files can be mapped there later. Both ends of a connection
//! have agreed on the addresses, and no other mapping may take them in between.

use crate::mapping::{PAGE_BYTES, round_up};
use crate::residency::unmap;
use crate::{Mapping, MappingError, SealedBytes, SealedFile};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex, PoisonError};

/// Addresses at which this process maps only the contents of [`Claim`]s. Clones share one range.
#[derive(Clone, Debug)]
pub struct AddressRange(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: NonNull<u8>,
    length: u64,
    /// Offset and length of each claim.
    claims: Mutex<BTreeMap<u64, u64>>,
}

// SAFETY: the range is only reserved addresses, which are valid in every thread, and a map behind a lock.
unsafe impl Send for Inner {}
// SAFETY: as above: nothing is accessed through the pointer.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        // SAFETY: mmap returned start for this length. Each claim holds the range, so no claim is left.
        unsafe { unmap(self.start, length) };
    }
}

impl AddressRange {
    /// Reserves the agreed addresses, rounded up to whole pages. They take no memory.
    ///
    /// # Errors
    /// Something is mapped there already, if only in part; the address is not on a page boundary; or the machine refuses.
    pub fn at(address: NonZeroUsize, length: u64) -> Result<Self, MappingError> {
        let wanted = without_provenance_mut(address.get());
        let range = Self::reserve(wanted, length, MapFlags::FIXED_NOREPLACE)?;
        // Kernels before 4.17 do not know the flag, and reserve addresses elsewhere.
        if range.0.start.addr() != address {
            return Err(MappingError::to("reserve", length)(Errno::EXIST));
        }
        Ok(range)
    }

    /// Reserves addresses that the kernel chooses.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn anywhere(length: u64) -> Result<Self, MappingError> {
        Self::reserve(null_mut(), length, MapFlags::empty())
    }

    fn reserve(wanted: *mut core::ffi::c_void, length: u64, flags: MapFlags) -> Result<Self, MappingError> {
        let length = round_up(length, PAGE_BYTES);
        let error = MappingError::to("reserve", length);
        let bytes = usize::try_from(length).map_err(|_| error(Errno::NOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | flags;
        // SAFETY: a fresh mapping overlaps nothing: the kernel chooses its address, or refuses an address that is in use.
        let start = unsafe { rustix::mm::mmap_anonymous(wanted, bytes, ProtFlags::empty(), flags) };
        let start = NonNull::new(start.map_err(&error)?.cast()).ok_or(error(Errno::NOMEM))?;
        Ok(Self(Arc::new(Inner { start, length, claims: Mutex::default() })))
    }

    /// Length of the range in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// Claims the first free piece of the range that is large enough. Returns `None` if the range has no such piece.
    #[must_use]
    pub fn claim(&self, length: u64) -> Option<Claim> {
        let length = whole_pages(length)?;
        let mut claims = self.0.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let mut offset = 0;
        for (&other, &bytes) in &*claims {
            if other - offset >= length {
                break;
            }
            offset = other + bytes;
        }
        if length > self.0.length - offset {
            return None;
        }
        claims.insert(offset, length);
        Some(Claim { range: self.clone(), offset, length, is_mapped: false, is_lost: false })
    }

    /// Claims the piece at an offset. Returns `None` if the piece is not entirely in the range, is not whole pages, or
    /// overlaps another claim.
    #[must_use]
    pub fn claim_at(&self, offset: u64, length: u64) -> Option<Claim> {
        let end = offset.checked_add(length).filter(|&end| end <= self.0.length)?;
        if length == 0 || !(offset | length).is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let mut claims = self.0.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let before = claims.range(..end).next_back();
        if before.is_some_and(|(&other, &bytes)| other + bytes > offset) {
            return None;
        }
        claims.insert(offset, length);
        Some(Claim { range: self.clone(), offset, length, is_mapped: false, is_lost: false })
    }
}

fn whole_pages(length: u64) -> Option<u64> {
    length.max(1).checked_next_multiple_of(PAGE_BYTES)
}

/// A piece of an [`AddressRange`] that no other claim has until this claim is dropped. Dropping the claim unmaps the
/// memory that is mapped there.
#[derive(Debug)]
pub struct Claim {
    range: AddressRange,
    offset: u64,
    length: u64,
    is_mapped: bool,
    /// No later claim may have these addresses.
    is_lost: bool,
}

impl Claim {
    /// Offset of the claim in the range.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the claim in bytes: whole pages.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Maps a file of the claim's length there, for writing. Children that this process forks do not get the mapping: a
    /// child that kept it could keep the file from being sealed.
    ///
    /// # Errors
    /// The file has another length, or the machine refuses.
    pub fn map_writable(mut self, file: &SealedFile) -> Result<Mapping, MappingError> {
        let start = self.map(file, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
        Ok(Mapping::claimed(start, self))
    }

    /// Maps a file of the claim's length there that no process can write any more.
    ///
    /// # Errors
    /// The file is not sealed against writes and changes of its length, has another length, or the machine refuses.
    pub fn map_sealed(mut self, file: &SealedFile) -> Result<SealedBytes, crate::SealError> {
        file.check_sealed()?;
        // The mapping is private, because kernels before 6.7 regard every shared mapping as one that could be made
        // writable, and refuse it. Nothing is written here, so nothing is copied.
        let start = self.map(file, ProtFlags::READ, MapFlags::PRIVATE)?;
        Ok(SealedBytes::claimed(start, self))
    }

    fn map(
        &mut self,
        file: &SealedFile,
        access: ProtFlags,
        flags: MapFlags,
    ) -> Result<NonNull<u8>, MappingError> {
        let error = MappingError::to("map", file.length());
        if file.length() != self.length {
            return Err(error(Errno::INVAL));
        }
        let (at, bytes) = self.span();
        let flags = flags | MapFlags::FIXED;
        // SAFETY: the span lies in the range's reserved addresses, and no other claim overlaps it. So no mapping in use
        // is replaced: self has mapped nothing there, since `map_writable` and `map_sealed` move the claim into its
        // mapping. The file cannot shrink.
        let start = unsafe { rustix::mm::mmap(at, bytes, access, flags, file.descriptor(), 0) };
        // A kernel that fails half-way has released the addresses, and may have given them to another mapping.
        self.is_lost = start.is_err();
        let start = NonNull::new(start.map_err(&error)?.cast()).ok_or(error(Errno::NOMEM))?;
        self.is_mapped = true;
        Ok(start)
    }

    fn span(&self) -> (*mut core::ffi::c_void, usize) {
        let [offset, length] = [self.offset, self.length].map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        // SAFETY: a claim lies in its range, which is one piece of reserved addresses.
        let start = unsafe { self.range.0.start.as_ptr().add(offset) };
        (start.cast(), length)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_mapped {
            let (at, bytes) = self.span();
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: this replaces only this claim's own mapping. That mapping is no longer in use: each user of the
            // mapping holds the claim.
            let kept = unsafe { rustix::mm::mmap_anonymous(at, bytes, ProtFlags::empty(), flags) };
            self.is_lost = kept.is_err();
        }
        if self.is_lost {
            return;
        }
        self.range.0.claims.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, SealError};

    fn place(test: usize) -> NonZeroUsize {
        NonZeroUsize::new((18 << 40) + (test << 30)).expect("not zero")
    }

    fn file(pages: u64) -> SealedFile {
        SealedFile::new("test", pages * PAGE_BYTES).expect("a file")
    }

    fn again(file: &SealedFile) -> SealedFile {
        let descriptor = file.descriptor().try_clone_to_owned().expect("a descriptor");
        SealedFile::of_peer(descriptor, file.length()).expect("the same file")
    }

    #[test]
    fn claims_do_not_overlap_and_can_be_had_again() {
        let range = AddressRange::at(place(0), 10 * PAGE_BYTES).expect("a range");
        let at = |offset: u64, length: u64| range.claim_at(offset * PAGE_BYTES, length * PAGE_BYTES);
        let first = range.claim(1).expect("room");
        let second = range.claim(3 * PAGE_BYTES).expect("room");
        assert_eq!((first.offset(), second.offset(), first.length()), (0, PAGE_BYTES, PAGE_BYTES));
        assert!(range.claim(7 * PAGE_BYTES).is_none() && range.claim(u64::MAX).is_none());
        for (offset, length) in [(0, 1), (3, 1), (3, 9), (0, 10), (4, 7), (4, 0), (u64::MAX >> 12, 2)] {
            assert!(at(offset, length).is_none(), "{offset} {length}");
        }
        assert!(range.claim_at(4 * PAGE_BYTES + 8, PAGE_BYTES).is_none());
        let third = at(4, 6).expect("the rest");
        drop(second);
        assert_eq!(range.claim(2 * PAGE_BYTES).expect("the gap").offset(), PAGE_BYTES);
        assert!(at(1, 4).is_none() && at(1, 3).is_some());
        drop((first, third));
        assert!(at(0, 10).is_some());
    }

    #[test]
    fn a_range_is_kept_from_others_for_as_long_as_a_claim_lives() {
        let range = AddressRange::at(place(1), 4 * PAGE_BYTES).expect("a range");
        assert!(AddressRange::at(place(1), PAGE_BYTES).is_err());
        let memory = range.claim(PAGE_BYTES).expect("room").map_writable(&file(1)).expect("a mapping");
        assert_eq!(memory.start().addr(), place(1));
        drop(range);
        memory.store(0, 5);
        assert!(Mapping::of_file_at(place(1), file(1), true).is_err());
        drop(memory);
        assert!(Mapping::of_file_at(place(1), file(1), true).is_ok());
    }

    /// Forks a child that has this process's mappings, until the other end of its pipe is closed. The child only reads.
    fn fork() -> (rustix::process::Pid, rustix::fd::OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        // SAFETY: the child makes only system calls, with what is on its stack.
        match unsafe { nix::unistd::fork() }.expect("a child") {
            nix::unistd::ForkResult::Parent { child } => {
                (rustix::process::Pid::from_raw(child.as_raw()).expect("a child"), writer)
            }
            nix::unistd::ForkResult::Child => {
                drop(writer);
                let _ = rustix::io::read(&reader, &mut [0; 1]);
                // SAFETY: this ends the child at once.
                unsafe { libc::_exit(0) }
            }
        }
    }

    fn end((child, pipe): (rustix::process::Pid, rustix::fd::OwnedFd)) {
        drop(pipe);
        rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).expect("it ends");
    }

    /// A single test, because the child also has the mappings of all other tests.
    #[test]
    fn a_child_that_keeps_a_writable_mapping_keeps_the_file_from_being_sealed_and_claims_have_no_such_child()
    {
        let made = file(1);
        let memory = Mapping::of_file(again(&made), true).expect("a mapping");
        let child = fork();
        drop(memory);
        assert!(matches!(made.seal(), Err(SealError::Busy)));
        assert!(matches!(made.check_sealed(), Err(SealError::Missing(_))), "a seal that failed is none");
        end(child);
        made.seal().expect("the child has ended");
        assert!(matches!(made.check_sealed(), Err(SealError::Holes)), "nothing was ever written");

        let range = AddressRange::at(place(3), PAGE_BYTES).expect("a range");
        let made = file(1);
        let memory = range.claim(1).expect("room").map_writable(&made).expect("a mapping");
        let child = fork();
        drop(memory);
        made.seal().expect("the child has no mapping");
        end(child);
    }

    #[test]
    fn a_page_that_something_holds_keeps_the_file_from_being_sealed() {
        let made = file(1);
        Mapping::of_file(again(&made), true).expect("a mapping").store(0, 5);
        // A pipe holds the page itself, as an operation in progress would.
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let flags = rustix::pipe::SpliceFlags::NONBLOCK;
        rustix::pipe::splice(made.descriptor(), Some(&mut 0), &writer, None, 1, flags).expect("a page");
        assert!(matches!(made.seal(), Err(SealError::Busy)));
        drop((reader, writer));
        made.seal().expect("nothing holds it");
    }

    #[test]
    fn what_was_written_is_read_at_the_same_address_once_it_is_sealed() {
        let range = AddressRange::at(place(2), 4 * PAGE_BYTES).expect("a range");
        let made = file(2);
        let memory = range.claim(2 * PAGE_BYTES).expect("room").map_writable(&made).expect("a mapping");
        memory.write(PAGE_BYTES, b"once and for all");
        assert!(matches!(made.seal(), Err(SealError::Busy)), "there is a writable mapping");
        let clone = memory.clone();
        drop(memory);
        assert!(range.claim_at(0, 2 * PAGE_BYTES).is_none(), "a clone is there");
        drop(clone);
        made.allocate().expect("memory");
        let claim = range.claim_at(0, 2 * PAGE_BYTES).expect("it is free again");
        let refused = claim.map_sealed(&made).expect_err("it is not sealed");
        assert!(refused.to_string().contains("F_SEAL_WRITE"), "{refused}");
        made.seal().expect("nobody can write");
        made.seal().expect("it is sealed already");
        let sealed = range.claim(1).expect("room").map_sealed(&made);
        assert!(sealed.is_err(), "the length is another");
        let sealed = range.claim_at(0, 2 * PAGE_BYTES).expect("free").map_sealed(&made).expect("a mapping");
        sealed.fill().expect("memory");
        let at = usize::try_from(PAGE_BYTES).expect("a page");
        assert_eq!(&sealed.bytes()[at..at + 16], b"once and for all");
        assert_eq!(sealed.bytes().as_ptr().addr(), place(2).get());
        assert!(Mapping::of_file(again(&made), true).is_err(), "nobody maps it writable any more");
    }
}
