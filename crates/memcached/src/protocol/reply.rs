//! Results of commands, and their encoding as bytes.

use super::command::Key;
use super::dump::{Described, DumpForm};
use super::keys::{Spelling, write_key};
use super::meta::{Common, Echo};
use std::borrow::Cow;
use std::io::Write;

/// An item in an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returned {
    /// The client's flags.
    pub flags: u32,
    /// The unique number.
    pub cas: u64,
    /// Bytes with the value in them.
    pub bytes: Vec<u8>,
    /// Range of the value in `bytes`.
    pub value: std::ops::Range<usize>,
}

impl Returned {
    /// The value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.value.clone()]
    }
}

/// Contents of the answer to a meta command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaReply {
    /// `HD`, `EN`, `NF` and other codes. With a value it is `VA`.
    pub code: &'static str,
    /// The key.
    pub key: Box<[u8]>,
    /// Spelling of the key.
    pub spelling: Spelling,
    /// The requested items of the answer.
    pub echoes: Vec<Echo>,
    /// The properties of the item. `None`: there is no item, so only the key and the opaque word are shown.
    pub item: Option<Shown>,
    /// The value.
    pub value: Option<Vec<u8>>,
}

/// Properties of an item that an answer can show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// Bytes of the value.
    pub size: u64,
    /// Seconds until the item expires. `None`: it does not expire.
    pub left: Option<u32>,
    /// The unique number.
    pub cas: u64,
    /// The client's flags.
    pub flags: u32,
    /// Seconds since the item was last read.
    pub idle: u32,
    /// The item was read before.
    pub hit: bool,
    /// Another client was chosen to store the item anew.
    pub others: bool,
    /// The item is stale.
    pub stale: bool,
    /// This client is chosen to store the item anew.
    pub won: bool,
}

/// Contents of the answer to `me`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Debugged {
    /// The key.
    pub key: Key,
    /// Spelling of the key.
    pub spelling: Spelling,
    /// Seconds until the item expires. `None`: it does not expire.
    pub left: Option<u32>,
    /// Seconds since the item was last read.
    pub idle: u32,
    /// The unique number.
    pub cas: u64,
    /// The item was read before.
    pub hit: bool,
    /// The number of its class.
    pub class: usize,
    /// Bytes that the item takes.
    pub takes: u64,
}

impl Debugged {
    fn encode(&self, out: &mut Vec<u8>) {
        let Self { left, idle, cas, class, takes, .. } = self;
        let (left, fetched) = (left.map_or(-1, i64::from), if self.hit { "yes" } else { "no" });
        out.extend_from_slice(b"ME ");
        write_key(out, &self.key, self.spelling);
        let _ = write!(out, " exp={left} la={idle} cas={cas} fetch={fetched} cls={class} size={takes}\r\n");
    }
}

/// Answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// No answer: the client wants none.
    Nothing,
    /// A line.
    Text(&'static str),
    /// A line that reports a failure of the server.
    Failed(String),
    /// A number.
    Number(u64),
    /// The existing items of a `get`.
    Values {
        /// The items, in the order of the request.
        items: Vec<(Box<[u8]>, Returned)>,
        /// The answer includes the unique numbers.
        with_cas: bool,
        /// The answer ends with these.
        ends: bool,
    },
    /// The description of an item.
    Debug(Box<Debugged>),
    /// Items of a dump.
    Dump {
        /// The items.
        items: Vec<Described>,
        /// Form of the descriptions.
        form: DumpForm,
        /// The answer ends with these.
        ends: bool,
    },
    /// Counters and settings.
    Statistics(Vec<(Cow<'static, str>, String)>),
    /// The answer to a meta command.
    Meta(Box<MetaReply>),
}

impl Reply {
    /// Appends the bytes of the answer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nothing => {}
            Self::Text(text) => line(out, text.as_bytes()),
            Self::Failed(text) => {
                out.extend_from_slice(b"SERVER_ERROR ");
                // A reason may have several lines.
                line(out, text.replace(char::is_control, " ").as_bytes());
            }
            Self::Number(number) => {
                decimal(out, *number);
                line(out, b"");
            }
            Self::Values { items, with_cas, ends } => {
                for (key, item) in items {
                    encode_value(out, key, item, *with_cas);
                }
                if *ends {
                    line(out, b"END");
                }
            }
            Self::Statistics(rows) => {
                for (name, value) in rows {
                    // A write to a vector cannot fail.
                    let _ = write!(out, "STAT {name} {value}\r\n");
                }
                line(out, b"END");
            }
            Self::Debug(debugged) => debugged.encode(out),
            Self::Dump { items, form, ends } => {
                items.iter().for_each(|item| item.encode(*form, out));
                match form {
                    DumpForm::Meta if *ends => line(out, b"END"),
                    DumpForm::Get if *ends => line(out, b"EN"),
                    DumpForm::Meta | DumpForm::Get => {}
                }
            }
            Self::Meta(reply) => reply.encode(out),
        }
    }

    /// Returns the answer, or nothing if the client wants no usual answer.
    #[must_use]
    pub fn unless(self, quiet: bool) -> Self {
        if quiet { Self::Nothing } else { self }
    }
}

