//! Parser of a connection's bytes into commands.

use super::command::{Command, Data, Key, Request, Store};
use super::gets::{GetLine, Manner};
use super::line::{PendingLine, WholeLine};
use super::meta::MetaSet;
use super::reply::Reply;
use super::{classic, meta};

/// Maximum length in bytes of a line without an end that is not a `get`. A longer one ends its connection.
const LINE_BYTES_MAX: usize = 2048;
/// Maximum number of spaces in front of a line that has no end yet.
const LEADING_SPACES_MAX: usize = 100;
/// Maximum number of bytes that are reserved for a value before any of it has arrived: a client may announce much and
/// send nothing.
const RESERVED_MAX: usize = 64 << 10;
/// Bytes that memcached adds to an item's key and value: its header, line ends, the unique number.
const ITEM_EXTRA_BYTES: u64 = 59;
/// Bytes that non-zero flags take.
const FLAGS_BYTES: u64 = 4;

/// Limits of a parser.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum size of an item in bytes, with its key and memcached's header of about 60 bytes.
    pub item_bytes: u64,
    /// Maximum length in bytes of a `get` with many keys.
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

/// Result of parsing a line.
pub(super) enum Parsed {
    /// A command.
    Command(Command),
    /// A command whose value follows.
    Announced(Announced, usize),
    /// A `get`, with the offset of its first key in the line.
    Gets(Manner, usize),
    /// A command, after which this many bytes and their line end are skipped.
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

    /// Returns the answer to a value that does not end with a line end. Meta commands report it always.
    fn bad_chunk(&self) -> Reply {
        match self {
            Self::Store(store) if store.quiet => Reply::Nothing,
            Self::Store(_) | Self::Meta(_) => Reply::Text("CLIENT_ERROR bad data chunk"),
        }
    }
}

/// The memory that an incomplete command needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// No more than a short line.
    Little,
    /// The bytes of a line with keys.
    Line(usize),
    /// The bytes of a value.
    Value(usize),
}

/// A parser's state.
#[derive(Debug, Default)]
enum State {
    #[default]
    Line,
    Value {
        announced: Announced,
        data: Data,
        /// Bytes that have not arrived, with the line end.
        missing: usize,
    },
    Skip(u64),
    /// Keys of a `get` that were not returned yet.
    Keys(GetLine),
}

/// One connection's parser.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    state: State,
    /// The beginning of a line whose end has not arrived.
    line: PendingLine,
    /// A further command of the same line, which is returned next.
    next: Option<Command>,
}

impl Parser {
    /// A parser at the beginning of its input.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: State::Line, line: PendingLine::default(), next: None }
    }

    /// Takes bytes from the front of `input` until a command is complete. A `get` has at most `keys_max` keys, and at
    /// least one: the others follow in the next commands ([`Get::ends`](super::Get::ends)). Returns `None` if more
    /// bytes are needed; then all bytes were taken.
    pub fn take(&mut self, input: &mut &[u8], keys_max: usize) -> Option<Command> {
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
                State::Keys(line) => {
                    let (get, rest) = line.go_on(keys_max);
                    self.state = rest.map_or(State::Line, State::Keys);
                    return Some(Command::Request(Request::Get(get)));
                }
                State::Line => {
                    if let Some(command) = self.take_line(input, keys_max)? {
                        return Some(command);
                    }
                }
            }
        }
    }

    /// Drops the keys of the present `get` that were not returned.
    pub fn drop_rest_of_get(&mut self) {
        if matches!(self.state, State::Keys(_)) {
            self.state = State::Line;
        }
    }

    /// Whether a command needs no more bytes.
    #[must_use]
    pub fn has_command(&self) -> bool {
        self.next.is_some() || matches!(self.state, State::Keys(_))
    }

    /// Number of bytes of the present command that have arrived.
    #[must_use]
    pub fn taken(&self) -> usize {
        match &self.state {
            State::Value { data, .. } => data.value().len(),
            State::Line | State::Skip(_) | State::Keys(_) => self.line.bytes().len(),
        }
    }

    /// Returns the memory that the present command needs.
    #[must_use]
    pub fn need(&self) -> Need {
        match &self.state {
            State::Value { data, missing, .. } => Need::Value(data.bytes.len() + missing),
            State::Keys(line) => Need::Line(line.memory()),
            State::Line if self.line.is_long() => Need::Line(self.line.memory()),
            State::Line | State::Skip(_) => Need::Little,
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

    /// Takes a line. `None`: its end has not arrived. `Some(None)`: a value follows.
    fn take_line(&mut self, input: &mut &[u8], keys_max: usize) -> Option<Option<Command>> {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            self.line.push(input, self.limits.get_bytes);
            *input = &[];
            return self.is_endless().then_some(Some(Command::Quit));
        };
        let (here, rest) = input.split_at(end);
        *input = &rest[1..];
        let WholeLine { bytes, has_long_word } = std::mem::take(&mut self.line).end(here);
        let (parsed, next) = match meta::parse(&bytes, &self.limits) {
            Some(parsed) => parsed,
            None => classic::parse(&bytes, has_long_word, &self.limits),
        };
        self.next = next;
        Some(match parsed {
            Parsed::Command(command) => Some(command),
            Parsed::Skip(command, bytes) => {
                self.state = State::Skip(bytes);
                Some(command)
            }
            Parsed::Gets(manner, at) => {
                let (get, rest) = GetLine::begin(bytes, at, manner, keys_max);
                self.state = rest.map_or(State::Line, State::Keys);
                Some(Command::Request(Request::Get(get)))
            }
            Parsed::Announced(announced, bytes) => {
                let headroom = self.limits.headroom;
                let mut data = Vec::with_capacity(headroom + (bytes + 2).min(RESERVED_MAX));
                data.resize(headroom, 0);
                let data = Data { bytes: data, headroom };
                self.state = State::Value { announced, data, missing: bytes + 2 };
                None
            }
        })
    }

    /// Whether a line without end is longer than any command.
    fn is_endless(&self) -> bool {
        let line = self.line.bytes();
        if line.len() <= LINE_BYTES_MAX {
            return false;
        }
        let spaces = line.iter().take_while(|byte| **byte == b' ').count();
        let is_get = line[spaces..].starts_with(b"get ") || line[spaces..].starts_with(b"gets ");
        spaces > LEADING_SPACES_MAX || !is_get || line.len() > self.limits.get_bytes
    }
}

/// Returns the answer to a value that is too large, and a request to discard the key if its existing value is out of
/// date.
pub(super) fn too_large(
    key: Key,
    value_bytes: u64,
    is_stale: bool,
    reply: Reply,
) -> (Parsed, Option<Command>) {
    let discard = is_stale.then_some(Command::Request(Request::Discard(key)));
    (Parsed::Skip(Command::Say(reply), value_bytes + 2), discard)
}
