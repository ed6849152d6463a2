//! Requests to etcd's JSON gateway over HTTP: one at a time, each with a deadline.

use super::api::{Complaint, Keys, Number, Part, WatchAnswer, WatchFrom, WatchRequest};
use super::endpoint::Endpoints;
use crate::clock;
use crate::error::DirectoryError;
use crate::lease::LeaseId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ureq::{Agent, Body, http::Response};

/// A client of etcd's gateway. It first tries the endpoint that has answered last.
#[derive(Debug)]
pub(super) struct Gateway {
    agent: Agent,
    endpoints: Endpoints,
    first: AtomicUsize,
}

/// Reason for which there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// etcd does not know the lease any more.
    NoLease,
    /// Anything else.
    Other(DirectoryError),
}

impl Failure {
    /// Returns the error for a request that names no lease.
    pub(super) fn of_no_lease(self) -> DirectoryError {
        match self {
            Self::NoLease => DirectoryError::Nonsense("etcd misses a lease that no request names".to_owned()),
            Self::Other(error) => error,
        }
    }

    /// Returns the error for a request that names this lease.
    pub(super) fn of_lease(self, lease: LeaseId) -> DirectoryError {
        match self {
            Self::NoLease => DirectoryError::LeaseEnded(lease),
            Self::Other(error) => error,
        }
    }
}

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        Self::Other(error)
    }
}

/// Whether a request may be sent a second time when the outcome of the first is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repeat {
    /// The request changes nothing, or makes the same change once more.
    Yes,
    No,
}

/// The outcome of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// A key has changed, or the watch must begin anew.
    Change,
    /// No change was reported until the time was over or the connection broke.
    Nothing,
}

/// Limit beyond the size of every answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

impl Gateway {
    pub(super) fn new(agent: Agent, endpoints: Endpoints) -> Self {
        Self { agent, endpoints, first: AtomicUsize::new(0) }
    }

    /// Sends a request to one endpoint after another, until one answers or the time is over.
    pub(super) fn ask<A: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
        repeat: Repeat,
        until: Instant,
    ) -> Result<A, Failure> {
        let body = serde_json::to_vec(request).expect("requests are texts and numbers");
        let count = self.endpoints.count();
        let first = self.first.load(Ordering::Relaxed);
        let mut may_have_happened = false;
        let mut at_last = None;
        for tried in 0..count {
            let number = (first + tried) % count;
            let at = self.endpoints.get(number);
            // The remaining time is divided among the endpoints that have not been tried yet.
            let share = left(until) / u32::try_from(count - tried).expect("endpoints are few");
            let told = match self.post(at, path, &body, share) {
                Ok(answer) => read(at, answer),
                Err(error) => {
                    Err(FailedRequest { is_sent: may_be_sent(&error), why: Why::Away(error.to_string()) })
                }
            };
            let failed = match told {
                Ok(answer) => {
                    self.first.store(number, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            may_have_happened |= failed.is_sent && repeat == Repeat::No;
            let failure = failed.why.at(at, may_have_happened);
            if may_have_happened || !matches!(failure, Failure::Other(DirectoryError::Away { .. })) {
                return Err(failure);
            }
            at_last = Some(failure);
        }
        Err(at_last.expect("there is an endpoint"))
    }

    /// Waits until one of the keys may have changed since before this revision, for at most this time.
    ///
    /// It may return early, even if etcd is away: callers read the keys again in any case.
    pub(super) fn wait_for_change(
        &self,
        keys: &Keys,
        from: Number,
        at_most: Duration,
    ) -> Result<Heard, DirectoryError> {
        let request = WatchRequest { create_request: WatchFrom { keys: keys.clone(), start_revision: from } };
        let body = serde_json::to_vec(&request).expect("requests are texts and numbers");
        let at = self.preferred();
        let Ok(answer) = self.post(at, "watch", &body, at_most) else { return Ok(Heard::Nothing) };
        if !answer.status().is_success() {
            let told = read::<WatchAnswer>(at, answer);
            return told.map(|_| Heard::Nothing).map_err(|failed| failed.why.at(at, false).of_no_lease());
        }
        let stream = answer.into_body().into_with_config().limit(ANSWER_BYTES_MAX).reader();
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return Ok(Heard::Nothing) };
            let part: Part<WatchAnswer> =
                serde_json::from_str(&line).map_err(|error| malformed(at, &error))?;
            match part {
                Part::Result(answer) if answer.events.is_empty() && !answer.canceled => {}
                Part::Result(_) => return Ok(Heard::Change),
                Part::Error(complaint) => return Err(Why::of(complaint).at(at, false).of_no_lease()),
            }
        }
        Ok(Heard::Nothing)
    }

    /// Returns the error for a watch that has broken again and again, while etcd answers other requests.
    pub(super) fn breaks_off(&self) -> DirectoryError {
        let why = Why::Away("it breaks off each watch".to_owned());
        why.at(self.preferred(), false).of_no_lease()
    }

    /// Returns the failure for a complaint within an answer.
    pub(super) fn complaint(&self, complaint: Complaint) -> Failure {
        Why::of(complaint).at(self.preferred(), false)
    }

    /// Returns the endpoint that has answered last.
    fn preferred(&self) -> &str {
        self.endpoints.get(self.first.load(Ordering::Relaxed))
    }

    fn post(
        &self,
        at: &str,
        path: &str,
        body: &[u8],
        at_most: Duration,
    ) -> Result<Response<Body>, ureq::Error> {
        let request = self.agent.post(format!("{at}/v3/{path}")).header("Content-Type", "application/json");
        request.config().timeout_global(Some(at_most)).build().send(body)
    }
}

