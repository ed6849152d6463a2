//! The value that a client's watch sees.

use super::messages::{SentFound, Told};
use super::parts::{Parts, names};
use crate::embedded::Embedded;
use crate::entry::Found;
use crate::lease::LeaseId;
use crate::name::Name;
use crate::state::ListSummary;
use portcullis_protocol::TenantName;
use std::collections::BTreeSet;

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
    Names(ListSummary),
    Heap(BTreeSet<LeaseId>),
}

/// A watch, and the last value that was sent to its client.
#[derive(Debug)]
pub(super) struct Watched {
    subject: Subject,
    seen: Option<Sight>,
    /// Number of changes of names at the last look at a list.
    name_changes: Option<u64>,
}

impl Watched {
    pub fn new(subject: Subject) -> Self {
        Self { subject, seen: None, name_changes: None }
    }

    /// Returns the present value, if it differs from the last one sent: a message, and the parts that do not fit into it.
    pub fn look(&mut self, directory: &Embedded) -> Option<(Told, Option<Parts>)> {
        let sight = match &self.subject {
            Subject::Name(tenant, name) => Sight::Name(directory.look(tenant, name)),
            Subject::Names(tenant, above) => {
                let (summary, changes) = directory.summary_below(tenant, above, self.name_changes)?;
                self.name_changes = Some(changes);
                Sight::Names(summary)
            }
            Subject::Heap(address) => Sight::Heap(directory.holders(*address)),
        };
        if self.seen.as_ref() == Some(&sight) {
            return None;
        }
        let told = match &sight {
            Sight::Name(found) => (Told::Seen(found.as_ref().map(SentFound::of)), None),
            // A change since the summary was made changes the next summary: the client gets the list again.
            Sight::Names(_) => (self.names_after(directory, None)?, None),
            Sight::Heap(holders) => Parts::Holders(holders.iter().map(|lease| lease.0).collect()).first(),
        };
        self.seen = Some(sight);
        Some(told)
    }

    /// Returns the entries of a watched list behind a name, as many as fit into a message. `None`: it is no list.
    pub fn names_after(&self, directory: &Embedded, after: Option<&Name>) -> Option<Told> {
        let Subject::Names(tenant, above) = &self.subject else { return None };
        Some(names(directory, tenant, above, after))
    }
}
