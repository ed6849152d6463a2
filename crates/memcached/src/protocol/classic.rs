//! The text commands.

use super::command::{Arithmetic, Command, Data, Direction, Expiry, Mode, Request, Statistics, Store, Touch};
use super::dump::DumpForm;
use super::gets::Manner;
use super::parser::{Announced, Limits, Parsed, too_large};
use super::reply::Reply;
use super::words::{end_of_words, expiry, is_key, length, unsigned, unsigned_short, words};

const ERROR: &str = "ERROR";
const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const BAD_EXPIRY: &str = "CLIENT_ERROR invalid exptime argument";
const QUIET: &[u8] = b"noreply";
/// Maximum number of words that are parsed, except for `get` and similar commands.
const WORDS_MAX: usize = 9;

/// A line, split into words.
struct Line<'a> {
    words: [&'a [u8]; WORDS_MAX],
    /// Number of words: no more than the array has room for.
    count: usize,
    whole: &'a [u8],
    /// A word is too long to be a key.
    has_long_word: bool,
}

impl<'a> Line<'a> {
    fn of(whole: &'a [u8], has_long_word: bool) -> Self {
        let mut line = Self { words: [&[]; WORDS_MAX], count: 0, whole, has_long_word };
        for (place, word) in line.words.iter_mut().zip(words(whole)) {
            *place = word;
            line.count += 1;
        }
        line
    }

    fn has(&self, counts: &[usize]) -> bool {
        counts.contains(&self.count)
    }

    fn is_quiet(&self) -> bool {
        self.words[self.count - 1] == QUIET
    }

    /// Makes an answer that is omitted if the client wants none.
    fn say(&self, text: &'static str) -> Command {
        say(text, self.is_quiet())
    }
}

fn say(text: &'static str, quiet: bool) -> Command {
    Command::Say(if quiet { Reply::Nothing } else { Reply::Text(text) })
}

/// Parses a line. `has_long_word`: a word of it is too long to be a key.
pub(super) fn parse(line: &[u8], has_long_word: bool, limits: &Limits) -> (Parsed, Option<Command>) {
    let line = Line::of(line, has_long_word);
    let command = match line.words[0] {
        word if word.len() < 2 => say(ERROR, false),
        b"get" | b"bget" => return (get(&line, false, false), None),
        b"gets" => return (get(&line, true, false), None),
        b"gat" => return (get(&line, false, true), None),
        b"gats" => return (get(&line, true, true), None),
        b"set" => return store(&line, Mode::Set, limits),
        b"add" => return store(&line, Mode::Add, limits),
        b"replace" => return store(&line, Mode::Replace, limits),
        b"append" => return store(&line, Mode::Append, limits),
        b"prepend" => return store(&line, Mode::Prepend, limits),
        b"cas" => return store(&line, Mode::Cas(0), limits),
        b"incr" => arithmetic(&line, Direction::Up),
        b"decr" => arithmetic(&line, Direction::Down),
        b"delete" => delete(&line),
        b"touch" => touch(&line),
        b"flush_all" => flush(&line),
        b"stats" => statistics(&line),
        b"lru_crawler" => crawler(&line),
        b"version" => Command::Say(Reply::Text(VERSION_LINE)),
        b"verbosity" => verbosity(&line),
        b"quit" => Command::Quit,
        b"shutdown" => say("ERROR: shutdown not enabled", false),
        b"cache_memlimit" if !line.has(&[2, 3]) => say(ERROR, false),
        b"cache_memlimit" => say("MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust", false),
        b"watch" => say("CLIENT_ERROR watch commands not allowed", false),
        // Browsers can be made to send requests to any port.
        _ if words(line.whole).last().is_some_and(|word| word.starts_with(b"HTTP/")) => Command::Quit,
        _ => say(ERROR, false),
    };
    (Parsed::Command(command), None)
}

/// Version that the gateway reports. Its number is that of the memcached version whose protocol is implemented: clients
/// compare numbers.
pub const VERSION: &str = VERSION_LINE.split_at("VERSION ".len()).1;
const VERSION_LINE: &str = concat!("VERSION 1.6.18-portcullis-", env!("CARGO_PKG_VERSION"));

fn get(line: &Line<'_>, with_cas: bool, touches: bool) -> Parsed {
    let known = |text| Parsed::Command(say(text, false));
    if line.count < 2 {
        return known(ERROR);
    }
    let touch = touches.then(|| expiry(line.words[1]));
    if touch == Some(None) {
        return known(BAD_EXPIRY);
    }
    if line.has_long_word {
        return known(BAD_LINE);
    }
    let before_keys = if touches { 2 } else { 1 };
    if line.count == before_keys {
        return known("END");
    }
    Parsed::Gets(Manner { with_cas, touch: touch.flatten() }, end_of_words(line.whole, before_keys))
}

