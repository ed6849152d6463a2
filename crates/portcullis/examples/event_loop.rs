//! A session inside a program's own event loop. No call waits: the program takes results as they arrive and also
//! extends a lease. The loop waits for two descriptors at once: the session's, and a socket to which another thread
//! sends lines. The program stores each line in remote memory.
//!
//! ```text
//! cargo run --release --example event_loop                               a node of its own
//! cargo run --release --example event_loop -- shm:portcullis.sock       a node that runs
//! ```

mod place;

use portcullis::{
    Access, Allocate, BarePermission, Call, ControlRequest, Error, Lifetime, Operation, Session,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

const LOG_BYTES: u64 = 1 << 20;
/// The lease over the log. It is extended when less than `LEAST` of it is left.
const LEASE: Lifetime = Lifetime::millis(200);
const LEAST: Lifetime = Lifetime::millis(100);
const LINE_BYTES: usize = 256;

struct Loop {
    log: BarePermission,
    at: u64,
    /// Lines that are being written, by the operation that writes them.
    writing: HashMap<Operation, String>,
    extending: Option<Call>,
    stored: usize,
}

impl Loop {
    /// Stores a line that has arrived.
    fn store(&mut self, session: &mut Session, line: String) -> Result<(), Error> {
        let mut buffer = session.buffer(u32::try_from(line.len()).unwrap_or(u32::MAX))?;
        buffer.bytes_mut().copy_from_slice(line.as_bytes());
        let now = session.now();
        let begun = session.client().access(now, Access::write(&self.log, self.at, buffer));
        let operation = begun.map_err(|rejected| rejected.error)?;
        self.at += line.len() as u64;
        self.writing.insert(operation, line);
        Ok(())
    }

    /// Takes the results of operations and calls that have ended.
    fn take(&mut self, session: &mut Session) -> Result<(), Error> {
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
        session.client().over().map_or(Ok(()), Err)
    }

    /// Extends the lease if that is due, and returns the time until it is due.
    fn extend(&mut self, session: &mut Session) -> Result<Duration, Error> {
        let now = session.now();
        let left = self.log.lease().deadline().since(now);
        if left < LEAST && self.extending.is_none() {
            self.extending = Some(session.client().call(now, ControlRequest::extend(&self.log, LEASE))?);
        }
        Ok(if self.extending.is_some() {
            Duration::MAX
        } else {
            Duration::from(left) - Duration::from(LEAST)
        })
    }
}

/// Starts a thread that sends a thousand lines, one message each, and an empty message at the end.
fn lines() -> std::io::Result<UnixDatagram> {
    let (theirs, ours) = UnixDatagram::pair()?;
    std::thread::spawn(move || {
        let lines = (0..1000).map(|number| format!("line {number}\n"));
        for line in lines.chain([String::new()]) {
            if theirs.send(line.as_bytes()).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    });
    ours.set_nonblocking(true)?;
    Ok(ours)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut session, _node) = place::session()?;
    let log = session.allocate(Allocate::bytes(LOG_BYTES).lifetime(LEASE))?;
    let log = log.into_bare().ok_or("a permission has just been granted")?;
    let mut state = Loop { log, at: 0, writing: HashMap::new(), extending: None, stored: 0 };
    let (lines, mut more) = (lines()?, true);
    let mut waits = 0;
    while more || !state.writing.is_empty() {
        session.poll();
        state.take(&mut session)?;
        let mut line = [0; LINE_BYTES];
        match lines.recv(&mut line) {
            Ok(0) => more = false,
            Ok(length) => state.store(&mut session, String::from_utf8_lossy(&line[..length]).into_owned())?,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let due = state.extend(&mut session)?;
        // This comes last: a call on the session between `arm` and the wait would undo it.
        let at_most = session.arm().min(due);
        let mut descriptors = [
            PollFd::from_borrowed_fd(session.descriptor(), PollFlags::IN),
            PollFd::new(&lines, PollFlags::IN),
        ];
        poll(&mut descriptors, Timespec::try_from(at_most).ok().as_ref())?;
        waits += 1;
    }
    println!(
        "{} lines stored in {} bytes after {waits} waits, the lease extended on the way",
        state.stored, state.at
    );
    Ok(())
}
