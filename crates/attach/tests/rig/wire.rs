//! A second definition of the messages on the wire, so that a change of format is noticed.

use portcullis_attach::tls::Ends;
use serde::{Deserialize, Serialize};
use std::io::Read;

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
pub struct End {
    pub number: u32,
    pub port: [u8; 16],
    pub lid: u16,
    pub first_packet: u32,
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
pub enum FromClient {
    Hello { magic: [u8; 8], version: u32 },
    Ends { control: End, data: Vec<End> },
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
pub enum FromNode {
    Terms { data_queue_pairs: u32, send_depth: u32, control_depth: u32, message_bytes: u32, unenforced: u16 },
    Refused(String),
    Welcome { client: u64, control: End, data: Vec<End> },
    OneShots { client: u64, port: u16, control_depth: u32, datagram_max: u32 },
    TooLate,
}

pub fn hello() -> FromClient {
    FromClient::Hello { magic: *b"PORTCUL\0", version: 3 }
}

pub fn terms() -> FromNode {
    FromNode::Terms {
        data_queue_pairs: 2,
        send_depth: 256,
        control_depth: 64,
        message_bytes: 128,
        unenforced: 0,
    }
}

fn on_wire(end: &portcullis_nic::QpAddress) -> End {
    End { number: end.number, port: end.port, lid: end.lid, first_packet: end.first_packet }
}

pub fn of_ends(ends: &Ends) -> FromClient {
    FromClient::Ends { control: on_wire(&ends.control), data: ends.data.iter().map(on_wire).collect() }
}

pub fn welcome(client: u64, ends: &Ends) -> FromNode {
    FromNode::Welcome {
        client,
        control: on_wire(&ends.control),
        data: ends.data.iter().map(on_wire).collect(),
    }
}

pub fn frame(message: &impl Serialize) -> Vec<u8> {
    let body = postcard::to_allocvec(message).expect("encoded");
    [&u16::try_from(body.len()).expect("short").to_le_bytes()[..], &body].concat()
}

/// Reads one message from the node.
pub fn read(stream: &mut impl Read) -> FromNode {
    let mut length = [0; 2];
    stream.read_exact(&mut length).expect("a length");
    let mut body = vec![0; usize::from(u16::from_le_bytes(length))];
    stream.read_exact(&mut body).expect("a message");
    postcard::from_bytes(&body).expect("of the node")
}

/// Parses the node's last bytes as a message.
pub fn parse(bytes: &[u8]) -> FromNode {
    read(&mut &bytes[..])
}
