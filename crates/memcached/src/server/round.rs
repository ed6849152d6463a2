//! What connections of a thread ask for at a time, carried out at once.

use super::connection::Connection;
use super::job::{Done, Job};
use super::settings::Told;
use super::sizes::Sizes;
use crate::cache::StoreError;
use crate::protocol::{Command, Expiry, Get, Reply, Request};
use foldhash::fast::RandomState;
use portcullis::Error;
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Keys beyond which a round hears no further connection: all their values are in the thread's memory at once.
const KEYS_MAX: usize = 64;
/// Bytes of items beyond which a round takes no further request, if it has any: they are in the thread's memory at once.
const ITEM_BYTES_MAX: u64 = 64 << 20;
/// Keys that are looked up with one doorbell.
const KEYS_AT_ONCE: usize = 64;

const GONE: &str = "the node is gone: the gateway tries to reach it again";
const NO_ROOM: &str = "SERVER_ERROR out of memory storing object";

/// An answer, and whose it is.
struct Answer {
    connection: usize,
    /// `None`: it is not known yet.
    reply: Option<Reply>,
    /// The rest of the same `get` is to be dropped where this fails.
    is_part: bool,
    /// The client reads none.
    is_quiet: bool,
}

/// What is asked for in one round.
#[derive(Default)]
pub struct Round {
    answers: Vec<Answer>,
    gets: Vec<(usize, Get)>,
    others: Vec<(usize, Request)>,
    flushes: Vec<(usize, Expiry)>,
    /// The keys that the present connection has asked for in this round, and whether it changes them.
    keys: Vec<(u64, bool)>,
    /// The keys of all connections.
    keys_count: usize,
    /// Bytes of the items of all connections, as far as they are known.
    item_bytes: u64,
    /// A request found no room.
    is_crowded: bool,
    hasher: RandomState,
    /// The connections that ask.
    connections: Vec<usize>,
    /// Jobs that have not been done.
    jobs_left: usize,
    /// Why a job was given up.
    given_up: Option<String>,
}

/// Why a round takes nothing more of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// There is nothing more.
    All,
    /// Others are to have their turn.
    Enough,
}

impl Round {
    /// Takes commands of a connection, `most` at most, of which a `get` counts as one for each key. Two commands of it about one
    /// key, one of which changes it, are not in one round: a round has no order. What has no room beside the items of others
    /// waits for the next round. Returns how many it has taken as well.
    pub fn take(
        &mut self,
        (number, connection): (usize, &mut Connection),
        most: usize,
        sizes: &Sizes<'_>,
        mut other: impl FnMut(&Command) -> Told,
    ) -> (Taken, usize) {
        self.connections.push(number);
        self.keys.clear();
        let mut left = most;
        let first = self.answers.len();
        while left > 0 {
            let Some(command) = connection.next(left) else { return (Taken::All, most - left) };
            let enough = |left: usize| (Taken::Enough, most - left);
            match command {
                Command::Request(request) if self.conflicts(&request) => {
                    connection.hold(Command::Request(request));
                    return enough(left);
                }
                Command::Request(request) => {
                    let (request, later) = self.fit(request, sizes);
                    if let Some(later) = later {
                        connection.hold(Command::Request(later));
                    }
                    let Some(request) = request else { return enough(left) };
                    left = left.saturating_sub(keys_of(&request));
                    // Where a part of a `get` fails, the next ones are dropped: so they are in later rounds.
                    let is_part = request.is_part();
                    self.request(number, request);
                    if is_part {
                        return enough(left);
                    }
                    continue;
                }
                Command::Say(reply) => self.answer(number, Some(reply), false),
                Command::Quit => {
                    connection.end();
                    return (Taken::All, most - left + 1);
                }
                // What is about all keys has a round of its own.
                command if self.answers.len() > first => {
                    connection.hold(command);
                    return enough(left);
                }
                Command::Flush { delay, quiet } => {
                    let at = self.answers.len();
                    self.flushes.push((at, delay));
                    self.answer(number, None, false);
                    self.answers[at].is_quiet = quiet;
                    return enough(left - 1);
                }
                command => {
                    let reply = match other(&command) {
                        Told::Reply(reply) => reply,
                        Told::Dump(dump) => {
                            connection.begin_dump(dump);
                            Reply::Nothing
                        }
                    };
                    self.answer(number, Some(reply), false);
                }
            }
            left -= 1;
        }
        (Taken::Enough, most)
    }

