//! Checks of the network: requests that reach a node's memory, and messages that leave it.

use super::permission::Wanted;
use super::requests::{Asked, part_of};
use super::{Failure, LONGEST_WAIT, ONE_SHOT, Oracle, Promise, Session, SessionId, Suspect};
use crate::clock::Nanos;
use crate::memory::Touch;
use portcullis_protocol::{
    Acquire, Allocate, Credential, GrantRequest, Granted, Holders, Lifetime, Moment, NamedRequest,
    ObjectName, Part, PermissionId, QueuePairRequest, Refusal, Reply, ReplyBody, Request, RequestBody,
    Rights, Rkey, Sharing, messages_in,
};
use portcullis_softnic::core::{Response, WireRequest};
use std::borrow::Cow;

/// A packet that reached a node, and its effect there.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    pub session: SessionId,
    /// The session's data queue pair on which the packet arrived.
    pub queue_pair: Option<u32>,
    /// The work request's number.
    pub id: u64,
    pub request: &'a WireRequest,
    /// The NIC's answer. `None`: the NIC dropped the packet.
    pub answer: Option<&'a Response>,
    pub touches: &'a [Touch],
    pub now: Nanos,
    /// The time on the node's clock.
    pub node_now: Moment,
}

impl Oracle {
    /// Checks a request that has reached a node's NIC.
    pub fn arrived(&mut self, arrival: &Arrival<'_>) {
        let Session { node, tenant, .. } = self.sessions[arrival.session];
        if self.arrived_for_chunk(arrival) {
            return;
        }
        let wanted = match arrival.request {
            WireRequest::Send { bytes, .. } => return self.asked(arrival, (node, tenant), bytes),
            WireRequest::Read { remote, length } => (remote, u64::from(*length), Rights::READ),
            WireRequest::Write { remote, bytes } => (remote, bytes.len() as u64, Rights::WRITE),
            WireRequest::CompareAndSwap { remote, .. } | WireRequest::FetchAndAdd { remote, .. } => {
                (remote, 8, Rights::ATOMIC)
            }
        };
        let (remote, length, right) = wanted;
        let queue_pair = (arrival.session, arrival.queue_pair);
        let wanted = Wanted { queue_pair, key: remote.rkey, from: remote.address.0, length, right };
        match arrival.answer {
            None => self.untouched(arrival),
            Some(Response::Refused(_)) => self.refused(arrival, node, tenant, &wanted),
            Some(_) if length == 0 => self.untouched(arrival),
            Some(answer) => self.carried_out(arrival, (node, tenant), &wanted, answer),
        }
    }

    pub(super) fn untouched(&mut self, arrival: &Arrival<'_>) {
        if let Some(touch) = arrival.touches.first() {
            let what = format!("a request that was not carried out touched the memory: {touch:?}");
            self.fail(Promise::Memory, arrival.now, what);
        }
    }

    fn refused(&mut self, arrival: &Arrival<'_>, node: usize, tenant: usize, wanted: &Wanted) {
        self.untouched(arrival);
        self.sessions[arrival.session].refusals += 1;
        self.note_refusal(arrival.session, node, wanted);
        let Some(model) = &self.nodes[node] else { return };
        self.tally.violations_tried += 1;
        self.tally.violations_refused += 1;
        if model.was_due(tenant, wanted, arrival.node_now) {
            let what = format!(
                "session {} was refused {wanted:x?} under a live permission, at {} µs of the node's time",
                arrival.session, arrival.node_now.0
            );
            self.fail(Promise::Service, arrival.now, what);
        }
    }

