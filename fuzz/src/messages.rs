//! Control messages: what decodes as a request or reply still does so after encoding.

use portcullis_protocol::{MESSAGE_BYTES, Reply, Request};

/// Decodes the bytes as a request and as a reply.
pub fn run(bytes: &[u8]) {
    let mut message = [0; MESSAGE_BYTES];
    let length = bytes.len().min(MESSAGE_BYTES);
    message[..length].copy_from_slice(&bytes[..length]);
    if let Ok(request) = Request::decode(message) {
        assert_eq!(Request::decode(request.encode()), Ok(request));
    }
    if let Ok(reply) = Reply::decode(message) {
        assert_eq!(Reply::decode(reply.encode()), Ok(reply));
    }
}
