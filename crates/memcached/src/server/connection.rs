//! One client's connection: what has come and is not taken yet, and what is to go out.

use crate::protocol::{Command, Limits, Parser, Reply, Request};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Bytes that wait for a client beyond which nothing more of its commands is carried out.
const OUT_BYTES_MAX: usize = 256 << 10;
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
    pub fn write(&mut self) -> io::Result<usize> {
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
        if self.sent == self.out.len() {
            empty(&mut self.out);
            self.sent = 0;
        }
        Ok(bytes)
    }

    /// Bytes of answers that the client has not taken.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
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
