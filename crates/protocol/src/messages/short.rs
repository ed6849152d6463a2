//! What of a message is sent: the first half is enough where the second is zero.
//!
//! Each line of a message that is sent comes from another processor's cache, and the most frequent messages need one.

use super::MESSAGE_BYTES;

/// Bytes of a message whose second half is not sent.
const SHORT_BYTES: usize = MESSAGE_BYTES / 2;

/// The bytes of a message that have to be sent, if nothing follows it.
#[must_use]
pub fn sent_part(message: &[u8; MESSAGE_BYTES]) -> &[u8] {
    let (first, second) = message.split_at(SHORT_BYTES);
    // Word by word, as it was written: a wide load waits until what it covers is in the cache.
    let (words, _) = second.as_chunks::<8>();
    if words.iter().all(|word| u64::from_ne_bytes(*word) == 0) { first } else { message }
}

/// The message at the beginning of what came, of which there are `length` bytes. `read` copies as many bytes of it as it
/// is given room for. `None`: it is cut.
pub fn received_message(length: u64, read: impl FnOnce(&mut [u8])) -> Option<[u8; MESSAGE_BYTES]> {
    let came = match usize::try_from(length) {
        Ok(SHORT_BYTES) => SHORT_BYTES,
        Ok(length) if length < MESSAGE_BYTES => return None,
        _ => MESSAGE_BYTES,
    };
    // What lies behind a short message is of another one.
    let mut message = [0; MESSAGE_BYTES];
    read(&mut message[..came]);
    Some(message)
}

/// The same of bytes that are at hand.
#[must_use]
pub fn message_in(bytes: &[u8]) -> Option<[u8; MESSAGE_BYTES]> {
    received_message(bytes.len() as u64, |message| message.copy_from_slice(&bytes[..message.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is received of a message that is sent into memory with other bytes.
    fn received(message: &[u8; MESSAGE_BYTES]) -> Option<[u8; MESSAGE_BYTES]> {
        let mut memory = [0xaa; 2 * MESSAGE_BYTES];
        let sent = sent_part(message);
        memory[..sent.len()].copy_from_slice(sent);
        received_message(sent.len() as u64, |bytes| bytes.copy_from_slice(&memory[..bytes.len()]))
    }

    #[test]
    fn a_message_comes_as_it_was_however_much_of_it_is_sent() {
        for last in 0..MESSAGE_BYTES {
            let mut message = [0; MESSAGE_BYTES];
            (message[0], message[last]) = (1, 2);
            assert_eq!(
                sent_part(&message).len(),
                if last < SHORT_BYTES { SHORT_BYTES } else { MESSAGE_BYTES }
            );
            assert_eq!(received(&message), Some(message), "{last}");
            assert_eq!(message_in(sent_part(&message)), Some(message), "{last}");
        }
    }

    #[test]
    fn a_message_of_another_length_is_cut() {
        for length in (0..MESSAGE_BYTES).filter(|&length| length != SHORT_BYTES) {
            assert_eq!(received_message(length as u64, |_| panic!("{length} bytes are read")), None);
        }
        assert!(received_message(u64::MAX, |bytes| assert_eq!(bytes.len(), MESSAGE_BYTES)).is_some());
    }
}
