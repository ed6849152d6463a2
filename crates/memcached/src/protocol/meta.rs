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
/// Words of a line with flags that are too many.
const WORDS_MAX: usize = 20;
/// The most bytes of an opaque word, with its letter.
const OPAQUE_BYTES_MAX: usize = 32;

/// What an answer has behind its code, in the order in which it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Echo {
    /// `s`: bytes of the value.
    Size,
    /// `t`: seconds that the item has left.
    TimeToLive,
    /// `c`: the unique number.
    Cas,
    /// `f`: the client's flags.
    ClientFlags,
    /// `l`: seconds since the item was last asked for.
    LastAccess,
    /// `h`: whether it was asked for before.
    Hit,
    /// `k`: the key.
    Key,
    /// `O`: this word.
    Opaque(Box<[u8]>),
}

/// What all meta commands have in common.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Common {
    /// What the answer has in it.
    pub echoes: Vec<Echo>,
    /// `q`: the usual answer is not wanted.
    pub quiet: bool,
    /// How the key is written: with `b` in base64.
    pub spelling: Spelling,
    /// `t` comes before `T` or `N`: the answer has the time that the item had left before.
    pub old_time: bool,
}

/// `mg`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaGet {
    /// Which key.
    pub key: Key,
    /// What to answer.
    pub common: Common,
    /// `v`: the value is wanted.
    pub value: bool,
    /// `u`: the item does not become younger.
    pub no_update: bool,
    /// `T`: the item gets this time to live.
    pub touch: Option<Expiry>,
    /// `N`: where there is no item, one without value is made, which lives so long.
    pub vivify: Option<Expiry>,
    /// `R`: whose item lives no longer than this is told to make it anew.
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
    /// Where.
    pub key: Key,
    /// What to answer.
    pub common: Common,
    /// When and how.
    pub mode: Mode,
    /// `C`: only if the item that is there has this unique number.
    pub cas: Option<u64>,
    /// `I`: also if the unique number is older than the item's, and then as a stale item.
    pub invalidate: bool,
    /// `F`: the client's flags.
    pub flags: u32,
    /// `T`: for how long.
    pub expiry: Expiry,
    /// What.
    pub data: Data,
}

/// `md`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaDelete {
    /// Which key.
    pub key: Key,
    /// What to answer.
    pub common: Common,
    /// `C`: only if the item has this unique number.
    pub cas: Option<u64>,
    /// `I`: the item stays, marked as stale.
    pub invalidate: bool,
    /// `T`: for so long.
    pub expiry: Option<Expiry>,
}

/// `ma`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaArithmetic {
    /// Which key.
    pub key: Key,
    /// What to answer.
    pub common: Common,
    /// `v`: the number is wanted.
    pub value: bool,
    /// `M`: which way.
    pub direction: Direction,
    /// `D`: by how much.
    pub by: u64,
    /// `C`: only if the item has this unique number.
    pub cas: Option<u64>,
    /// `T`: the item gets this time to live.
    pub touch: Option<Expiry>,
    /// `N`: where there is no item, one is made, which lives so long.
    pub vivify: Option<Expiry>,
    /// `J`: with this number.
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
    /// Takes the flags of a line in. The key is decoded where a flag says so.
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
                // Like memcached: the last one tells.
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

    /// An opaque word is looked at when the rest of the line is known to be right.
    fn opaque(&self) -> Result<(), &'static str> {
        if self.opaque_too_long { Err("CLIENT_ERROR opaque token too long") } else { Ok(()) }
    }

    /// `C0` is as good as none.
    fn cas(&self) -> Option<u64> {
        self.cas.filter(|cas| *cas != 0)
    }
}

fn decoded(key: &[u8]) -> Option<Key> {
    decode(key).filter(|key| is_key(key))
}

/// What a line leads to. `None`: it is no meta command.
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
