//! The audit log: the options of `portcullis serve` for it.

use clap::Args;
use portcullis::host::{AuditStatus, Host};
use portcullis::{AuditEvent, NodeConfig};
use std::path::PathBuf;

/// Options about the audit log.
#[derive(Args, Clone, Debug)]
pub struct AuditOptions {
    /// Append what happens to permissions to this file, as one JSON object per line. A symbolic link is not followed, so
    /// it cannot be /dev/stdout; a named pipe needs a reader already.
    #[arg(long, value_name = "FILE", value_parser = portcullis_program::files::path())]
    pub audit: Option<PathBuf>,
    /// Write only these events: grant, extension, revoke, expiry, violation, pause, bar, unbar, attach, detach,
    /// recovery, publish, unpublish, share, unshare, include [default: all]. Start and stop of the node and lost
    /// records are always written.
    #[arg(long, value_name = "EVENTS", value_delimiter = ',')]
    pub audit_events: Option<Vec<AuditEvent>>,
}

impl AuditOptions {
    /// Sets the events for which the node makes records, if some are chosen.
    pub fn set_events(&self, node: &mut NodeConfig) {
        if let Some(events) = &self.audit_events {
            node.audit_events = events.iter().copied().collect();
        }
    }

    /// Returns a contradiction in the options, if any.
    pub fn wrong(&self) -> Option<&'static str> {
        let nowhere = self.audit_events.is_some() && self.audit.is_none();
        nowhere.then_some("--audit-events needs --audit: the file that they are written to")
    }

    /// Returns a message that reports records missing at the end of the log, if any.
    pub fn missing(&self, host: &Host) -> Option<String> {
        let AuditStatus { lost, failing, .. } = host.audit_status().filter(|status| status.lost > 0)?;
        let path = self.audit.as_ref()?.display();
        let why = failing.unwrap_or_default();
        Some(format!("the last {lost} audit records could not be written to {path}: {why}"))
    }
}
