//! The part of a message that is sent: if the second half is zero, only the first half is sent.
//!
//! Each cache line of a message is fetched from another processor's cache, and the most frequent messages need only
//! one.

use super::MESSAGE_BYTES;

/// Bytes of a message whose second half is not sent.
const SHORT_BYTES: usize = MESSAGE_BYTES / 2;

/// Returns the bytes of a message that have to be sent, if nothing follows it.
#[must_use]
pub fn sent_part(message: &[u8; MESSAGE_BYTES]) -> &[u8] {
    let (first, second) = message.split_at(SHORT_BYTES);
    // The words are read one by one, as they were written: a wide load waits until all its bytes are in the cache.
    let (words, _) = second.as_chunks::<8>();
    if words.iter().all(|word| u64::from_ne_bytes(*word) == 0) { first } else { message }
}

/// Returns the message at the beginning of `length` received bytes. `read` fills the buffer that it gets with the first
/// of these bytes. `None`: the message is cut.
pub fn received_message(length: u64, read: impl FnOnce(&mut [u8])) -> Option<[u8; MESSAGE_BYTES]> {
    let came = match usize::try_from(length) {
        Ok(SHORT_BYTES) => SHORT_BYTES,
        Ok(length) if length < MESSAGE_BYTES => return None,
        _ => MESSAGE_BYTES,
    };
    // The bytes behind a short message belong to another message, and are not read.
    let mut message = [0; MESSAGE_BYTES];
    read(&mut message[..came]);
    Some(message)
}

/// Returns the message at the beginning of `bytes`, as [`received_message`] does.
#[must_use]
pub fn message_in(bytes: &[u8]) -> Option<[u8; MESSAGE_BYTES]> {
    received_message(bytes.len() as u64, |message| message.copy_from_slice(&bytes[..message.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is received of a message that is sent into memory with other bytes.
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
