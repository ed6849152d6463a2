//! The stable numbers and names of errors.
//!
//! A program in another language, or one that reads logs, identifies an error by its number or its name. Both never
//! change. A number that goes out of use is not used again. The text of an error may change.
//!
//! The crates' error types return their [`ErrorCode`] through [`Coded`]. Errors that mean the same to their reader
//! share a code, wherever they were detected. An error that only passes on another error has the code of that error.
#![forbid(unsafe_code)]

mod fault;

pub use fault::Fault;

/// An error that has a number and a name.
pub trait Coded: std::error::Error {
    /// Returns the error's code, which has a number and a name.
    fn code(&self) -> ErrorCode;
}

macro_rules! error_codes {
    ($($code:ident = $number:literal, $name:literal, $meaning:literal;)*) => {
        /// Kind of an error. `docs/errors.md` lists all kinds as a table.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum ErrorCode {
            $(#[doc = $meaning] $code = $number,)*
        }

        impl ErrorCode {
            /// All codes, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// Returns the name, in small letters and hyphens.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)*
                }
            }

            /// Returns the meaning, in a sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$code => $meaning,)*
                }
            }
        }
    };
}

error_codes! {
    // Operations and permissions: errors that the client detects.
    Expired = 101, "expired", "The permission's deadline has passed.";
    Revoked = 102, "revoked", "The node ended the permission before its deadline.";
    LivesLonger = 103, "lives-longer", "An extension would have shortened the permission.";
    OutsideRange = 104, "outside-range", "The access reaches outside the permission's bytes.";
    OutsideBuffer = 105, "outside-buffer", "The access reaches outside the caller's buffer.";
    ForeignBuffer = 106, "foreign-buffer", "The buffer belongs to another session.";
    WrongRight = 107, "wrong-right", "The permission does not hold the right that the access needs.";
    Misaligned = 108, "misaligned", "An atomic's address is not a multiple of 8.";
    Violation = 109, "violation", "The node's NIC refused an access that had not been checked before.";
    Interrupted = 110, "interrupted", "The connection broke under the operation, which may or may not have happened.";
    QueueFull = 111, "queue-full", "A queue of the client's is full.";
    ArenaFull = 112, "arena-full", "The client's arena has no piece of the requested size.";
    LocalFault = 113, "local-fault", "The client's own NIC failed.";
    SessionLost = 114, "session-lost", "The session with the node is over.";
    NodeGone = 115, "node-gone", "The node is gone, and everything on it.";
    NoFreeChunk = 116, "no-free-chunk", "All chunks of the pool are held.";
    ForeignChunk = 117, "foreign-chunk", "The chunk does not belong to this client any more.";
    SmallObjectTooLong = 118, "small-object-too-long", "A small object has more bytes than a chunk.";
    NoSuchSmallObject = 119, "no-such-small-object", "The small object was freed before, or belongs to another allocator.";
    ForeignPermission = 120, "foreign-permission", "The permission's keys work on another session's queue pairs only.";
    TimedOut = 121, "timed-out", "The node, or the network to it, has not answered within the session's time limit.";

    // Requests that the node refuses.
    MalformedRequest = 201, "malformed-request", "The node could not read the message.";
    NotLive = 202, "not-live", "No live permission of this client has the id.";
    NoSuchObject = 203, "no-such-object", "No object of this tenant starts at the address.";
    NothingAsked = 204, "nothing-asked", "The requested size or rights are meaningless.";
    NotExtendable = 205, "not-extendable", "The permission cannot be extended any more.";
    LifetimeTooLong = 206, "lifetime-too-long", "The lifetime is longer than the node allows.";
    Conflict = 207, "conflict", "Other clients held the object for longer than the request may wait.";
    Quota = 208, "quota", "The tenant's quota is used up.";
    OutOfMemory = 209, "out-of-memory", "The pool has no run of free bytes of the requested size.";
    NodeFull = 210, "node-full", "The node has reached a limit of its own.";
    Paused = 211, "paused", "The client or its tenant waits after too many violations.";
    Barred = 212, "barred", "The node does not serve the client or its tenant, after too many violations.";
    NicFailed = 215, "nic-failed", "The node's NIC failed to carry the request out.";
    ObjectGone = 216, "object-gone", "The object was freed, or never belonged to this tenant.";
    AnotherNode = 217, "another-node", "The reference is from another node, or from before the node's last start.";
    OutsideObject = 218, "outside-object", "The requested part reaches outside the object.";
    Alignment = 219, "alignment", "The node cannot provide the requested alignment.";
    KeptTooLong = 220, "kept-too-long", "The request would keep the object for longer than the node allows.";
    NoSuchName = 221, "no-such-name", "The tenant has no such name, or does not share it with the requesting tenant.";
    NameTaken = 222, "name-taken", "Another object of the tenant has the name.";
    AlreadyNamed = 223, "already-named", "The object has a name already.";
    AlreadyShared = 224, "already-shared", "The name is already shared with that tenant, and the request would take rights away.";
    NotShared = 225, "not-shared", "The name is not shared with that tenant.";
    BeyondShare = 226, "beyond-share", "The object is shared with the tenant, but with less than the request needs.";
    SharedWithOwner = 227, "shared-with-owner", "The request would share an object with the tenant that it belongs to.";
    CannotInclude = 228, "cannot-include", "The object cannot belong to that head: one of them has a name, members or a head.";
    NoChunks = 229, "no-chunks", "The node has no pool of chunks.";

    // Attaching to a node.
    WithoutUdp = 300, "without-udp", "The address needs UDP, and the program was built without it.";
    UnknownAddress = 301, "unknown-address", "The text is not a node's address.";
    WithoutRdma = 302, "without-rdma", "The address needs RDMA, and the program was built without it.";
    PlainBeyondLoopback = 303, "plain-beyond-loopback", "Without certificates a node listens, and is reached, on loopback only.";
    NoNode = 304, "no-node", "No node listens at the address.";
    AttachRefused = 305, "attach-refused", "The node does not admit the client.";
    NodeSilent = 306, "node-silent", "The node did not answer in time.";
    HungUp = 307, "hung-up", "The other side ended the attach before it was over.";
    NotANode = 308, "not-a-node", "The peer at the address is not a node of this version.";
    NotTheNode = 309, "not-the-node", "The node's certificate is not one that the client accepts.";
    NotAccepted = 310, "not-accepted", "The node does not accept the client's certificate.";
    UnfitOffer = 311, "unfit-offer", "The node's offer cannot be used here.";
    SocketDenied = 312, "socket-denied", "This user may not connect to the node's socket.";
    NoSuchHost = 313, "no-such-host", "The host's name has no address.";
    TlsBreach = 321, "tls-breach", "The peer broke the rules of TLS.";
    FrameLength = 322, "frame-length", "The peer announced a frame of an invalid length.";
    FrameOutOfTurn = 323, "frame-out-of-turn", "The peer sent an unexpected frame.";
    MessageBreach = 324, "message-breach", "The peer sent a malformed or unexpected message.";
    TooMuchSent = 325, "too-much-sent", "The peer sent more than an attach needs.";
    SentAfterTheEnd = 326, "sent-after-the-end", "The peer sent something after the attach was over.";
    ShownOut = 327, "shown-out", "The peer was refused, and the reason was sent to it.";
    EndCount = 331, "end-count", "The client brought another number of queue pairs than the node requires.";
    EndNowhere = 332, "end-nowhere", "Packets cannot be sent to the address of a queue pair.";
    EndNumber = 333, "end-number", "A queue pair's number is invalid.";
    EndTwice = 334, "end-twice", "The client named a queue pair twice.";
    NoPath = 335, "no-path", "The node's UDP port does not answer.";
    TenantNameLength = 341, "tenant-name-length", "A tenant's name has too few letters or too many.";
    TenantNameLetters = 342, "tenant-name-letters", "A tenant's name has letters that are not allowed.";
    TenantNameReserved = 343, "tenant-name-reserved", "A tenant's name is reserved for other uses.";

    // Certificates and keys.
    IdentityUnreadable = 351, "identity-unreadable", "A file of a certificate or a key cannot be read.";
    KeyExposed = 352, "key-exposed", "Other users may read the file of a key.";
    IdentityMalformed = 353, "identity-malformed", "A file holds no certificate or no key.";
    IdentityUnacceptable = 354, "identity-unacceptable", "A certificate or a key is of a kind that cannot be used.";
    IdentityMismatch = 355, "identity-mismatch", "A certificate and a key do not belong together.";
    CertificateCall = 356, "certificate-call", "The name, the hosts or the days of the requested certificate are invalid.";
    CertificateExists = 357, "certificate-exists", "A certificate exists already.";
    CertificateUnsigned = 358, "certificate-unsigned", "The authority could not sign.";

    // Running a node.
    LimitTooSmall = 401, "limit-too-small", "A limit of the configuration is too small.";
    LimitTooLarge = 402, "limit-too-large", "A limit of the configuration is too large.";
    LimitsContradict = 403, "limits-contradict", "Two limits of the configuration contradict each other.";
    Configuration = 404, "configuration", "The configuration is invalid.";
    Unenforced = 405, "unenforced", "The device does not enforce the requested mechanism.";
    NotEnoughMemory = 406, "not-enough-memory", "The machine has less memory than the configuration may use.";
    MemlockTooLow = 407, "memlock-too-low", "The process may not lock as much memory as a device needs.";
    ListenAddress = 408, "listen-address", "The text is not an address to listen at.";
    Socket = 409, "socket", "A socket cannot be created.";
    AuditLog = 410, "audit-log", "The audit log cannot be opened.";
    NodeEnded = 411, "node-ended", "The node has ended.";
    OperatorRefused = 412, "operator-refused", "The node refuses the operator's request.";

    // NICs and devices.
    NoSuchHandle = 501, "no-such-handle", "A handle names no object on the NIC.";
    Busy = 502, "busy", "An object on the NIC is still in use.";
    InvalidArgument = 503, "invalid-argument", "An argument of a verbs call is invalid.";
    WrongState = 504, "wrong-state", "A queue pair is not in the state that the call needs.";
    Exhausted = 505, "exhausted", "The NIC has no more objects of the requested kind.";
    Unsupported = 506, "unsupported", "The NIC does not support the request.";
    DeviceFailed = 507, "device-failed", "The device, or its driver, refused.";
    NoLibrary = 511, "no-library", "libibverbs is not installed, or cannot be used.";
    DeviceChoice = 512, "device-choice", "No device fits the choice, or several do.";
    DeviceUnusable = 513, "device-unusable", "The device cannot be opened.";
    NoCuda = 514, "no-cuda", "CUDA's driver library is not installed or cannot be used, or the machine has no GPU.";
    CudaRefused = 515, "cuda-refused", "CUDA's driver refused to register a session's arena.";

    // The machine.
    Machine = 601, "machine", "The machine refused a system call.";
    Mapping = 602, "mapping", "Memory could not be allocated or mapped.";

    // Text that cannot be read.
    LifetimeMalformed = 701, "lifetime-malformed", "The text is not a lifetime.";
    LifetimeWithoutUnit = 702, "lifetime-without-unit", "The lifetime has no unit.";
    LifetimeUnit = 703, "lifetime-unit", "The lifetime has an unknown unit.";
    LifetimeTooFine = 704, "lifetime-too-fine", "The lifetime is finer than a microsecond.";
    LifetimeTooLarge = 705, "lifetime-too-large", "The lifetime is longer than a lifetime can be.";
    UnknownRights = 711, "unknown-rights", "The text names no rights.";
    UnknownSharing = 712, "unknown-sharing", "The text names no kind of sharing.";
    UnknownObjectRef = 713, "unknown-object-ref", "The text or the bytes are not a reference to an object.";
    UnknownIncarnation = 714, "unknown-incarnation", "The text is not an incarnation of a node.";
    UnknownMechanism = 715, "unknown-mechanism", "The text names no protection mechanism.";
    UnknownAuditEvent = 716, "unknown-audit-event", "The text names no event of the audit log.";
    UnknownTime = 717, "unknown-time", "The text is not a time of day and date.";
    ObjectNameLength = 718, "object-name-length", "An object's name has too few bytes or too many.";
    ObjectNameLetters = 719, "object-name-letters", "An object's name has a control character.";

    // Tables and queues.
    NotATable = 731, "not-a-table", "The object is not a table, or is one of another version.";
    TableOption = 732, "table-option", "A table cannot be made with such an option.";
    KeyTooLong = 733, "key-too-long", "A key has more bytes than a key may have.";
    ValueTooLong = 734, "value-too-long", "A value has more bytes than a value may have.";
    ReadOnlyTable = 735, "read-only-table", "The table was opened for reading only.";
    TableFull = 736, "table-full", "The table has as many parts as it can have.";
    TableDamaged = 737, "table-damaged", "The table's memory is damaged.";
    TableOfOneHandle = 738, "table-of-one-handle", "The table's values lie in chunks, which only the handle that made the table can read.";
    NotAQueue = 741, "not-a-queue", "The object is not a queue, or is one of another version.";
    QueueOption = 742, "queue-option", "A queue cannot be made with such an option.";
    EntryTooLong = 743, "entry-too-long", "An entry has more bytes than fit into this queue.";
    QueueClosed = 744, "queue-closed", "The queue is closed: it accepts no more entries.";
    NoRoomInQueue = 745, "no-room-in-queue", "The queue has as many segments as it can have.";
    QueueDamaged = 746, "queue-damaged", "The queue's memory is damaged.";
    ClaimEnded = 747, "claim-ended", "The claim's lease was over, and the entry was delivered again.";
    QueueDelivery = 748, "queue-delivery", "The queue's entries are popped and the call is about claims, or the other way round.";
    ChunkTableDamaged = 751, "chunk-table-damaged", "The table of a chunk pool is damaged.";

    // Bytes that cannot be decoded.
    MalformedMessage = 801, "malformed-message", "The bytes are not a control message.";
    LengthTooLarge = 802, "length-too-large", "A permission's header cannot hold a length as large as that.";

    // Calls through shared memory.
    WildPointer = 901, "wild-pointer", "A pointer in a call's arguments is invalid, or the arguments have no end.";
    HeapFull = 902, "heap-full", "A heap or a scope has no room.";
    HeapPlace = 903, "heap-place", "A heap's addresses are taken in this process, or are invalid for a heap.";
    NotAHeap = 904, "not-a-heap", "The memory is not a heap of this version.";
    NotAllocated = 905, "not-allocated", "The memory to free is not allocated.";
    NoServer = 911, "no-server", "No server serves calls at the path.";
    NoSuchMethod = 921, "no-such-method", "The server has no method with the number.";
    ArgumentsTooLong = 922, "arguments-too-long", "The method does not take arguments of that size.";
    MethodPanicked = 923, "method-panicked", "The method's code has a bug.";
    MethodFailed = 924, "method-failed", "The method reported its failure, and the reason.";
    CallLate = 925, "call-late", "The deadline of a call has passed.";
    CallCancelled = 926, "call-cancelled", "A call was cancelled before its method began.";
    ServerGone = 927, "server-gone", "The server is gone, and the method may have run.";
    TooManyCalls = 928, "too-many-calls", "As many calls of a connection are under way as can be.";
    NoSuchCall = 929, "no-such-call", "The call is not under way: its answer was taken before.";
    NonsenseReply = 930, "nonsense-reply", "The server's reply is malformed.";
    ResultTooLong = 931, "result-too-long", "The result of a call is longer than the client accepts.";
    NoSandbox = 932, "no-sandbox", "The machine refuses a sandbox, or has none for processors of its kind.";
    SandboxStack = 933, "sandbox-stack", "Code has used up its stack: its arguments lead too deep.";
    SandboxFault = 934, "sandbox-fault", "The code in a sandbox has touched memory that it may not.";
    SandboxBudget = 935, "sandbox-budget", "The code in a sandbox took longer than it may.";
    NotSealed = 936, "not-sealed", "The method requires sealed arguments, and these are not sealed for good.";
    NoSealedWanted = 937, "no-sealed-wanted", "The method does not read sealed arguments.";
    SealBusy = 938, "seal-busy", "A scope cannot be sealed while something can still write to it.";
    OneShotRefused = 939, "one-shot-refused", "The server has no room for one more scope to seal, or has no use for one.";

    // The directory.
    EntryNameLength = 1001, "entry-name-length", "A name in the directory, or a part of it, has too few bytes or too many.";
    EntryNameLetters = 1002, "entry-name-letters", "A name in the directory has letters that are not allowed.";
    EntryUnfit = 1003, "entry-unfit", "The directory does not accept the address or the access list.";
    RegistrationNotAllowed = 1004, "registration-not-allowed", "The tenant may not register the name.";
    LeaseEnded = 1005, "lease-ended", "The lease with the directory has ended, and everything with it.";
    DirectoryQuota = 1006, "directory-quota", "The process or the tenant has as much in the directory as it may have.";
    HeapSize = 1007, "heap-size", "No heap can have so many bytes.";
    NoAddresses = 1008, "no-addresses", "All addresses for heaps of that size are taken.";
    NoSuchHeap = 1009, "no-such-heap", "No heap lies at the address, or it is not for this process.";
    DirectoryAway = 1011, "directory-away", "The directory does not answer.";
    DirectoryRefused = 1012, "directory-refused", "The directory has refused the request itself.";
    DirectoryNonsense = 1013, "directory-nonsense", "The directory's answer makes no sense.";
    DirectoryContended = 1014, "directory-contended", "Other processes change the same entries of the directory all the time.";
    WithoutEtcd = 1015, "without-etcd", "The directory's address needs etcd, and the program was built without it.";
    NoDirectory = 1016, "no-directory", "A name cannot be looked up, because the directory's address is not set.";
    NameOfAnotherKind = 1017, "name-of-another-kind", "The name stands for an entry of another kind.";
    NameLeadsNowhere = 1018, "name-leads-nowhere", "None of the addresses that are registered under the name leads anywhere from here.";
    NotThisTenant = 1019, "not-this-tenant", "The process may not act for the tenant in the directory.";

    // Programs in other languages.
    Closed = 1101, "closed", "The handle was closed before, is of another kind, or never was one.";
    InUse = 1102, "in-use", "Another thread uses the session, the table or the queue just now.";
    Forked = 1103, "forked", "The process is a child of the one that made the handle.";
    NullArgument = 1104, "null-argument", "A pointer is null that must not be null.";
    NotText = 1105, "not-text", "A text is not UTF-8.";
    BadArgument = 1106, "bad-argument", "An argument is invalid.";
    BufferTooShort = 1107, "buffer-too-short", "The caller's memory is too short for the data.";
    UnderWay = 1108, "under-way", "An operation that is under way still uses the buffer.";
    Panicked = 1109, "panicked", "A bug in Portcullis itself has ended the call.";
}

impl ErrorCode {
    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Returns the code with a number. `None`: no code has this number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        let at = Self::ALL.binary_search_by_key(&number, |code| code.number()).ok()?;
        Some(Self::ALL[at])
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
