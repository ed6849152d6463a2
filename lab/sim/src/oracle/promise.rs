//! The promises, with their names in reports, and how one was broken.

use crate::clock::Nanos;
use serde::Serialize;
use std::fmt;

/// A promise that a checker watches. See the table in ARCHITECTURE.md.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// No access succeeds outside a live permission's range, rights, tenant or time.
    Access,
    /// Never two exclusive holders, never an exclusive one beside a shared one.
    Exclusion,
    /// An old reference never opens a new object, and no two objects have the same reference.
    Reference,
    /// Once a free is answered, no permission over the object or its members, no name and no share of them is granted. One that
    /// ends the holders, or waits for them, is answered when there are none.
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
    /// What the users of a structure are told fits one order of their operations: nothing is lost, doubled or torn.
    Order,
    /// No operation without a queue pair that changes something is carried out twice.
    Once,
    /// No nonce is used twice under one key.
    Nonce,
    /// An operation without a queue pair, or a call, ends for its caller when its time-outs are over, at the latest.
    Timeliness,
    /// What nobody has sealed has no effect, and is charged to nobody.
    Proof,
    /// A node sends a stranger no more bytes than it has heard from there.
    Amplification,
    /// A call is answered once, to its caller, with what its method makes of its own arguments.
    Answer,
    /// A method reads exactly what was sent.
    Arguments,
    /// No method begins for a caller that waits no more, or that has cancelled the call before the server took it.
    Beginning,
    /// A lease lives while it is kept alive, and ends with its time, and with it what belongs to it.
    Lease,
    /// No two heaps that are held, and no two scopes in use, have an address in common.
    Places,
    /// Nobody holds more than its quota allows, and nobody is refused what it allows.
    Quota,
    /// A heap's addresses are taken back when nobody holds it any more, within a bound, and not before.
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
    /// When it was found, in ns of virtual time.
    pub at_ns: Nanos,
    /// How it was broken.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ns: {}", self.promise, self.at_ns, self.what)
    }
}
