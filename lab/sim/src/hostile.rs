//! A hostile client. It posts random and aimed stray accesses with every key and address that it can get, and sends
//! malformed messages.

mod chunks;
mod one_shots;

use crate::dice::Dice;
use crate::endpoint::SimEndpoint;
use crate::memory::SimMemory;
use crate::scene::{Scene, Sighting, SimClient};
use crate::worker::sighting;
use chunks::ChunkThief;
use portcullis_client::{
    Access, Acquire, Allocate, Answer, Call, ControlRequest, Operation, Outcome, Permission, Unchecked,
};
use portcullis_nic::VerbsEndpoint;
use portcullis_node::POOL_BASE;
use portcullis_protocol::{
    GrantRequest, Holders, Keep, Lifetime, MESSAGE_BYTES, Moment, ObjectName, ObjectRef, Part, PermissionId,
    QueuePairRequest, RemoteAddress, Request, RequestBody, Rights, Rkey, Sharing,
};
use std::collections::HashSet;

const HELD_MAX: usize = 3;
/// The latest sightings, which show a key just too late.
const FRESH: usize = 8;
/// Number of its own earlier keys that the client remembers.
const PAST_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Hostile {
    dice: Dice,
    held: Vec<Permission>,
    past: Vec<Sighting>,
    /// The permission that the client gave up last. Its windows may linger.
    let_go: Option<Sighting>,
    calls: Vec<Call>,
    thief: ChunkThief,
    under_way: usize,
    ended: Vec<(Operation, Outcome<SimMemory>)>,
    /// Sequence numbers of the forged requests.
    numbers: HashSet<u32>,
}

impl Hostile {
    pub fn new(dice: Dice) -> Self {
        let (held, past, calls, ended) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            dice,
            held,
            past,
            let_go: None,
            calls,
            thief: ChunkThief::default(),
            under_way: 0,
            ended,
            numbers: HashSet::new(),
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.thief.is_idle() && self.under_way == 0
    }

    /// Calls and operations under way, for reports.
    pub fn under_way(&self) -> (usize, usize) {
        (self.calls.len(), self.under_way)
    }

    /// Processes what has ended, and may break one rule.
    pub fn act(&mut self, client: &mut SimClient, scene: &mut Scene<'_>, may_begin: bool) {
        client.drain(&mut self.ended);
        self.under_way = self.under_way.saturating_sub(self.ended.len());
        self.ended.clear();
        self.calls.retain(|&call| match client.take_call(call) {
            None => true,
            Some(Ok(Answer::Granted(permission))) => {
                if self.past.len() == PAST_MAX {
                    self.past.remove(0);
                }
                self.past.push(sighting(&permission));
                self.held.push(permission);
                false
            }
            Some(_) => false,
        });
        self.thief.take_in(client);
        if !may_begin || scene.winding_down || client.over().is_some() {
            return;
        }
        let asks_nic = client.endpoint().size().chunk_queue_pairs > 0;
        if asks_nic && self.dice.per_mille(400) {
            let begun = self.thief.act(&mut self.dice, client, scene);
            self.under_way += usize::from(begun.is_some());
            return;
        }
        match self.dice.of(0..20) {
            0..4 => self.get_a_permission(client, scene),
            4 => self.let_one_go(client, scene),
            5 => self.send_nonsense(client.endpoint()),
            6 => self.ask_for_anything(client.endpoint(), scene),
            _ if client.endpoint().is_over_udp() => self.stray_without_queue_pair(client.endpoint(), scene),
            _ => self.stray(client, scene),
        }
    }

    fn get_a_permission(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        if self.held.len() >= HELD_MAX {
            return self.let_one_go(client, scene);
        }
        let rights = *self.dice.pick(&[Rights::all(), Rights::READ, Rights::WRITE]).unwrap_or(&Rights::READ);
        let lifetime = Lifetime(self.dice.magnitude(50..2_000));
        let known = scene.gossip.objects[scene.tenant].make_contiguous();
        let call = match self.dice.pick(known) {
            Some(&object) if self.dice.per_mille(300) => {
                client.call(scene.moment, Acquire::object(object).lifetime(lifetime).rights(rights).shared())
            }
            _ => {
                let size = self.dice.magnitude(8..2_000);
                client.call(scene.moment, Allocate::bytes(size).lifetime(lifetime).rights(rights))
            }
        };
        self.calls.extend(call.ok());
    }

    fn let_one_go(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let Some(permission) = self.held.pop() else { return };
        self.let_go = Some(sighting(&permission));
        if self.dice.per_mille(500) {
            let request = ControlRequest::Revoke { permission, free: true };
            self.calls.extend(client.call(scene.moment, request).ok());
        }
    }

    /// Posts an access that no permission allows, or that a permission allows only by chance.
    fn stray(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        if let Some(at) = self.let_go
            && self.dice.per_mille(300)
        {
            return self.change_a_word(client, at.word);
        }
        let seen: Vec<Sighting> = scene.gossip.sightings.iter().copied().collect();
        let own = self.held.last().map(sighting);
        let fresh = &seen[seen.len().saturating_sub(FRESH)..];
        let target = match self.dice.of(0..6) {
            0 => own.or_else(|| self.past.last().copied()),
            1 => self.dice.pick(&self.past).copied(),
            2..5 => self.dice.pick(fresh).copied(),
            _ => self.dice.pick(&seen).copied(),
        };
        if let Some(at) = target
            && self.dice.per_mille(300)
        {
            return self.change_a_word(client, at.word);
        }
        let (mut address, mut key, mut length) = match target {
            Some(at) => (at.address.0, at.key, at.length),
            None => (POOL_BASE.0 + self.dice.of(0..1 << 18), Rkey(0), 64),
        };
        match self.dice.of(0..8) {
            // The key as it is: another client's key, or one that has ended.
            0..3 => length = 1 + self.dice.of(0..length.max(1)),
            // The key beyond its range, on either side.
            3 => address = address.wrapping_add(self.dice.of(0..length.max(1) + 64)),
            4 => address = address.wrapping_sub(self.dice.of(1..64)),
            // A key close to this one.
            5 => key = Rkey(key.0 ^ u32::try_from(self.dice.of(1..256)).unwrap_or(1)),
            6 => key = Rkey(key.0.wrapping_add(u32::try_from(self.dice.of(0..16) << 8).unwrap_or(0))),
            // A random key and address, also at the ends of the address space.
            _ => {
                key = Rkey(u32::try_from(self.dice.any() & 0xffff_ffff).unwrap_or(0));
                address =
                    if self.dice.per_mille(500) { self.dice.any() } else { u64::MAX - self.dice.of(0..64) };
            }
        }
        self.post(client, (RemoteAddress(address), key), length.clamp(1, 256));
    }

