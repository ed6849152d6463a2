//! The bytes of the pool that belong to each object. This is metadata only: nothing here accesses the pool's memory.
//!
//! An object is a buffer with a 32-byte hole right before it for a permission's header, so that one window can expose
//! both (Patronus §5.4, contiguity). Small objects lie in spans of one size class, as in a slab allocator. A large
//! object has pages of its own, and so has any object that takes no more bytes in whole pages than in its class. A
//! requested alignment applies to the buffer; the hole lies before it.
//!
//! An object never moves. So objects of other classes can use a free place only once its whole span is free.

mod classes;
mod span;

use super::page_runs::PageRuns;
use crate::config::PAGE_BYTES;
use classes::{CLASSES, class_of, lead, span_pages, span_pages_min, stride};
use portcullis_protocol::{Header, Refusal, RemoteAddress};
use portcullis_slots::Table;
use span::Span;

/// The least alignment of a header hole, and so of a buffer, in bytes.
const HOLE_ALIGNMENT: u64 = Header::BYTES;

/// The largest alignment of a buffer, in bytes.
pub(crate) const ALIGNMENT_MAX: u64 = 2 << 20;

/// «No index». An `Option<u32>` would double a record. No table has so many entries.
const NONE: u32 = u32::MAX;

/// Names a live object of one [`Slabs`]. An id is used again after its object was freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ObjectId(pub(crate) u32);

struct Object<T> {
    /// Address of its buffer.
    address: RemoteAddress,
    /// Number of bytes of the buffer, as requested.
    size: u64,
    span: u32,
    slot: u32,
    /// The node's record of the object, or `None` if the id is free.
    payload: Option<T>,
}

struct Class {
    /// Number of pages of a span, if the pool has them in one piece.
    pages: u32,
    /// Number of pages that even one object needs.
    pages_min: u32,
    /// The list of spans with room. Objects go into the first span, so that the memory freed last is used last.
    first: u32,
    last: u32,
    /// The one span without objects that is kept, so that an object that is repeatedly allocated and freed does not cut
    /// pages anew each time.
    empty: Option<u32>,
}

/// The pool's objects, each with a `T` that the node keeps about it.
///
/// Methods that take an [`ObjectId`] panic if that object is not live. Ids never arrive from a peer, but addresses do:
/// [`find`](Self::find) is the only way from an address to an id.
pub(crate) struct Slabs<T> {
    base: u64,
    runs: PageRuns,
    /// The span that owns each page, or [`NONE`]. A large object owns only its first page: no object can start in the
    /// others.
    span_of_page: Vec<u32>,
    spans: Vec<Span>,
    vacant_spans: Vec<u32>,
    classes: [Class; CLASSES],
    objects: Table<Object<T>>,
    vacant_objects: Vec<u32>,
    live: u32,
    bytes_used: u64,
}

impl<T> Slabs<T> {
    /// Creates an empty pool of `bytes` bytes from `base` on, in whole pages: up to 64 KiB at either end are not used.
    pub(crate) fn new(base: RemoteAddress, bytes: u64) -> Self {
        let aligned = base.0.checked_next_multiple_of(PAGE_BYTES).unwrap_or(base.0);
        let usable = bytes.min(u64::MAX - base.0).saturating_sub(aligned - base.0);
        let pages = u32::try_from(usable / PAGE_BYTES).unwrap_or(NONE - 1);
        let class = |class| Class {
            pages: u32::try_from(span_pages(class, pages.into())).unwrap_or(NONE),
            pages_min: u32::try_from(span_pages_min(class)).unwrap_or(NONE),
            first: NONE,
            last: NONE,
            empty: None,
        };
        Self {
            base: aligned,
            runs: PageRuns::new(pages),
            span_of_page: vec![NONE; pages as usize],
            spans: Vec::new(),
            vacant_spans: Vec::new(),
            classes: std::array::from_fn(class),
            objects: Table::default(),
            vacant_objects: Vec::new(),
            live: 0,
            bytes_used: 0,
        }
    }

