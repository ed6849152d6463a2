//! The layout of the queues' entries, byte for byte. All numbers are little-endian on the machines this runs on. Each
//! entry is read once, into private words, before any of it is interpreted.
//!
//! **Work request, 64 bytes.** It stays in queue memory until the NIC reaches it, and is fetched then.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 | operation: 0 NOP, 1 SEND, 2 SEND_WITH_INV, 3 READ, 4 WRITE, 5 COMPARE_AND_SWAP, 6 FETCH_AND_ADD, |
//! | | 7 BIND_MW, 8 LOCAL_INV, 9 WAIT, 10 ENABLE, 11 ENABLE_RECV |
//! | 1 | flags: bit 0 signalled |
//! | 2 | access flags of a bind |
//! | 4..8 | lkey of the local span |
//! | 8..16 | local address |
//! | 16..20 | local length |
//! | 20..24 | rkey of the remote span, rkey to invalidate, or the window's new rkey; |
//! | | the completion queue or queue pair of WAIT, ENABLE and ENABLE_RECV |
//! | 24..32 | remote address, or the first address of a window |
//! | 32..40 | compare value, value to add, a window's length, or the threshold or limit of WAIT, ENABLE and ENABLE_RECV |
//! | 40..48 | swap value |
//! | 40..44 | instead of a swap value: the index of a bind's region |
//! | 44..48 | instead of a swap value: number plus one of the queue pair that a window is bound to, 0 for the poster |
//! | 48..56 | the request's number, which its completion repeats |
//! | 56..64 | lap: the number of the ring's round, from 1; stored last, it makes the entry valid |
//!
//! An entry is fetched once, when all entries before it in its queue are done: so it contains their changes to it. In a
//! managed queue ([`ChainRole`](portcullis_nic::ChainRole)) a limit makes entries valid, and not the lap.
//!
//! **Receive, 32 bytes**: address, length and lkey, number, lap.
//! **Completion, 32 bytes**: number; status, kind and length; queue pair and invalidated key; lap.

use portcullis_nic::{
    Access, ChainVerb, Completion, CompletionKind, CqId, Lkey, LocalSpan, Operation, QpId, ReceiveRequest,
    RegionId, RemoteAddress, RemoteSpan, Rkey, Status, WindowBinding, WindowId, WorkRequest,
};

/// Bytes of a work request in a send queue.
pub const WORK_REQUEST_BYTES: u64 = 64;
/// Bytes of an entry of a receive queue.
pub const RECEIVE_BYTES: u64 = 32;
/// Bytes of an entry of a completion queue.
pub const COMPLETION_BYTES: u64 = 32;

mod opcode {
    pub const NOP: u64 = 0;
    pub const SEND: u64 = 1;
    pub const SEND_WITH_INVALIDATE: u64 = 2;
    pub const READ: u64 = 3;
    pub const WRITE: u64 = 4;
    pub const COMPARE_AND_SWAP: u64 = 5;
    pub const FETCH_AND_ADD: u64 = 6;
    pub const BIND_WINDOW: u64 = 7;
    pub const LOCAL_INVALIDATE: u64 = 8;
    pub const WAIT: u64 = 9;
    pub const ENABLE: u64 = 10;
    pub const ENABLE_RECEIVE: u64 = 11;
}

const SIGNALLED: u64 = 1 << 8;

#[allow(clippy::cast_possible_truncation, reason = "the upper half is another field")]
pub(crate) fn low(word: u64) -> u32 {
    word as u32
}

