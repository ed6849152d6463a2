//! Commands of a thread's connections that are carried out at once.

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

/// Number of keys from which on a round takes no further connection: all their values are in the thread's memory at
/// once.
const KEYS_MAX: usize = 64;
/// Bytes of items above which a round takes no further request, if it has any: they are in the thread's memory at once.
const ITEM_BYTES_MAX: u64 = 64 << 20;
/// Number of keys that are looked up with one doorbell.
const KEYS_AT_ONCE: usize = 64;

const GONE: &str = "the node is gone: the gateway tries to reach it again";
const NO_ROOM: &str = "SERVER_ERROR out of memory storing object";

/// An answer, and its connection.
struct Answer {
    connection: usize,
    /// The answer. `None`: it is not known yet.
    reply: Option<Reply>,
    /// The request is a part of a `get`. If it fails, the rest of the same `get` is dropped.
    is_part: bool,
    /// The client reads no answer.
    is_quiet: bool,
}

/// The requests of one round.
#[derive(Default)]
pub struct Round {
    answers: Vec<Answer>,
    gets: Vec<(usize, Get)>,
    others: Vec<(usize, Request)>,
    flushes: Vec<(usize, Expiry)>,
    /// The keys that the present connection has requested in this round, and whether it changes them.
    keys: Vec<(u64, bool)>,
    /// Number of keys of all connections.
    keys_count: usize,
    /// Bytes of the items of all connections, as far as they are known.
    item_bytes: u64,
    /// A request found no room.
    is_crowded: bool,
    hasher: RandomState,
    /// The connections with commands in the round.
    connections: Vec<usize>,
    /// Number of jobs that are not done.
    jobs_left: usize,
    /// Reason for which a job was given up.
    given_up: Option<String>,
}

/// Reason for which a round takes nothing more from a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The connection has no more commands.
    All,
    /// Other connections are to have their turn.
    Enough,
}

impl Round {
    /// Takes commands of a connection, `most` at most. A `get` counts once for each key. Two commands of a connection
    /// about one key, one of which changes it, are not in one round, because a round has no order. A request that has
    /// no room beside the items of others waits for the next round. Returns also the number of commands that it has
    /// taken.
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
                    // If a part of a `get` fails, the next ones are dropped: so they are in later rounds.
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
                // A command about all keys has a round of its own.
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

    /// Returns the part of a request for whose items there is room, and the rest. An empty round has room for one item
    /// of any size.
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

    /// Adds the bytes of an item, if there is room for them.
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

    /// Whether the round takes no further connection.
    pub fn is_full(&self) -> bool {
        self.keys_count >= KEYS_MAX || self.is_crowded
    }

    /// Returns the connections with commands in the round.
    pub fn connections(&self) -> &[usize] {
        &self.connections
    }

    /// Leaves all requests unanswered that need the node. Returns their number.
    pub fn refuse(&mut self) -> u64 {
        self.gets.clear();
        self.others.clear();
        self.flushes.clear();
        self.answers.iter().filter(|answer| answer.reply.is_none()).count() as u64
    }

    /// Whether no job is in progress any more.
    pub fn is_done(&self) -> bool {
        self.jobs_left == 0
    }

    /// Takes the results of a job. Requests that were too much at once are passed to `crowded`, to be carried out
    /// alone. Returns the number of failures of the store. `done` is an error if the job was given up. Then its
    /// requests stay unanswered.
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

    /// Passes each answer to `each`, in the order of the commands, and begins a new round.
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

    /// Returns the jobs of the round. Changes of one key by several connections are carried out one after another,
    /// since otherwise all of them but one would fail each time.
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

    /// Creates a connection whose client has sent these lines.
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

    /// Returns the keys of a round's `get` commands, and ends the round.
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
