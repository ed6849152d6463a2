//! The promises, with their names in reports, and the record of a broken one.

use crate::clock::Nanos;
use serde::Serialize;
use std::fmt;

/// A promise that a checker watches. The README of this crate has the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// No access succeeds outside a live permission's range, rights, tenant or time.
    Access,
    /// There are never two exclusive holders, and never an exclusive holder beside a shared one.
    Exclusion,
    /// An old reference never opens a new object, and no two objects have the same reference.
    Reference,
    /// Once a free is answered, no permission over the object or its members, no name and no share of them is
    /// granted. A free that ends the holders, or waits for them, is answered when no holder is left.
    Freed,
    /// When a permission ends, its memory and its header are used again only after no access can reach them.
    Reuse,
    /// No client gets memory that contains another tenant's bytes.
    Scrub,
    /// The holder of a live permission is not refused.
    Service,
    /// One client's violation is never another's error, and is charged to its own tenant.
    Isolation,
    /// One client's lateness never costs another client: no client is paused or barred for a key that a sibling held.
    Lateness,
    /// Every posted operation completes exactly once, with the truth.
    Truth,
    /// The node's memory holds what was written to it, byte for byte, and nothing else.
    Memory,
    /// A request is answered within the leases before it and a bound; a departed client costs no more than its lease.
    Progress,
    /// No code panics, whatever peers and machines do.
    Soundness,
    /// The results that the users of a structure get fit one order of their operations: nothing is lost, doubled or
    /// torn.
    Order,
    /// No operation without a queue pair that changes something is executed twice.
    Once,
    /// No nonce is used twice under one key.
    Nonce,
    /// An operation without a queue pair, or a call, ends for its caller when its time-outs are over, at the latest.
    Timeliness,
    /// A packet that no client has sealed has no effect, and is charged to no client.
    Proof,
    /// A node sends a stranger no more bytes than it has received from there.
    Amplification,
    /// A call is answered once, to its caller, with the result of its method for its own arguments.
    Answer,
    /// A method reads exactly what was sent.
    Arguments,
    /// No method begins for a caller that no longer waits, or that has cancelled the call before the server took it.
    Beginning,
    /// A lease lives while it is kept alive. It ends with its time, and everything that belongs to it ends with it.
    Lease,
    /// No two heaps that are held, and no two scopes in use, have an address in common.
    Places,
    /// No process and no tenant holds more than its quota allows, and none is refused what it allows.
    Quota,
    /// A heap's addresses are taken back when the heap has no holder any more, within a bound, and not before.
    Reclaim,
    /// At rest nothing is left: no permissions, objects, bytes, headers, windows, queue pairs or requests, and no memory of
    /// a structure that it does not use; no memory of scopes and results, and no heaps.
    Rest,
}

impl Promise {
    /// The promise's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Exclusion => "exclusion",
            Self::Reference => "reference",
            Self::Freed => "freed",
            Self::Reuse => "reuse",
            Self::Scrub => "scrub",
            Self::Service => "service",
            Self::Isolation => "isolation",
            Self::Lateness => "lateness",
            Self::Truth => "truth",
            Self::Memory => "memory",
            Self::Progress => "progress",
            Self::Soundness => "soundness",
            Self::Order => "order",
            Self::Once => "once",
            Self::Nonce => "nonce",
            Self::Timeliness => "timeliness",
            Self::Proof => "proof",
            Self::Amplification => "amplification",
            Self::Answer => "answer",
            Self::Arguments => "arguments",
            Self::Beginning => "beginning",
            Self::Lease => "lease",
            Self::Places => "places",
            Self::Quota => "quota",
            Self::Reclaim => "reclaim",
            Self::Rest => "rest",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failure {
    /// The promise.
    pub promise: Promise,
    /// Time at which the failure was found, in ns of virtual time.
    pub at_ns: Nanos,
    /// Description of how the promise was broken.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ns: {}", self.promise, self.at_ns, self.what)
    }
}
