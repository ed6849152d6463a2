//! Classification of failures to connect: those after which a later attempt may succeed.

use crate::{ConnectError, PortAttachError};

impl ConnectError {
    /// Returns whether another attempt may succeed although the caller changes nothing: the node is not there yet, is
    /// too slow, or refuses for now.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Address(_) => false,
            Self::Find(error) => !error.is_callers(),
            Self::Attach(error) => {
                !matches!(error, PortAttachError::NotANode { .. } | PortAttachError::Denied { .. })
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(error) => over_tcp(error),
            #[cfg(feature = "udp")]
            Self::Udp(crate::UdpError::Attach(error)) => over_tcp(error),
            #[cfg(feature = "udp")]
            Self::Udp(error) => {
                !matches!(error, crate::UdpError::Path(portcullis_onerma::PathError::TooShort(_)))
            }
            #[cfg(feature = "rdma")]
            Self::Device(_) => true,
            Self::Client(error) => error.is_retryable(),
            Self::Host(_) => true,
        }
    }
}

#[cfg(any(feature = "rdma", feature = "udp"))]
fn over_tcp(error: &portcullis_attach::tls::AttachError) -> bool {
    use portcullis_attach::tls::AttachError::{HungUp, NoHost, NoNode, Refused, Silent, TooLate};
    matches!(
        error,
        NoNode { .. } | NoHost { .. } | Silent { .. } | HungUp { .. } | TooLate { .. } | Refused(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Host, HostConfig, PortLimits};
    use crate::{Error, NodeConfig, connect};

    #[test]
    fn a_node_that_is_not_there_yet_is_worth_another_attempt_and_a_wrong_address_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("shm:{}", folder.path().join("none.sock").display());
        assert!(connect(&address).expect_err("no node").is_retryable());
        assert!(!connect("nowhere").expect_err("no address").is_retryable());
        assert!(ConnectError::Client(Error::ArenaFull { asked: 1, needed: 2, arena: 2 }).is_retryable());
        assert!(!ConnectError::Client(Error::ArenaFull { asked: 2, needed: 3, arena: 2 }).is_retryable());
        assert!(!ConnectError::Client(Error::Barred).is_retryable());
    }

    #[test]
    fn a_configuration_that_contradicts_itself_never_starts_and_a_socket_that_is_taken_may_be_free_later() {
        let start = |config| Host::start(config).expect_err("no node");
        let port = PortLimits { send_depth: 3, ..PortLimits::default() };
        assert!(!start(HostConfig { port, ..HostConfig::default() }).is_retryable());
        let node = NodeConfig { pool_bytes: 0, ..NodeConfig::default() };
        assert!(!start(HostConfig { node, ..HostConfig::default() }).is_retryable());
        let audit = Some("/no/such/folder/audit.log".into());
        assert!(start(HostConfig { audit, ..HostConfig::default() }).is_retryable());
    }
}
