//! Whether a key works only where it was made: in its protection domain and, for a window of type 2, on its queue pair.

use super::attempt::{refused, works};
use super::probe::Said;
use crate::bench::{Bench, HELD, Holder};
use portcullis_nic::{Access, Nic, WindowKind};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Checks that keys of regions, and of windows of type 1 if any, are refused in another protection domain. Windows of
/// type 2 are left out: they refuse other queue pairs for another reason.
pub(super) fn protect<N: Nic>(bench: &mut Bench<N>) -> Said {
    let mut tried = vec![("region", Holder::Region)];
    if bench.capabilities.window_type_1 {
        tried.push(("window of type 1", Holder::Window(WindowKind::One)));
    }
    for (what, holder) in tried {
        for writes in [false, true] {
            let (pair, held) = bench.fresh(holder, READ_WRITE)?;
            let read = bench.read(HELD, 8, held.rkey);
            works(bench, pair, read, "a READ in the key's own domain")?;
            let stray = if writes { bench.write(HELD, 8, held.rkey) } else { read };
            let stranger = bench.stranger()?;
            refused(
                bench,
                stranger,
                stray,
                &format!("the key of a {what}, shown in another protection domain,"),
            )?;
        }
    }
    Ok(String::new())
}

pub(super) fn bind_to_queue_pairs<N: Nic>(bench: &mut Bench<N>) -> Said {
    let (own, held) = bench.fresh(Holder::Window(WindowKind::Two), READ_WRITE)?;
    let (read, write) = (bench.read(HELD, 8, held.rkey), bench.write(HELD, 8, held.rkey));
    works(bench, own, read, "a READ on the window's own queue pair")?;
    for stray in [read, write] {
        let sibling = bench.pair()?;
        refused(
            bench,
            sibling,
            stray,
            "the key of a type-2 window, shown on another queue pair of its domain,",
        )?;
    }
    Ok(String::new())
}
