//! One client's connection: what has come and is not taken yet, and what is to go out.

use crate::protocol::{Command, Limits, Parser, Reply, Request};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Bytes that wait for a client beyond which nothing more of its commands is carried out.
const OUT_BYTES_MAX: usize = 256 << 10;
/// Bytes that were sent are let go when there are so many of them, and as many as those that were not.
const SENT_BYTES_KEPT: usize = 256 << 10;
/// A buffer that has been larger than this is not kept.
const BUFFER_BYTES_KEPT: usize = 64 << 10;
/// What shows the binary protocol, by its first byte.
const BINARY: u8 = 0x80;

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// For bytes of the client.
    ToRead,
    /// For the client to take what is there.
    ToWrite,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    parser: Parser,
    /// What has come. Up to `taken` it has gone to the parser.
    input: Vec<u8>,
    taken: usize,
    /// What is to go out. Up to `sent` it has.
    out: Vec<u8>,
    sent: usize,
    /// A command that has to wait for the next round.
    held: Option<Command>,
    begun: bool,
    /// The client has sent its last byte, or was refused: the connection ends when all is said.
    ending: bool,
    /// What the operating system watches it for.
    pub watched: Waits,
    /// When the client last sent something.
    pub heard: Instant,
    /// When it last took something of its answers.
    pub took: Instant,
}

impl Connection {
    pub fn new(stream: TcpStream, limits: Limits, now: Instant) -> Self {
        Self {
            stream,
            parser: Parser::new(limits),
            input: Vec::new(),
            taken: 0,
            out: Vec::new(),
            sent: 0,
            held: None,
            begun: false,
            ending: false,
            watched: Waits::ToRead,
            heard: now,
            took: now,
        }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads once, if all that has come was taken. Returns how many bytes there were.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn read(&mut self, scratch: &mut [u8], now: Instant) -> io::Result<usize> {
        if self.ending || self.has_work() || self.waits() == Waits::ToWrite {
            return Ok(0);
        }
        let bytes = match self.stream.read(scratch) {
            Ok(0) => {
                self.ending = true;
                return Ok(0);
            }
            Ok(bytes) => bytes,
            Err(error) if is_for_later(&error) => return Ok(0),
            Err(error) => return Err(error),
        };
        self.heard = now;
        if !std::mem::replace(&mut self.begun, true) && scratch[0] == BINARY {
            self.ending = true;
            return Ok(bytes);
        }
        self.input.extend_from_slice(&scratch[..bytes]);
        Ok(bytes)
    }

    /// The next command. `None`: there is none yet, or the client has to take its answers first.
    pub fn next(&mut self) -> Option<Command> {
        if self.unsent() > OUT_BYTES_MAX {
            return None;
        }
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        let mut input = &self.input[self.taken..];
        let command = self.parser.take(&mut input);
        self.taken = self.input.len() - input.len();
        if self.taken == self.input.len() {
            empty(&mut self.input);
            self.taken = 0;
        }
        command
    }

    /// Keeps a command for the next round.
    pub fn hold(&mut self, command: Command) {
        self.held = Some(command);
    }

    /// Drops the rest of a `get` whose first part has failed: its answer has ended.
    pub fn drop_rest_of_get(&mut self) {
        if matches!(self.held, Some(Command::Request(Request::Get(_)))) {
            self.held = None;
        }
    }

    /// Nothing more is taken from the client.
    pub fn end(&mut self) {
        self.ending = true;
        self.held = None;
        (self.input, self.taken) = (Vec::new(), 0);
    }

    /// Adds an answer.
    pub fn answer(&mut self, reply: &Reply) {
        reply.encode(&mut self.out);
    }

    /// Sends what the client takes. Returns how many bytes.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write(&mut self, now: Instant) -> io::Result<usize> {
        let before = self.sent;
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if is_for_later(&error) => break,
                Err(error) => return Err(error),
            }
        }
        let bytes = self.sent - before;
        if bytes > 0 {
            self.took = now;
        }
        if self.sent == self.out.len() {
            empty(&mut self.out);
            self.sent = 0;
        } else if self.sent >= SENT_BYTES_KEPT.max(self.unsent()) {
            self.out.drain(..self.sent);
            self.out.shrink_to(self.out.len());
            self.sent = 0;
        }
        Ok(bytes)
    }

    /// Bytes of answers that the client has not taken.
    fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Bytes of answers that are kept: those that were not taken, and some that were.
    pub fn kept(&self) -> usize {
        self.out.len()
    }

    /// What the connection waits for.
    pub fn waits(&self) -> Waits {
        if self.out.is_empty() { Waits::ToRead } else { Waits::ToWrite }
    }

    /// Whether there may be commands that were not carried out.
    pub fn has_work(&self) -> bool {
        self.held.is_some() || !self.input.is_empty()
    }

    /// Whether the connection is over.
    pub fn is_over(&self) -> bool {
        self.ending && !self.has_work() && self.waits() == Waits::ToRead
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > BUFFER_BYTES_KEPT {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_a_client_has_taken_is_not_kept_until_it_has_taken_all() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
        let (stream, _) = listener.accept().expect("a client");
        stream.set_nonblocking(true).expect("it can be");
        let limits = Limits { item_bytes: 1 << 20, get_bytes: 1 << 20, headroom: 0 };
        let mut connection = Connection::new(stream, limits, Instant::now());
        connection.out = vec![7; 32 << 20];
        let (mut taken, mut some) = (0, vec![0; 1 << 20]);
        while connection.unsent() > 0 {
            connection.write(Instant::now()).expect("it works");
            let (kept, unsent) = (connection.kept(), connection.unsent());
            assert!(kept <= 2 * unsent + SENT_BYTES_KEPT, "{kept} bytes are kept for {unsent}");
            assert!(connection.out.capacity() <= (2 * kept).max(32 << 20));
            taken += client.read(&mut some).expect("there is something");
            assert!(some[0] == 7);
        }
        assert!(taken <= 32 << 20);
        assert_eq!(connection.waits(), Waits::ToRead);
    }
}
