//! The outcome of an operation (1RMA Table 3).

use std::fmt;

/// The status codes of 1RMA, by the names of its Table 3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// `OK`: the operation completed, and its data was transferred.
    Ok,
    /// `REMOTE_AUTHENTICATION_FAILURE`: the responder does not know the derived key of the command. The region may have
    /// been invalidated or given another key. The operation was not performed. This answer is not authenticated, since
    /// there is no key for it: an attacker on the path can forge it, as it could drop the request.
    RemoteAuthenticationFailure,
    /// `NACK`: the responder's queue of inbound requests was too long: that host is congested. The operation was not
    /// performed.
    Nack,
    /// `TIMEOUT`: no answer arrived in time. The buffer of a read is not valid. A write may have been performed, and if
    /// it has not been by now it will not be.
    Timeout,
    /// `DISPATCH_TIMEOUT`: the command waited for too long before its request could be sent: this host is congested.
    /// Nothing was sent.
    DispatchTimeout,
}

impl Status {
    /// Returns 1RMA's name of the status.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::RemoteAuthenticationFailure => "REMOTE_AUTHENTICATION_FAILURE",
            Self::Nack => "NACK",
            Self::Timeout => "TIMEOUT",
            Self::DispatchTimeout => "DISPATCH_TIMEOUT",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
