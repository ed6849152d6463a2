//! The bytes of a connection, with TLS or without, but no socket. Bytes received from the peer become its plain
//! messages; plain messages become bytes to be sent. Both sides use it.

use rustls::Connection;
use rustls::pki_types::CertificateDer;
use std::io::Read;

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    tls: Option<Box<Connection>>,
    outgoing: Vec<u8>,
}

/// Decoded content of the bytes received from the peer.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Plain bytes from the peer.
    pub said: Vec<u8>,
    /// Whether the peer has announced that it will send no more.
    pub hung_up: bool,
}

impl Channel {
    pub fn plain() -> Self {
        Self { tls: None, outgoing: Vec::new() }
    }

    pub fn secured(connection: impl Into<Connection>) -> Self {
        let mut channel = Self { tls: Some(Box::new(connection.into())), outgoing: Vec::new() };
        channel.collect();
        channel
    }

    /// Decodes bytes received from the peer.
    ///
    /// # Errors
    /// The peer breaks the rules of TLS, or its certificate is not accepted. The TLS alert about that is to be sent.
    pub fn take_in(&mut self, mut bytes: &[u8]) -> Result<Heard, rustls::Error> {
        let Some(tls) = &mut self.tls else { return Ok(Heard { said: bytes.to_vec(), hung_up: false }) };
        let mut heard = Heard::default();
        let mut outcome = Ok(());
        while outcome.is_ok() && !bytes.is_empty() {
            // Reads from memory. This takes no bytes once the peer has hung up, and fails only if its buffer, which is
            // emptied each time, is full.
            if !tls.read_tls(&mut bytes).is_ok_and(|taken| taken > 0) {
                break;
            }
            outcome = tls.process_new_packets().map(|state| {
                heard.hung_up |= state.peer_has_closed();
                let before = heard.said.len();
                heard.said.resize(before + state.plaintext_bytes_to_read(), 0);
                let there = tls.reader().read(&mut heard.said[before..]).unwrap_or(0);
                heard.said.truncate(before + there);
            });
        }
        self.collect();
        outcome.map(|()| heard)
    }

    /// Queues bytes for the peer.
    pub fn say(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            None => self.outgoing.extend_from_slice(bytes),
            Some(tls) => {
                // The writer is memory, with room for far more.
                let _ = std::io::Write::write_all(&mut tls.writer(), bytes);
                self.collect();
            }
        }
    }

    /// Queues the announcement that nothing more will be sent.
    pub fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            self.collect();
        }
    }

    /// Returns the bytes that are to be sent.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// Notes that `bytes` of the outgoing bytes have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outgoing.drain(..bytes.min(self.outgoing.len()));
    }

    /// Whether the TLS handshake is in progress.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Returns the certificate that the peer has proven to own. It is known when the TLS handshake is complete.
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.as_ref().and_then(|tls| tls.peer_certificates()).and_then(|chain| chain.first())
    }

    /// Drops keys and buffers, because neither side will send anything more.
    pub fn fall_silent(&mut self) {
        self.tls = None;
        self.outgoing = Vec::new();
    }

    fn collect(&mut self) {
        let Some(tls) = &mut self.tls else { return };
        while tls.wants_write() {
            // Writing to a growing buffer cannot fail.
            if tls.write_tls(&mut self.outgoing).is_err() {
                return;
            }
        }
    }
}