fn store(line: &Line<'_>, mode: Mode, limits: &Limits) -> (Parsed, Option<Command>) {
    let known = |command| (Parsed::Command(command), None);
    let words = if matches!(mode, Mode::Cas(_)) { 6 } else { 5 };
    if !line.has(&[words, words + 1]) {
        return known(say(ERROR, false));
    }
    let [_, key, flags, time, bytes, cas, ..] = line.words;
    let numbers = (unsigned_short(flags), expiry(time), length(bytes));
    let (Some(flags), Some(expiry), Some(bytes)) = numbers else { return known(line.say(BAD_LINE)) };
    if !is_key(key) {
        return known(line.say(BAD_LINE));
    }
    let mode = match mode {
        Mode::Cas(_) => match unsigned(cas) {
            Some(cas) => Mode::Cas(cas),
            None => return known(line.say(BAD_LINE)),
        },
        mode => mode,
    };
    let (key, quiet) = (Box::from(key), line.is_quiet());
    if !limits.allow(&key, flags, bytes as u64) {
        let text = "SERVER_ERROR object too large for cache";
        let reply = if quiet { Reply::Nothing } else { Reply::Text(text) };
        return too_large(key, bytes as u64, mode == Mode::Set, reply);
    }
    let data = Data { bytes: Vec::new(), headroom: 0 };
    let store = Store { mode, key, flags, expiry, data, quiet };
    (Parsed::Announced(Announced::Store(store), bytes), None)
}

fn arithmetic(line: &Line<'_>, direction: Direction) -> Command {
    if !line.has(&[3, 4]) {
        return say(ERROR, false);
    }
    let [_, key, by, ..] = line.words;
    if !is_key(key) {
        return line.say(BAD_LINE);
    }
    let Some(by) = unsigned(by) else { return line.say("CLIENT_ERROR invalid numeric delta argument") };
    let quiet = line.is_quiet();
    Command::Request(Request::Arithmetic(Arithmetic { key: Box::from(key), direction, by, quiet }))
}

fn delete(line: &Line<'_>) -> Command {
    if !line.has(&[2, 3, 4]) {
        return say(ERROR, false);
    }
    let quiet = line.count > 2 && line.is_quiet();
    // Formerly, a time could be given for which the key stays deleted.
    let has_time = line.count > 2 && line.words[2] == b"0";
    let valid = match line.count {
        2 => true,
        3 => has_time || quiet,
        _ => has_time && quiet,
    };
    if !valid {
        return say("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]", quiet);
    }
    match line.words[1] {
        key if is_key(key) => Command::Request(Request::Delete { key: Box::from(key), quiet }),
        _ => say(BAD_LINE, quiet),
    }
}

fn touch(line: &Line<'_>) -> Command {
    if !line.has(&[3, 4]) {
        return say(ERROR, false);
    }
    let [_, key, time, ..] = line.words;
    if !is_key(key) {
        return line.say(BAD_LINE);
    }
    let Some(expiry) = expiry(time) else { return line.say(BAD_EXPIRY) };
    let quiet = line.is_quiet();
    Command::Request(Request::Touch(Touch { key: Box::from(key), expiry, quiet }))
}

fn flush(line: &Line<'_>) -> Command {
    if !line.has(&[1, 2, 3]) {
        return say(ERROR, false);
    }
    let quiet = line.is_quiet();
    let has_time = line.count > if quiet { 2 } else { 1 };
    match if has_time { expiry(line.words[1]) } else { Some(Expiry(0)) } {
        Some(Expiry(time)) => Command::Flush { delay: Expiry(time.max(0)), quiet },
        None => line.say(BAD_EXPIRY),
    }
}

fn statistics(line: &Line<'_>) -> Command {
    Command::Statistics(match (line.count, line.words[1]) {
        (1, _) => Statistics::General,
        (_, b"settings") => Statistics::Settings,
        (_, b"reset") => Statistics::Reset,
        (_, b"items") => Statistics::Items,
        (_, b"slabs") => Statistics::Slabs,
        (_, b"sizes") => Statistics::Sizes,
        (_, b"conns" | b"extstore") => Statistics::Nothing,
        (_, b"cachedump") => return say("CLIENT_ERROR stats cachedump not allowed", false),
        (_, b"detail") => return say("CLIENT_ERROR usage: stats detail on|off|dump", false),
        _ => return say(ERROR, false),
    })
}

fn crawler(line: &Line<'_>) -> Command {
    let form = match line.words[1] {
        b"metadump" if line.count == 3 => DumpForm::Meta,
        b"mgdump" if line.count == 3 => DumpForm::Get,
        _ => return say(ERROR, false),
    };
    match line.words[2] {
        b"all" | b"hash" => Command::Dump(form),
        _ => say("BADCLASS invalid class id", false),
    }
}

fn verbosity(line: &Line<'_>) -> Command {
    if !line.has(&[2, 3]) {
        return say(ERROR, false);
    }
    // The operator determines the gateway's log level. The command is accepted for clients that send it.
    line.say(if unsigned(line.words[1]).is_some() { "OK" } else { BAD_LINE })
}
