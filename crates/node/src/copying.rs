//! Mechanism `node-copy`: the node's CPU checks and copies (what AIFM and Redy do; Patronus §7).

use crate::client::Client;
use crate::node::Node;
use portcullis_nic::{Memory, Nic};
use portcullis_protocol::{DATA_BYTES_MAX, Mechanism, PermissionId, Refusal, ReplyBody, Rights};

impl<N: Nic> Node<N> {
    /// Where in the pool's memory an access by message goes, if its permission lets it.
    fn covered(
        &self,
        client: u64,
        permission: PermissionId,
        (offset, length): (u64, u64),
        right: Rights,
    ) -> Result<u64, Refusal> {
        if self.mechanism() != Mechanism::NodeCopy {
            return Err(Refusal::Malformed);
        }
        let slot = self.held(client, permission)?;
        let permission = self.permissions.get(slot).ok_or(Refusal::NotLive)?;
        if !permission.rights.contains(right) {
            return Err(Refusal::WrongRight);
        }
        let (address, size) = self.bytes_of(permission);
        if offset > size || length > size - offset {
            return Err(Refusal::OutsideRange);
        }
        Ok(Self::offset(address) + offset)
    }

    pub(crate) fn copy_out(
        &mut self,
        client: u64,
        sequence: u32,
        permission: PermissionId,
        offset: u64,
        length: u64,
    ) -> Result<(), Refusal> {
        let at = self.covered(client, permission, (offset, length), Rights::READ)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // Neither more than any message carries, nor more than this client's hold.
        let room = self.clients.get(client).map_or(0, Client::data_bytes_max);
        if length > DATA_BYTES_MAX.min(room) {
            return Err(Refusal::Malformed);
        }
        let mut data = vec![0; length];
        self.memory.read(at, &mut data);
        self.reply(client, sequence, ReplyBody::Data(length as u64), data);
        Ok(())
    }

    pub(crate) fn copy_in(
        &mut self,
        client: u64,
        sequence: u32,
        permission: PermissionId,
        offset: u64,
        length: u64,
        data: &[u8],
    ) -> Result<(), Refusal> {
        let at = self.covered(client, permission, (offset, length), Rights::WRITE)?;
        if data.len() as u64 != length {
            // Less came than the message says.
            return Err(Refusal::Malformed);
        }
        self.memory.write(at, data);
        self.reply(client, sequence, ReplyBody::Done, Vec::new());
        Ok(())
    }

    pub(crate) fn change_word(
        &mut self,
        client: u64,
        sequence: u32,
        permission: PermissionId,
        offset: u64,
        new: impl FnOnce(u64) -> u64,
    ) -> Result<(), Refusal> {
        let at = self.covered(client, permission, (offset, 8), Rights::ATOMIC)?;
        if !at.is_multiple_of(8) {
            return Err(Refusal::OutsideRange);
        }
        // Atomic because the node does one thing at a time, and under this mechanism nobody else touches the pool.
        let before = self.memory.load(at);
        self.memory.store(at, new(before));
        self.reply(client, sequence, ReplyBody::Value(before), Vec::new());
        Ok(())
    }
}
