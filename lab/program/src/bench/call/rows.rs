//! The rows that are measured: those of RPCool's Table 1b that are possible here.

use super::super::BenchError;
use super::super::course::{Course, Length};
use super::super::turns::Round;
use super::{failed, serving};
use crate::samples::{Samples, mops};
use portcullis_rpc::channel::{CallId, Connection, DEPTH, Sealed};
use portcullis_rpc::sandbox::{Sandbox, SandboxOptions};
use portcullis_rpc::{Boxed, Room, Scope, ScopeRef, Source};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// Methods of calls that carry one word besides their arguments, which are copied or (`TRUSTED`) read in place.
pub const COPIED: u32 = 1;
pub const TRUSTED: u32 = 2;
/// Method whose arguments are copied and read in a sandbox.
pub const SANDBOXED: u32 = 3;
/// Method whose arguments were sealed before the call.
pub const ONE_SHOT: u32 = 4;
const PAGE: u64 = 4096;
pub const PAGE_STEP: usize = 4096;
/// The most iterations of slow rows, which make no call.
const FEW: u64 = 1000;

/// A row: the call or the step, and its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One call at a time, without arguments.
    Empty,
    /// One call at a time, with this many pages.
    Pages {
        method: u32,
        pages: u64,
    },
    /// One call at a time, with pages that were sealed before.
    Sealed {
        pages: u64,
    },
    /// Pages are made, written and sealed, and the server has taken them in.
    Seal {
        pages: u64,
    },
    /// A sandbox entered and left, without a call.
    Sandbox,
    /// Pages copied out of the heap, without a call.
    Copy {
        pages: u64,
    },
    /// As many calls in flight as possible, without arguments.
    Pipelined,
    /// A connection made and ended.
    Connect,
    /// A channel that is started, and (`Stop`) one that is ended.
    Serve,
    Stop,
}

impl Kind {
    pub const ALL: [Self; 20] = [
        Self::Empty,
        Self::Pages { method: COPIED, pages: 1 },
        Self::Pages { method: SANDBOXED, pages: 1 },
        Self::Pages { method: COPIED, pages: 4 },
        Self::Pages { method: COPIED, pages: 16 },
        Self::Pages { method: COPIED, pages: 64 },
        Self::Pages { method: COPIED, pages: 1024 },
        Self::Pages { method: TRUSTED, pages: 1 },
        Self::Sealed { pages: 1 },
        Self::Sealed { pages: 1024 },
        Self::Seal { pages: 1 },
        Self::Seal { pages: 64 },
        Self::Seal { pages: 1024 },
        Self::Sandbox,
        Self::Copy { pages: 1 },
        Self::Copy { pages: 1024 },
        Self::Connect,
        Self::Serve,
        Self::Stop,
        Self::Pipelined,
    ];

    pub fn name(self) -> String {
        let pages = |pages| if pages == 1 { "1 page".to_owned() } else { format!("{pages} pages") };
        match self {
            Self::Empty => "call".to_owned(),
            Self::Pages { method: COPIED, pages: it } => format!("call, {} copied", pages(it)),
            Self::Pages { method: SANDBOXED, pages: it } => format!("call, {} copied, sandboxed", pages(it)),
            Self::Pages { pages: it, .. } => format!("call, {} trusted", pages(it)),
            Self::Sealed { pages: it } => format!("call, {} sealed before", pages(it)),
            Self::Seal { pages: it } => format!("make, write and seal {}", pages(it)),
            Self::Sandbox => "enter and leave a cached sandbox".to_owned(),
            Self::Copy { pages: it } => format!("copy {} out of the heap", pages(it)),
            Self::Pipelined => format!("call, {DEPTH} under way"),
            Self::Connect => "connect".to_owned(),
            Self::Serve => "make a channel".to_owned(),
            Self::Stop => "end a channel".to_owned(),
        }
    }

    /// RPCool's figure for the row, in microseconds.
    pub fn paper(self) -> Option<f64> {
        match self {
            Self::Empty => Some(1.5),
            Self::Pages { method: SANDBOXED, pages: 1 } => Some(2.6),
            Self::Seal { pages: 1 } => Some(1.1),
            Self::Seal { pages: 1024 } => Some(3.46),
            Self::Sandbox => Some(0.35),
            Self::Copy { pages: 1 } => Some(1.26),
            Self::Copy { pages: 1024 } => Some(2308.23),
            Self::Connect => Some(400_000.0),
            Self::Serve => Some(26_500.0),
            Self::Stop => Some(38_400.0),
            Self::Pages { .. } | Self::Sealed { .. } | Self::Seal { .. } | Self::Copy { .. } => None,
            Self::Pipelined => None,
        }
    }
}

/// One row in one round.
pub struct Half {
    pub samples: Samples,
    /// Millions a second.
    pub rate: f64,
}

pub fn one(
    kind: Kind,
    connection: &mut Connection,
    path: &Path,
    length: Length,
    round: Round,
) -> Result<Half, BenchError> {
    let course = Course::of(length, format!("{}, {round}", kind.name()));
    match kind {
        Kind::Empty => calls(connection, course, COPIED, None),
        Kind::Pages { method, pages } => {
            let scope = connection.scope(pages * PAGE).map_err(failed)?;
            calls(connection, course, method, Some((&scope, pages * PAGE)))
        }
        Kind::Sealed { pages } => {
            let sealed = seal(connection, pages)?;
            timed(course, u64::MAX, || sealed_call(connection, &sealed))
        }
        Kind::Seal { pages } => timed(course, FEW, || {
            let before = Instant::now();
            // The drop of the sealed scope is not counted.
            let sealed = seal(connection, pages)?;
            let time = before.elapsed();
            drop(sealed);
            Ok(time)
        }),
        Kind::Sandbox => sandboxes(course),
        Kind::Copy { pages } => copies(connection, course, pages),
        Kind::Pipelined => pipelined(connection, course),
        Kind::Connect => timed(course, FEW, || {
            let before = Instant::now();
            drop(Connection::open(path).map_err(failed)?);
            Ok(before.elapsed())
        }),
        Kind::Serve => timed(course, FEW, || Ok(channel(path)?.0)),
        Kind::Stop => timed(course, FEW, || Ok(channel(path)?.1)),
    }
}

