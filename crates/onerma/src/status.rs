//! How an operation ends (1RMA Table 3).

use std::fmt;

/// The status codes of 1RMA, by the names of its Table 3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// `OK`: the operation completed, and its data was transferred.
    Ok,
    /// `REMOTE_AUTHENTICATION_FAILURE`: the responder does not know the derived key that the command showed. The region
    /// may have been invalidated or given another key. Nothing was done. This answer is not authenticated, since there is
    /// no key for it: somebody on the path can make it up, as it could drop the request.
    RemoteAuthenticationFailure,
    /// `NACK`: the responder's queue of inbound requests was too long: that host is congested. Nothing was done.
    Nack,
    /// `TIMEOUT`: no answer came in time. A read has moved nothing that counts. A write may have been carried out, and if it
    /// has not been by now it will not be.
    Timeout,
    /// `DISPATCH_TIMEOUT`: the command waited for too long before its request could be sent: this host is congested.
    /// Nothing was sent.
    DispatchTimeout,
}

impl Status {
    /// The name that 1RMA gives it.
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