/// Appends an item of the answer to a `get`.
fn encode_value(out: &mut Vec<u8>, key: &[u8], item: &Returned, with_cas: bool) {
    let value = item.value();
    out.reserve(key.len() + value.len() + 64);
    out.extend_from_slice(b"VALUE ");
    write_key(out, key, Spelling::Plain);
    out.push(b' ');
    decimal(out, item.flags.into());
    out.push(b' ');
    decimal(out, value.len() as u64);
    if with_cas {
        out.push(b' ');
        decimal(out, item.cas);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn line(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number in decimal.
fn decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[first..]);
}

impl MetaReply {
    /// Creates an answer with a code, and without the items that need an item of the cache.
    #[must_use]
    pub fn bare(code: &'static str, key: &[u8], common: &Common) -> Self {
        let Common { echoes, spelling, .. } = common.clone();
        Self { code, key: Box::from(key), spelling, echoes, item: None, value: None }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match &self.value {
            Some(value) => {
                out.extend_from_slice(b"VA ");
                decimal(out, value.len() as u64);
            }
            None => out.extend_from_slice(self.code.as_bytes()),
        }
        for echo in &self.echoes {
            self.encode_echo(echo, out);
        }
        let shown = self.item.unwrap_or_default();
        for (applies, flag) in [(shown.others, b" Z"), (shown.stale, b" X"), (shown.won, b" W")] {
            if applies {
                out.extend_from_slice(flag);
            }
        }
        line(out, b"");
        if let Some(value) = &self.value {
            line(out, value);
        }
    }

    fn encode_echo(&self, echo: &Echo, out: &mut Vec<u8>) {
        let mut number = |letter: u8, number: u64| {
            out.extend_from_slice(&[b' ', letter]);
            decimal(out, number);
        };
        match (echo, &self.item) {
            (Echo::Opaque(word), _) => {
                out.extend_from_slice(b" O");
                out.extend_from_slice(word);
            }
            (Echo::Key, _) => {
                out.extend_from_slice(b" k");
                write_key(out, &self.key, self.spelling);
                if self.spelling == Spelling::Base64 {
                    out.extend_from_slice(b" b");
                }
            }
            (_, None) => {}
            (Echo::Size, Some(item)) => number(b's', item.size),
            (Echo::TimeToLive, Some(Shown { left: None, .. })) => out.extend_from_slice(b" t-1"),
            (Echo::TimeToLive, Some(Shown { left: Some(left), .. })) => number(b't', (*left).into()),
            (Echo::Cas, Some(item)) => number(b'c', item.cas),
            (Echo::ClientFlags, Some(item)) => number(b'f', item.flags.into()),
            (Echo::LastAccess, Some(item)) => number(b'l', item.idle.into()),
            (Echo::Hit, Some(item)) => number(b'h', item.hit.into()),
        }
    }
}