    /// Returns the number of bytes of the pool that an object takes, including its header hole and the rounding to its
    /// class or pages.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate), except for lack of room.
    pub(crate) fn footprint(size: u64, alignment: u64) -> Result<u64, Refusal> {
        check(size, alignment)?;
        match home_class(size, alignment) {
            Some(class) => Ok(stride(class)),
            None => page_footprint(size, alignment).ok_or(Refusal::OutOfMemory { size }),
        }
    }

    /// Allocates an object with a buffer of at least `size` bytes at a multiple of `alignment`. `payload` is the node's
    /// record of it.
    ///
    /// # Errors
    /// [`Refusal::Nothing`] for no bytes; [`Refusal::Alignment`]; [`Refusal::OutOfMemory`] if the pool has no room in
    /// one piece.
    pub(crate) fn allocate(&mut self, size: u64, alignment: u64, payload: T) -> Result<ObjectId, Refusal> {
        check(size, alignment)?;
        let out_of_memory = Refusal::OutOfMemory { size };
        let next_object = u32::try_from(self.objects.len()).ok().filter(|&next| next != NONE);
        let object = self.vacant_objects.last().copied().or(next_object).ok_or(out_of_memory)?;
        let span = match home_class(size, alignment) {
            Some(class) => self.span_with_room(class),
            None => self.large_span(size, alignment),
        };
        let span = span.ok_or(out_of_memory)?;
        let slot = self.take_slot(span, ObjectId(object)).ok_or(out_of_memory)?;

        let home = &self.spans[span as usize];
        let address = RemoteAddress(self.base + home.offset_of(slot) + Header::BYTES);
        self.bytes_used += home.stride;
        self.live += 1;
        let record = Object { address, size, span, slot, payload: Some(payload) };
        if self.vacant_objects.pop().is_some() {
            self.objects[object as usize] = record;
        } else {
            self.objects.push(record);
        }
        Ok(ObjectId(object))
    }

    /// Frees an object with its header hole, and returns the node's record of it. The memory may be given to the next
    /// request, but only after all that is free now in its span.
    pub(crate) fn free(&mut self, object: ObjectId) -> T {
        let record = &mut self.objects[object.0 as usize];
        let payload = record.payload.take().expect("only a live object is freed");
        let (span, slot) = (record.span, record.slot);
        self.vacant_objects.push(object.0);
        self.live -= 1;

        let home = &mut self.spans[span as usize];
        let was_full = home.is_full();
        home.give(slot);
        let emptied = home.live == 0;
        self.bytes_used -= home.stride;
        match home.class {
            None => self.retire(span),
            Some(class) => {
                if was_full {
                    self.link(class, span);
                }
                if emptied {
                    self.keep_or_retire(class, span);
                }
            }
        }
        payload
    }

    /// Returns the live object whose buffer starts at exactly this address. Any address is allowed.
    pub(crate) fn find(&self, address: RemoteAddress) -> Option<ObjectId> {
        let offset = address.0.checked_sub(self.base)?.checked_sub(Header::BYTES)?;
        let page = usize::try_from(offset / PAGE_BYTES).ok()?;
        let span = *self.span_of_page.get(page)?;
        self.spans.get(span as usize)?.object_at(offset)
    }

    /// Returns the address of an object's buffer.
    pub(crate) fn address(&self, object: ObjectId) -> RemoteAddress {
        self.record(object).address
    }

    /// Returns the address of the 32-byte hole before an object's buffer.
    pub(crate) fn header_hole(&self, object: ObjectId) -> RemoteAddress {
        RemoteAddress(self.record(object).address.0 - Header::BYTES)
    }

    /// Returns the requested size, in bytes.
    pub(crate) fn size(&self, object: ObjectId) -> u64 {
        self.record(object).size
    }

    /// Returns the number of bytes that the object's buffer really has: at least its size.
    pub(crate) fn capacity(&self, object: ObjectId) -> u64 {
        self.spans[self.record(object).span as usize].stride - Header::BYTES
    }

    /// Returns the number of bytes of the pool that the object takes: see [`footprint`](Self::footprint).
    pub(crate) fn taken(&self, object: ObjectId) -> u64 {
        self.capacity(object) + Header::BYTES
    }

