//! The meta commands: `mg`, `ms`, `md`, `ma`, `mn` and `me`.

use super::command::{Command, Data, Direction, Expiry, Key, Mode, Request};
use super::keys::{Spelling, decode};
use super::parser::{Announced, Limits, Parsed, too_large};
use super::reply::Reply;
use super::words::{expiry, is_key, length, unsigned, unsigned_short, words};

const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";
const TOO_MANY: &str = "CLIENT_ERROR options flags too long";
/// Number of words from which on a line has too many flags.
const WORDS_MAX: usize = 20;
/// Maximum length of an opaque word, with its letter.
const OPAQUE_BYTES_MAX: usize = 32;

/// An item of an answer behind its code. The answer has the items in the order of the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Echo {
    /// `s`: bytes of the value.
    Size,
    /// `t`: seconds until the item expires.
    TimeToLive,
    /// `c`: the unique number.
    Cas,
    /// `f`: the client's flags.
    ClientFlags,
    /// `l`: seconds since the item was last read.
    LastAccess,
    /// `h`: whether the item was read before.
    Hit,
    /// `k`: the key.
    Key,
    /// `O`: an opaque word of the client.
    Opaque(Box<[u8]>),
}

/// Options of all meta commands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Common {
    /// The items of the answer.
    pub echoes: Vec<Echo>,
    /// `q`: the usual answer is omitted.
    pub quiet: bool,
    /// Spelling of the key: with `b` in base64.
    pub spelling: Spelling,
    /// `t` precedes `T` or `N`: the answer has the item's former time to live.
    pub old_time: bool,
}

/// `mg`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaGet {
    /// The key.
    pub key: Key,
    /// Options of all meta commands.
    pub common: Common,
    /// `v`: the answer includes the value.
    pub value: bool,
    /// `u`: the item does not become younger.
    pub no_update: bool,
    /// `T`: the item gets this time to live.
    pub touch: Option<Expiry>,
    /// `N`: if there is no item, an item without a value is made with this time to live.
    pub vivify: Option<Expiry>,
    /// `R`: if the item expires sooner than this, the client is chosen to store it anew.
    pub recache: Option<Expiry>,
}

impl MetaGet {
    /// Whether this can change nothing.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.touch.is_none() && self.vivify.is_none() && self.recache.is_none()
    }
}

/// `ms`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaSet {
    /// The key.
    pub key: Key,
    /// Options of all meta commands.
    pub common: Common,
    /// Condition and way of storing.
    pub mode: Mode,
    /// `C`: store only if the existing item has this unique number.
    pub cas: Option<u64>,
    /// `I`: store also if the unique number is older than the item's. Then the new item is stale.
    pub invalidate: bool,
    /// `F`: the client's flags.
    pub flags: u32,
    /// `T`: time to live.
    pub expiry: Expiry,
    /// The value.
    pub data: Data,
}

/// `md`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaDelete {
    /// The key.
    pub key: Key,
    /// Options of all meta commands.
    pub common: Common,
    /// `C`: delete only if the item has this unique number.
    pub cas: Option<u64>,
    /// `I`: the item stays, marked as stale.
    pub invalidate: bool,
    /// `T`: the time to live that the item gets.
    pub expiry: Option<Expiry>,
}

/// `ma`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaArithmetic {
    /// The key.
    pub key: Key,
    /// Options of all meta commands.
    pub common: Common,
    /// `v`: the answer includes the number.
    pub value: bool,
    /// `M`: the direction.
    pub direction: Direction,
    /// `D`: the amount.
    pub by: u64,
    /// `C`: change only if the item has this unique number.
    pub cas: Option<u64>,
    /// `T`: the item gets this time to live.
    pub touch: Option<Expiry>,
    /// `N`: if there is no item, one is made with this time to live.
    pub vivify: Option<Expiry>,
    /// `J`: the number of an item that is made.
    pub initial: u64,
}

/// The flags of a line.
#[derive(Default)]
struct Flags {
    common: Common,
    value: bool,
    no_update: bool,
    invalidate: bool,
    opaque_too_long: bool,
    touch: Option<Expiry>,
    vivify: Option<Expiry>,
    recache: Option<Expiry>,
    client_flags: u32,
    cas: Option<u64>,
    mode: Option<u8>,
    initial: u64,
    by: Option<u64>,
}

