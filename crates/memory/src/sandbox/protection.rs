//! What sandboxes of this machine keep code from.

use crate::keys;
use std::fmt;

/// What a sandbox keeps its trapped code from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Protection {
    /// What is withheld is out of reach, reads included: stacks and temporary heaps of other sandboxes, and what the program has said:
    /// mappings ([`Mapping::withhold`](crate::Mapping::withhold)), stacks of threads ([`WithheldStack`](super::WithheldStack)), and
    /// the process's heap if it is a [`WithheldHeap`](super::WithheldHeap). Static data, thread locals and what the C library has
    /// allocated are within reach. What the processor refuses anyway is caught too.
    Keys,
    /// What the processor refuses is caught: accesses to where nothing is, writes to what is read-only, overflows of the stack. The
    /// process's own memory is *not* out of reach: a wild pointer into it reads or writes it. So pointers from a peer are checked before
    /// they are followed.
    FaultsOnly(NoKeys),
}

/// Why the process's own memory is within reach of sandboxed code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoKeys {
    /// The processor, or its operating system, has no protection keys.
    Missing,
    /// There are protection keys, and another part of the program has taken them all, or the kernel refuses them.
    Taken,
}

impl Protection {
    pub(super) fn of_this_machine() -> Self {
        match keys::withheld() {
            Some(_) => Self::Keys,
            None => Self::FaultsOnly(if keys::are_there() { NoKeys::Taken } else { NoKeys::Missing }),
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys => f.write_str("protection keys: withheld memory is out of reach"),
            Self::FaultsOnly(reason) => write!(f, "faults only: {reason}"),
        }
    }
}

impl fmt::Display for NoKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "this machine has no protection keys",
            Self::Taken => "this machine's protection keys are taken",
        })
    }
}
