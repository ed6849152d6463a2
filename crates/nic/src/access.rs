//! The access that a region, a window or a queue pair allows.

use portcullis_protocol::Rights;

bitflags::bitflags! {
    /// Access flags, with the meaning of `IBV_ACCESS_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u8 {
        /// The NIC may write here for local requests: receives, and the results of READs and atomics.
        const LOCAL_WRITE = 1;
        /// Peers may READ.
        const REMOTE_READ = 2;
        /// Peers may WRITE.
        const REMOTE_WRITE = 4;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 8;
        /// Windows may be bound over this region.
        const WINDOW_BIND = 16;
    }
}

impl Access {
    /// All flags that a peer can be given.
    pub const REMOTE: Self = Self::REMOTE_READ.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);
}

impl From<Rights> for Access {
    fn from(rights: Rights) -> Self {
        let mut access = Self::empty();
        access.set(Self::REMOTE_READ, rights.contains(Rights::READ));
        access.set(Self::REMOTE_WRITE, rights.contains(Rights::WRITE));
        access.set(Self::REMOTE_ATOMIC, rights.contains(Rights::ATOMIC));
        access
    }
}
