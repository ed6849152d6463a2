//! AES-256-GCM.

use super::{Sender, TAG_BYTES};
use ring::aead;

/// A derived key, set up for AES-GCM.
#[derive(Debug)]
pub(crate) struct Cipher(aead::LessSafeKey);

impl Cipher {
    pub fn new(key: &[u8; 32]) -> Self {
        let key =
            aead::UnboundKey::new(&aead::AES_256_GCM, key).expect("the key is as long as AES-256 wants");
        Self(aead::LessSafeKey::new(key))
    }

    fn nonce(sender: Sender, counter: u64) -> aead::Nonce {
        let mut bytes = [0; aead::NONCE_LEN];
        bytes[0] = sender as u8;
        bytes[4..].copy_from_slice(&counter.to_be_bytes());
        aead::Nonce::assume_unique_for_key(bytes)
    }

    /// Encrypts the body of a packet in place, and puts the tag into the packet's last bytes. The tag authenticates the
    /// header too. `counter` must be new.
    pub fn seal(&self, sender: Sender, counter: u64, packet: &mut [u8], header: usize) {
        let (head, rest) = packet.split_at_mut(header);
        let (body, room) = rest.split_at_mut(rest.len() - TAG_BYTES);
        let nonce = Self::nonce(sender, counter);
        let tag = self.0.seal_in_place_separate_tag(nonce, aead::Aad::from(&*head), body);
        room.copy_from_slice(tag.expect("packets are far shorter than AES-GCM allows").as_ref());
    }

    /// Decrypts the bytes after the header. `None`: the packet was made without the key, or was changed on its way.
    pub fn open<'a>(
        &self,
        sender: Sender,
        counter: u64,
        header: &[u8],
        body: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let opened = self.0.open_in_place(Self::nonce(sender, counter), aead::Aad::from(header), body);
        opened.ok().map(|plain| &*plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_for_its_sender_its_counter_and_its_header_only() {
        let cipher = Cipher::new(&[9; 32]);
        let mut packet = b"head and body".to_vec();
        packet.resize(packet.len() + TAG_BYTES, 0);
        cipher.seal(Sender::Initiator, 7, &mut packet, 4);
        assert!(!packet.windows(4).any(|part| part == b"body"), "it is not encrypted");
        let open = |sender, counter, packet: &[u8]| {
            let (head, body) = packet.split_at(4);
            cipher.open(sender, counter, head, &mut body.to_vec()).map(<[u8]>::to_vec)
        };
        assert_eq!(open(Sender::Initiator, 7, &packet).as_deref(), Some(&b" and body"[..]));
        assert_eq!(open(Sender::Responder, 7, &packet), None);
        assert_eq!(open(Sender::Initiator, 8, &packet), None);
        for at in 0..packet.len() {
            let mut changed = packet.clone();
            changed[at] ^= 1;
            assert_eq!(open(Sender::Initiator, 7, &changed), None, "byte {at}");
        }
    }
}
