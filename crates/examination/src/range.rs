//! Whether a key opens its own bytes and no others.

use super::attempt::{Subject, refused, works};
use super::probe::Said;
use crate::bench::{Bench, HELD, HELD_BYTES, Holder};
use portcullis_nic::{Access, Nic};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Accesses that all lie inside the region, where only the range under test can refuse them: name, address, length.
const STRAYS: [(&str, u64, u32); 5] = [
    ("the byte below its range", HELD - 1, 1),
    ("the byte past its range", HELD + HELD_BYTES, 1),
    ("8 bytes below and 8 inside", HELD - 8, 16),
    ("8 bytes inside and 8 past", HELD + HELD_BYTES - 8, 16),
    ("8 bytes 2 KiB further on", HELD + 2048, 8),
];

pub(super) fn of<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Said {
    let mut subject = Subject::new(bench, holder)?;
    for (what, address, length) in STRAYS {
        for writes in [false, true] {
            let (held, pair) = (subject.key(bench, READ_WRITE)?, subject.pair);
            let inside = bench.read(HELD, 8, held.rkey);
            works(bench, pair, inside, "a READ inside")?;
            if writes {
                let stray = bench.write(address, length, held.rkey);
                refused(bench, pair, stray, &format!("a WRITE of {what}"))?;
            } else {
                let stray = bench.read(address, length, held.rkey);
                refused(bench, pair, stray, &format!("a READ of {what}"))?;
            }
        }
    }
    Ok(String::new())
}
