//! The messages of an attach: any bytes are one message or none, and every message makes sense.

use portcullis_attach::unix::{AttachReply, AttachRequest};
use portcullis_softnic::PortLayout;

/// Parses the bytes as a client's message, and as a node's answer: as they are, and as messages of this version, so that
/// inputs that were found with an older version go on to be of use.
pub fn run(bytes: &[u8]) {
    parse(bytes);
    let magic = &AttachRequest::Mapped.encode()[..8];
    if bytes.len() >= magic.len() {
        parse(&[magic, &bytes[magic.len()..]].concat());
    }
}

fn parse(bytes: &[u8]) {
    if let Some(request) = AttachRequest::parse(bytes) {
        assert_eq!(AttachRequest::parse(&request.encode()), Some(request), "requests read back");
    }
    if let Some(AttachReply::Offer { size, .. }) = AttachReply::parse(bytes) {
        let layout = PortLayout::new(size);
        assert!(layout.arena() + size.arena_bytes <= layout.bytes(), "the arena lies in the file");
        assert!(layout.completions().offset < layout.arena(), "the queues lie before the arena");
    }
}
