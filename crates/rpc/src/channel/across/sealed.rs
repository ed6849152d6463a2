//! Lines that a NIC carries. There is no guarantee of the order in which the bytes of one transfer arrive, so a line
//! has a checksum that shows whether it is complete.
//!
//! A hostile peer can write any checksum. All that it gains is a line, which it may write in any case.

use crate::channel::ends::{DEPTH, ReplyLine, RequestLine};
use twox_hash::XxHash64;
use zerocopy::IntoBytes;

/// Words of a request in a mailbox.
pub(super) const REQUEST_WORDS: usize = 16;
/// Words of a reply in a mailbox.
pub(super) const REPLY_WORDS: usize = 8;
/// Number of result scopes that one request gives back.
pub(super) const RETURNED_MAX: usize = 8;
/// Seed of the checksum. Any number will do: it keeps zeros from being a line.
const SEED: u64 = 0x7072_6361_6c6c_7331;

/// Number of a line in the order in which the lines of a mailbox are written. It starts at one: zero stands in new
/// memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turn(pub u32);

impl Turn {
    pub const FIRST: Self = Self(1);

    /// The index of the line in the mailbox.
    pub fn index(self) -> u64 {
        u64::from(self.0 & (DEPTH - 1))
    }

    pub fn next(self) -> Self {
        // As in a ring in shared memory, no turn is zero, and the last turn is followed by another one of the first
        // line.
        Self(self.0.checked_add(1).unwrap_or(DEPTH))
    }
}

/// A request, and the results that its client does not need any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SealedRequest {
    pub line: RequestLine,
    /// Addresses of the results' scopes. Zero: none.
    pub returned: [u64; RETURNED_MAX],
}

fn checksum(words: &[u64]) -> u64 {
    XxHash64::oneshot(SEED, words.as_bytes())
}

fn seal<const N: usize>(mut words: [u64; N]) -> [u64; N] {
    words[N - 1] = checksum(&words[..N - 1]);
    words
}

fn head(turn: Turn, number: u32) -> u64 {
    u64::from(turn.0) | u64::from(number) << 32
}

/// Returns the number beside the turn, if this is the line of that turn and it is complete.
fn open<const N: usize>(turn: Turn, words: &[u64; N]) -> Option<u32> {
    let number = u32::try_from(words[0] >> 32).ok()?;
    (words[0] == head(turn, number) && words[N - 1] == checksum(&words[..N - 1])).then_some(number)
}

impl SealedRequest {
    pub fn seal(&self, turn: Turn) -> [u64; REQUEST_WORDS] {
        let mut words = [0; REQUEST_WORDS];
        words[0] = head(turn, self.line.method);
        words[1..7].copy_from_slice(&self.line.words());
        words[7..15].copy_from_slice(&self.returned);
        seal(words)
    }

    /// Decodes the request of a turn, if it is complete.
    pub fn open(turn: Turn, words: &[u64; REQUEST_WORDS]) -> Option<Self> {
        let method = open(turn, words)?;
        let said = words[1..7].try_into().expect("six words");
        let returned = words[7..15].try_into().expect("eight words");
        Some(Self { line: RequestLine::read(method, said), returned })
    }
}

/// Encodes the reply of a turn, with the time of the server's clock.
pub(super) fn seal_reply(turn: Turn, line: ReplyLine, now: u64) -> [u64; REPLY_WORDS] {
    let mut words = [0; REPLY_WORDS];
    words[0] = head(turn, line.status);
    // The last of a line's words is free.
    words[1..6].copy_from_slice(&line.words()[..5]);
    words[6] = now;
    seal(words)
}

/// Decodes the reply of a turn, if it is complete. Also returns the time of the server's clock when the reply was
/// written.
pub(super) fn open_reply(turn: Turn, words: &[u64; REPLY_WORDS]) -> Option<(ReplyLine, u64)> {
    let status = open(turn, words)?;
    let line = ReplyLine::read(status, words[1..7].try_into().expect("six words"));
    Some((line, words[6]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScopeRef;
    use proptest::prelude::*;

    fn request(call: u64) -> SealedRequest {
        let scope = ScopeRef { address: 7, length: u64::MAX };
        let line = RequestLine { method: u32::MAX, call, root: 3, scope, deadline: 9, word: 1 };
        SealedRequest { line, returned: [1, 2, 3, 4, 5, 6, 7, 8] }
    }

    #[test]
    fn a_line_is_that_of_its_turn_and_no_other() {
        let (turn, later) = (Turn(5), Turn(5 + DEPTH));
        let words = request(1).seal(turn);
        assert_eq!(SealedRequest::open(turn, &words), Some(request(1)));
        assert_eq!(SealedRequest::open(later, &words), None);
        let scope = ScopeRef { address: 1, length: 2 };
        let reply = ReplyLine { status: 4, call: 3, root: 2, scope, word: 1 };
        assert_eq!(open_reply(turn, &seal_reply(turn, reply, 9)), Some((reply, 9)));
        assert_eq!(open_reply(later, &seal_reply(turn, reply, 9)), None);
    }

    #[test]
    fn new_memory_has_no_line_of_any_turn() {
        for turn in [0, 1, DEPTH, u32::MAX] {
            assert_eq!(SealedRequest::open(Turn(turn), &[0; REQUEST_WORDS]), None);
            assert_eq!(open_reply(Turn(turn), &[0; REPLY_WORDS]), None);
        }
    }

    #[test]
    fn turns_go_on_at_the_next_line_when_they_begin_anew() {
        let mut turn = Turn(u32::MAX - 70);
        for _ in 0..200 {
            let next = turn.next();
            assert_eq!(next.index(), (turn.index() + 1) % u64::from(DEPTH));
            assert!(next.0 != 0);
            turn = next;
        }
    }

    proptest! {
        #[test]
        fn a_line_of_which_words_are_still_the_old_ones_is_not_there(
            call in 1..u64::MAX, arrived in any::<u16>(),
        ) {
            let (old, new) = (request(call - 1).seal(Turn(1)), request(call).seal(Turn(1 + DEPTH)));
            let mut words = old;
            for (at, word) in words.iter_mut().enumerate() {
                if arrived >> at & 1 == 1 {
                    *word = new[at];
                }
            }
            let is_whole = words == new;
            prop_assert_eq!(SealedRequest::open(Turn(1 + DEPTH), &words).is_some(), is_whole);
        }
    }
}