/// Makes one call at a time. Each of its pages is written before the call.
fn calls(
    connection: &mut Connection,
    mut course: Course,
    method: u32,
    scope: Option<(&Scope, u64)>,
) -> Result<Half, BenchError> {
    let (mut samples, mut done) = (Samples::new(), 0);
    let (passed, root) = match scope {
        Some((scope, length)) => {
            (ScopeRef { address: scope.address(), length }, Boxed::<u64>::at(scope.address()))
        }
        None => (ScopeRef::default(), Boxed::NULL),
    };
    while !course.over(done) {
        for page in (0..passed.length).step_by(PAGE_STEP) {
            let value = if page == 0 { done } else { 0 };
            connection.heap().set(Boxed::<u64>::at(passed.address + page), value).map_err(failed)?;
        }
        let before = Instant::now();
        let call = connection.begin(method, passed, root, done, None).map_err(failed)?;
        let answer = connection.wait(call).map_err(failed)?;
        samples.add(before.elapsed());
        let expected = if scope.is_some() { 2 * done } else { done };
        if answer.word() != expected {
            return Err(failed(format_args!("{} came back for {expected}", answer.word())));
        }
        done += 1;
    }
    let rate = mops(done, course.elapsed());
    Ok(Half { samples, rate })
}

/// Keeps as many calls in flight as possible.
fn pipelined(connection: &mut Connection, mut course: Course) -> Result<Half, BenchError> {
    let (mut samples, mut done, mut begun, mut is_over) = (Samples::new(), 0, 0, false);
    let mut under_way: VecDeque<(CallId, u64, Instant)> = VecDeque::new();
    let nothing = ScopeRef::default();
    loop {
        is_over |= course.over(done);
        while !is_over && under_way.len() < DEPTH as usize {
            let call = connection.begin(COPIED, nothing, Boxed::<u64>::NULL, begun, None).map_err(failed)?;
            under_way.push_back((call, begun, Instant::now()));
            begun += 1;
        }
        let Some((call, word, before)) = under_way.pop_front() else { break };
        if connection.wait(call).map_err(failed)?.word() != word {
            return Err(failed("another word came back"));
        }
        samples.add(before.elapsed());
        done += 1;
    }
    let rate = mops(done, course.elapsed());
    Ok(Half { samples, rate })
}

/// Repeats a step at most `most` times. The step returns the time that it took.
fn timed(
    mut course: Course,
    most: u64,
    mut each: impl FnMut() -> Result<Duration, BenchError>,
) -> Result<Half, BenchError> {
    let (mut samples, mut done) = (Samples::new(), 0);
    while !course.over(done) && done < most {
        samples.add(each()?);
        done += 1;
    }
    let rate = mops(done, course.elapsed());
    Ok(Half { samples, rate })
}

/// A sealed scope, with a word at the beginning of each page.
fn seal(connection: &mut Connection, pages: u64) -> Result<Sealed, BenchError> {
    let scope = connection.one_shot(pages * PAGE).map_err(failed)?;
    let place = scope.reserve(pages * PAGE, PAGE).map_err(failed)?;
    for page in 0..pages {
        scope.put(place + page * PAGE, &page.to_ne_bytes());
    }
    connection.seal(scope).map_err(failed)
}

fn sealed_call(connection: &mut Connection, sealed: &Sealed) -> Result<Duration, BenchError> {
    let before = Instant::now();
    let root = Boxed::<u64>::at(sealed.address());
    let call = connection.begin(ONE_SHOT, sealed.reference(), root, 7, None).map_err(failed)?;
    let word = connection.wait(call).map_err(failed)?.word();
    if word != 7 {
        return Err(failed(format_args!("{word} came back for 7")));
    }
    Ok(before.elapsed())
}

/// Returns the times that a channel took to begin and to end.
fn channel(beside: &Path) -> Result<(Duration, Duration), BenchError> {
    let path = beside.with_extension("another");
    let before = Instant::now();
    let server = serving::channel(&path).start().map_err(failed)?;
    let begun = before.elapsed();
    let before = Instant::now();
    drop(server);
    Ok((begun, before.elapsed()))
}

/// Runs per reading of the clock: one run takes less time than the reading.
const RUNS: u32 = 100;

fn sandboxes(course: Course) -> Result<Half, BenchError> {
    let mut sandbox = Sandbox::new(SandboxOptions::default()).map_err(failed)?;
    timed(course, u64::MAX, || {
        let before = Instant::now();
        for run in 0..RUNS {
            let left = sandbox.run(|_| std::hint::black_box(run));
            left.map_err(|_| failed("a sandbox has panicked"))?;
        }
        Ok(before.elapsed() / RUNS)
    })
}

fn copies(connection: &mut Connection, course: Course, pages: u64) -> Result<Half, BenchError> {
    let length = pages * PAGE;
    let scope = connection.scope(length).map_err(failed)?;
    let mut copy = vec![0; usize::try_from(length).map_err(failed)?];
    timed(course, u64::MAX, || {
        let before = Instant::now();
        connection.heap().copy(scope.address(), &mut copy).map_err(failed)?;
        std::hint::black_box(&copy);
        Ok(before.elapsed())
    })
}
