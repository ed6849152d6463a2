//! The messages of an attach: any bytes are one or none, and what they say makes sense.

use portcullis_softnic::PortLayout;
use portcullis_softnic::attach::{parse_hello, parse_welcome};

/// Reads the bytes as a hello and as a welcome.
pub fn run(bytes: &[u8]) {
    if parse_hello(bytes).is_some() {
        assert_eq!(bytes.len(), 64, "a hello has one length");
    }
    if let Some(Ok(size)) = parse_welcome(bytes) {
        let layout = PortLayout::new(size);
        assert!(layout.arena() + size.arena_bytes <= layout.bytes(), "the arena lies in the file");
        assert!(layout.completions() < layout.arena(), "the queues lie before the arena");
    }
}
