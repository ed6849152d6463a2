//! The destinations of a node's records: the audit log, and subscribers of the program's own events.
//!
//! These events are warnings (peers that are refused, quotas that are used up, pauses, bars), clients that attach and
//! leave, and rebuilds (`RUST_LOG=info` of `portcullis serve`). A thread of their own writes them, since the node never
//! waits: standard error may be a pipe that is not read. Records have no keys.

use super::audit::AuditSink;
use super::floods::{FloodLimits, Floods};
use portcullis_node::{AuditEvent, AuditEvents, AuditRecord};
use portcullis_protocol::Moment;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The target of these events, for `RUST_LOG`.
const TARGET: &str = "portcullis::node";
/// Records that wait for the events' thread; further ones are dropped.
const SAID_MAX: usize = 4096;
/// The longest time that a node's end waits for its last events.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The records that become events.
const SAID: [AuditEvent; 8] = [
    AuditEvent::Attach,
    AuditEvent::Detach,
    AuditEvent::Refuse,
    AuditEvent::Quota,
    AuditEvent::Pause,
    AuditEvent::Bar,
    AuditEvent::Unbar,
    AuditEvent::Recovery,
];

/// Limits the events: a warning that goes on for hours must not fill thousands of lines.
const FLOOD_LIMITS: FloodLimits = FloodLimits {
    period: Duration::from_secs(60),
    reason: "more of them within a minute",
    most: |event| match event {
        AuditEvent::Refuse | AuditEvent::Pause => Some(10),
        AuditEvent::Quota => Some(1),
        _ => None,
    },
};

/// The place where the node's thread puts its records.
#[derive(Debug)]
pub(super) struct Outlet {
    /// The log, and the events that go into it.
    log: Option<(AuditSink, AuditEvents)>,
    said: Option<SyncSender<AuditRecord>>,
}

impl Outlet {
    /// Returns an outlet to a log and to `speaker`; either may be missing.
    pub fn new(log: Option<(AuditSink, AuditEvents)>, speaker: Option<&Speaker>) -> Self {
        Self { log, said: speaker.map(|speaker| speaker.records.clone()) }
    }

    /// Moves records on while there is room. Never waits. Returns whether the log's writer held the lock, so that this
    /// must be called again soon.
    pub fn fill(&mut self, mut next: impl FnMut() -> Option<AuditRecord>) -> bool {
        let Self { log, said } = self;
        match log {
            Some((sink, events)) => sink.fill(|| next_for_log(said.as_ref(), *events, &mut next)),
            None => {
                std::iter::from_fn(next).for_each(|record| say(said.as_ref(), &record));
                false
            }
        }
    }

    /// Moves the last records on.
    pub fn drain(mut self, mut next: impl FnMut() -> Option<AuditRecord>) {
        if let Some((sink, events)) = &mut self.log {
            sink.drain(|| next_for_log(self.said.as_ref(), *events, &mut next));
        }
        self.fill(next);
    }
}

/// Returns the next record that belongs in the log. The records up to it, and the record itself, become events if they
/// are of that kind.
fn next_for_log(
    said: Option<&SyncSender<AuditRecord>>,
    events: AuditEvents,
    mut next: impl FnMut() -> Option<AuditRecord>,
) -> Option<AuditRecord> {
    loop {
        let record = next()?;
        say(said, &record);
        if record.event == AuditEvent::Lost || events.contains(record.event) {
            return Some(record);
        }
    }
}

fn say(said: Option<&SyncSender<AuditRecord>>, record: &AuditRecord) {
    if let Some(said) = said
        && SAID.contains(&record.event)
    {
        // If the queue is full, the event is dropped.
        let _ = said.try_send(record.clone());
    }
}

/// The thread that writes the events.
#[derive(Debug)]
pub(super) struct Speaker {
    records: SyncSender<AuditRecord>,
    /// Closed when the thread has ended. Locked only so that threads may share a host.
    over: Mutex<Receiver<()>>,
}

