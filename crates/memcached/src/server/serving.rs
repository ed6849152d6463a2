//! Rounds over a table: while the node carries out one round, the thread reads from other clients and answers them.

use super::Common;
use super::clients::{Clients, Patience};
use super::job::{Done, Job, perform};
use super::round::Round;
use super::settings::now;
use super::table::TableStore;
use crate::cache::{Cache, Now};
use crate::protocol::Request;
use portcullis::{Effect, Error};
use portcullis_structures::Work;
use std::collections::VecDeque;

/// Number of operations of the table in progress at a time.
const DEPTH: usize = 64;
/// Number of rounds in progress at a time. While the node carries out one, another one is collected.
const ROUNDS: usize = 2;

/// A job of a round.
struct Waiting {
    round: usize,
    job: Job,
    now: Now,
}

/// State of one thread while it has a table.
struct Serving<'a> {
    common: &'a Common,
    clients: &'a mut Clients,
    cache: &'a Cache<TableStore>,
    rounds: [Round; ROUNDS],
    jobs: VecDeque<Waiting>,
    /// Requests that were too much at once with others: they wait until no other request is in progress.
    alone: VecDeque<(usize, usize, Request)>,
    /// One of the `alone` requests is in progress.
    is_alone: bool,
    /// The node is lost.
    is_over: bool,
}

impl<'a> Serving<'a> {
    fn new(common: &'a Common, clients: &'a mut Clients, cache: &'a Cache<TableStore>) -> Self {
        let (rounds, jobs, alone) = Default::default();
        Self { common, clients, cache, rounds, jobs, alone, is_alone: false, is_over: false }
    }

    /// Collects a round, and begins it.
    fn begin_round(&mut self, number: usize, patience: Patience) {
        let round = &mut self.rounds[number];
        self.clients.gather(round, patience);
        let jobs = round.begin();
        let now = now();
        self.jobs.extend(jobs.into_iter().map(|job| Waiting { round: number, job, now }));
    }

    /// Answers the rounds that are done.
    fn end_rounds(&mut self) {
        for round in self.rounds.iter_mut().filter(|round| round.is_done()) {
            self.clients.answer(round);
        }
    }

    /// Begins a request that was too much at once with others, if no other request is in progress. Returns whether
    /// others have to wait.
    fn go_on_alone(&mut self, under_way: usize) -> bool {
        if under_way == 0 {
            let next = self.alone.pop_front();
            self.is_alone = next.is_some();
            self.jobs.extend(next.map(|(round, at, request)| {
                let job = Job::Alone(at, request);
                Waiting { round, job, now: now() }
            }));
        }
        self.is_alone || !self.alone.is_empty()
    }
}

impl Work for Serving<'_> {
    type Job = Waiting;
    type Outcome = (usize, Result<Vec<Done>, Error>);

    fn next(&mut self) -> Option<Waiting> {
        self.jobs.pop_front()
    }

    fn done(&mut self, (number, done): Self::Outcome) {
        let alone = &mut self.alone;
        let failures =
            self.rounds[number].take_done(done, |at, request| alone.push_back((number, at, request)));
        if failures > 0 {
            self.common.shared.counters.node_failures.add_many(failures);
            self.is_over |= self.cache.store().pipeline.is_over();
        }
    }

    fn rest(&mut self, under_way: usize) -> bool {
        self.end_rounds();
        if self.go_on_alone(under_way) {
            return true;
        }
        if self.is_over || self.common.is_stopping() {
            // A request in progress may still turn out to be too much at once with others.
            return under_way > 0;
        }
        let patience = if under_way > 0 { Patience::None } else { Patience::Endless };
        if let Some(number) = self.rounds.iter().position(Round::is_done) {
            self.begin_round(number, patience);
            self.end_rounds();
        }
        true
    }
}

/// Serves until the node is lost or the gateway stops.
pub fn serve(common: &Common, clients: &mut Clients, cache: &Cache<TableStore>) {
    let pipeline = &cache.store().pipeline;
    let what = ("a command", Effect::Perhaps);
    let carry_out = |Waiting { round, job, now }: Waiting| async move {
        // A command can be several operations of the table, and a job several commands.
        let perform = async {
            // If this fails, the command fails as well, and reports the reason.
            let _ = cache.read_flushes_if_due(now).await;
            Ok(perform(cache, job, now).await)
        };
        (round, pipeline.limited(what, perform).await)
    };
    pipeline.serve(DEPTH, &mut Serving::new(common, clients, cache), carry_out);
}