    /// Returns the node's record of an object.
    pub(crate) fn get(&self, object: ObjectId) -> &T {
        self.record(object).payload.as_ref().expect("only live objects are looked at")
    }

    /// Prefetches the node's record of an object, without waiting for it.
    #[inline]
    pub(crate) fn prefetch(&self, object: ObjectId) {
        portcullis_nic::prefetch(self.record(object));
    }

    /// Returns the node's record of an object, to be changed.
    pub(crate) fn get_mut(&mut self, object: ObjectId) -> &mut T {
        self.objects[object.0 as usize].payload.as_mut().expect("only live objects are looked at")
    }

    /// Whether an object has this id now, even if it is not the object that the caller means.
    pub(crate) fn is_live(&self, object: ObjectId) -> bool {
        self.objects.get(object.0 as usize).is_some_and(|record| record.payload.is_some())
    }

    /// Returns the number of bytes that objects take, including header holes and rounding.
    pub(crate) fn bytes_used(&self) -> u64 {
        self.bytes_used
    }

    /// Returns the number of bytes that no object takes, in any number of pieces.
    pub(crate) fn bytes_free(&self) -> u64 {
        self.span_of_page.len() as u64 * PAGE_BYTES - self.bytes_used
    }

    /// Returns the number of live objects.
    pub(crate) fn objects(&self) -> u32 {
        self.live
    }

    fn record(&self, object: ObjectId) -> &Object<T> {
        let record = &self.objects[object.0 as usize];
        debug_assert!(record.payload.is_some(), "only live objects are looked at");
        record
    }

    fn take_slot(&mut self, span: u32, object: ObjectId) -> Option<u32> {
        let home = &mut self.spans[span as usize];
        let slot = home.take(object)?;
        let (full, first) = (home.is_full(), home.live == 1);
        if let Some(class) = home.class {
            if first && self.classes[class].empty == Some(span) {
                self.classes[class].empty = None;
            }
            if full {
                self.unlink(class, span);
            }
        }
        Some(slot)
    }

    fn span_with_room(&mut self, class: usize) -> Option<u32> {
        let Class { first, pages, pages_min, .. } = self.classes[class];
        if first != NONE {
            return Some(first);
        }
        let (first_page, pages) = match self.take_run(pages) {
            Some(first_page) => (first_page, pages),
            None => (self.runs.take(pages_min)?, pages_min),
        };
        let (stride, lead) = (stride(class), lead(class));
        let count = u32::try_from((u64::from(pages) * PAGE_BYTES - lead) / stride).ok()?;
        let span = self.cut_span((first_page, pages), Some(class), (lead, stride), count);
        for page in first_page..first_page + pages {
            self.span_of_page[page as usize] = span;
        }
        self.link(class, span);
        Some(span)
    }

    /// Makes a span of its own pages for one object. Takes as many extra pages as the alignment may cost, and gives
    /// back those before and behind the object.
    fn large_span(&mut self, size: u64, alignment: u64) -> Option<u32> {
        let alignment = alignment.max(HOLE_ALIGNMENT);
        let most = size.checked_add(Header::BYTES)?.checked_add(alignment - HOLE_ALIGNMENT)?;
        let taken = u32::try_from(most.div_ceil(PAGE_BYTES)).ok()?;
        let first = self.take_run(taken)?;
        let run = self.base + u64::from(first) * PAGE_BYTES;
        let buffer = (run + Header::BYTES).next_multiple_of(alignment);
        let hole = buffer - Header::BYTES - self.base;
        // Both lie within the run, whose pages are counted in 32 bits.
        let first_page = u32::try_from(hole / PAGE_BYTES).ok()?;
        let end = u32::try_from((buffer - self.base + size).div_ceil(PAGE_BYTES)).ok()?;
        if first_page > first {
            self.runs.give(first, first_page - first);
        }
        if end < first + taken {
            self.runs.give(end, first + taken - end);
        }
        let lead = hole - u64::from(first_page) * PAGE_BYTES;
        let stride = u64::from(end) * PAGE_BYTES - hole;
        let span = self.cut_span((first_page, end - first_page), None, (lead, stride), 1);
        self.span_of_page[first_page as usize] = span;
        Some(span)
    }

