//! The segments of a chain on a NIC that fetches requests ahead of their turn, as mlx5 does.
//!
//! Such a NIC may fetch a request any time after it was admitted. So a request that needs the effect of an earlier
//! one is admitted only when that effect has landed: it begins a new segment. The listing alone determines where
//! segments begin.

use portcullis_offload::chain::{Label, Listing, Operand, Queue, Row, RowOperation};
use std::ops::Range;

/// Bytes at a place.
#[derive(Clone, Copy, Debug)]
struct Span {
    place: Operand,
    bytes: u64,
}

impl Span {
    fn word(place: Operand) -> Self {
        Self { place, bytes: 8 }
    }

    /// Returns the memory that the span lies in, and the place where it begins there.
    fn memory(self) -> (Memory, u64) {
        match self.place {
            Operand::Line(label, at) => (Memory::Line(label), at),
            Operand::Bind(number) => (Memory::Binds, u64::from(number) * portcullis_nic::entry::BYTES),
            Operand::Words(at) => (Memory::Words, at),
            // These are views of one table. The record that an address names is not known here.
            Operand::Table(_) | Operand::Owners(_) | Operand::Tails(_) => (Memory::Table, 0),
            Operand::Scratch(at) => (Memory::Scratch, at),
            Operand::Credits => (Memory::Credits, 0),
        }
    }

    fn overlaps(self, other: Self) -> bool {
        let ((memory, at), (other_memory, other_at)) = (self.memory(), other.memory());
        memory == other_memory && at < other_at + other.bytes && other_at < at + self.bytes
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Line(Label),
    Binds,
    Words,
    Table,
    Scratch,
    Credits,
}

/// The bytes that a row writes.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    /// Bytes at the far end, which takes the requests of a queue in their order.
    far: Option<Span>,
    /// Bytes at the near end, written when the answer arrives.
    near: Option<Span>,
}

fn written(step: RowOperation) -> Written {
    match step {
        RowOperation::Read { bytes, to, .. } => Written { near: Some(Span { place: to, bytes }), far: None },
        RowOperation::Write { bytes, to, .. } => Written { far: Some(Span { place: to, bytes }), near: None },
        RowOperation::CopyImage { bytes, to, .. } => {
            Written { far: Some(Span { place: Operand::Bind(to), bytes }), near: None }
        }
        RowOperation::Add { to, old, .. } => {
            Written { far: Some(Span::word(to)), near: Some(Span::word(old)) }
        }
        RowOperation::Swap { at, old, .. } => {
            Written { far: Some(Span::word(at)), near: Some(Span::word(old)) }
        }
        _ => Written::default(),
    }
}

/// Returns the bytes that a row takes from its own end when it is sent.
fn taken_along(step: RowOperation) -> Option<Span> {
    match step {
        RowOperation::Write { from, bytes, .. } | RowOperation::CopyImage { from, bytes, .. } => {
            Some(Span { place: from, bytes })
        }
        _ => None,
    }
}

/// Returns the bytes that a row reaches at the far end.
fn reached(step: RowOperation) -> Option<Span> {
    match step {
        RowOperation::Read { from, bytes, .. } => Some(Span { place: from, bytes }),
        _ => written(step).far,
    }
}

/// Whether a row lets others run: another queue, the client, or the next lap. They must find the effects of all
/// earlier rows.
fn lets_others_run(step: RowOperation) -> bool {
    matches!(
        step,
        RowOperation::Enable { .. } | RowOperation::EnableReceive { .. } | RowOperation::EnableRequest { .. }
    )
}

/// Whether `row` needs what `before` writes, and needs it to have landed before `row` is fetched or sent.
fn needs(row: &Row, before: &Row) -> bool {
    let done = written(before.operation);
    let both = [done.far, done.near].into_iter().flatten();
    let entry = Span { place: Operand::Line(row.label, 0), bytes: portcullis_nic::entry::BYTES };
    let is_patched = both.clone().any(|span| span.overlaps(entry));
    let takes_it =
        taken_along(row.operation).is_some_and(|taken| both.clone().any(|span| span.overlaps(taken)));
    // If both are at the far end, it takes one after the other.
    let reaches_it =
        reached(row.operation).is_some_and(|there| done.near.is_some_and(|near| near.overlaps(there)));
    is_patched || takes_it || reaches_it || (lets_others_run(row.operation) && both.count() > 0)
}

/// Returns the segments of a listing, as ranges of its rows. A row that releases the lock begins a segment too: on
/// such a NIC its completion must be counted on the lock, so it stands in a queue of its own.
pub(super) fn segments(listing: &Listing) -> Vec<Range<usize>> {
    let rows = listing.rows();
    let mut begins = 0;
    let mut segments = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let needs_earlier = rows[begins..at].iter().any(|before| needs(row, before));
        if at > begins && (needs_earlier || row.releases) {
            segments.push(begins..at);
            begins = at;
        }
    }
    segments.push(begins..rows.len());
    segments
}

/// Whether a row lets the reply leave.
pub(super) fn replies(step: RowOperation) -> bool {
    matches!(step, RowOperation::Enable { queue: Queue::Reply, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_offload::chain::{Chains, Line};

    fn beginnings(listing: &Listing) -> Vec<Line> {
        segments(listing).into_iter().map(|segment| listing.rows()[segment.start].label.0).collect()
    }

    #[test]
    fn a_chain_is_cut_where_a_row_needs_what_is_under_way() {
        use Line::{
            AddCredit, AwaitRequest, AwaitTurn, CopyImage, EnableBinds, EnableReply, EnableRequest, Pop,
            ReadCredit, ReadRecord, Rearm,
        };
        let Chains { alloc, .. } = Chains::new::<4>();
        let cut = [
            AwaitRequest,
            AwaitTurn,
            Pop,
            ReadRecord,
            CopyImage,
            EnableBinds,
            EnableReply,
            AddCredit,
            ReadCredit,
            EnableRequest,
            Rearm,
        ];
        assert_eq!(beginnings(&alloc), cut);
    }

    #[test]
    fn a_larger_group_needs_no_more_segments() {
        let (one, eight) = (Chains::new::<1>(), Chains::new::<8>());
        assert_eq!(segments(&one.alloc).len(), segments(&eight.alloc).len());
        assert_eq!(segments(&one.free).len(), segments(&eight.free).len());
    }

    #[test]
    fn no_row_needs_another_of_its_segment_and_all_rows_are_there() {
        let Chains { alloc, free } = Chains::new::<8>();
        for listing in [alloc, free] {
            let mut end = 0;
            for segment in segments(&listing) {
                assert_eq!(segment.start, end);
                end = segment.end;
                let rows = &listing.rows()[segment];
                for (at, row) in rows.iter().enumerate() {
                    assert!(!rows[..at].iter().any(|before| needs(row, before)), "{row:?}");
                }
            }
            assert_eq!(end, listing.rows().len());
        }
    }

    #[test]
    fn a_row_that_is_patched_by_nobody_any_more_is_cut_off_no_more() {
        let Chains { alloc, .. } = Chains::new::<1>();
        let without = alloc.edited(|rows| rows.retain(|row| row.label.0 != Line::ReadTop));
        assert_eq!(segments(&without).len(), segments(&alloc).len(), "the release begins one in any case");
        let without = alloc.edited(|rows| rows.retain(|row| row.label.0 != Line::CopyCredit));
        assert_eq!(segments(&without).len() + 1, segments(&alloc).len());
    }
}
