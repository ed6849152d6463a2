//! The messages of an attach: any bytes are one or none, and what they say makes sense.

use portcullis_attach::unix::{AttachReply, AttachRequest};
use portcullis_softnic::PortLayout;

/// Reads the bytes as what a client says, and as what a node answers.
pub fn run(bytes: &[u8]) {
    if let Some(request) = AttachRequest::parse(bytes) {
        assert_eq!(AttachRequest::parse(&request.encode()), Some(request), "requests read back");
    }
    if let Some(AttachReply::Offer { size, .. }) = AttachReply::parse(bytes) {
        let layout = PortLayout::new(size);
        assert!(layout.arena() + size.arena_bytes <= layout.bytes(), "the arena lies in the file");
        assert!(layout.completions() < layout.arena(), "the queues lie before the arena");
    }
}