    /// The part of a request for whose items there is room, and the rest. Where the round has none, one item has room.
    fn fit(&mut self, mut request: Request, sizes: &Sizes<'_>) -> (Option<Request>, Option<Request>) {
        if request.keys().is_empty() {
            let fits = self.has_room(sizes.of_request(&request));
            return if fits { (Some(request), None) } else { (None, Some(request)) };
        }
        let fit = request.keys().iter().take_while(|key| self.has_room(sizes.of_key(key))).count();
        if fit == 0 {
            return (None, Some(request));
        }
        let later = request.split_off(fit);
        (Some(request), later)
    }

    /// Counts so many bytes of an item, if there is room for them.
    fn has_room(&mut self, bytes: u64) -> bool {
        let with_it = self.item_bytes.saturating_add(bytes);
        if self.item_bytes > 0 && with_it > ITEM_BYTES_MAX {
            self.is_crowded = true;
            return false;
        }
        self.item_bytes = with_it;
        true
    }

    fn conflicts(&self, request: &Request) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let reads = request.only_reads();
        let is_met = |hash| self.keys.iter().any(|(other, changes)| *other == hash && (*changes || !reads));
        match request {
            Request::Get(_) | Request::Describe(_) => {
                request.keys().iter().any(|key| is_met(self.hasher.hash_one(key)))
            }
            request => request.key().is_some_and(|key| is_met(self.hasher.hash_one(key))),
        }
    }

    fn request(&mut self, number: usize, request: Request) {
        self.keys_count += keys_of(&request);
        let changes = !request.only_reads();
        let at = self.answers.len();
        match &request {
            Request::Get(_) | Request::Describe(_) => {
                self.keys.extend(request.keys().iter().map(|key| (self.hasher.hash_one(key), changes)));
            }
            request => self.keys.extend(request.key().map(|key| (self.hasher.hash_one(key), changes))),
        }
        let is_part = request.is_part();
        self.answer(number, None, is_part);
        self.answers[at].is_quiet = request.is_quiet();
        match request {
            Request::Get(get) if get.touch.is_none() => self.gets.push((at, get)),
            request => self.others.push((at, request)),
        }
    }

    fn answer(&mut self, connection: usize, reply: Option<Reply>, is_part: bool) {
        self.answers.push(Answer { connection, reply, is_part, is_quiet: false });
    }

    /// Whether it has so much that no further connection is to be heard.
    pub fn is_full(&self) -> bool {
        self.keys_count >= KEYS_MAX || self.is_crowded
    }

    /// The connections that ask.
    pub fn connections(&self) -> &[usize] {
        &self.connections
    }

    /// Leaves all requests unanswered, for which the node is needed. Returns how many there are.
    pub fn refuse(&mut self) -> u64 {
        self.gets.clear();
        self.others.clear();
        self.flushes.clear();
        self.answers.iter().filter(|answer| answer.reply.is_none()).count() as u64
    }

    /// Whether nothing is under way any more.
    pub fn is_done(&self) -> bool {
        self.jobs_left == 0
    }

    /// Takes what has come of a job. Requests that were too much at once are handed to `crowded`: they are to be done alone.
    /// Returns how often the store has failed.
    /// `done` is an error where the job was given up. Its requests stay unanswered.
    pub fn take_done(
        &mut self,
        done: Result<Vec<Done>, Error>,
        mut crowded: impl FnMut(usize, Request),
    ) -> u64 {
        self.jobs_left -= 1;
        let mut failures = 0;
        let done = done.unwrap_or_else(|error| {
            self.given_up = Some(error.to_string());
            failures = 1;
            Vec::new()
        });
        for (at, request, result) in done {
            match (result, request) {
                (Err(StoreError::Crowded), Some(request)) => {
                    self.jobs_left += 1;
                    crowded(at, request);
                }
                (result, _) => {
                    failures += u64::from(matches!(result, Err(StoreError::Failed(_))));
                    self.answers[at].reply = Some(result.unwrap_or_else(reply_to_failure));
                }
            }
        }
        failures
    }

    /// Hands each answer to `each`, in the order of the commands, and begins a new round.
    pub fn end(&mut self, mut each: impl FnMut(usize, &Reply, bool)) {
        let unanswered = self.given_up.take();
        for Answer { connection, reply, is_part, is_quiet } in self.answers.drain(..) {
            if is_quiet {
                continue;
            }
            let reply =
                reply.unwrap_or_else(|| Reply::Failed(unanswered.clone().unwrap_or_else(|| GONE.to_owned())));
            let has_failed = is_part && matches!(reply, Reply::Failed(_));
            each(connection, &reply, has_failed);
        }
        self.connections.clear();
        (self.keys_count, self.item_bytes, self.is_crowded) = (0, 0, false);
    }

    /// What is to be done. Changes of one key by several connections are done one after another, since each would fail for
    /// all others but one.
    pub fn begin(&mut self) -> Vec<Job> {
        let jobs = self.jobs();
        self.jobs_left = jobs.len();
        jobs
    }

    fn jobs(&mut self) -> Vec<Job> {
        let mut jobs: Vec<Job> = self.flushes.drain(..).map(|(at, delay)| Job::Flush(at, delay)).collect();
        let (mut gets, mut keys) = (Vec::new(), 0);
        for (at, get) in self.gets.drain(..) {
            keys += get.keys.len();
            gets.push((at, get));
            if keys >= KEYS_AT_ONCE {
                jobs.push(Job::Gets(std::mem::take(&mut gets)));
                keys = 0;
            }
        }
        if !gets.is_empty() {
            jobs.push(Job::Gets(gets));
        }
        if self.others.len() < 2 {
            jobs.extend(self.others.pop().map(|(at, request)| Job::One(at, request)));
            return jobs;
        }
        let mut by_key: HashMap<u64, usize, RandomState> = HashMap::default();
        for (at, request) in self.others.drain(..) {
            let hash = request.key().map(|key| self.hasher.hash_one(key));
            let place = hash.map(|hash| *by_key.entry(hash).or_insert(jobs.len()));
            match place.and_then(|place| jobs.get_mut(place)) {
                None => jobs.push(Job::One(at, request)),
                Some(Job::Several(several)) => several.push((at, request)),
                Some(job) => {
                    let several = Job::Several(vec![(at, request)]);
                    if let (Job::One(first_at, first), Job::Several(all)) =
                        (std::mem::replace(job, several), job)
                    {
                        all.insert(0, (first_at, first));
                    }
                }
            }
        }
        jobs
    }
}