    /// Takes pages in one piece, if necessary from the empty spans that classes keep.
    fn take_run(&mut self, pages: u32) -> Option<u32> {
        if let Some(first_page) = self.runs.take(pages) {
            return Some(first_page);
        }
        for class in 0..CLASSES {
            if let Some(span) = self.classes[class].empty.take() {
                self.unlink(class, span);
                self.retire(span);
            }
        }
        self.runs.take(pages)
    }

    fn cut_span(
        &mut self,
        (first_page, pages): (u32, u32),
        class: Option<usize>,
        (lead, stride): (u64, u64),
        count: u32,
    ) -> u32 {
        let index = self.vacant_spans.pop().unwrap_or_else(|| {
            self.spans.push(Span::vacant());
            // A span has at least one page, and pages are counted in 32 bits.
            u32::try_from(self.spans.len() - 1).unwrap_or(NONE)
        });
        let span = &mut self.spans[index as usize];
        span.start = u64::from(first_page) * PAGE_BYTES + lead;
        (span.first_page, span.pages) = (first_page, pages);
        (span.class, span.stride) = (class, stride);
        span.cut(count);
        index
    }

    /// Gives back the pages of a span that holds no object and is in no list.
    fn retire(&mut self, span: u32) {
        let home = &mut self.spans[span as usize];
        let (first_page, pages) = (home.first_page, home.pages);
        let owned = if home.class.is_some() { pages } else { 1 };
        home.cut(0);
        for page in first_page..first_page + owned {
            self.span_of_page[page as usize] = NONE;
        }
        self.runs.give(first_page, pages);
        self.vacant_spans.push(span);
    }

    /// Handles a span whose last object was freed. The class keeps one such span, as the last to be used.
    fn keep_or_retire(&mut self, class: usize, span: u32) {
        self.unlink(class, span);
        if self.classes[class].empty.is_some() {
            self.retire(span);
        } else {
            self.link(class, span);
            self.classes[class].empty = Some(span);
        }
    }

    fn link(&mut self, class: usize, span: u32) {
        let last = std::mem::replace(&mut self.classes[class].last, span);
        (self.spans[span as usize].previous, self.spans[span as usize].next) = (last, NONE);
        match self.spans.get_mut(last as usize) {
            Some(before) => before.next = span,
            None => self.classes[class].first = span,
        }
    }

    fn unlink(&mut self, class: usize, span: u32) {
        let Span { previous, next, .. } = self.spans[span as usize];
        match self.spans.get_mut(previous as usize) {
            Some(before) => before.next = next,
            None => self.classes[class].first = next,
        }
        match self.spans.get_mut(next as usize) {
            Some(after) => after.previous = previous,
            None => self.classes[class].last = previous,
        }
    }
}

/// Returns the class in whose spans an object lies. `None`: the object has pages of its own, which take no more.
fn home_class(size: u64, alignment: u64) -> Option<usize> {
    let class = class_of(size, alignment)?;
    let pages = page_footprint(size, alignment)?;
    (stride(class) < pages).then_some(class)
}

/// Returns the number of bytes that an object with pages of its own takes, as `large_span` places it. Alignments beyond
/// a page put the buffer at the start of a page. `None`: no pool is so large.
fn page_footprint(size: u64, alignment: u64) -> Option<u64> {
    let before = alignment.clamp(HOLE_ALIGNMENT, PAGE_BYTES);
    let end = size.checked_add(before)?.checked_next_multiple_of(PAGE_BYTES)?;
    Some(end - before + Header::BYTES)
}

/// Checks that an object can have this size and this alignment.
fn check(size: u64, alignment: u64) -> Result<(), Refusal> {
    if size == 0 {
        return Err(Refusal::Nothing);
    }
    if !alignment.max(1).is_power_of_two() || alignment > ALIGNMENT_MAX {
        return Err(Refusal::Alignment { most: ALIGNMENT_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
