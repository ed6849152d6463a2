//! The entries that the models post. No two words in them are alike, so that a torn entry is never mistaken for a whole
//! one.

use portcullis_nic::{
    Completion, CompletionKind, Lkey, LocalSpan, Operation, QpId, ReceiveRequest, RemoteAddress, RemoteSpan,
    Rkey, Status, WorkRequest,
};

/// Returns request `id`, which fills all words of its entry.
pub fn request(id: u32, signalled: bool) -> WorkRequest {
    let wide = u64::from(id);
    WorkRequest {
        id: wide,
        signalled,
        operation: Operation::CompareAndSwap {
            local: LocalSpan { address: 0x100 + wide, length: 0x200 + id, lkey: Lkey(0x300 + id) },
            remote: RemoteSpan { address: RemoteAddress(0x400 + wide), rkey: Rkey(0x500 + id) },
            compare: 0x600 + wide,
            swap: 0x700 + wide,
        },
    }
}

/// Returns the entry of request `id` in a send queue, written from the documented layout instead of encoded.
pub fn request_words(id: u32, signalled: bool, lap: u64) -> [u64; 8] {
    let id = u64::from(id);
    [
        5 | u64::from(signalled) << 8 | (0x300 + id) << 32,
        0x100 + id,
        (0x200 + id) | (0x500 + id) << 32,
        0x400 + id,
        0x600 + id,
        0x700 + id,
        id,
        lap,
    ]
}

/// Returns receive `id`.
pub fn receive(id: u32) -> ReceiveRequest {
    let local = LocalSpan { address: 0x100 + u64::from(id), length: 0x200 + id, lkey: Lkey(0x300 + id) };
    ReceiveRequest { id: u64::from(id), local }
}

/// Returns the completion of request `id` of a send queue.
pub fn send_completion(id: u32) -> Completion {
    let queue_pair = QpId(0x800 + id);
    Completion { request: u64::from(id), queue_pair, status: Status::Success, kind: CompletionKind::Send }
}

/// Returns the completion of receive `id`.
pub fn receive_completion(id: u32) -> Completion {
    let kind = CompletionKind::Receive { length: 0x900 + id, invalidated: Some(Rkey(0xa00 + id)) };
    Completion { kind, ..send_completion(id) }
}