    fn carried_out(
        &mut self,
        arrival: &Arrival<'_>,
        (node, tenant): (usize, usize),
        wanted: &Wanted,
        answer: &Response,
    ) {
        let (now, session) = (arrival.now, arrival.session);
        self.tally.accesses += 1;
        let Some(model) = &mut self.nodes[node] else { return };
        match model.judge(tenant, wanted) {
            Ok(()) => {
                let late = model.is_late(wanted, arrival.node_now);
                self.tally.late_and_harmless += u64::from(late);
            }
            Err(stray) => {
                self.tally.violations_tried += 1;
                let what = format!(
                    "session {session} of tenant {tenant} got through with {wanted:x?}: {}",
                    stray.why
                );
                let failure = Failure { promise: stray.promise, at_ns: now, what };
                self.suspects.push(Suspect { at: now, node, tenant, wanted: *wanted, failure });
            }
        }
        let Some(offset) = model.offset(wanted.from, wanted.length) else {
            return self.fail(Promise::Memory, now, format!("{wanted:x?} lies outside the pool"));
        };
        let span = offset..offset + wanted.length;
        let mut brought = Vec::new();
        let expected = match (arrival.request, answer) {
            (WireRequest::Read { .. }, Response::Bytes(bytes)) => {
                if model.memory.read(span.clone()) != *bytes {
                    let what = format!("a read of {wanted:x?} brought what is not there");
                    self.fail(Promise::Memory, now, what);
                }
                brought.clone_from(bytes);
                Touch::Read { offset, length: wanted.length }
            }
            (WireRequest::Write { bytes, .. }, Response::Done) => {
                model.memory.write(tenant, offset, bytes);
                Touch::Write { offset, bytes: bytes.clone() }
            }
            (WireRequest::CompareAndSwap { compare, swap, .. }, Response::Value(value)) => {
                let before = model.memory.word(offset);
                let after = if before == *compare { *swap } else { before };
                brought = value.to_le_bytes().to_vec();
                self.changed(node, tenant, offset, after);
                Touch::Change { offset, before, after }
            }
            (WireRequest::FetchAndAdd { add, .. }, Response::Value(value)) => {
                let before = model.memory.word(offset);
                let after = before.wrapping_add(*add);
                brought = value.to_le_bytes().to_vec();
                self.changed(node, tenant, offset, after);
                Touch::Change { offset, before, after }
            }
            _ => {
                return self.fail(
                    Promise::Truth,
                    now,
                    format!("{answer:?} is no answer to {:?}", arrival.request),
                );
            }
        };
        if arrival.touches != [expected.clone()] {
            let what = format!("{wanted:x?} should have been {expected:x?} and was {:x?}", arrival.touches);
            self.fail(Promise::Memory, now, what);
        }
        self.note_word(arrival, node, wanted);
        let begun = self.as_begun(node, arrival.request);
        let may_repeat = self.may_repeat(arrival, wanted.key);
        let failure = self.operations.executed(now, (session, arrival.id), &begun, (brought, may_repeat));
        self.note(failure);
    }

