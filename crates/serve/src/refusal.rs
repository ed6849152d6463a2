//! Reasons why a node could not be served, with the options that help.

use super::fields::{option_of, with_options};
use portcullis::IdentityError;
use portcullis::host::{HostError, NotEnoughMemory};
use portcullis_attach::tls::ListenError;
use portcullis_nic::VerbsError;
use portcullis_node::StartError;

/// A reason why a node is not served: the command line or the machine.
#[derive(Debug, thiserror::Error)]
pub enum NotServed {
    /// The command line is wrong.
    #[error("{0}")]
    Call(String),
    /// The operating system refuses.
    #[error("{0}")]
    Machine(String),
}

impl From<IdentityError> for NotServed {
    fn from(error: IdentityError) -> Self {
        Self::Machine(error.to_string())
    }
}

impl From<HostError> for NotServed {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Node(StartError::Config(error)) => Self::Call(error.renamed(option_of).to_string()),
            HostError::Config(text) => Self::Call(with_options(text)),
            HostError::Memory(error) => Self::Machine(told(error)),
            #[cfg(feature = "rdma")]
            HostError::Memlock(error) => Self::Machine(format!("--memory: {error}; or lower --memory")),
            HostError::Node(error @ StartError::Nic(VerbsError::Machine(_))) => {
                Self::Machine(format!("--memory: {error}"))
            }
            error @ HostError::Audit { .. } => Self::Machine(format!("--audit: {error}")),
            error @ HostError::Socket { .. } => Self::Machine(format!("--listen: {error}")),
            #[cfg(feature = "rdma")]
            error @ HostError::Unenforced(_) => Self::Call(error.to_string()),
            error @ HostError::Listen(ListenError::Address(_) | ListenError::PlainBeyondLoopback(_)) => {
                Self::Call(error.to_string())
            }
            error => Self::Machine(error.to_string()),
        }
    }
}

fn told(error: NotEnoughMemory) -> String {
    let instead = if error.may_be_overcommitted() { ", or add --overcommit" } else { "" };
    let settings = error.settings.iter().map(|(setting, bytes)| (option_of(setting), *bytes)).collect();
    let error = NotEnoughMemory { settings, ..error };
    format!("{error}{instead}")
}
