//! The value that a client's watch sees.

use super::messages::{PART_MAX, SentFound, Told};
use crate::embedded::Embedded;
use crate::entry::Found;
use crate::lease::LeaseId;
use crate::name::Name;
use portcullis_protocol::TenantName;
use std::collections::BTreeSet;

/// The watched item.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Name(TenantName, Name),
    Heap(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Sight {
    Name(Option<Found>),
    Heap(BTreeSet<LeaseId>),
}

/// A watch, and the last value that was sent to its client.
#[derive(Debug)]
pub(super) struct Watched {
    subject: Subject,
    seen: Option<Sight>,
}

impl Watched {
    pub fn new(subject: Subject) -> Self {
        Self { subject, seen: None }
    }

    /// Returns the present value, if it differs from the last one sent, together with the part that does not fit into
    /// one message.
    pub fn look(&mut self, directory: &Embedded) -> Option<(Told, Vec<u64>)> {
        let sight = match &self.subject {
            Subject::Name(tenant, name) => Sight::Name(directory.look(tenant, name)),
            Subject::Heap(address) => Sight::Heap(directory.holders(*address)),
        };
        if self.seen.as_ref() == Some(&sight) {
            return None;
        }
        let told = match &sight {
            Sight::Name(found) => (Told::Seen(found.as_ref().map(SentFound::of)), Vec::new()),
            Sight::Heap(holders) => {
                let mut leases: Vec<u64> = holders.iter().map(|lease| lease.0).collect();
                let rest = leases.split_off(leases.len().min(PART_MAX));
                (Told::Holders { leases, is_more: !rest.is_empty() }, rest)
            }
        };
        self.seen = Some(sight);
        Some(told)
    }
}
