//! Mechanism `node-copy`: no access is one-sided. The node's CPU checks and copies (as AIFM and Redy do; Patronus §7).

use super::at_once::Immediate;
use super::{Exposing, Surroundings};
use crate::books::{Books, Exposure, RequestOrigin};
use portcullis_nic::{Access, Memory, Nic};
use portcullis_protocol::{ClientId, CopyRequest, Credential, DATA_BYTES_MAX, Refusal, ReplyBody, Rights};

/// The mechanism by messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeCopy;

impl<N: Nic> Immediate<N> for NodeCopy {
    const POOL_ACCESS: Access = Access::empty();

    fn client_access(&self, _client: ClientId) -> Access {
        Access::empty()
    }

    fn expose(&mut self, around: &mut Surroundings<'_, N>, exposure: &Exposure) -> Option<Credential> {
        around.enter(exposure, Exposing::NOTHING);
        Some(Credential::Node)
    }
}

/// Carries out an access that arrived as a message, with `data` behind it. `room`: the number of bytes of data that a
/// reply to the client can carry.
///
/// # Errors
/// The client's permission does not allow it, or the message is malformed.
pub(crate) fn carry_out<M: Memory>(
    books: &Books<M>,
    memory: &M,
    from: RequestOrigin,
    access: CopyRequest,
    data: &[u8],
    room: usize,
) -> Result<(ReplyBody, Vec<u8>), Refusal> {
    match access {
        CopyRequest::Read { permission, offset, length } => {
            let at = books.covered(from, permission, (offset, length), Rights::READ)?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            // Bounded by what any message carries, and by what this client's messages carry.
            if length > DATA_BYTES_MAX.min(room) {
                return Err(Refusal::Malformed);
            }
            let mut data = vec![0; length];
            memory.read(at, &mut data);
            Ok((ReplyBody::Data(length as u64), data))
        }
        CopyRequest::Write { permission, offset, length } => {
            let at = books.covered(from, permission, (offset, length), Rights::WRITE)?;
            if data.len() as u64 != length {
                return Err(Refusal::Malformed);
            }
            memory.write(at, data);
            Ok((ReplyBody::Done, Vec::new()))
        }
        CopyRequest::CompareAndSwap { permission, offset, compare, swap } => {
            let at = books.covered(from, permission, (offset, 8), Rights::ATOMIC)?;
            change_word(memory, at, |old| if old == compare { swap } else { old })
        }
        CopyRequest::FetchAndAdd { permission, offset, add } => {
            let at = books.covered(from, permission, (offset, 8), Rights::ATOMIC)?;
            change_word(memory, at, |old| old.wrapping_add(add))
        }
    }
}

fn change_word(
    memory: &impl Memory,
    at: u64,
    new: impl FnOnce(u64) -> u64,
) -> Result<(ReplyBody, Vec<u8>), Refusal> {
    if !at.is_multiple_of(8) {
        return Err(Refusal::OutsideRange);
    }
    // Atomic because the node does one thing at a time, and under this mechanism only the node accesses the pool.
    let before = memory.load(at);
    memory.store(at, new(before));
    Ok((ReplyBody::Value(before), Vec::new()))
}
