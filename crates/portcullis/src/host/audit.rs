//! Writing the audit log, off the engine's thread.

use portcullis_node::AuditRecord;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Records between the engine and the writer. When it is full they stay in the node's own queue, which counts what it
/// loses.
const RECORDS_MAX: usize = 4096;

/// The thread that writes.
#[derive(Debug)]
pub(in crate::host) struct AuditWriter {
    records: SyncSender<AuditRecord>,
    thread: JoinHandle<()>,
}

impl AuditWriter {
    /// Appends to the file at `path`.
    pub fn start(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (records, receiver) = sync_channel(RECORDS_MAX);
        let thread = std::thread::Builder::new()
            .name("portcullis-audit".to_owned())
            .spawn(move || write(file, &receiver))?;
        Ok(Self { records, thread })
    }

    pub fn sink(&self) -> AuditSink {
        AuditSink { records: self.records.clone(), held: None }
    }

    /// Waits until everything is in the file. The sinks must be gone.
    pub fn finish(self) {
        drop(self.records);
        let _ = self.thread.join();
    }
}

/// Where the node's records go in.
#[derive(Debug)]
pub(in crate::host) struct AuditSink {
    records: SyncSender<AuditRecord>,
    /// Taken from the node, and not taken by the writer yet.
    held: Option<AuditRecord>,
}

impl AuditSink {
    /// Moves records on for as long as the writer takes some. Never waits.
    pub fn fill(&mut self, mut next: impl FnMut() -> Option<AuditRecord>) {
        while let Some(record) = self.held.take().or_else(&mut next) {
            match self.records.try_send(record) {
                Ok(()) => {}
                Err(TrySendError::Full(record)) => {
                    self.held = Some(record);
                    return;
                }
                // The writer gave up, and has said so.
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    /// Moves all records on, waiting for the writer.
    pub fn drain(&mut self, mut next: impl FnMut() -> Option<AuditRecord>) {
        while let Some(record) = self.held.take().or_else(&mut next) {
            if self.records.send(record).is_err() {
                return;
            }
        }
    }
}

fn write(file: File, records: &Receiver<AuditRecord>) {
    let mut file = BufWriter::new(file);
    while let Ok(first) = records.recv() {
        let mut next = Some(first);
        while let Some(record) = next {
            if let Err(error) = record.write_line(&mut file) {
                tracing::error!(%error, "the audit log cannot be written: no more records from here on");
                return;
            }
            next = records.try_recv().ok();
        }
        // Nothing more for now: what happened can be read.
        if let Err(error) = file.flush() {
            tracing::error!(%error, "the audit log cannot be written: no more records from here on");
            return;
        }
    }
}
