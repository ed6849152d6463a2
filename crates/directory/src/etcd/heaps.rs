//! Heaps: a key for each place in use, which ends with no lease, and a key for each holder, which ends with the
//! holder's lease.

use super::api::{Compare, KeyValue, Keys, Number, Read, ReadAnswer, RequestOp, Transaction};
use super::gateway::{Failure, Repeat};
use super::keys::Layout;
use super::watch::Watching;
use super::{Etcd, claims, lease_number, records};
use crate::addresses::{Class, HeapRange};
use crate::directory::Watch;
use crate::entry::Who;
use crate::error::DirectoryError;
use crate::lease::{Lease, LeaseId};
use crate::quota::Asked;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

/// Number of keys that are read at once.
const PAGE: i64 = 1_000;

pub(super) fn create(
    etcd: &Etcd,
    lease: &Lease,
    bytes: u64,
    others: &Who,
) -> Result<HeapRange, DirectoryError> {
    others.check()?;
    let (smallest, largest) = etcd.0.space.sizes();
    let Some((class, bytes)) = etcd.0.space.class(bytes) else {
        claims::read(etcd, lease.tenant(), etcd.until())?.of(etcd, lease)?;
        return Err(DirectoryError::HeapSize { bytes, smallest, largest });
    };
    let mut was_taken = false;
    etcd.try_again(|until| {
        let claims = claims::read(etcd, lease.tenant(), until)?;
        claims.admit(etcd, lease, Asked::HeapBytes(bytes))?;
        // The revision grows with each change in etcd. So addresses rest before they are allocated again, and no
        // process must remember which were allocated last.
        let next = class.place(claims.revision().0.cast_unsigned());
        let address = match was_taken {
            true => free_place(etcd, class, next, until)?.ok_or(DirectoryError::NoAddresses { bytes })?,
            false => next,
        };
        was_taken = true;
        let heap = HeapRange { address, bytes };
        let key = etcd.0.layout.heap(address);
        let mut compare = claims.hold(etcd).to_vec();
        compare.push(Compare::is_absent(Keys::one(&key)));
        let put = RequestOp::put(&key, records::heap_bytes(bytes, lease.tenant(), others), Number(0));
        enter(etcd, lease, heap, compare, vec![put], until)
    })
}

/// Returns a free place from `next` on. If all are in use, the places without holders are freed first.
fn free_place(etcd: &Etcd, class: Class, next: u64, until: Instant) -> Result<Option<u64>, DirectoryError> {
    for may_reclaim in [true, false] {
        for among in class.from(next) {
            if let Some(free) = first_free(etcd, class, among, until)? {
                return Ok(Some(free));
            }
        }
        let [behind, before] = class.from(next);
        if !may_reclaim || reclaim(etcd, &(before.start..behind.end))?.is_empty() {
            break;
        }
    }
    Ok(None)
}

