//! The control connection, byte by byte: a test can send what the library would not send.

use portcullis_attach::tls::Ends;
use portcullis_nic::QpAddress;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A control connection without certificates.
pub struct ControlConnection(TcpStream);

impl ControlConnection {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the node listens");
        stream.set_read_timeout(Some(crate::rig::PATIENCE)).expect("a socket");
        Self(stream)
    }

    /// Sends a message. The node may have hung up already.
    pub fn say(&mut self, message: &[u8]) {
        let length = u16::try_from(message.len()).expect("a short message");
        let _ = self.0.write_all(&[&length.to_le_bytes()[..], message].concat());
    }

    /// Returns the node's next message, or `None` if the node hangs up.
    pub fn hear(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 2];
        self.0.read_exact(&mut length).ok()?;
        let mut message = vec![0; u16::from_le_bytes(length).into()];
        self.0.read_exact(&mut message).ok()?;
        Some(message)
    }

    /// Offers the addresses of these queue pairs to the node. `Ok`: the node admits the client. `Err`: the reason for
    /// the refusal.
    pub fn bring(&mut self, ends: &Ends) -> Result<(), String> {
        self.say(&hello());
        self.hear().expect("terms");
        self.say(&say_ends(ends));
        match self.hear() {
            Some(answer) if answer[0] == WELCOME => Ok(()),
            Some(answer) => Err(String::from_utf8_lossy(&answer[1..]).into_owned()),
            None => Err("hung up".to_owned()),
        }
    }
}

/// The node's message that admits a client.
const WELCOME: u8 = 2;

/// The first message: the protocol and its version.
pub fn hello() -> Vec<u8> {
    [&[0][..], b"PORTCUL\0", &[3]].concat()
}

/// The second message: the addresses of the client's queue pairs.
pub fn say_ends(ends: &Ends) -> Vec<u8> {
    let mut bytes = vec![1];
    end(&mut bytes, &ends.control);
    number(&mut bytes, ends.data.len() as u64);
    for data in &ends.data {
        end(&mut bytes, data);
    }
    bytes
}

fn end(bytes: &mut Vec<u8>, end: &QpAddress) {
    number(bytes, end.number.into());
    bytes.extend(end.port);
    number(bytes, end.lid.into());
    number(bytes, end.first_packet.into());
}

/// Encodes a number with seven bits a byte, the lowest bits first.
fn number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}
