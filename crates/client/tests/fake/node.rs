//! The node's half of the fake: answers control messages.

use super::{GOOD, REMOTE_BYTES, World};
use portcullis_nic::Memory;
use portcullis_protocol::{
    Acquire, Allocate, CopyRequest, Credential, GrantRequest, Granted, Incarnation, Lifetime, MESSAGE_BYTES,
    Mechanism, Moment, NamedRequest, ObjectRef, PACKED_HEAD_BYTES, Packing, Part, PermissionId,
    QueuePairRequest, Refusal, RemoteAddress, Reply, ReplyBody, Request, RequestBody, Rkey, messages_in,
};
use std::collections::VecDeque;

/// Reaction of the node to a request.
#[derive(Clone, Copy, Debug)]
pub enum Reaction {
    /// Serves the request.
    Serve,
    /// Sends this answer instead.
    Say(ReplyBody),
    /// Never answers.
    Ignore,
}

/// The fake node: the requests that it received, and its reactions to the next ones.
#[derive(Default)]
pub struct Node {
    pub asked: Vec<Request>,
    /// Number of messages that carried them.
    pub messages: usize,
    /// Reactions to the next requests. After them the node serves.
    pub reactions: VecDeque<Reaction>,
    /// While set, replies go into `held`.
    pub hold: bool,
    pub held: VecDeque<Vec<u8>>,
    /// The key in grants, instead of [`GOOD`].
    pub key: Option<Rkey>,
    pub by_messages: bool,
    /// Offset of the next grant's header in the memory.
    pub next: u64,
}

/// Receives a message. The replies to packed requests are packed, too, unless they are held.
pub fn receive(world: &mut World, message: &[u8]) {
    let records: Vec<_> = messages_in(message).expect("a whole message").collect();
    let data = message.get(MESSAGE_BYTES..).filter(|_| records.len() == 1).unwrap_or_default();
    world.node.messages += 1;
    let replies: Vec<_> = records.into_iter().filter_map(|record| answer(world, record, data)).collect();
    if world.node.hold {
        world.node.held.extend(replies);
    } else {
        deliver(world, &replies);
    }
}

/// Returns the reply to a request.
fn answer(world: &mut World, record: [u8; MESSAGE_BYTES], data: &[u8]) -> Option<Vec<u8>> {
    let request = Request::decode(record).expect("the client speaks the protocol");
    world.node.asked.push(request);
    if let RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair }) = request.body {
        world.stop(queue_pair);
    }
    let (body, data) = match world.node.reactions.pop_front().unwrap_or(Reaction::Serve) {
        Reaction::Ignore => return None,
        Reaction::Say(body) => (body, Vec::new()),
        Reaction::Serve => serve(world, request.body, data),
    };
    let mut reply = Reply { sequence: request.sequence, body }.encode().to_vec();
    reply.extend(data);
    Some(reply)
}

/// Delivers replies in as few messages as carry them. A reply with data travels alone.
pub fn deliver(world: &mut World, replies: &[Vec<u8>]) {
    let room = MESSAGE_BYTES + world.data as usize;
    let mut left = replies;
    while let Some(first) = left.first() {
        let (mut packing, mut bytes) = (Packing::new(room), vec![0; room]);
        for reply in left.iter().take_while(|reply| reply.len() == MESSAGE_BYTES) {
            let message = reply.first_chunk().expect("a message");
            let Some((at, record)) = packing.add(message) else { break };
            bytes[at..at + record.len()].copy_from_slice(record);
        }
        if packing.records() == 0 {
            world.deliver(first);
            left = &left[1..];
            continue;
        }
        left = &left[packing.records()..];
        if let Some(head) = packing.head() {
            bytes[..PACKED_HEAD_BYTES].copy_from_slice(&head);
        }
        let (at, length) = packing.span();
        world.deliver(&bytes[at..at + length]);
    }
}

/// Delivers the held replies.
pub fn release(world: &mut World) {
    world.node.hold = false;
    while let Some(reply) = world.node.held.pop_front() {
        world.deliver(&reply);
    }
}

