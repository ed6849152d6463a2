//! A session inside a program's own loop: nothing waits, what has ended is taken as it comes, and a lease is extended on
//! the way. Here the loop's other work are lines that another thread hands in; each is stored in remote memory.
//!
//! ```text
//! cargo run --release --example event_loop                               a node of its own
//! cargo run --release --example event_loop -- shm:/run/portcullis.sock   a node that runs
//! ```

mod place;

use portcullis::{Allocate, BarePermission, Call, Error, Lifetime, Operation, Session};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

/// Bytes of the log that lines are put into.
const LOG_BYTES: u64 = 1 << 20;
/// The lease over it, and when it is extended.
const LEASE: Lifetime = Lifetime::millis(200);
const LEAST: Lifetime = Lifetime::millis(100);
/// The longest that the loop sleeps.
const NAP: Duration = Duration::from_micros(200);

struct Loop {
    log: BarePermission,
    at: u64,
    /// Lines that are on their way, by the operation that writes them.
    writing: HashMap<Operation, String>,
    extending: Option<Call>,
    stored: usize,
}

impl Loop {
    /// A line has come.
    fn store(&mut self, session: &mut Session, line: String) -> Result<(), Error> {
        let mut buffer = session.buffer(u32::try_from(line.len()).unwrap_or(u32::MAX))?;
        buffer.bytes_mut().copy_from_slice(line.as_bytes());
        let now = session.now();
        let begun = session.client().write(now, &self.log, self.at, buffer);
        let operation = begun.map_err(|rejected| rejected.error)?;
        self.at += line.len() as u64;
        self.writing.insert(operation, line);
        Ok(())
    }

    /// What has ended since the last turn. Returns whether anything has.
    fn turn(&mut self, session: &mut Session) -> Result<bool, Error> {
        let worked = session.poll() > 0;
        let mut ended = Vec::new();
        session.client().drain(&mut ended);
        for (operation, outcome) in ended {
            outcome.result?;
            self.stored += usize::from(self.writing.remove(&operation).is_some());
        }
        if let Some(call) = self.extending
            && let Some(answer) = session.client().take_call(call)
        {
            answer?;
            self.extending = None;
        }
        let now = session.now();
        if self.extending.is_none() && self.log.lease().deadline().since(now) < LEAST {
            self.extending = Some(session.client().extend(now, &self.log, LEASE)?);
        }
        session.client().over().map_or(Ok(worked), Err)
    }
}

fn lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for number in 0..1000 {
            if sender.send(format!("line {number}\n")).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    });
    receiver
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut session, _node) = place::session()?;
    let log = session.allocate(Allocate::bytes(LOG_BYTES).lifetime(LEASE))?;
    let log = log.into_bare().ok_or("a permission has just been granted")?;
    let mut state = Loop { log, at: 0, writing: HashMap::new(), extending: None, stored: 0 };
    let (lines, mut more) = (lines(), true);
    while more || !state.writing.is_empty() {
        let mut idle = true;
        match lines.try_recv() {
            Ok(line) => {
                state.store(&mut session, line)?;
                idle = false;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => more = false,
        }
        if !state.turn(&mut session)? && idle {
            std::thread::sleep(NAP);
        }
    }
    println!("{} lines stored in {} bytes, the lease extended on the way", state.stored, state.at);
    Ok(())
}
