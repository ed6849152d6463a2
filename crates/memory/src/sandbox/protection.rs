//! The protection that sandboxes have on this machine.

use crate::keys;
use std::fmt;

/// The memory that a sandbox protects from its trapped code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Protection {
    /// Withheld memory is out of reach, reads included: stacks and temporary heaps of other sandboxes, and the memory
    /// that the program has withheld: mappings ([`Mapping::withhold`](crate::Mapping::withhold)), stacks of threads
    /// ([`WithheldStack`](super::WithheldStack)), and the process's heap if it is a
    /// [`WithheldHeap`](super::WithheldHeap). Static data, thread locals and allocations of the C library are within
    /// reach. Accesses that the processor refuses anyway are caught too.
    Keys,
    /// Accesses that the processor refuses are caught: accesses to unmapped addresses, writes to read-only memory,
    /// overflows of the stack. The process's own memory is *not* out of reach: a wild pointer into it reads or writes
    /// it. So pointers from a peer are checked before they are followed.
    FaultsOnly(NoKeys),
}

/// Reason for which the process's own memory is within reach of sandboxed code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoKeys {
    /// The processor, or its operating system, has no protection keys.
    Missing,
    /// The processor has protection keys, but another part of the program has taken them all, or the kernel refuses
    /// them.
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