fn first_free(
    etcd: &Etcd,
    class: Class,
    mut among: Range<u64>,
    until: Instant,
) -> Result<Option<u64>, DirectoryError> {
    while !among.is_empty() {
        let taken = keys(etcd, &among, until)?;
        if let Some(free) = class.first_free(among.clone(), taken.iter().copied()) {
            let is_known = taken.len() < usize::try_from(PAGE).expect("pages are short")
                || taken.last().is_some_and(|&last| free < last);
            if is_known {
                return Ok(Some(free));
            }
            among.start = free;
        } else {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Returns the addresses of the first heaps in this range.
fn keys(etcd: &Etcd, among: &Range<u64>, until: Instant) -> Result<Vec<u64>, DirectoryError> {
    let read = RequestOp::Read(Read::first_keys(etcd.0.layout.heaps(among), PAGE));
    let (_, parts) = etcd.read_all(vec![read], until)?;
    parts.into_iter().flat_map(|part| part.kvs).map(|stored| address(&stored)).collect()
}

fn address(stored: &KeyValue) -> Result<u64, DirectoryError> {
    Layout::address(&stored.key.0).ok_or_else(|| records::nonsense(stored, "it ends with no address"))
}

pub(super) fn hold(
    etcd: &Etcd,
    lease: &Lease,
    address: u64,
    until: Instant,
) -> Result<Option<HeapRange>, DirectoryError> {
    let layout = &etcd.0.layout;
    let key = Keys::one(&layout.heap(address));
    let holders = Keys::below(&layout.holders(address));
    let (claims, [there, held]) =
        claims::read_with(etcd, lease.tenant(), [key.clone(), holders.clone()], until)?;
    let of_lease = claims.of(etcd, lease)?;
    let none = DirectoryError::NoSuchHeap(address);
    let is_claimed = of_lease.heaps.iter().any(|claimed| claimed.address == address);
    let Some(stored) = there.first().filter(|_| is_claimed || !held.is_empty()) else { return Err(none) };
    let heap = records::known_heap(stored)?;
    if is_claimed {
        let own = layout.holder(address, lease.id());
        if held.iter().any(|holder| holder.key.0 == own.as_bytes()) {
            return Ok(Some(heap.range));
        }
        // Another process has deleted the holder's key, and the claim still exists.
        let claim = Keys::one(&layout.claimed_heap(lease, address));
        let compare = vec![Compare::is_still(key, stored.mod_revision), Compare::is_there(claim)];
        return enter(etcd, lease, heap.range, compare, vec![], until);
    }
    if heap.tenant != *lease.tenant() && !heap.others.includes(lease.tenant()) {
        return Err(none);
    }
    claims.admit(etcd, lease, Asked::HeapBytes(heap.range.bytes))?;
    let mut compare = claims.hold(etcd).to_vec();
    compare.extend([Compare::is_still(key, stored.mod_revision), Compare::is_there(holders)]);
    enter(etcd, lease, heap.range, compare, vec![], until)
}

/// Registers a lease as a holder, and makes the other puts, if these conditions hold and the lease lives.
fn enter(
    etcd: &Etcd,
    lease: &Lease,
    heap: HeapRange,
    mut compare: Vec<Compare>,
    mut success: Vec<RequestOp>,
    until: Instant,
) -> Result<Option<HeapRange>, DirectoryError> {
    let (layout, id) = (&etcd.0.layout, lease_number(lease.id()));
    compare.push(Compare::is_there(Keys::one(&layout.lease(lease))));
    success.push(RequestOp::put(&layout.holder(heap.address, lease.id()), "", id));
    success.push(RequestOp::put(&layout.claimed_heap(lease, heap.address), heap.bytes.to_string(), id));
    let told = etcd.settle(&Transaction { compare, success, failure: vec![] }, Repeat::No, until);
    Ok(told.map_err(|failure| failure.of_lease(lease.id()))?.succeeded.then_some(heap))
}

/// Number of heaps that are read in one transaction: etcd accepts 128 steps.
const HEAPS_AT_ONCE: usize = 50;

/// Returns the heaps that a lease holds: those of which both the heap's key and the holder's key exist.
pub(super) fn held(etcd: &Etcd, lease: &Lease) -> Result<Vec<HeapRange>, DirectoryError> {
    let layout = &etcd.0.layout;
    let claimed = claims::read(etcd, lease.tenant(), etcd.until())?.of(etcd, lease)?.heaps;
    let mut held = Vec::with_capacity(claimed.len());
    for some in claimed.chunks(HEAPS_AT_ONCE) {
        let keys = some.iter().flat_map(|heap| {
            [layout.heap(heap.address), layout.holder(heap.address, lease.id())].map(|key| Keys::one(&key))
        });
        let reads = keys.map(|key| RequestOp::Read(Read::keys_only(key))).collect();
        let (_, parts) = etcd.read_all(reads, etcd.until())?;
        let is_there = |parts: &[ReadAnswer]| parts.iter().all(|part| !part.kvs.is_empty());
        held.extend(
            some.iter().zip(parts.chunks(2)).filter(|(_, parts)| is_there(parts)).map(|(heap, _)| *heap),
        );
    }
    Ok(held)
}

pub(super) fn release(etcd: &Etcd, lease: &Lease, address: u64) -> Result<(), DirectoryError> {
    let layout = &etcd.0.layout;
    let (holder, claimed) = (layout.holder(address, lease.id()), layout.claimed_heap(lease, address));
    let leave = || vec![RequestOp::delete(&holder), RequestOp::delete(&claimed)];
    let is_held = Compare::is_there(Keys::one(&claimed));
    let is_last = Keys::below_but(&layout.holders(address), &holder).map(Compare::is_absent);
    let one_of_several = Transaction {
        compare: vec![is_held.clone()],
        success: leave(),
        failure: vec![RequestOp::read(Keys::one(&layout.lease(lease)))],
    };
    let mut success = leave();
    success.push(RequestOp::delete(&layout.heap(address)));
    let transaction = Transaction {
        compare: is_last.into_iter().chain([is_held]).collect(),
        success,
        failure: vec![RequestOp::Within(one_of_several)],
    };
    let answer = etcd.settle(&transaction, Repeat::No, etcd.until());
    let mut answer = answer.map_err(|failure| failure.of_lease(lease.id()))?;
    if answer.succeeded {
        return Ok(());
    }
    let inner = answer.responses.pop().map(|told| *told.response_txn).unwrap_or_default();
    let lives = inner.responses.first().is_some_and(|told| !told.response_range.kvs.is_empty());
    match inner.succeeded {
        true => Ok(()),
        false if lives => Err(DirectoryError::NoSuchHeap(address)),
        false => Err(DirectoryError::LeaseEnded(lease.id())),
    }
}

pub(super) fn watch(
    etcd: &Etcd,
    lease: &Lease,
    address: u64,
) -> Result<Box<dyn Watch<BTreeSet<LeaseId>>>, DirectoryError> {
    let claims = claims::read(etcd, lease.tenant(), etcd.until())?;
    if !claims.of(etcd, lease)?.heaps.iter().any(|held| held.address == address) {
        return Err(DirectoryError::NoSuchHeap(address));
    }
    let keys = Keys::below(&etcd.0.layout.holders(address));
    let holders = |there: &[KeyValue]| there.iter().map(records::lease).collect();
    Ok(Box::new(Watching::new(etcd, keys, Box::new(holders))?))
}

/// Frees the heaps without holders among these addresses, page by page.
pub(super) fn reclaim(etcd: &Etcd, among: &Range<u64>) -> Result<Vec<HeapRange>, DirectoryError> {
    let mut reclaimed = Vec::new();
    let mut among = among.clone();
    loop {
        let until = etcd.until();
        let page = keys(etcd, &among, until)?;
        let (Some(&first), Some(&last)) = (page.first(), page.last()) else { return Ok(reclaimed) };
        let page = first..last + 1;
        // The holders of these heaps, and the heaps, at one revision.
        let holders = Keys::from(&etcd.0.layout.holders(page.start), &etcd.0.layout.holders(page.end));
        let reads = [Read::all(etcd.0.layout.heaps(&page)), Read::keys_only(holders)];
        let (_, parts) = etcd.read_all(reads.map(RequestOp::Read).into(), until)?;
        let [heaps, holders] = [0, 1].map(|part| &parts[part].kvs);
        let held: BTreeSet<_> = holders.iter().filter_map(|stored| held_address(&stored.key.0)).collect();
        let heaps = heaps.iter().map(|stored| Ok((address(stored)?, stored)));
        let heaps = heaps.collect::<Result<BTreeMap<_, _>, DirectoryError>>()?;
        for (_, stored) in heaps.into_iter().filter(|(address, _)| !held.contains(address)) {
            reclaimed.extend(take_back(etcd, stored)?);
        }
        among.start = page.end;
    }
}

/// Returns the address in a holder's key.
fn held_address(key: &[u8]) -> Option<u64> {
    let end = key.iter().rposition(|&byte| byte == b'/')?;
    Layout::address(&key[..end])
}

fn take_back(etcd: &Etcd, stored: &KeyValue) -> Result<Option<HeapRange>, DirectoryError> {
    let range = records::known_heap(stored)?.range;
    let layout = &etcd.0.layout;
    let key = layout.heap(range.address);
    let transaction = Transaction {
        compare: vec![
            Compare::is_still(Keys::one(&key), stored.mod_revision),
            Compare::is_absent(Keys::below(&layout.holders(range.address))),
        ],
        success: vec![RequestOp::delete(&key)],
        failure: vec![],
    };
    let told = etcd.settle(&transaction, Repeat::No, etcd.until()).map_err(Failure::of_no_lease)?;
    Ok(told.succeeded.then_some(range))
}