fn keys_of(request: &Request) -> usize {
    match request {
        Request::Get(_) | Request::Describe(_) => request.keys().len(),
        _ => 1,
    }
}

fn reply_to_failure(error: StoreError) -> Reply {
    match error {
        StoreError::NoRoom => Reply::Text(NO_ROOM),
        StoreError::Crowded => {
            Reply::Failed("out of memory: the value is larger than the buffers".to_owned())
        }
        StoreError::Failed(why) => Reply::Failed(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::age::Age;
    use crate::cache::Takes;
    use crate::protocol::{Key, Limits};
    use crate::server::stream::{Peer, Stream};
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    const MIB: u64 = 1 << 20;

    /// A connection whose client has sent these lines.
    fn connection(lines: &str) -> Connection {
        let (mut client, stream) = UnixStream::pair().expect("a pair of sockets");
        stream.set_nonblocking(true).expect("it can be");
        let limits = Limits { item_bytes: 128 << 20, get_bytes: 1 << 20, headroom: 0 };
        let stream = Stream::new(stream.into(), Peer::User(0));
        let mut connection = Connection::new(stream, limits, Instant::now());
        client.write_all(lines.as_bytes()).expect("it is connected");
        connection.read(&mut [0; 4096], Instant::now()).expect("there is something");
        connection
    }

    /// The keys of a round's `get`s, which ends.
    fn keys(round: &mut Round) -> Vec<Vec<Key>> {
        let keys = round.gets.drain(..).map(|(_, get)| get.keys).collect();
        round.end(|_, _, _| ());
        keys
    }

    fn key(name: &str) -> Key {
        Box::from(name.as_bytes())
    }

    #[test]
    fn a_round_has_the_items_for_which_there_is_memory_and_at_least_one() {
        let age = Age::default();
        for (name, bytes) in
            [("a", 30 * MIB), ("b", 30 * MIB), ("c", 30 * MIB), ("huge", 120 * MIB), ("d", MIB)]
        {
            age.stored(name.as_bytes(), Takes { size: 65_536, bytes }, 1);
        }
        let sizes = Sizes::new(&age, 128 * MIB);
        let (mut first, mut second) =
            (connection("get a b c huge d\r\nget new d\r\n"), connection("get d\r\n"));
        let mut round = Round::default();
        let take = |round: &mut Round, connection: &mut Connection| {
            let (taken, _) = round.take((0, connection), 20, &sizes, |_| Told::Reply(Reply::Nothing));
            taken
        };
        for wanted in [&["a", "b"][..], &["c"], &["huge"], &["d"], &["new"], &["d"]] {
            assert!(!round.is_full());
            take(&mut round, &mut first);
            let is_crowded = round.is_full();
            let found = keys(&mut round);
            assert_eq!(found, [wanted.iter().map(|name| key(name)).collect::<Vec<_>>()]);
            assert!(is_crowded || *wanted == ["d"], "{wanted:?}");
        }
        assert_eq!(take(&mut round, &mut first), Taken::All);
        assert_eq!(take(&mut round, &mut second), Taken::All);
        assert_eq!(keys(&mut round), [[key("d")]]);
    }
}