    /// Returns the request with the key with which its client began the access. The client may have exchanged that
    /// key for the key of another queue pair of its own.
    fn as_begun<'a>(&self, node: usize, request: &'a WireRequest) -> Cow<'a, WireRequest> {
        let mut request = Cow::Borrowed(request);
        let Some(model) = &self.nodes[node] else { return request };
        let Some(key) = request_key(&request) else { return request };
        let begun = model.by_key(key).map_or(key, |known| known.key_as_begun(key));
        if begun != key {
            rkey_of(request.to_mut()).into_iter().for_each(|key| *key = begun);
        }
        request
    }

    /// Whether the client may have an access executed again if it has received no answer. This applies to a write to
    /// memory that no other client writes.
    fn may_repeat(&self, arrival: &Arrival<'_>, key: Rkey) -> bool {
        let is_write = matches!(arrival.request, WireRequest::Write { .. });
        let node = &self.nodes[self.sessions[arrival.session].node];
        let known = node.as_ref().and_then(|model| model.by_key(key));
        arrival.queue_pair == ONE_SHOT && is_write && known.is_some_and(|it| it.sharing == Sharing::Exclusive)
    }

    fn changed(&mut self, node: usize, tenant: usize, offset: u64, after: u64) {
        if let Some(model) = &mut self.nodes[node] {
            model.memory.write(tenant, offset, &after.to_le_bytes());
        }
    }

    /// Records the value of a lifetime word after an access that may have changed it.
    fn note_word(&mut self, arrival: &Arrival<'_>, node: usize, wanted: &Wanted) {
        let Some(model) = &mut self.nodes[node] else { return };
        if wanted.right == Rights::READ {
            return;
        }
        let Some(word) = model.by_word(wanted.key, &wanted.span()).map(|known| known.word()) else { return };
        let Some(offset) = model.offset(word.start, 8) else { return };
        let value = model.memory.word(offset);
        let honest = match (arrival.request, arrival.answer) {
            // If the access found another value, nothing changed.
            (WireRequest::CompareAndSwap { compare, .. }, Some(Response::Value(found)))
                if found != compare =>
            {
                return;
            }
            (WireRequest::CompareAndSwap { compare, .. }, _) => {
                *compare != 0 && !self.sessions[arrival.session].hostile
            }
            _ => false,
        };
        if let Some(known) = model.by_word(wanted.key, &wanted.span()) {
            known.word_became(value, honest, arrival.node_now);
        }
    }

    fn asked(&mut self, arrival: &Arrival<'_>, (node, tenant): (usize, usize), bytes: &[u8]) {
        self.untouched(arrival);
        match arrival.answer {
            Some(Response::Refused(_)) => self.sessions[arrival.session].refusals += 1,
            Some(Response::Done) => {
                let Some(model) = &mut self.nodes[node] else { return };
                let Some(messages) = messages_in(bytes) else {
                    return model.requests.came_cut(arrival.session, arrival.node_now);
                };
                for message in messages {
                    if let Ok(Request { body, .. }) = Request::decode(message) {
                        model.requested((arrival.session, tenant), &body, arrival.node_now);
                    }
                    model.requests.came(arrival.session, message, arrival.node_now, LONGEST_WAIT);
                }
            }
            _ => {}
        }
    }

    /// Checks a message that leaves a node for a client.
    pub fn replied(&mut self, session: SessionId, bytes: &[u8], now: Nanos, node_now: Moment) {
        let replies = messages_in(bytes).and_then(|messages| {
            messages.map(|message| Reply::decode(message).ok()).collect::<Option<Vec<_>>>()
        });
        let Some(replies) = replies else {
            return self.fail(Promise::Truth, now, format!("a node sent session {session} nonsense"));
        };
        for reply in &replies {
            self.answered(session, reply, (now, node_now));
        }
    }

    /// Checks a node's reply to a request.
    fn answered(&mut self, session: SessionId, reply: &Reply, (now, node_now): (Nanos, Moment)) {
        let Session { node, tenant, hostile, .. } = self.sessions[session];
        let Some(model) = &mut self.nodes[node] else { return };
        let Some(asked) = model.requests.answered(session, reply.sequence, &reply.body) else {
            let what = format!("session {session} got {reply:?}, and has no request that it answers");
            return self.fail(Promise::Truth, now, what);
        };
        let Some(body) = asked.body else { return };
        let overtook = asked.overtook(&reply.body, node_now).filter(|_| !hostile);
        if let Some(told) = model.shares.answered(tenant, &asked, &reply.body, node_now) {
            model.taken_back(&told, node_now);
        }
        overtook.into_iter().for_each(|by| self.overtaken(by, session, now));
        self.check_freed(session, &asked, &reply.body, (now, node_now));
        let Some(model) = &mut self.nodes[node] else { return };
        match (body, reply.body) {
            (
                RequestBody::Grant(GrantRequest::Allocate(_))
                | RequestBody::Grant(GrantRequest::Acquire(_))
                | RequestBody::Grant(GrantRequest::AllocateChunk),
                ReplyBody::Granted(granted),
            ) => {
                self.granted(session, &asked, &granted, now, node_now);
            }
            (
                RequestBody::Grant(GrantRequest::Acquire(Acquire { object, part, .. })),
                ReplyBody::Refused(Refusal::Conflict),
            ) => {
                self.waited_in_vain(session, &asked, (object, part), (now, node_now));
            }
            (
                RequestBody::Grant(GrantRequest::Acquire(Acquire {
                    object: ObjectName::Reference(object),
                    ..
                })),
                ReplyBody::Refused(Refusal::Gone | Refusal::AnotherNode),
            ) if model.is_held(object, tenant, asked.at, node_now) && !model.may_be_freed(object) => {
                let what = format!(
                    "session {session} received the answer that {object} does not exist, \
                    which is held"
                );
                self.fail(Promise::Reference, now, what);
            }
            (body, ReplyBody::Refused(refusal @ (Refusal::Paused { .. } | Refusal::Barred))) => {
                self.refused_for_standing(session, body, refusal, now);
            }
            (
                RequestBody::QueuePair(QueuePairRequest::Recover { .. }),
                ReplyBody::Refused(Refusal::Malformed),
            ) if !hostile => {
                let what = format!(
                    "session {session} requested the rebuild of a broken queue pair, and received the \
                     answer that it is whole"
                );
                self.fail(Promise::Service, now, what);
            }
            (RequestBody::QueuePair(QueuePairRequest::JoinChunks), ReplyBody::Chunks(terms)) => {
                self.joined_chunks(session, &terms, now)
            }
            (RequestBody::Grant(GrantRequest::Revoke { permission, .. }), ReplyBody::Done) => {
                if let Some(known) = model.known(permission) {
                    known.was_told_over(session, node_now);
                }
            }
            (RequestBody::Grant(GrantRequest::Extend { permission, .. }), ReplyBody::Extended(lifetime)) => {
                self.extended(session, &asked, (permission, lifetime), (now, node_now));
            }
            _ => {}
        }
    }

    /// Checks that a session that waited in vain for bytes of an object waited for another holder.
    fn waited_in_vain(
        &mut self,
        session: SessionId,
        asked: &Asked,
        (object, part): (ObjectName, Part),
        (now, node_now): (Nanos, Moment),
    ) {
        let Some(model) = &mut self.nodes[self.sessions[session].node] else { return };
        let address = object.address();
        let bytes = part_of(address.0, part);
        // A grant to another client may still be on its way, held up because that client takes no messages.
        if !model.requests.wanted(address.0, &bytes)
            && model.was_free(&bytes, asked.at, node_now, asked.stood_still)
        {
            let what = format!("session {session} waited in vain for {address}, which no session held");
            self.fail(Promise::Progress, now, what);
        }
    }

    /// Records an extension, and checks that the node may confirm it.
    fn extended(
        &mut self,
        session: SessionId,
        asked: &Asked,
        (permission, lifetime): (PermissionId, Lifetime),
        (now, node_now): (Nanos, Moment),
    ) {
        let Some(model) = &mut self.nodes[self.sessions[session].node] else { return };
        let mut late = false;
        if let Some(known) = model.known(permission) {
            // The final notice may have followed before the answer left.
            known.confirmed(lifetime, node_now);
            late = known.noticed.is_some_and(|noticed| noticed < asked.at);
        }
        if late || lifetime > self.longest {
            let what = format!("{permission:?} was extended to {lifetime}: after its notice, or too far");
            self.fail(Promise::Progress, now, what);
        }
    }

    /// Records what a reply reports as freed, and checks that it reports nothing about what was freed before.
    fn check_freed(
        &mut self,
        session: SessionId,
        asked: &Asked,
        reply: &ReplyBody,
        (now, node_now): (Nanos, Moment),
    ) {
        let Some(model) = &mut self.nodes[self.sessions[session].node] else { return };
        let Some(body) = asked.body else { return };
        match (body, reply) {
            (RequestBody::Grant(GrantRequest::Revoke { permission, free: true }), ReplyBody::Done) => {
                let known = model.get(permission).filter(|known| known.owner.is_none());
                if let Some(object) = known.map(|known| known.object) {
                    model.freed(object, Holders::Stay, (asked.at, node_now));
                }
            }
            (
                RequestBody::Grant(GrantRequest::Free { object: ObjectName::Reference(object), holders }),
                ReplyBody::Done,
            ) => {
                if let Some(held) = model.freed(object, holders, (asked.at, node_now)) {
                    let what = format!(
                        "session {session} received the answer that no session holds {object}: {held:?} is held"
                    );
                    self.fail(Promise::Freed, now, what);
                }
            }
            (RequestBody::Named(NamedRequest::Publish { object, .. }), ReplyBody::Done)
                if model.frees.was_freed_before(object, asked.at) =>
            {
                self.fail(
                    Promise::Freed,
                    now,
                    format!("session {session} gave {object} a name, which was freed"),
                );
            }
            (
                RequestBody::Named(NamedRequest::Lookup { .. })
                | RequestBody::Named(NamedRequest::List { .. }),
                ReplyBody::Entry(entry),
            ) if model.frees.was_freed_before(entry.object, asked.at) => {
                let what =
                    format!("session {session} received a reference to {}, which was freed", entry.object);
                self.fail(Promise::Freed, now, what);
            }
            _ => {}
        }
    }

    fn overtaken(&mut self, by: SessionId, session: SessionId, now: Nanos) {
        self.fail(Promise::Progress, now, format!("session {by} overtook session {session}"));
    }

    /// Checks a grant that leaves a node.
    fn granted(
        &mut self,
        session: SessionId,
        asked: &Asked,
        granted: &Granted,
        now: Nanos,
        node_now: Moment,
    ) {
        let Session { node, tenant, .. } = self.sessions[session];
        let barred = self.was_barred_since(session, granted.permission.start);
        let Some(model) = &mut self.nodes[node] else { return };
        let (rights, sharing) = match asked.body {
            Some(RequestBody::Grant(GrantRequest::Allocate(Allocate { rights, sharing, .. }))) => {
                (rights, sharing)
            }
            Some(RequestBody::Grant(GrantRequest::AllocateChunk)) => (Rights::all(), Sharing::Exclusive),
            Some(RequestBody::Grant(GrantRequest::Acquire(Acquire { rights, sharing, .. }))) => {
                let bytes = granted.address().0..granted.address().0 + granted.length;
                let object = granted.object.address.0;
                model.requests.note_overtaken((object, &bytes), (asked.at, node_now), (session, sharing));
                (rights, sharing)
            }
            _ => return,
        };
        for stray in model.granted(granted, (session, tenant, barred), (rights, sharing), node_now) {
            let what = format!("session {session} was granted {:?}: {}", granted.permission, stray.why);
            self.fail(stray.promise, now, what);
        }
        self.check_asked(session, asked, granted, now);
        self.check_reference(session, asked, granted, (now, node_now));
        // After the permission's end, a late message shows nothing about the memory.
        if node_now < granted.permission.start.after(granted.lifetime) {
            self.check_scrub(session, granted, now);
        }
        if asked.body == Some(RequestBody::Grant(GrantRequest::AllocateChunk)) {
            self.check_zero(session, granted, now);
        }
        self.tally.grants += 1;
        self.clear_suspects(node, granted.credential);
    }

    /// Clears the suspicion of a client that used its key before the message left: it did nothing wrong.
    fn clear_suspects(&mut self, node: usize, credential: Credential) {
        let (Credential::Keys { buffer, lifetime }, Some(model)) = (credential, &self.nodes[node]) else {
            return;
        };
        let before = self.suspects.len();
        self.suspects.retain(|it| {
            let shown = it.node == node && (it.wanted.key == buffer || it.wanted.key == lifetime);
            !(shown && model.judge(it.tenant, &it.wanted).is_ok())
        });
        self.tally.violations_tried -= (before - self.suspects.len()) as u64;
    }

    /// Checks that a grant is what the client requested, and allowed.
    fn check_asked(&mut self, session: SessionId, asked: &Asked, granted: &Granted, now: Nanos) {
        let Session { node, tenant, .. } = self.sessions[session];
        let fits = match asked.body {
            Some(RequestBody::Grant(GrantRequest::Allocate(Allocate {
                size, alignment, lifetime, ..
            }))) => {
                let aligned = granted.address().0.is_multiple_of(alignment.max(1));
                granted.offset == 0 && granted.length == size && aligned && granted.lifetime <= lifetime
            }
            Some(RequestBody::Grant(GrantRequest::Acquire(Acquire { object, part, lifetime, .. }))) => {
                let sized = part.length == 0 || part.length == granted.length;
                let there = granted.object.address == object.address() && granted.offset == part.offset;
                there && sized && granted.lifetime <= lifetime
            }
            // A chunk ends when its client frees it or is gone.
            Some(RequestBody::Grant(GrantRequest::AllocateChunk)) => {
                granted.offset == 0 && granted.lifetime == FOR_EVER
            }
            _ => false,
        };
        let is_chunk = asked.body == Some(RequestBody::Grant(GrantRequest::AllocateChunk));
        if !fits || !is_chunk && (granted.lifetime > self.longest || granted.longest != self.longest) {
            let what = format!("session {session} requested {:?} and was granted {granted:?}", asked.body);
            self.fail(Promise::Truth, now, what);
        }
        let bar = self.barred.get(&(node, tenant));
        if bar.is_some_and(|bar| bar.since < asked.at && granted.permission.start < bar.until) {
            let what =
                format!("session {session}, whose tenant is barred, was granted {:?}", granted.permission);
            self.fail(Promise::Isolation, now, what);
        }
    }

    /// Checks that a grant is over the requested object.
    fn check_reference(
        &mut self,
        session: SessionId,
        asked: &Asked,
        granted: &Granted,
        (now, node_now): (Nanos, Moment),
    ) {
        let node = self.sessions[session].node;
        let Some(model) = &mut self.nodes[node] else { return };
        let is_over = node_now >= granted.permission.start.after(granted.lifetime);
        let wrong = match asked.body {
            Some(
                RequestBody::Grant(GrantRequest::Allocate(_))
                | RequestBody::Grant(GrantRequest::AllocateChunk),
            ) => model.objects.born(granted),
            Some(RequestBody::Grant(GrantRequest::Acquire(Acquire {
                object: ObjectName::Reference(meant),
                ..
            }))) if meant != granted.object => Some("another object was meant"),
            // After the permission's end, a late message shows nothing about the place.
            Some(RequestBody::Grant(GrantRequest::Acquire(_))) if !is_over => {
                model.objects.opened(granted, model.requests.may_have_allocated())
            }
            _ => None,
        };
        if let Some(why) = wrong {
            let what =
                format!("session {session} was granted {} for {:?}: {why}", granted.object, asked.body);
            self.fail(Promise::Reference, now, what);
        }
    }

    fn check_scrub(&mut self, session: SessionId, granted: &Granted, now: Nanos) {
        let Session { node, tenant, .. } = self.sessions[session];
        let Some(model) = &self.nodes[node] else { return };
        let Some(offset) = model.offset(granted.address().0, granted.length) else {
            return self.fail(Promise::Memory, now, format!("{granted:?} lies outside the pool"));
        };
        let writers = model.shares.writers(granted.object);
        if let Some((at, other)) = model.memory.foreign_byte(&writers, offset..offset + granted.length) {
            let what = format!(
                "session {session} of tenant {tenant} was granted {:?} with a byte of tenant {other}'s at {at:#x}",
                granted.permission
            );
            self.fail(Promise::Scrub, now, what);
        }
    }
}

