//! Sockets that clients of this machine connect to, and the users that may open them.

use portcullis_attach::unix::SocketAccess;
use std::path::PathBuf;

/// A socket that clients of this machine connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The path of the socket. An existing socket on which no process listens is replaced; nothing else is.
    pub path: PathBuf,
    /// The tenant that the socket's clients act for. `None`: the user that each client runs as, as the kernel reports
    /// it.
    pub tenant: Option<String>,
}

/// The access to a node's sockets, as far as the configuration gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// The permission bits of the sockets' files.
    pub mode: Option<u32>,
    /// The number of the group that the sockets' files belong to.
    pub group: Option<u32>,
}

impl Sockets {
    /// The access to one of the sockets.
    ///
    /// By default the group may open it, if one is configured. Otherwise all users may, if the kernel determines each
    /// client's tenant; and only the node's own user may, if opening the socket makes a client act for the socket's
    /// tenant.
    #[must_use]
    pub fn access(&self, listen: &Listen) -> SocketAccess {
        let default = match (self.group, &listen.tenant) {
            (Some(_), _) => 0o660,
            (None, None) => 0o666,
            (None, Some(_)) => 0o600,
        };
        SocketAccess { mode: self.mode.unwrap_or(default), group: self.group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_proves_nothing_by_itself_is_open_to_everybody() {
        let listen = |tenant: Option<&str>| Listen { path: "/a".into(), tenant: tenant.map(str::to_owned) };
        let mode = |sockets: Sockets, tenant| sockets.access(&listen(tenant)).mode;
        let unsaid = Sockets::default();
        assert_eq!((mode(unsaid, None), mode(unsaid, Some("orange"))), (0o666, 0o600));
        let group = Sockets { group: Some(7), ..unsaid };
        assert_eq!((mode(group, None), mode(group, Some("orange"))), (0o660, 0o660));
        let said = Sockets { mode: Some(0o606), ..group };
        assert_eq!(said.access(&listen(None)), SocketAccess { mode: 0o606, group: Some(7) });
    }
}
