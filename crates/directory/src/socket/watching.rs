//! The value that a client's watch sees.

use super::messages::{SentFound, Told};
use super::parts::Parts;
use crate::embedded::Embedded;
use crate::entry::Found;
use crate::lease::LeaseId;
use crate::name::Name;
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};

/// The watched item.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Name(TenantName, Name),
    /// All names below another one.
    Names(TenantName, Name),
    Heap(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Sight {
    Name(Option<Found>),
    Names(BTreeMap<Name, Found>),
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

    /// Returns the present value, if it differs from the last one sent: a message, and the parts that do not fit into it.
    pub fn look(&mut self, directory: &Embedded) -> Option<(Told, Option<Parts>)> {
        let sight = match &self.subject {
            Subject::Name(tenant, name) => Sight::Name(directory.look(tenant, name)),
            Subject::Names(tenant, above) => Sight::Names(directory.look_below(tenant, above)),
            Subject::Heap(address) => Sight::Heap(directory.holders(*address)),
        };
        if self.seen.as_ref() == Some(&sight) {
            return None;
        }
        let told = match &sight {
            Sight::Name(found) => (Told::Seen(found.as_ref().map(SentFound::of)), None),
            Sight::Names(names) => Parts::of_names(names).first(),
            Sight::Heap(holders) => Parts::Holders(holders.iter().map(|lease| lease.0).collect()).first(),
        };
        self.seen = Some(sight);
        Some(told)
    }
}
