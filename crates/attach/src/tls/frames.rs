//! Messages on a stream of bytes: two bytes of length, little endian, then as many bytes of content.

use portcullis_errors::{Coded, ErrorCode};
use thiserror::Error;

/// Maximum size of one message in bytes, without its length field.
pub const FRAME_BYTES_MAX: usize = 4096;
const LENGTH_BYTES: usize = 2;

/// Reason for which bytes are not a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FrameError {
    /// The length field has a value that no message has.
    #[error("a message of {bytes} bytes (1 to {FRAME_BYTES_MAX} are possible)")]
    Length {
        /// The length that was sent.
        bytes: usize,
    },
    /// More bytes follow a message that must be answered first.
    #[error("sent an unexpected frame")]
    OutOfTurn,
}

impl Coded for FrameError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Length { .. } => ErrorCode::FrameLength,
            Self::OutOfTurn => ErrorCode::FrameOutOfTurn,
        }
    }
}

/// Assembles frames from the pieces in which they arrive.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Adds received bytes on a stream on which both sides take turns, and returns the message that they complete. A
    /// side that sends several messages at once breaks the rules.
    ///
    /// # Errors
    /// The bytes cannot be a single frame. The stream cannot be used any more then.
    pub fn take_in(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, FrameError> {
        self.push(bytes);
        let frame = self.next_frame()?;
        if frame.is_some() && !self.bytes.is_empty() { Err(FrameError::OutOfTurn) } else { Ok(frame) }
    }

    /// Adds received bytes on a stream on which messages may follow each other. [`next_frame`](Self::next_frame)
    /// returns the messages.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete message, if any.
    ///
    /// # Errors
    /// The next bytes cannot be a frame. The stream cannot be used any more then.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let Some((length, body)) = self.bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(*length));
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(FrameError::Length { bytes: length });
        }
        let Some(frame) = body.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.bytes.drain(..LENGTH_BYTES + length);
        Ok(Some(frame))
    }
}

/// Encodes a message as a frame. A message that is too long is cut off: this crate makes none.
#[must_use]
pub fn framed(message: &[u8]) -> Vec<u8> {
    let message = &message[..message.len().min(FRAME_BYTES_MAX)];
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&length.to_le_bytes()[..], message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_arrives_whole_in_whatever_pieces(
            message in prop::collection::vec(any::<u8>(), 1..=FRAME_BYTES_MAX),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let bytes = framed(&message);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let (mut frames, mut from, mut arrived) = (Frames::default(), 0, None);
            for cut in cuts {
                prop_assert!(arrived.is_none() || cut == from);
                arrived = frames.take_in(&bytes[from..cut]).expect("a frame").or(arrived);
                from = cut;
            }
            prop_assert_eq!(arrived, Some(message));
            prop_assert!(frames.bytes.is_empty());
        }

        #[test]
        fn any_bytes_are_a_frame_or_none(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..8)) {
            let mut frames = Frames::default();
            for piece in pieces {
                match frames.take_in(&piece) {
                    Ok(Some(frame)) => prop_assert!(!frame.is_empty() && frame.len() <= FRAME_BYTES_MAX),
                    Ok(None) => prop_assert!(frames.bytes.len() < LENGTH_BYTES + FRAME_BYTES_MAX),
                    Err(_) => break,
                }
            }
        }
    }

    #[test]
    fn impossible_lengths_are_noticed_before_their_bytes_arrive() {
        assert_eq!(Frames::default().take_in(&[0, 0]), Err(FrameError::Length { bytes: 0 }));
        assert_eq!(Frames::default().take_in(&[0x01, 0x10]), Err(FrameError::Length { bytes: 4097 }));
        assert_eq!(Frames::default().take_in(&[0x00, 0x10]), Ok(None));
    }

    #[test]
    fn messages_that_follow_each_other_are_told_apart() {
        let mut frames = Frames::default();
        frames.push(&[framed(b"one"), framed(b"two"), vec![9]].concat());
        assert_eq!(frames.next_frame(), Ok(Some(b"one".to_vec())));
        assert_eq!(frames.next_frame(), Ok(Some(b"two".to_vec())));
        assert_eq!(frames.next_frame(), Ok(None));
    }

    #[test]
    fn two_messages_at_a_time_are_one_too_many() {
        assert_eq!(Frames::default().take_in(&[1, 0, 7, 1]), Err(FrameError::OutOfTurn));
    }
}
