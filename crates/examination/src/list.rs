//! The guarantees, and the meaning of each for an operator who lends memory.

use super::probe::{Probe, Trial};
use crate::bench::Holder;
use portcullis_nic::{Guarantee, WindowKind};
use portcullis_protocol::Mechanism::{self, MemoryRegion, MemoryWindow, NodeCopy, QueuePair, WindowGroup};

const ONE: Holder = Holder::Window(WindowKind::One);
const TWO: Holder = Holder::Window(WindowKind::Two);
/// Mechanisms whose permissions are keys.
const KEYS: &[Mechanism] = &[MemoryWindow, WindowGroup, MemoryRegion];
/// Mechanisms with one-sided access.
const ONE_SIDED: &[Mechanism] = &[MemoryWindow, WindowGroup, MemoryRegion, QueuePair];

/// All guarantees, in the order in which they are tried and reported.
pub(super) const PROBES: [Probe; 23] = [
    Probe {
        name: "range-window-1",
        guarantee: Some(Guarantee::WindowRange),
        mechanisms: &[MemoryWindow],
        kept: "a permission opens its own bytes and not the next one's",
        missing: "A holder of a permission reaches the whole pool around it: use --protection memory-region or node-copy here",
        trial: Trial::Range(ONE),
    },
    Probe {
        name: "range-window-2",
        guarantee: Some(Guarantee::Type2Range),
        mechanisms: &[WindowGroup],
        kept: "windows of type 2 open their own bytes alone",
        missing: "Windows of type 2 reach the whole region: do not use --protection window-group here",
        trial: Trial::Range(TWO),
    },
    Probe {
        name: "range-region",
        guarantee: Some(Guarantee::RegionRange),
        mechanisms: &[MemoryRegion],
        kept: "a region opens its own bytes alone",
        missing: "No key keeps to its bytes: use --protection node-copy, or another device",
        trial: Trial::Range(Holder::Region),
    },
    Probe {
        name: "rights-window-1",
        guarantee: Some(Guarantee::WindowRights),
        mechanisms: &[MemoryWindow],
        kept: "a key for reads, writes or atomics allows no other kind of access",
        missing: "A key for reads also allows writes: use --protection memory-region or node-copy here",
        trial: Trial::Rights(ONE),
    },
    Probe {
        name: "rights-window-2",
        guarantee: Some(Guarantee::Type2Rights),
        mechanisms: &[WindowGroup],
        kept: "windows of type 2 allow the accesses that they were granted for and no others",
        missing: "Windows of type 2 allow accesses that they were not granted for: do not use --protection window-group here",
        trial: Trial::Rights(TWO),
    },
    Probe {
        name: "rights-region",
        guarantee: Some(Guarantee::RegionRights),
        mechanisms: KEYS,
        kept: "regions allow the accesses that they were granted for, and the pool's own key opens nothing to clients",
        missing: "The pool's own key opens it, or a region's opens more than it should: use --protection node-copy, or another device",
        trial: Trial::Rights(Holder::Region),
    },
    Probe {
        name: "stale-key-after-rebind",
        guarantee: Some(Guarantee::StaleKey),
        mechanisms: &[MemoryWindow],
        kept: "a window that was rebound to the next holder is closed to the last one",
        missing: "The last holder reaches the next one's bytes: use --protection memory-region or node-copy here",
        trial: Trial::StaleAfterRebind,
    },
    Probe {
        name: "stale-key-after-unbind",
        guarantee: Some(Guarantee::StaleKey),
        mechanisms: &[MemoryWindow],
        kept: "a permission that was revoked or ran out opens nothing",
        missing: "Revoked permissions still work: use --protection memory-region or node-copy here",
        trial: Trial::StaleAfterUnbind,
    },
    Probe {
        name: "stale-key-after-invalidate",
        guarantee: Some(Guarantee::Type2StaleKey),
        mechanisms: &[WindowGroup],
        kept: "a window of type 2 that was invalidated opens nothing",
        missing: "Windows of type 2 stay open after their end: do not use --protection window-group here",
        trial: Trial::StaleAfterInvalidate,
    },
    Probe {
        name: "stale-key-of-region",
        guarantee: Some(Guarantee::RegionEnd),
        mechanisms: &[MemoryRegion],
        kept: "the key of a region that is gone opens nothing",
        missing: "Regions cannot be taken back: use --protection memory-window if that holds, or node-copy",
        trial: Trial::StaleOfRegion,
    },
    Probe {
        name: "key-advance",
        guarantee: None,
        mechanisms: &[MemoryWindow],
        kept: "a bind gives a window the next key, through all 256 low bytes",
        missing: "Keys do not advance as the bind requests, so an old one may open a new permission: use --protection memory-region or node-copy here, and look for newer firmware",
        trial: Trial::KeyAdvance,
    },
    Probe {
        name: "queue-pair-binding",
        guarantee: Some(Guarantee::WindowQueuePair),
        mechanisms: &[WindowGroup],
        kept: "a window of type 2 works on the queue pair that it was bound on, and on no other",
        missing: "Windows of type 2 protect clients of one tenant no better than type 1: --protection window-group promises more than it keeps here, so give clients that distrust each other tenants of their own",
        trial: Trial::QueuePairBinding,
    },
    Probe {
        name: "protection-domain",
        guarantee: Some(Guarantee::ProtectionDomain),
        mechanisms: ONE_SIDED,
        kept: "a key that another tenant learns or guesses is worth nothing to it",
        missing: "Tenants reach each other's memory with keys that they learn or guess (256 tries): use --protection node-copy, or one device a tenant",
        trial: Trial::Domains,
    },
    Probe {
        name: "queue-pair-rights",
        guarantee: Some(Guarantee::QueuePairRights),
        mechanisms: &[QueuePair, NodeCopy],
        kept: "a queue pair refuses what its flags do not allow, from its start and as they change",
        missing: "A queue pair lets through what it must not: no mechanism that rests on flags is safe here",
        trial: Trial::QueuePairRights,
    },
    Probe {
        name: "revoke-during-transfer-window-1",
        guarantee: None,
        mechanisms: &[MemoryWindow],
        kept: "once an unbind is confirmed no byte moves, not even of a transfer under way",
        missing: "Long transfers outlive their permission: use --protection memory-region or node-copy here, or keep accesses short",
        trial: Trial::Revocation(ONE),
    },
    Probe {
        name: "revoke-during-transfer-window-2",
        guarantee: None,
        mechanisms: &[WindowGroup],
        kept: "once an invalidate is confirmed no byte moves, not even of a transfer under way",
        missing: "Long transfers outlive windows of type 2: do not use --protection window-group here, or keep accesses short",
        trial: Trial::Revocation(TWO),
    },
    Probe {
        name: "revoke-during-transfer-region",
        guarantee: None,
        mechanisms: &[MemoryRegion],
        kept: "once a region is deregistered no byte moves, not even of a transfer under way",
        missing: "Long transfers outlive their region: use --protection memory-window if that holds, or node-copy",
        trial: Trial::Revocation(Holder::Region),
    },
    Probe {
        name: "fault-isolation",
        guarantee: None,
        mechanisms: ONE_SIDED,
        kept: "one client's violation causes no error for other clients",
        missing: "Any client can interrupt all the others: lend only to clients that you trust not to err",
        trial: Trial::FaultIsolation,
    },
    Probe {
        name: "both-ends-in-error",
        guarantee: None,
        mechanisms: ONE_SIDED,
        kept: "a violation stops the guilty queue pair at both ends, so that the node sees it and nothing else gets through",
        missing: "The node does not see violations by itself, or the guilty client continues: it can be neither counted nor slowed down",
        trial: Trial::BothEndsInError,
    },
    Probe {
        name: "atomics",
        guarantee: None,
        mechanisms: KEYS,
        kept: "leases can be extended with one COMPARE_AND_SWAP, and counters shared",
        missing: "Atomics give wrong results: have leases extended by message, and keep counters elsewhere",
        trial: Trial::Atomics,
    },
    Probe {
        name: "window-count",
        guarantee: None,
        mechanisms: &[],
        kept: "there are windows enough for as many permissions at a time",
        missing: "A node can have no more permissions at a time than that: see --quota-permissions",
        trial: Trial::WindowCount,
    },
    Probe {
        name: "many-binds",
        guarantee: None,
        mechanisms: &[MemoryWindow],
        kept: "binds in a row on one queue pair hit the windows that they are for",
        missing: "After so many binds windows are wrong: use --protection memory-region or node-copy here, and look for newer firmware and driver",
        trial: Trial::ManyBinds,
    },
    Probe {
        name: "survives-misuse",
        guarantee: None,
        mechanisms: &[],
        kept: "freeing a free window, which peers can request too, and tearing down in the wrong order do no harm",
        missing: "A peer's message can take the device down: lend only to clients that you trust",
        trial: Trial::Misuse,
    },
];
