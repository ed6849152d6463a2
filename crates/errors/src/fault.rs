//! The party that is at fault for an error. It decides which side must act before the same call can succeed.

use crate::ErrorCode;

/// Party that must act before the same call can succeed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Fault {
    /// The caller: the call, its arguments or its configuration are invalid, or request something that the caller may
    /// not have.
    Caller = 1,
    /// No party: the permission, the object or the name no longer exists, which may happen at any time. The caller
    /// acquires a new one, or does without.
    Ended = 2,
    /// The caller's tenant: its quota is used up, it is paused or barred, or its programs hold what the caller
    /// requests.
    Tenant = 3,
    /// The node or the directory: it is gone, full or silent, or refuses all clients.
    Node = 4,
    /// The machine on which the program runs: memory, devices, limits.
    Machine = 5,
    /// Another program, which has broken the rules, or has written over memory that was shared with it.
    Peer = 6,
    /// Portcullis itself: its code has a bug.
    Library = 7,
}

impl Fault {
    /// All parties, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Caller, Self::Ended, Self::Tenant, Self::Node, Self::Machine, Self::Peer, Self::Library];

    /// Returns the name, in small letters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Ended => "ended",
            Self::Tenant => "tenant",
            Self::Node => "node",
            Self::Machine => "machine",
            Self::Peer => "peer",
            Self::Library => "library",
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl ErrorCode {
    /// Returns the party that is at fault for an error of this kind.
    #[must_use]
    pub const fn fault(self) -> Fault {
        use ErrorCode as Is;
        match self {
            Is::Expired | Is::Revoked | Is::NotLive | Is::ObjectGone | Is::AnotherNode | Is::NoSuchName => {
                Fault::Ended
            }
            Is::NoSuchObject
            | Is::NotShared
            | Is::BeyondShare
            | Is::LeaseEnded
            | Is::ClaimEnded
            | Is::Violation => Fault::Ended,
            Is::Quota | Is::Paused | Is::Barred | Is::Conflict | Is::QueueFull | Is::NoFreeChunk => {
                Fault::Tenant
            }
            Is::TableFull | Is::NoRoomInQueue | Is::QueueClosed | Is::DirectoryQuota | Is::TooManyCalls => {
                Fault::Tenant
            }
            Is::SessionLost
            | Is::NodeGone
            | Is::Interrupted
            | Is::TimedOut
            | Is::OutOfMemory
            | Is::NodeFull
            | Is::NicFailed => Fault::Node,
            Is::NoChunks | Is::NoNode | Is::AttachRefused | Is::NodeSilent | Is::HungUp | Is::ShownOut => {
                Fault::Node
            }
            Is::NotTheNode | Is::NotAccepted | Is::UnfitOffer | Is::NoPath | Is::NodeEnded | Is::NoServer => {
                Fault::Node
            }
            Is::ServerGone | Is::DirectoryAway | Is::DirectoryRefused | Is::DirectoryContended => Fault::Node,
            Is::NameLeadsNowhere | Is::NoAddresses | Is::OneShotRefused | Is::OperatorRefused => Fault::Node,
            Is::LocalFault | Is::NotEnoughMemory | Is::MemlockTooLow | Is::Socket | Is::AuditLog => {
                Fault::Machine
            }
            Is::Exhausted | Is::Unsupported | Is::DeviceFailed | Is::NoLibrary | Is::DeviceChoice => {
                Fault::Machine
            }
            Is::DeviceUnusable
            | Is::Unenforced
            | Is::Machine
            | Is::Mapping
            | Is::HeapPlace
            | Is::NoSandbox => Fault::Machine,
            Is::IdentityUnreadable | Is::CertificateUnsigned | Is::NoCuda | Is::CudaRefused => Fault::Machine,
            Is::NotANode | Is::TlsBreach | Is::FrameLength | Is::FrameOutOfTurn | Is::MessageBreach => {
                Fault::Peer
            }
            Is::TooMuchSent | Is::SentAfterTheEnd | Is::TableDamaged | Is::QueueDamaged => Fault::Peer,
            Is::ChunkTableDamaged | Is::MalformedMessage | Is::WildPointer | Is::NonsenseReply => Fault::Peer,
            Is::MethodPanicked
            | Is::MethodFailed
            | Is::CallLate
            | Is::ResultTooLong
            | Is::DirectoryNonsense => Fault::Peer,
            Is::Panicked => Fault::Library,
            // docs/errors.md shows the fault of each code, and a test compares both.
            _ => Fault::Caller,
        }
    }
}
