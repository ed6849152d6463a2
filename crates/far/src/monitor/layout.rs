//! The addresses at which a process has the pages of its range. At first the pages follow each other. A program that
//! unmaps or moves a part of its allocations changes that.

use super::PAGE_BYTES;
use crate::pages::Span;
use std::ops::Range;

/// Neighbouring pages at neighbouring addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Extent {
    address: u64,
    span: Span,
}

impl Extent {
    fn end(self) -> u64 {
        self.address + u64::from(self.span.count) * PAGE_BYTES
    }

    /// Returns the part at these addresses.
    fn within(self, addresses: &Range<u64>) -> Option<Self> {
        let (from, to) = (self.address.max(addresses.start), self.end().min(addresses.end));
        let first = self.span.first + from.saturating_sub(self.address) / PAGE_BYTES;
        (from < to).then(|| Self { address: from, span: Span { first, count: pages(to - from) } })
    }
}

fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX)
}

/// The addresses of a range's pages in one process.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    extents: Vec<Extent>,
}

impl Layout {
    pub(super) fn new(address: u64, length: u64) -> Self {
        Self { extents: vec![Extent { address, span: Span { first: 0, count: pages(length) } }] }
    }

    /// Returns the page at an address. `None`: the range has no page there.
    pub(super) fn page_at(&self, address: u64) -> Option<u64> {
        let it = self.extents.iter().find(|it| (it.address..it.end()).contains(&address))?;
        Some(it.span.first + (address - it.address) / PAGE_BYTES)
    }

    /// Returns the pages at these addresses.
    pub(super) fn pages_at(&self, addresses: &Range<u64>) -> Vec<Span> {
        self.extents.iter().filter_map(|it| it.within(addresses)).map(|it| it.span).collect()
    }

    /// Returns the addresses of pages, in pieces. Pages that are not mapped are in no piece.
    pub(super) fn places_of(&self, span: Span) -> Vec<(u64, Span)> {
        let within = |it: &Extent| {
            let (from, to) = (it.span.first.max(span.first), it.span.end().min(span.end()));
            let address = it.address + from.saturating_sub(it.span.first) * PAGE_BYTES;
            (from < to).then(|| (address, Span { first: from, count: pages((to - from) * PAGE_BYTES) }))
        };
        self.extents.iter().filter_map(within).collect()
    }

    /// Forgets the pages at these addresses.
    pub(super) fn unmap(&mut self, addresses: &Range<u64>) {
        let (before, after) = (0..addresses.start, addresses.end..u64::MAX);
        let parts = |it: &Extent| [it.within(&before), it.within(&after)];
        self.extents = self.extents.iter().flat_map(parts).flatten().collect();
    }

    /// Moves the pages at these addresses.
    pub(super) fn remap(&mut self, from: &Range<u64>, to: u64) {
        let moved: Vec<_> = self.extents.iter().filter_map(|it| it.within(from)).collect();
        self.unmap(from);
        self.unmap(&(to..to + (from.end - from.start)));
        self.extents
            .extend(moved.into_iter().map(|it| Extent { address: it.address - from.start + to, ..it }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1 << 30;

    fn span(first: u64, count: u32) -> Span {
        Span { first, count }
    }

    #[test]
    fn a_part_that_is_unmapped_has_no_pages_and_the_rest_keeps_its_own() {
        let mut layout = Layout::new(AT, 10 * PAGE_BYTES);
        layout.unmap(&(AT + 3 * PAGE_BYTES..AT + 5 * PAGE_BYTES));
        assert_eq!(layout.page_at(AT + 2 * PAGE_BYTES), Some(2));
        assert_eq!(layout.page_at(AT + 3 * PAGE_BYTES), None);
        assert_eq!(layout.page_at(AT + 5 * PAGE_BYTES), Some(5));
        assert_eq!(layout.pages_at(&(AT..AT + 10 * PAGE_BYTES)), [span(0, 3), span(5, 5)]);
        let places = [(AT + 2 * PAGE_BYTES, span(2, 1)), (AT + 5 * PAGE_BYTES, span(5, 1))];
        assert_eq!(layout.places_of(span(2, 4)), places);
    }

    #[test]
    fn a_part_that_moves_takes_its_pages_along() {
        let mut layout = Layout::new(AT, 10 * PAGE_BYTES);
        layout.remap(&(AT + 4 * PAGE_BYTES..AT + 6 * PAGE_BYTES), 2 * AT);
        assert_eq!(layout.page_at(AT + 4 * PAGE_BYTES), None);
        assert_eq!(layout.page_at(2 * AT + PAGE_BYTES), Some(5));
        assert_eq!(layout.places_of(span(5, 1)), [(2 * AT + PAGE_BYTES, span(5, 1))]);
        // The move goes over another part: that part is unmapped.
        layout.remap(&(2 * AT..2 * AT + 2 * PAGE_BYTES), AT);
        assert_eq!(layout.page_at(AT), Some(4));
        assert!(layout.places_of(span(0, 2)).is_empty());
    }
}