/// A failed request at one endpoint.
struct FailedRequest {
    /// Whether etcd may have received the request.
    is_sent: bool,
    why: Why,
}

enum Why {
    NoLease,
    Away(String),
    Refused(String),
    Nonsense(DirectoryError),
}

impl Why {
    /// Classifies a complaint of etcd by its gRPC status.
    fn of(complaint: Complaint) -> Self {
        match complaint.code {
            5 if complaint.message.contains("lease not found") => Self::NoLease,
            // Cancelled, deadline exceeded, aborted, internal, unavailable: etcd has no leader, or is shutting down.
            1 | 4 | 10 | 13 | 14 => Self::Away(complaint.message),
            _ => Self::Refused(complaint.message),
        }
    }

    fn at(self, at: &str, may_have_happened: bool) -> Failure {
        let at = at.to_owned();
        Failure::Other(match self {
            Self::NoLease => return Failure::NoLease,
            Self::Away(why) => DirectoryError::Away { at, why, may_have_happened },
            Self::Refused(why) => DirectoryError::Refused { at, why },
            Self::Nonsense(error) => error,
        })
    }
}

fn read<A: DeserializeOwned>(at: &str, answer: Response<Body>) -> Result<A, FailedRequest> {
    let is_success = answer.status().is_success();
    let status = answer.status();
    let mut bytes = Vec::new();
    let stream = answer.into_body().into_with_config().limit(ANSWER_BYTES_MAX).reader();
    let read = BufReader::new(stream).read_to_end(&mut bytes);
    let failed = |why| Err(FailedRequest { is_sent: true, why });
    if let Err(error) = read {
        return failed(Why::Away(error.to_string()));
    }
    if is_success {
        let answer = serde_json::from_slice(&bytes);
        return answer.or_else(|error| failed(Why::Nonsense(malformed(at, &error))));
    }
    match serde_json::from_slice(&bytes) {
        Ok(complaint) => failed(Why::of(complaint)),
        // The answer is from something between this client and etcd.
        Err(_) => failed(Why::Away(format!("HTTP {status}"))),
    }
}

fn malformed(at: &str, error: &serde_json::Error) -> DirectoryError {
    DirectoryError::Nonsense(format!("{at} does not answer as etcd does: {error}"))
}

/// Whether a request may have been sent although there is no answer.
fn may_be_sent(error: &ureq::Error) -> bool {
    use ureq::{Error, Timeout};
    match error {
        Error::ConnectionFailed | Error::HostNotFound | Error::BadUri(_) => false,
        Error::Timeout(timeout) => !matches!(timeout, Timeout::Resolve | Timeout::Connect),
        Error::Io(error) => error.kind() != std::io::ErrorKind::ConnectionRefused,
        _ => true,
    }
}

fn left(until: Instant) -> Duration {
    // A request with no time at all would end before it reports a reason.
    until.saturating_duration_since(clock::now()).max(Duration::from_millis(1))
}
