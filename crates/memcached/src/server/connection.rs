//! One client's connection: bytes that have arrived and are not parsed yet, and bytes to send.

use super::dump::Dump;
use super::stream::Stream;
use crate::protocol::{Command, Limits, Need, Parser, Reply, Request};
use std::io;
use std::time::Instant;

/// Number of unsent bytes above which no further command of a client is carried out.
const OUT_BYTES_MAX: usize = 256 << 10;
/// Compacts the buffer once the bytes already sent exceed this limit and the bytes not yet sent.
const SENT_BYTES_KEPT: usize = 256 << 10;
/// Capacity above which a buffer is not kept.
const BUFFER_BYTES_KEPT: usize = 64 << 10;
/// Maximum number of keys that are looked up for a client that sends nothing more, before it reads the first byte of
/// their answer. Until an answer is sent, a client that has left looks the same as one that waits for its last answers.
const UNSEEN_KEYS_MAX: usize = 1024;
/// Maximum number of changes with an answer that are carried out for a client that has left. The client may have sent a
/// few and left at once. A client that has sent many would have received the answers to the first ones before it sent
/// the last ones.
const UNSEEN_CHANGES_MAX: usize = 64;
/// First byte of the binary protocol.
const BINARY: u8 = 0x80;

/// Event that a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// The client sends bytes.
    ToRead,
    /// The client reads the pending answers.
    ToWrite,
}

/// State of the client at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Client {
    /// The client may send more.
    Present,
    /// The client sends nothing more, and may read. `unseen_keys` keys were looked up for it since it last read
    /// something.
    Silent { unseen_keys: usize },
    /// No client reads an answer. Changes without an answer are carried out all the same: a client that wants no answer
    /// sends them and leaves. `unseen_changes` changes with an answer were carried out.
    Gone { unseen_changes: usize },
}

/// A client that has just left.
const GONE: Client = Client::Gone { unseen_changes: 0 };

/// See the module's documentation.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    parser: Parser,
    /// Bytes that have arrived. The parser has those before `taken`.
    input: Vec<u8>,
    taken: usize,
    /// Bytes of answers. Those before `sent` were sent.
    out: Vec<u8>,
    sent: usize,
    /// A command that has to wait for the next round.
    held: Option<Command>,
    /// A dump in progress.
    dump: Option<Dump>,
    begun: bool,
    /// The client has sent its last byte, or was rejected: the connection ends when all answers are sent.
    ending: bool,
    client: Client,
    /// Time at which the client last sent something.
    pub heard: Instant,
    /// Time at which the client last read something of its answers.
    pub took: Instant,
}