impl Flags {
    /// Parses the flags of a line. The key is decoded if a flag requires it.
    fn parse<'a>(words: impl Iterator<Item = &'a [u8]>, key: &mut Key) -> Result<Self, &'static str> {
        let (mut flags, mut seen, mut wrong) = (Self::default(), 0_u128, None);
        for word in words {
            let Some((&letter, rest)) = word.split_first() else { continue };
            let bit = 1_u128.checked_shl(letter.into()).unwrap_or(0);
            if bit == 0 || letter == 127 || seen & bit != 0 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= bit;
            match flags.take(letter, rest, key) {
                Ok(()) => {}
                Err("CLIENT_ERROR invalid flag") => return Err("CLIENT_ERROR invalid flag"),
                // Like memcached: the last error is reported.
                Err(error) => wrong = Some(error),
            }
        }
        wrong.map_or(Ok(flags), Err)
    }

    fn take(&mut self, letter: u8, rest: &[u8], key: &mut Key) -> Result<(), &'static str> {
        let time = || expiry(rest).ok_or(BAD_TOKEN).map(Some);
        match letter {
            b'b' => {
                *key = decoded(key).ok_or("CLIENT_ERROR error decoding key")?;
                self.common.spelling = Spelling::Base64;
            }
            b'N' => {
                self.common.old_time |= self.common.echoes.contains(&Echo::TimeToLive);
                self.vivify = time()?;
            }
            b'T' => {
                self.common.old_time |= self.common.echoes.contains(&Echo::TimeToLive);
                self.touch = time()?;
            }
            b'R' => self.recache = time()?,
            b'P' | b'L' => {}
            b's' => self.common.echoes.push(Echo::Size),
            b't' => self.common.echoes.push(Echo::TimeToLive),
            b'c' => self.common.echoes.push(Echo::Cas),
            b'f' => self.common.echoes.push(Echo::ClientFlags),
            b'l' => self.common.echoes.push(Echo::LastAccess),
            b'h' => self.common.echoes.push(Echo::Hit),
            b'k' => self.common.echoes.push(Echo::Key),
            b'O' => {
                self.opaque_too_long |= rest.len() + 1 > OPAQUE_BYTES_MAX;
                self.common.echoes.push(Echo::Opaque(Box::from(rest)));
            }
            b'v' => self.value = true,
            b'u' => self.no_update = true,
            b'q' => self.common.quiet = true,
            b'I' => self.invalidate = true,
            b'F' => self.client_flags = unsigned_short(rest).ok_or(BAD_LINE)?,
            b'C' => self.cas = Some(unsigned(rest).ok_or(BAD_TOKEN)?),
            b'M' => match rest {
                [mode] => self.mode = Some(*mode),
                _ => return Err("CLIENT_ERROR incorrect length for M token"),
            },
            b'J' => self.initial = unsigned(rest).ok_or("CLIENT_ERROR invalid numeric initial value")?,
            b'D' => self.by = Some(unsigned(rest).ok_or("CLIENT_ERROR invalid numeric delta value")?),
            _ => return Err("CLIENT_ERROR invalid flag"),
        }
        Ok(())
    }

    /// Checks the opaque word. It is checked after the rest of the line was found to be right.
    fn opaque(&self) -> Result<(), &'static str> {
        if self.opaque_too_long { Err("CLIENT_ERROR opaque token too long") } else { Ok(()) }
    }

    /// Returns the unique number. `C0` counts as none.
    fn cas(&self) -> Option<u64> {
        self.cas.filter(|cas| *cas != 0)
    }
}

fn decoded(key: &[u8]) -> Option<Key> {
    decode(key).filter(|key| is_key(key))
}

/// Parses a line. Returns `None` if it is not a meta command.
pub(super) fn parse(line: &[u8], limits: &Limits) -> Option<(Parsed, Option<Command>)> {
    let mut words = words(line);
    let &[b'm', letter] = words.next()? else { return None };
    let count = words.clone().count();
    let key = words.next();
    let command = match (letter, key) {
        (b'n', _) => Ok(Command::Say(Reply::Text("MN"))),
        (b'e', Some(key)) => debug(key, words.next()),
        (b'e', None) => Err(BAD_LINE),
        (b'g' | b's' | b'd' | b'a', None) => Err("ERROR"),
        (b'g' | b's' | b'd' | b'a', Some(key)) if !is_key(key) => Err(BAD_LINE),
        (b'g', _) if count + 2 > WORDS_MAX => Err("CLIENT_ERROR options flags are too long"),
        (b's', _) if count == 1 => Err(BAD_LINE),
        (b's' | b'd' | b'a', _) if count + 2 > WORDS_MAX => Err(TOO_MANY),
        (b'g', Some(key)) => get(key, words),
        (b's', Some(key)) => return Some(set(key, words, limits)),
        (b'd', Some(key)) => delete(key, words),
        (b'a', Some(key)) => arithmetic(key, words),
        _ => Err("ERROR"),
    };
    let command = command.unwrap_or_else(|text| Command::Say(Reply::Text(text)));
    Some((Parsed::Command(command), None))
}

