//! Bytes in, commands out.

use super::command::{Command, Data, Key, Request, Store};
use super::meta::MetaSet;
use super::reply::Reply;
use super::{classic, meta};

/// A line without end that is no `get` ends its connection beyond this many bytes.
const LINE_BYTES_MAX: usize = 2048;
/// Spaces in front of a line that has no end yet.
const LEADING_SPACES_MAX: usize = 100;
/// Bytes that are reserved for a value before any of it has come: a client may announce much and send nothing.
const RESERVED_MAX: usize = 64 << 10;
/// What memcached adds to an item's key and value: its header, ends of lines, the unique number.
const ITEM_EXTRA_BYTES: u64 = 59;
/// Bytes that flags take which are not zero.
const FLAGS_BYTES: u64 = 4;

/// What a parser refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most bytes of an item, with its key and memcached's header of about 60 bytes.
    pub item_bytes: u64,
    /// The most bytes of a `get` with many keys.
    pub get_bytes: usize,
    /// Bytes that are kept free in front of each value.
    pub headroom: usize,
}

impl Limits {
    /// Whether an item is small enough.
    pub(super) fn allow(&self, key: &[u8], flags: u32, value_bytes: u64) -> bool {
        let flags_bytes = if flags == 0 { 0 } else { FLAGS_BYTES };
        key.len() as u64 + value_bytes + ITEM_EXTRA_BYTES + flags_bytes <= self.item_bytes
    }
}

/// What a line has led to.
pub(super) enum Parsed {
    /// A command.
    Command(Command),
    /// A command whose value follows.
    Announced(Announced, usize),
    /// A command, behind which so many bytes and the end of their line are to be skipped.
    Skip(Command, u64),
}

/// A command that waits for its value.
#[derive(Debug)]
pub(super) enum Announced {
    Store(Store),
    Meta(MetaSet),
}

impl Announced {
    fn with(self, data: Data) -> Request {
        match self {
            Self::Store(store) => Request::Store(Store { data, ..store }),
            Self::Meta(set) => Request::MetaSet(MetaSet { data, ..set }),
        }
    }

    /// What a value that does not end with its line is answered with. Meta commands tell of it always.
    fn bad_chunk(&self) -> Reply {
        match self {
            Self::Store(store) if store.quiet => Reply::Nothing,
            Self::Store(_) | Self::Meta(_) => Reply::Text("CLIENT_ERROR bad data chunk"),
        }
    }
}

/// Where in its input a parser is.
#[derive(Debug, Default)]
enum State {
    #[default]
    Line,
    Value {
        announced: Announced,
        data: Data,
        /// Bytes that are still to come, with the end of the line.
        missing: usize,
    },
    Skip(u64),
}

/// One connection's parser.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    state: State,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// What a line has led to besides the command that was handed out.
    next: Option<Command>,
}

impl Parser {
    /// A parser at the beginning of its input.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: State::Line, line: Vec::new(), next: None }
    }

    /// Takes bytes from the front of `input` until there is a command. `None`: more bytes are needed, and all were taken.
    pub fn take(&mut self, input: &mut &[u8]) -> Option<Command> {
        if let Some(command) = self.next.take() {
            return Some(command);
        }
        loop {
            match std::mem::take(&mut self.state) {
                State::Skip(missing) => {
                    let here = missing.min(input.len() as u64);
                    *input = &input[usize::try_from(here).expect("less than a length")..];
                    if here < missing {
                        self.state = State::Skip(missing - here);
                        return None;
                    }
                }
                State::Value { announced, data, missing } => {
                    return self.take_value(announced, data, missing, input);
                }
                State::Line => {
                    let parsed = self.take_line(input)?;
                    match parsed {
                        Parsed::Command(command) => return Some(command),
                        Parsed::Skip(command, bytes) => {
                            self.state = State::Skip(bytes);
                            return Some(command);
                        }
                        Parsed::Announced(announced, bytes) => {
                            let headroom = self.limits.headroom;
                            let mut data = Vec::with_capacity(headroom + (bytes + 2).min(RESERVED_MAX));
                            data.resize(headroom, 0);
                            self.state = State::Value {
                                announced,
                                data: Data { bytes: data, headroom },
                                missing: bytes + 2,
                            };
                        }
                    }
                }
            }
        }
    }

    fn take_value(
        &mut self,
        announced: Announced,
        mut data: Data,
        missing: usize,
        input: &mut &[u8],
    ) -> Option<Command> {
        let (here, rest) = input.split_at(missing.min(input.len()));
        data.bytes.extend_from_slice(here);
        *input = rest;
        if here.len() < missing {
            self.state = State::Value { announced, data, missing: missing - here.len() };
            return None;
        }
        if !data.value().ends_with(b"\r\n") {
            return Some(Command::Say(announced.bad_chunk()));
        }
        data.bytes.truncate(data.bytes.len() - 2);
        Some(Command::Request(announced.with(data)))
    }

    /// Takes a line. `None`: its end has not come.
    fn take_line(&mut self, input: &mut &[u8]) -> Option<Parsed> {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            self.line.extend_from_slice(input);
            *input = &[];
            return self.is_endless().then_some(Parsed::Command(Command::Quit));
        };
        let (here, rest) = input.split_at(end);
        *input = &rest[1..];
        let parsed = if self.line.is_empty() {
            parse(here, &self.limits)
        } else {
            self.line.extend_from_slice(here);
            let parsed = parse(&self.line, &self.limits);
            // A connection that once had a long line does not keep the memory.
            self.line = Vec::new();
            parsed
        };
        let (parsed, next) = parsed;
        self.next = next;
        Some(parsed)
    }

    /// Whether a line without end is longer than any command.
    fn is_endless(&self) -> bool {
        if self.line.len() <= LINE_BYTES_MAX {
            return false;
        }
        let spaces = self.line.iter().take_while(|byte| **byte == b' ').count();
        let line = &self.line[spaces..];
        let is_get = line.starts_with(b"get ") || line.starts_with(b"gets ");
        spaces > LEADING_SPACES_MAX || !is_get || self.line.len() > self.limits.get_bytes
    }
}

/// What a line without its line feed leads to: one command, and at times a second.
fn parse(line: &[u8], limits: &Limits) -> (Parsed, Option<Command>) {
    // A carriage return alone is no end of a line, but a bad command.
    let line = if line.len() > 1 { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
    // Memcached's lines are strings of C.
    let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
    match meta::parse(line, limits) {
        Some(parsed) => parsed,
        None => classic::parse(line, limits),
    }
}

/// A value that is too large: what is there under the key is out of date.
pub(super) fn too_large(
    key: Key,
    value_bytes: u64,
    is_stale: bool,
    reply: Reply,
) -> (Parsed, Option<Command>) {
    let discard = is_stale.then_some(Command::Request(Request::Discard(key)));
    (Parsed::Skip(Command::Say(reply), value_bytes + 2), discard)
}
