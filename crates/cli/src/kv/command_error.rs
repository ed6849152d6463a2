//! Reasons why a command of `portcullis kv` failed, whether the caller is at fault, and advice.

use portcullis::{ConnectError, DirectoryName, Error, IdentityError, Refusal, TenantName};
use portcullis_structures::queue::QueueError;
use portcullis_structures::table::TableError;
use std::io;

/// A reason why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum KvCommandError {
    /// There is no node, or the node refuses the client.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("there is no table {table}: `portcullis kv create` makes one, and so do `put` and `load`")]
    NoTable { table: DirectoryName },
    #[error(
        "{owner} shares no table {table} with this tenant: {owner} can share it with `portcullis kv share`"
    )]
    NotShared { table: DirectoryName, owner: TenantName },
    #[error("table {table}: {error}{}", advice(.error))]
    Table { table: DirectoryName, error: TableError },
    #[error("there is no queue {queue}: `portcullis kv queue create` makes one")]
    NoQueue { queue: DirectoryName },
    #[error("queue {queue}: {error}{}", advice_on_queue(.error))]
    Queue { queue: DirectoryName, error: QueueError },
    /// The caller's mistake.
    #[error("{0}")]
    Call(String),
    /// The content of a file cannot be stored.
    #[error("{place}: {why}")]
    Input { place: String, why: String },
    #[error("{what}: {error}")]
    File { what: String, error: io::Error },
}

impl KvCommandError {
    /// An error of a table with this name.
    pub fn of(table: DirectoryName) -> impl Fn(TableError) -> Self + Copy {
        move |error| match error {
            TableError::Session(Error::Refused(Refusal::NoSuchName)) => Self::NoTable { table },
            error => Self::Table { table, error },
        }
    }

    /// An error of a table of another tenant.
    pub fn of_shared(table: DirectoryName, owner: TenantName) -> impl Fn(TableError) -> Self + Copy {
        move |error| match Self::of(table)(error) {
            Self::NoTable { table } => Self::NotShared { table, owner },
            other => other,
        }
    }

    /// An error of a queue with this name.
    pub fn of_queue(queue: DirectoryName) -> impl Fn(QueueError) -> Self + Copy {
        move |error| match error {
            QueueError::Session(Error::Refused(Refusal::NoSuchName)) => Self::NoQueue { queue },
            error => Self::Queue { queue, error },
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Call(_) | Self::Input { .. } | Self::Identity(_) => 2,
            Self::Table { error, .. } => match error {
                TableError::Option { .. }
                | TableError::KeyTooLong { .. }
                | TableError::ValueTooLong { .. } => 2,
                _ => 3,
            },
            Self::Connect(ConnectError::Address(_)) => 2,
            Self::Connect(ConnectError::Find(error)) if error.is_callers() => 2,
            Self::Queue { error, .. } => match error {
                QueueError::Option { .. }
                | QueueError::Step { .. }
                | QueueError::EntryTooLong { .. }
                | QueueError::NoClaims
                | QueueError::OnlyClaims => 2,
                _ => 3,
            },
            Self::Connect(_) | Self::NoTable { .. } | Self::NotShared { .. } | Self::File { .. } => 3,
            Self::NoQueue { .. } => 3,
        }
    }
}

/// Returns the option or the call that helps, as text to append to the error.
fn advice(error: &TableError) -> &'static str {
    match error {
        TableError::Session(error) => advice_on_session(*error),
        TableError::NotATable => ": another program of this tenant has given an object of its own that name",
        TableError::OfOneHandle => "; `kv drop` discards it",
        TableError::Full => {
            ": `kv dump` it, `kv create` one with a greater --depth-max or more --groups, and `kv load` that"
        }
        TableError::Damaged { .. } => {
            ": `kv dump` saves what is whole; `kv drop` removes the table if nothing else of the tenant uses it"
        }
        _ => "",
    }
}

fn advice_on_queue(error: &QueueError) -> &'static str {
    match error {
        QueueError::Session(error) => advice_on_session(*error),
        QueueError::NotAQueue => ": another program of this tenant has given an object of its own that name",
        _ => "",
    }
}

fn advice_on_session(error: Error) -> &'static str {
    match error {
        Error::Quota { .. } => {
            ": on the node `serve --quota-bytes`, --quota-objects, --quota-permissions and --quota-names set it; `kv \
             drop` and `kv sweep` free memory"
        }
        Error::Refused(Refusal::OutOfMemory { .. }) => {
            ": on the node `serve --memory` gives more; `kv drop` and `kv sweep` free memory"
        }
        Error::Refused(Refusal::LifetimeTooLong { .. }) => {
            ": create the table with a shorter --lease, or raise `serve --longest-lifetime` on the node"
        }
        Error::Refused(Refusal::KeptTooLong { .. }) => {
            ": create the table with a shorter --keep, or raise `serve --longest-keep` on the node"
        }
        Error::Refused(Refusal::Gone) => ": the table was dropped, or its --keep time was over",
        Error::Paused { .. } | Error::Barred => ": `portcullis admin list` on the node shows the reason",
        Error::NodeGone => ": the node has ended, and its tables with it",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(error: TableError) -> KvCommandError {
        KvCommandError::of(DirectoryName::new("t").expect("a name"))(error)
    }

    #[test]
    fn what_a_caller_has_done_is_told_apart_from_what_a_node_refuses() {
        let refused = |refusal| error(TableError::Session(Error::from(refusal)));
        assert_eq!(error(TableError::KeyTooLong { bytes: 70_000 }).exit_code(), 2);
        assert_eq!(refused(Refusal::NoSuchName).exit_code(), 3);
        assert!(refused(Refusal::NoSuchName).to_string().contains("kv create"));
        let quota = refused(Refusal::Quota { used: 1, limit: 2 });
        assert_eq!(quota.exit_code(), 3);
        assert!(quota.to_string().contains("--quota-bytes"), "{quota}");
        assert!(error(TableError::Full).to_string().contains("--depth-max"));
    }
}