fn debug(key: &[u8], flag: Option<&[u8]>) -> Result<Command, &'static str> {
    let (key, spelling) = match flag {
        Some(b"b") => (decoded(key), Spelling::Base64),
        _ => (is_key(key).then(|| Box::from(key)), Spelling::Plain),
    };
    Ok(Command::Request(Request::MetaDebug { key: key.ok_or(BAD_LINE)?, spelling }))
}

fn get<'a>(key: &[u8], words: impl Iterator<Item = &'a [u8]>) -> Result<Command, &'static str> {
    let mut key = Box::from(key);
    let flags = Flags::parse(words, &mut key)?;
    flags.opaque()?;
    let Flags { common, value, no_update, touch, vivify, recache, .. } = flags;
    let get = MetaGet { key, common, value, no_update, touch, vivify, recache };
    Ok(Command::Request(Request::MetaGet(get)))
}

fn set<'a>(
    key: &[u8],
    mut words: impl Iterator<Item = &'a [u8]>,
    limits: &Limits,
) -> (Parsed, Option<Command>) {
    let say = |text| Command::Say(Reply::Text(text));
    let bytes = words.next().and_then(length);
    let Some(bytes) = bytes else { return (Parsed::Command(say(BAD_LINE)), None) };
    match checked_set(Box::from(key), words) {
        Err(text) => (Parsed::Skip(say(text), bytes as u64 + 2), None),
        Ok(set) if !limits.allow(&set.key, set.flags, bytes as u64) => {
            let text = "SERVER_ERROR object too large for cache";
            too_large(set.key, bytes as u64, true, Reply::Text(text))
        }
        Ok(set) => (Parsed::Announced(Announced::Meta(set), bytes), None),
    }
}

fn checked_set<'a>(mut key: Key, words: impl Iterator<Item = &'a [u8]>) -> Result<MetaSet, &'static str> {
    let flags = Flags::parse(words, &mut key)?;
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return Err("CLIENT_ERROR invalid mode for ms M token"),
    };
    flags.opaque()?;
    Ok(MetaSet {
        key,
        mode,
        cas: flags.cas,
        invalidate: flags.invalidate,
        flags: flags.client_flags,
        expiry: flags.touch.unwrap_or(Expiry(0)),
        data: Data { bytes: Vec::new(), headroom: 0 },
        common: flags.common,
    })
}

fn delete<'a>(key: &[u8], words: impl Iterator<Item = &'a [u8]>) -> Result<Command, &'static str> {
    let mut key = Box::from(key);
    let flags = Flags::parse(words, &mut key).map_err(|_| BAD_FLAG)?;
    flags.opaque()?;
    let Flags { common, cas, invalidate, touch: expiry, .. } = flags;
    Ok(Command::Request(Request::MetaDelete(MetaDelete { key, common, cas, invalidate, expiry })))
}

fn arithmetic<'a>(key: &[u8], words: impl Iterator<Item = &'a [u8]>) -> Result<Command, &'static str> {
    let mut key = Box::from(key);
    let flags = Flags::parse(words, &mut key).map_err(|_| BAD_FLAG)?;
    let direction = match flags.mode {
        None | Some(b'I' | b'+') => Direction::Up,
        Some(b'D' | b'-') => Direction::Down,
        Some(_) => return Err("CLIENT_ERROR invalid mode for ma M token"),
    };
    flags.opaque()?;
    let (by, cas) = (flags.by.unwrap_or(1), flags.cas());
    let Flags { common, value, touch, vivify, initial, .. } = flags;
    let request = MetaArithmetic { key, common, value, direction, by, cas, touch, vivify, initial };
    Ok(Command::Request(Request::MetaArithmetic(request)))
}