fn serve(world: &mut World, body: RequestBody, data: &[u8]) -> (ReplyBody, Vec<u8>) {
    let reply = match body {
        RequestBody::Grant(GrantRequest::Allocate(Allocate { size, lifetime, .. }))
        | RequestBody::Grant(GrantRequest::Acquire(Acquire {
            part: Part { length: size, .. },
            lifetime,
            ..
        })) => {
            let header = world.node.next;
            world.node.next += 32 + size.next_multiple_of(8);
            assert!(world.node.next <= REMOTE_BYTES as u64);
            world.remote.store(header + 24, lifetime.0);
            // The granted bytes lie right behind the header, whatever part of the object they are.
            let offset = if let RequestBody::Grant(GrantRequest::Acquire(Acquire { part, .. })) = body {
                part.offset
            } else {
                0
            };
            let key = world.node.key.unwrap_or(GOOD);
            let keys = Credential::Keys { buffer: key, lifetime: key };
            ReplyBody::Granted(Granted {
                permission: PermissionId { header: RemoteAddress(header), start: Moment(1_000_000) },
                object: ObjectRef {
                    incarnation: Incarnation(1),
                    address: RemoteAddress((header + 32).wrapping_sub(offset)),
                    birth: header,
                },
                offset,
                length: size,
                lifetime,
                waited: Lifetime(0),
                longest: Lifetime::seconds(1_000),
                credential: if world.node.by_messages { Credential::Node } else { keys },
                mechanism: if world.node.by_messages { Mechanism::NodeCopy } else { Mechanism::MemoryWindow },
            })
        }
        RequestBody::Grant(GrantRequest::Extend { lifetime, .. }) => ReplyBody::Extended(lifetime),
        RequestBody::Grant(GrantRequest::Revoke { .. })
        | RequestBody::Grant(GrantRequest::Free { .. })
        | RequestBody::Grant(GrantRequest::Keep { .. })
        | RequestBody::Named(NamedRequest::Publish { .. })
        | RequestBody::Named(NamedRequest::Unpublish { .. })
        | RequestBody::Named(NamedRequest::Share { .. })
        | RequestBody::Named(NamedRequest::Unshare { .. })
        | RequestBody::Grant(GrantRequest::Include { .. })
        | RequestBody::QueuePair(QueuePairRequest::Recover { .. }) => ReplyBody::Done,
        RequestBody::QueuePair(QueuePairRequest::JoinChunks)
        | RequestBody::Grant(GrantRequest::AllocateChunk) => ReplyBody::Refused(Refusal::NoChunks),
        RequestBody::Named(NamedRequest::List { .. }) => ReplyBody::EndOfList,
        RequestBody::Named(NamedRequest::Lookup { .. }) => ReplyBody::Refused(Refusal::NoSuchName),
        RequestBody::Copy(access) => return copy(world, access, data),
    };
    (reply, Vec::new())
}

/// Executes an access of the mechanism `node-copy`.
fn copy(world: &mut World, access: CopyRequest, data: &[u8]) -> (ReplyBody, Vec<u8>) {
    let at = |permission: PermissionId, offset: u64| permission.header.0 + 32 + offset;
    let reply = match access {
        CopyRequest::Read { permission, offset, length } => {
            let mut bytes = vec![0; usize::try_from(length).unwrap()];
            world.remote.read(at(permission, offset), &mut bytes);
            return (ReplyBody::Data(length), bytes);
        }
        CopyRequest::Write { permission, offset, length } => {
            assert_eq!(data.len() as u64, length);
            world.remote.write(at(permission, offset), data);
            ReplyBody::Done
        }
        CopyRequest::CompareAndSwap { permission, offset, compare, swap } => {
            let word = at(permission, offset);
            let before = world.remote.load(word);
            if before == compare {
                world.remote.store(word, swap);
            }
            ReplyBody::Value(before)
        }
        CopyRequest::FetchAndAdd { permission, offset, add } => {
            let word = at(permission, offset);
            let before = world.remote.load(word);
            world.remote.store(word, before.wrapping_add(add));
            ReplyBody::Value(before)
        }
    };
    (reply, Vec::new())
}

/// The refusal that a paused tenant gets.
pub fn paused(micros: u64) -> Reaction {
    let wait = Lifetime::micros(micros);
    Reaction::Say(ReplyBody::Refused(Refusal::Paused { wait }))
}
