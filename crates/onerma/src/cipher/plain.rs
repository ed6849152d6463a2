//! No encryption at all: packets are sent as they are, with a tag that is publicly known. It exists to measure the cost
//! of encryption, and protects nothing.

use super::{Sender, TAG_BYTES};

// A feature can be turned on from afar, by another crate or by `--all-features`. So this one must be requested in two
// places.
const _: () = assert!(
    option_env!("PORTCULLIS_DANGEROUS_PLAIN").is_some(),
    "dangerous-plain leaves packets unencrypted: for benchmarks only, with PORTCULLIS_DANGEROUS_PLAIN=1"
);

/// The tag of every packet.
const TAG: [u8; TAG_BYTES] = *b"DANGEROUSLYPLAIN";

/// A cipher that does nothing.
#[derive(Debug)]
pub(crate) struct Cipher;

impl Cipher {
    pub fn new(_: &[u8; 32]) -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "as the cipher that encrypts")]
    pub fn seal(&self, _: Sender, _: u64, packet: &mut [u8], _: usize) {
        let body = packet.len() - TAG_BYTES;
        packet[body..].copy_from_slice(&TAG);
    }

    #[allow(clippy::unused_self, reason = "as the cipher that encrypts")]
    pub fn open<'a>(&self, _: Sender, _: u64, _: &[u8], body: &'a mut [u8]) -> Option<&'a [u8]> {
        body.strip_suffix(&TAG)
    }
}