    /// Changes a lifetime word, with the key that opens or once opened it.
    fn change_a_word(&mut self, client: &mut SimClient, (word, key): (RemoteAddress, Rkey)) {
        let (mut compare, swap) = (self.dice.of(0..3_000), self.dice.any() >> self.dice.of(0..64));
        if self.dice.per_mille(400) {
            compare = 0;
        }
        let word = Unchecked::new(word, key);
        let begun = client.dangerous_access(Access::compare_and_swap(word, 0, compare, swap));
        self.under_way += usize::from(begun.is_ok());
    }

    fn post(&mut self, client: &mut SimClient, (address, key): (RemoteAddress, Rkey), length: u64) {
        let begun = match self.dice.of(0..5) {
            0 => {
                let (compare, swap) = (self.dice.of(0..3_000), self.dice.any());
                let word = Unchecked::new(RemoteAddress(address.0 & !7), key);
                client.dangerous_access(Access::compare_and_swap(word, 0, compare, swap))
            }
            way => {
                let Ok(mut buffer) = client.buffer(u32::try_from(length).unwrap_or(1)) else { return };
                if way < 3 {
                    client.dangerous_access(Access::read(Unchecked::new(address, key), 0, buffer))
                } else {
                    buffer.write(0, &vec![0xbb; buffer.len() as usize]);
                    client.dangerous_access(Access::write(Unchecked::new(address, key), 0, buffer))
                }
            }
        };
        self.under_way += usize::from(begun.is_ok());
    }

    fn send_nonsense(&mut self, endpoint: &mut SimEndpoint) {
        let length = self.dice.index(MESSAGE_BYTES + 8);
        let bytes: Vec<u8> = (0..length).map(|_| self.dice.any().to_le_bytes()[0]).collect();
        endpoint.send_raw(&bytes);
    }

    /// Returns the name for an object in a forged request: the true reference, its address, or a reference with a
    /// later birth.
    fn name(&mut self, of: &Sighting) -> ObjectName {
        match self.dice.of(0..3) {
            0 => of.object.into(),
            1 => ObjectName::Address(of.object.address),
            _ => ObjectRef { birth: of.object.birth + self.dice.of(0..100), ..of.object }.into(),
        }
    }

    /// Sends a well-formed request for something that the client does not own.
    fn ask_for_anything(&mut self, endpoint: &mut SimEndpoint, scene: &mut Scene<'_>) {
        let seen: Vec<Sighting> = scene.gossip.sightings.iter().copied().collect();
        let own = self.held.last().map(sighting).filter(|_| self.dice.per_mille(300));
        let fresh = &seen[seen.len().saturating_sub(FRESH)..];
        let Some(of) = own.or_else(|| self.dice.pick(fresh).copied()) else { return };
        let PermissionId { header, start } = of.permission;
        let late = if self.dice.per_mille(700) { 0 } else { self.dice.of(0..5_000) };
        let permission = PermissionId { header, start: Moment(start.0.saturating_sub(late)) };
        let lifetime = Lifetime(self.dice.any() >> self.dice.of(0..64));
        let (rights, sharing) = (Rights::all(), Sharing::Exclusive);
        let body = match self.dice.of(0..6) {
            0 => RequestBody::Grant(GrantRequest::Revoke { permission, free: true }),
            1 => RequestBody::Grant(GrantRequest::Extend { permission, lifetime }),
            2 => {
                let holders = [Holders::Stay, Holders::End, Holders::Await][self.dice.index(3)];
                RequestBody::Grant(GrantRequest::Free { object: self.name(&of), holders })
            }
            3 => RequestBody::Grant(GrantRequest::Acquire(Acquire {
                object: self.name(&of),
                part: Part { offset: self.dice.of(0..3) * 32, length: self.dice.of(0..3) * 32 },
                lifetime,
                rights,
                sharing,
                wait: lifetime,
            })),
            4 => RequestBody::QueuePair(QueuePairRequest::Recover {
                queue_pair: u32::try_from(self.dice.of(0..5)).unwrap_or(0),
            }),
            _ => RequestBody::Grant(GrantRequest::Allocate(Allocate {
                size: self.dice.any(),
                alignment: 0,
                lifetime,
                rights,
                sharing,
                keep: Keep::Attached,
            })),
        };
        // The number must be one that neither the client library nor an earlier forged request uses. Otherwise the
        // checkers could not match a reply with its request.
        let mut sequence = 0xffff_0000 | u32::try_from(self.dice.of(0..0xffff)).unwrap_or(0);
        while !self.numbers.insert(sequence) {
            sequence = 0xffff_0000 | sequence.wrapping_add(1);
        }
        endpoint.send_raw(&Request { sequence, body }.encode());
    }
}