pub(crate) fn high(word: u64) -> u32 {
    low(word >> 32)
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Returns a work request as its words, all but the lap.
pub(crate) fn encode_request(request: &WorkRequest) -> [u64; 7] {
    let mut words = [0; 7];
    let local = |words: &mut [u64; 7], opcode: u64, span: LocalSpan| {
        words[0] = opcode | u64::from(span.lkey.0) << 32;
        words[1] = span.address;
        words[2] = u64::from(span.length);
    };
    let remote = |words: &mut [u64; 7], span: RemoteSpan| {
        words[2] |= u64::from(span.rkey.0) << 32;
        words[3] = span.address.0;
    };
    match request.operation {
        Operation::Send { local: span } => local(&mut words, opcode::SEND, span),
        Operation::SendWithInvalidate { local: span, rkey } => {
            local(&mut words, opcode::SEND_WITH_INVALIDATE, span);
            words[2] |= u64::from(rkey.0) << 32;
        }
        Operation::Read { local: span, remote: there } => {
            local(&mut words, opcode::READ, span);
            remote(&mut words, there);
        }
        Operation::Write { local: span, remote: there } => {
            local(&mut words, opcode::WRITE, span);
            remote(&mut words, there);
        }
        Operation::CompareAndSwap { local: span, remote: there, compare, swap } => {
            local(&mut words, opcode::COMPARE_AND_SWAP, span);
            remote(&mut words, there);
            words[4] = compare;
            words[5] = swap;
        }
        Operation::FetchAndAdd { local: span, remote: there, add } => {
            local(&mut words, opcode::FETCH_AND_ADD, span);
            remote(&mut words, there);
            words[4] = add;
        }
        Operation::BindWindow(binding) => bind(&mut words, &binding),
        Operation::LocalInvalidate { rkey } => {
            words[0] = opcode::LOCAL_INVALIDATE;
            words[2] = u64::from(rkey.0) << 32;
        }
        Operation::Chain(verb) => encode_chain_verb(&mut words, &verb),
    }
    if request.signalled {
        words[0] |= SIGNALLED;
    }
    words[6] = request.id;
    words
}

fn bind(words: &mut [u64; 7], binding: &WindowBinding) {
    words[0] = opcode::BIND_WINDOW | u64::from(binding.access.bits()) << 16;
    words[1] = u64::from(binding.window.0);
    words[2] = u64::from(binding.rkey.0) << 32;
    words[3] = binding.address.0;
    words[4] = binding.length;
    words[5] = u64::from(binding.region.0);
}

fn encode_chain_verb(words: &mut [u64; 7], verb: &ChainVerb) {
    let mut about = |opcode, number: u32, value| {
        words[0] = opcode;
        words[2] = u64::from(number) << 32;
        words[4] = value;
    };
    match *verb {
        ChainVerb::Nop => about(opcode::NOP, 0, 0),
        ChainVerb::Wait { cq, threshold } => about(opcode::WAIT, cq.0, threshold.into()),
        ChainVerb::Enable { queue_pair, limit } => about(opcode::ENABLE, queue_pair.0, limit),
        ChainVerb::EnableReceive { queue_pair, limit } => about(opcode::ENABLE_RECEIVE, queue_pair.0, limit),
        ChainVerb::BindWindow { binding, queue_pair } => {
            bind(words, &binding);
            words[5] |= (u64::from(queue_pair.0) + 1) << 32;
        }
        ChainVerb::LocalInvalidate { rkey, queue_pair } => {
            about(opcode::LOCAL_INVALIDATE, rkey.0, 0);
            words[5] = (u64::from(queue_pair.0) + 1) << 32;
        }
    }
}

/// Returns a work request as it is stored in a managed queue, where the lap has no meaning.
pub(crate) fn queue_entry(request: &WorkRequest) -> [u64; 8] {
    let [a, b, c, d, e, f, g] = encode_request(request);
    [a, b, c, d, e, f, g, 0]
}

/// Returns the number of the work request in `words`, and whether the request is signalled.
#[inline]
pub(crate) fn decode_header(words: &[u64; 8]) -> (u64, bool) {
    (words[6], words[0] & SIGNALLED != 0)
}

/// Returns the operation of the work request in `words`. `None`: the words mean nothing.
#[inline]
pub(crate) fn decode_operation(words: &[u64; 8]) -> Option<Operation> {
    decode_transfer(words).or_else(|| decode_rare(words))
}

/// Returns the operation of the work request in `words`, if it is a read, a write, an atomic or a message: the
/// operations that clients post. This is apart from [`decode_rare`], so that the compiler keeps the result in
/// registers.
#[inline]
pub(crate) fn decode_transfer(words: &[u64; 8]) -> Option<Operation> {
    let local = LocalSpan { address: words[1], length: low(words[2]), lkey: Lkey(high(words[0])) };
    let rkey = Rkey(high(words[2]));
    let remote = RemoteSpan { address: RemoteAddress(words[3]), rkey };
    match words[0] & 0xff {
        opcode::READ => Some(Operation::Read { local, remote }),
        opcode::WRITE => Some(Operation::Write { local, remote }),
        opcode::SEND => Some(Operation::Send { local }),
        opcode::SEND_WITH_INVALIDATE => Some(Operation::SendWithInvalidate { local, rkey }),
        opcode::COMPARE_AND_SWAP => {
            Some(Operation::CompareAndSwap { local, remote, compare: words[4], swap: words[5] })
        }
        opcode::FETCH_AND_ADD => Some(Operation::FetchAndAdd { local, remote, add: words[4] }),
        _ => None,
    }
}

/// Decodes the operations that no client posts: binds, invalidations, and requests of chains. `None`: the words mean
/// nothing.
#[cold]
fn decode_rare(words: &[u64; 8]) -> Option<Operation> {
    let rkey = Rkey(high(words[2]));
    match words[0] & 0xff {
        opcode::BIND_WINDOW => {
            let binding = WindowBinding {
                window: WindowId(low(words[1])),
                rkey,
                region: RegionId(low(words[5])),
                address: RemoteAddress(words[3]),
                length: words[4],
                access: Access::from_bits_truncate((words[0] >> 16).to_le_bytes()[0]),
            };
            Some(match other_queue_pair(words) {
                None => Operation::BindWindow(binding),
                Some(queue_pair) => Operation::Chain(ChainVerb::BindWindow { binding, queue_pair }),
            })
        }
        opcode::LOCAL_INVALIDATE => Some(match other_queue_pair(words) {
            None => Operation::LocalInvalidate { rkey },
            Some(queue_pair) => Operation::Chain(ChainVerb::LocalInvalidate { rkey, queue_pair }),
        }),
        opcode::NOP => Some(Operation::Chain(ChainVerb::Nop)),
        opcode::WAIT => {
            let cq = CqId(high(words[2]));
            Some(Operation::Chain(ChainVerb::Wait { cq, threshold: low(words[4]) }))
        }
        opcode::ENABLE => {
            let queue_pair = QpId(high(words[2]));
            Some(Operation::Chain(ChainVerb::Enable { queue_pair, limit: words[4] }))
        }
        opcode::ENABLE_RECEIVE => {
            let queue_pair = QpId(high(words[2]));
            Some(Operation::Chain(ChainVerb::EnableReceive { queue_pair, limit: words[4] }))
        }
        _ => None,
    }
}

/// Returns the queue pair that a bind or an invalidation is for, if it is another than the one that posts it.
fn other_queue_pair(words: &[u64; 8]) -> Option<QpId> {
    high(words[5]).checked_sub(1).map(QpId)
}

/// Returns a receive as its words, all but the lap.
pub(crate) fn encode_receive(request: &ReceiveRequest) -> [u64; 3] {
    [request.local.address, pair(request.local.length, request.local.lkey.0), request.id]
}

pub(crate) fn decode_receive(words: &[u64; 4]) -> ReceiveRequest {
    ReceiveRequest {
        id: words[2],
        local: LocalSpan { address: words[0], length: low(words[1]), lkey: Lkey(high(words[1])) },
    }
}

const KIND_RECEIVE: u64 = 1 << 8;
const KIND_INVALIDATED: u64 = 1 << 9;

/// Returns a completion as its words, all but the lap. `taken` is the number of requests that the NIC has taken, from
/// which the poster computes the free slots. Receives carry their length there.
pub(crate) fn encode_completion(completion: &Completion, taken: u64) -> [u64; 3] {
    let mut first = u64::from(completion.status as u8);
    let mut second = u64::from(completion.queue_pair.0);
    match completion.kind {
        CompletionKind::Send => first |= u64::from(low(taken)) << 32,
        CompletionKind::Receive { length, invalidated } => {
            first |= KIND_RECEIVE | u64::from(length) << 32;
            if let Some(rkey) = invalidated {
                first |= KIND_INVALIDATED;
                second |= u64::from(rkey.0) << 32;
            }
        }
    }
    [completion.request, first, second]
}

/// Returns the completion in `words` and, for send queues, the lower half of the number of requests that the NIC has
/// taken.
pub(crate) fn decode_completion(words: &[u64; 4]) -> (Completion, u32) {
    let kind = if words[1] & KIND_RECEIVE == 0 {
        CompletionKind::Send
    } else {
        let invalidated = (words[1] & KIND_INVALIDATED != 0).then(|| Rkey(high(words[2])));
        CompletionKind::Receive { length: high(words[1]), invalidated }
    };
    let status = Status::from_number(words[1].to_le_bytes()[0]).unwrap_or(Status::LocalQpOperationError);
    (Completion { request: words[0], queue_pair: QpId(low(words[2])), status, kind }, high(words[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_words_become_a_request_that_reads_back(words: [u64; 8]) {
            let ((id, signalled), operation) = (decode_header(&words), decode_operation(&words));
            if let Some(operation) = operation {
                let request = WorkRequest { id, signalled, operation };
                let again = encode_request(&request);
                let mut eight = [0; 8];
                eight[..7].copy_from_slice(&again);
                prop_assert_eq!((decode_header(&eight), decode_operation(&eight)), ((id, signalled), Some(operation)));
            }
        }

        #[test]
        fn a_completion_reads_back(request: u64, number in 0u32..8, length: u32, key: Option<u32>, taken: u64) {
            for kind in [CompletionKind::Send, CompletionKind::Receive { length, invalidated: key.map(Rkey) }] {
                let completion =
                    Completion { request, queue_pair: QpId(number), status: Status::RemoteAccessError, kind };
                let three = encode_completion(&completion, taken);
                let (back, count) = decode_completion(&[three[0], three[1], three[2], 1]);
                prop_assert_eq!(back, completion);
                if kind == CompletionKind::Send {
                    prop_assert_eq!(count, low(taken));
                }
            }
        }
    }
}