/// The lifetime of a chunk that the node's processor hands out.
const FOR_EVER: Lifetime = Lifetime(u64::MAX);

impl Oracle {
    /// Checks that a chunk that the node's processor hands out is all zeros, even if the same tenant had its memory.
    fn check_zero(&mut self, session: SessionId, granted: &Granted, now: Nanos) {
        let Some(model) = &self.nodes[self.sessions[session].node] else { return };
        let Some(offset) = model.offset(granted.address().0, granted.length) else { return };
        let there = model.memory.read(offset..offset + granted.length);
        if let Some(at) = there.iter().position(|&byte| byte != 0) {
            let what =
                format!("session {session} was given the chunk {granted:?}, which is not zero at {at:#x}");
            self.fail(Promise::Scrub, now, what);
        }
    }
}

fn request_key(request: &WireRequest) -> Option<Rkey> {
    match request {
        WireRequest::Read { remote, .. }
        | WireRequest::Write { remote, .. }
        | WireRequest::CompareAndSwap { remote, .. }
        | WireRequest::FetchAndAdd { remote, .. } => Some(remote.rkey),
        WireRequest::Send { .. } => None,
    }
}

/// Returns the key that a request shows, so that it can be exchanged.
fn rkey_of(request: &mut WireRequest) -> Option<&mut Rkey> {
    match request {
        WireRequest::Read { remote, .. }
        | WireRequest::Write { remote, .. }
        | WireRequest::CompareAndSwap { remote, .. }
        | WireRequest::FetchAndAdd { remote, .. } => Some(&mut remote.rkey),
        WireRequest::Send { .. } => None,
    }
}