impl Connection {
    pub fn new(stream: Stream, limits: Limits, now: Instant) -> Self {
        Self {
            stream,
            parser: Parser::new(limits),
            input: Vec::new(),
            taken: 0,
            out: Vec::new(),
            sent: 0,
            held: None,
            dump: None,
            begun: false,
            ending: false,
            client: Client::Present,
            heard: now,
            took: now,
        }
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Reads once, if all bytes that have arrived were taken. Returns the number of bytes read.
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

    /// Returns the next command, with `keys_max` keys at most. `None`: there is none yet, or the client has to read its
    /// answers first.
    pub fn next(&mut self, keys_max: usize) -> Option<Command> {
        if self.unsent() > OUT_BYTES_MAX {
            return None;
        }
        let command = self.held.take().or_else(|| self.go_on(keys_max)).or_else(|| self.parse(keys_max))?;
        if self.is_in_vain(&command) {
            self.drop_rest_of_get();
            return Some(Command::Say(Reply::Nothing));
        }
        Some(command)
    }

    /// Begins a dump. Its parts precede all other commands.
    pub fn begin_dump(&mut self, dump: Dump) {
        self.dump = Some(dump);
    }

    fn go_on(&mut self, keys_max: usize) -> Option<Command> {
        let part = self.dump.as_mut()?.next(keys_max);
        if part.ends {
            self.dump = None;
        }
        Some(Command::Request(Request::Describe(part)))
    }

    fn parse(&mut self, keys_max: usize) -> Option<Command> {
        let mut input = &self.input[self.taken..];
        let command = self.parser.take(&mut input, keys_max);
        self.taken = self.input.len() - input.len();
        if self.taken == self.input.len() {
            empty(&mut self.input);
            self.taken = 0;
        }
        command
    }

    /// Whether a command need not be carried out, because no client reads its answer.
    fn is_in_vain(&mut self, command: &Command) -> bool {
        match command {
            Command::Request(request) if request.only_reads() => {
                self.is_read_in_vain(request.keys().len().max(1))
            }
            Command::Request(request) => !request.is_quiet_if_well() && self.is_change_in_vain(),
            Command::Say(_) | Command::Statistics(_) | Command::Dump(_) => self.is_read_in_vain(0),
            Command::Flush { quiet, .. } => !quiet && self.is_change_in_vain(),
            Command::Quit => false,
        }
    }

    fn is_read_in_vain(&mut self, keys: usize) -> bool {
        if let Client::Silent { unseen_keys } = &mut self.client {
            *unseen_keys += keys;
            if *unseen_keys > UNSEEN_KEYS_MAX {
                self.client = GONE;
            }
        }
        self.is_client_gone()
    }

    fn is_change_in_vain(&mut self) -> bool {
        let Client::Gone { unseen_changes } = &mut self.client else { return false };
        *unseen_changes += 1;
        *unseen_changes > UNSEEN_CHANGES_MAX
    }

    /// Records that the client sends nothing more.
    pub fn falls_silent(&mut self) {
        if self.client == Client::Present {
            self.client = Client::Silent { unseen_keys: 0 };
        }
    }

    /// Records that the client reads no answer any more.
    pub fn leaves(&mut self) {
        if !self.is_client_gone() {
            self.client = GONE;
        }
        (self.out, self.sent) = (Vec::new(), 0);
    }

    /// Whether the client may send more.
    pub fn is_client_present(&self) -> bool {
        self.client == Client::Present
    }

    /// Whether no client reads an answer any more.
    pub fn is_client_gone(&self) -> bool {
        matches!(self.client, Client::Gone { .. })
    }

    /// Keeps a command for the next round.
    pub fn hold(&mut self, command: Command) {
        self.held = Some(command);
    }

    /// Drops the rest of a `get` or a dump after a part of it has failed: its answer has ended.
    pub fn drop_rest_of_get(&mut self) {
        self.dump = None;
        if matches!(self.held, Some(Command::Request(Request::Get(_) | Request::Describe(_)))) {
            self.held = None;
        }
        self.parser.drop_rest_of_get();
    }

    /// Stops taking commands from the client.
    pub fn end(&mut self) {
        self.ending = true;
        self.held = None;
        (self.input, self.taken) = (Vec::new(), 0);
    }

    /// Adds an answer.
    pub fn answer(&mut self, reply: &Reply) {
        reply.encode(&mut self.out);
    }

    /// Sends as many bytes as the client accepts. Returns their number.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write(&mut self, now: Instant) -> io::Result<usize> {
        if self.is_client_gone() {
            (self.out, self.sent) = (Vec::new(), 0);
        }
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
            if let Client::Silent { unseen_keys } = &mut self.client {
                *unseen_keys = 0;
            }
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

    /// Bytes of answers that were not sent.
    fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Bytes of answers that are kept: those that were not sent, and some that were.
    pub fn kept(&self) -> usize {
        self.out.len()
    }

    /// Returns the memory that the present command needs.
    pub fn need(&self) -> Need {
        self.parser.need()
    }

    /// Number of bytes of the present command that have arrived.
    pub fn taken(&self) -> u64 {
        self.parser.taken() as u64
    }

    /// Returns the event that the connection waits for.
    pub fn waits(&self) -> Waits {
        if self.out.is_empty() { Waits::ToRead } else { Waits::ToWrite }
    }

    /// Whether there may be commands that were not carried out.
    pub fn has_work(&self) -> bool {
        self.held.is_some() || self.dump.is_some() || !self.input.is_empty() || self.parser.has_command()
    }

    /// Whether the connection has ended.
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
    use crate::server::stream::Peer;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_a_client_has_taken_is_not_kept_until_it_has_taken_all() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
        let (stream, _) = listener.accept().expect("a client");
        stream.set_nonblocking(true).expect("it can be");
        let limits = Limits { item_bytes: 1 << 20, get_bytes: 1 << 20, headroom: 0 };
        let stream = Stream::new(stream.into(), Peer::User(0));
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