impl Speaker {
    /// Starts a speaker, if the events have a subscriber.
    pub fn start() -> std::io::Result<Option<Self>> {
        if !tracing::enabled!(target: TARGET, tracing::Level::WARN) {
            return Ok(None);
        }
        let (records, heard) = sync_channel::<AuditRecord>(SAID_MAX);
        let (alive, over) = channel();
        // Uses the subscriber of the thread that starts the host.
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        std::thread::Builder::new().name("portcullis-events".to_owned()).spawn(move || {
            let _alive = alive;
            tracing::dispatcher::with_default(&dispatch, || tell_all(&heard));
        })?;
        Ok(Some(Self { records, over: Mutex::new(over) }))
    }

    /// Returns the events that the node has to record for the speaker.
    pub fn events() -> AuditEvents {
        SAID.into_iter().collect()
    }

    /// Waits until all events are written, but only for a moment: there may be no reader.
    pub fn finish(self) {
        let Self { records, over } = self;
        drop(records);
        let over = over.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A timeout is ignored: there is no place left to report it.
        let _ = over.recv_timeout(LAST_WORDS);
    }
}

/// Writes events until the node has ended.
fn tell_all(heard: &Receiver<AuditRecord>) {
    let mut floods = Floods::new(FLOOD_LIMITS);
    let mut last = (Moment(0), Instant::now());
    loop {
        let (at, since) = last;
        let now = at.after(since.elapsed().into());
        floods.settle(now).iter().for_each(tell);
        let next = match floods.told_in(now) {
            Some(time) => heard.recv_timeout(time),
            None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(record) => {
                last = (record.at, Instant::now());
                floods.settle(record.at).iter().for_each(tell);
                if floods.passes(&record) {
                    tell(&record);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return floods.end().iter().for_each(tell),
        }
    }
}

fn tell(record: &AuditRecord) {
    let tenant = record.tenant.as_deref().unwrap_or_default();
    let client = record.client.map(|client| client.0);
    let refusal = record.refusal.as_deref();
    let reason = record.reason.or(refusal.map(|refusal| &*refusal.reason));
    let process = record.process;
    match record.event {
        AuditEvent::Attach => tracing::info!(target: TARGET, tenant, client, process, "a client attached"),
        AuditEvent::Detach => tracing::info!(target: TARGET, tenant, client, process, "a client detached"),
        AuditEvent::Refuse => {
            let (peer, further) = (refusal.and_then(|refusal| refusal.peer.as_deref()), record.count);
            tracing::warn!(target: TARGET, peer, reason, further, "a client was refused")
        }
        AuditEvent::Quota => {
            let further = record.count;
            tracing::warn!(target: TARGET, tenant, client, process, reason, further, "a request was refused")
        }
        AuditEvent::Recovery => {
            tracing::info!(target: TARGET, tenant, client, process, "a broken queue pair works again")
        }
        AuditEvent::Pause => {
            let further = record.count;
            tracing::warn!(target: TARGET, tenant, client, process, reason, further, "paused for its violations")
        }
        AuditEvent::Bar => {
            tracing::warn!(target: TARGET, tenant, client, process, reason, "barred for its violations")
        }
        AuditEvent::Unbar => tracing::info!(target: TARGET, tenant, client, process, reason, "served again"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(events: &'static [AuditEvent]) -> impl FnMut() -> Option<AuditRecord> {
        let mut left = events.iter().copied();
        move || left.next().map(|event| AuditRecord::new(Moment(0), event))
    }

    #[test]
    fn what_the_log_does_not_want_is_said_all_the_same_and_the_other_way_round() {
        use AuditEvent::{Attach, Grant, Lost};
        let (said, heard) = sync_channel(8);
        let log: AuditEvents = [Grant].into_iter().collect();
        let mut next = records(&[Attach, Grant, Lost, Attach]);
        let logged =
            std::iter::from_fn(|| next_for_log(Some(&said), log, &mut next)).map(|record| record.event);
        assert_eq!(logged.collect::<Vec<_>>(), [Grant, Lost]);
        assert_eq!(heard.try_iter().map(|record| record.event).collect::<Vec<_>>(), [Attach, Attach]);
    }

    #[test]
    fn a_listener_that_is_slow_holds_nobody_up() {
        let (said, heard) = sync_channel(1);
        let mut outlet = Outlet { log: None, said: Some(said) };
        assert!(!outlet.fill(records(&[AuditEvent::Attach; 5])));
        assert_eq!(heard.try_iter().count(), 1);
    }
}
