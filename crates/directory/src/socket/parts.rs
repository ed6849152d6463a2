//! Lists that are longer than a message: a client requests them part by part.

use super::messages::{NAMES_BYTES_MAX, PART_MAX, SentFound, SentName, SentRange, Told, encode, sent_range};
use crate::addresses::HeapRange;
use crate::embedded::Embedded;
use crate::name::Name;
use portcullis_protocol::TenantName;

/// The remaining part of a list of short items. Entries are never kept: they are long, and a client need not request the rest.
#[derive(Debug)]
pub(super) enum Parts {
    Heaps(Vec<SentRange>),
    Holders(Vec<u64>),
}

impl Parts {
    pub fn of_heaps(heaps: Vec<HeapRange>) -> Self {
        Self::Heaps(heaps.into_iter().map(sent_range).collect())
    }

    /// Returns the first part, and the rest if there is one.
    pub fn first(mut self) -> (Told, Option<Self>) {
        let (told, is_more) = match &mut self {
            Self::Heaps(list) => {
                let (heaps, is_more) = cut(list);
                (Told::Heaps { heaps, is_more }, is_more)
            }
            Self::Holders(list) => {
                let (leases, is_more) = cut(list);
                (Told::Holders { leases, is_more }, is_more)
            }
        };
        (told, is_more.then_some(self))
    }
}

/// Takes the first items off a list. Returns them, and whether others are left.
fn cut<T>(list: &mut Vec<T>) -> (Vec<T>, bool) {
    let rest = list.split_off(list.len().min(PART_MAX));
    let part = std::mem::replace(list, rest);
    (part, !list.is_empty())
}

/// Returns the entries that a tenant sees below a name, behind `after`, as many as fit into a message.
pub(super) fn names(directory: &Embedded, tenant: &TenantName, above: &Name, after: Option<&Name>) -> Told {
    let (mut names, mut bytes): (Vec<SentName>, usize) = (Vec::new(), 0);
    let is_all = directory.look_below(tenant, above, after, |name, found| {
        if bytes >= NAMES_BYTES_MAX {
            return false;
        }
        let sent = (name.to_string(), SentFound::of(found));
        bytes += encode(&sent).len();
        names.push(sent);
        true
    });
    Told::Names { names, is_more: !is_all }
}
