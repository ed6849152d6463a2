//! Planted mistakes: a test plants a mistake in the real code to prove that a checker finds it.
//!
//! Code that can be broken asks with [`planted!`] whether its mistake is planted. Without the feature `planted` the
//! answer is the constant `false`, and the compiler removes the mistake. Only tests of checkers turn the feature on: no
//! program that is shipped, and no test of such a program, has a mistake compiled in. A thread has at most one mistake at a
//! time.
#![forbid(unsafe_code)]

/// A mistake that the real code does not make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mistake {
    /// A withdrawal is confirmed while copy units still move bytes of accesses that it has ended.
    ConfirmedWhilePiecesMove,
    /// A withdrawal does not wait for a copy unit that has done nothing since the NIC last looked.
    SleepingUnitNotAwaited,
    /// A withdrawal does not wait for the piece that was posted last before it.
    LastPieceNotAwaited,
    /// A transfer is refused while copy units still move its first pieces.
    RefusedWhilePiecesMove,
    /// A chain goes on behind an invalidation while copy units still move bytes of accesses that it has ended.
    ChainGoesOnWhilePiecesMove,
    /// A withdrawal does not wait for the turns of engines that began before it.
    EngineNotAwaited,
    /// The rights of a queue pair change, and the engine that serves its client keeps the old ones.
    RightsKeptOnEngine,
    /// The node does not learn of a request that an engine has refused.
    RefusalKeptOnEngine,
    /// A window is bound again under its old key.
    KeyNotAdvanced,
    /// Memory is reused before its window is known to be unbound.
    ReusedBeforeUnbind,
    /// The expiry of leases is never checked.
    ExpiryNotScanned,
    /// Windows that linger stay bound for ever.
    LingerForever,
    /// Windows are handed from tenant to tenant, so that a key opens in every tenant's domain.
    HandoverAcrossTenants,
    /// A permission's start is not compared: a late revoke ends the permission's successor.
    StartNotChecked,
    /// A request that may have been executed is posted again.
    ExecutedReplayed,
    /// An access that depends on one that was refused is posted again.
    LinkForgotten,
    /// A permission that was revoked continues as long as its lifetime word allows.
    WordTrustedOverUnbind,
    /// Memory is given to another tenant with the last tenant's bytes in it.
    ScrubSkipped,
    /// An exclusive permission is granted beside shared ones.
    ExclusiveBesideShared,
    /// A violation is charged to the first tenant that attached.
    ViolationToWrongTenant,
    /// A client's queue pairs are put into another tenant's domain.
    QueuePairInWrongDomain,
    /// A header is given to another permission while its window is still bound.
    HeaderReusedWhileBound,
    /// The holder of one right gets all rights.
    RightsNotNarrowed,
    /// A window reaches one byte too far.
    RangeOneByteLong,
    /// The NIC does not compare the key's low byte.
    KeyNotCompared,
    /// A queue pair continues to serve after a refusal: requests that should be flushed are executed.
    ServesInError,
    /// The node takes only the first request out of a packed message.
    RestOfPackedForgotten,
    /// A request that waits is never granted.
    WaiterForgotten,
    /// Requests that a turn had no time to grant are not granted by the next.
    PutOffForgotten,
    /// A client's permissions are not ended when it leaves.
    DepartedKeepHolding,
    /// Permissions of a departed client that a turn could not end are not ended by the next.
    RestOfDepartedForgotten,
    /// An extension is accepted although its deadline had passed when it was confirmed.
    LateExtensionBelieved,
    /// A reference is accepted for any object that lies at its address.
    BirthNotCompared,
    /// An access that arrived too late is charged to its tenant, as a guess is.
    LatenessChargedToTenant,
    /// After a request without an answer, later requests use a spare while the first may still arrive.
    DoubtNotAwaited,
    /// A waiting session judges completions by a time that is up to 64 polls old.
    WaitJudgesByOldTime,
    /// The client gives up no operation that takes longer than its limit.
    LimitNotKept,
    /// When an object is no longer shared, the permissions of other tenants over it are not ended.
    UnshareEndsNothing,
    /// When a head is no longer shared, the permissions of other tenants over its members are not ended.
    MembersStayShared,
    /// Permissions over an object are granted after it was freed.
    FreedStillGranted,
    /// A head is freed without its members.
    MembersNotFreed,
    /// A free that waits for holders is answered at once.
    FreeAnsweredEarly,
    /// A tenant gets any rights over an object that is shared with it.
    ShareNotCompared,
    /// A permission over another tenant's object is set up in that tenant's domain.
    GuestInOwnersDomain,
    /// Bytes that another tenant wrote into a shared object are not scrubbed for the object's own tenant.
    GuestsBytesNotNoted,
    /// A key of a window group opens on any queue pair of its domain.
    QueuePairNotCompared,
    /// When a permission ends, the windows of its holder's spare queue pairs stay bound.
    SpareStaysBound,
    /// If a window's invalidation was flushed, because its holder has broken the queue pair, the window stays bound.
    FlushedInvalidationForgotten,
    /// A window whose bind was postponed, because its queue pair was broken, is never bound.
    PostponedBindForgotten,
    /// A key is taken for another key with the same fingerprint.
    FingerprintTrusted,
    /// A block that is in use again is taken for its earlier use.
    VersionNotCompared,
    /// A block has the same version each time it is used.
    VersionNotAdvanced,
    /// A split releases a bucket's keys before their copy is in place.
    HeaderBeforeCopy,
    /// A new bucket is used while the old one is still valid.
    BucketUsedTooEarly,
    /// A split copies slots that other clients still change.
    SlotsNotFrozen,
    /// A split that a dead client has begun stays as it is.
    SplitNotTakenOver,
    /// A new key becomes valid before its client has looked for another entry with the same key.
    AloneNotChecked,
    /// A key is found before its insertion is decided.
    PendingSeen,
    /// A block is put into a slot even if it was claimed too long ago.
    LateClaimUsed,
    /// A sweep frees a block as soon as it finds the block in no slot for the first time.
    SweptAtOnce,
    /// The block of a value that was replaced stays claimed.
    OldBlockNotFreed,
    /// A handle's change of a key does not wait for the one before.
    TurnNotAwaited,
    /// A change that shares the turn of another one ends before that one has stored its value.
    TurnSharedTooEarly,
    /// A change of a key counts although the key's slot had changed.
    LostRaceCounts,
    /// An extent is given back although clients have claimed blocks of it.
    ClaimedNotCompared,
    /// If another extent had the same number before, the versions of an extent's blocks begin again.
    VersionsBeginAgain,
    /// A sweep takes the pieces of values for orphans.
    PiecesNotSpared,
    /// A key whose time has expired is removed although it was stored again meanwhile.
    ExpiryNotCompared,
    /// A slot of a queue is marked as filled before its bytes are there.
    SlotFilledBeforeBytes,
    /// A consumer takes entries without checking whether another consumer was quicker.
    HeadNotCompared,
    /// A slot whose producer has died stays as it is.
    DeadSlotNotAbandoned,
    /// If a client dies while it adds or retires a segment, the segment that it leaves is not freed.
    SegmentLeftBehind,
    /// A claim's word is changed without checking whether the claim still exists.
    ClaimNotCompared,
    /// An entry is delivered again before its claim's lease is over.
    ClaimEndsEarly,
    /// An entry whose claim has ended is not delivered again.
    LapsedNotDelivered,
    /// A segment is returned to the node although entries of it are not acknowledged.
    SegmentGoesWithClaims,
    /// Producers continue in a queue that is closed.
    ClosedNotCompared,
    /// The NIC hands a chunk on with the bytes of its earlier holder.
    ChunkNotZeroed,
    /// The windows of a chunk that was freed stay bound.
    ChunkStaysBound,
    /// All uses of a chunk have the same number and the same keys.
    ChunkUsesNotCounted,
    /// The chunks of a client that has left are not freed.
    DepartedKeepChunks,
    /// A region stays open when its permission ends.
    RegionStaysOpen,
    /// An operation on a region needs no right.
    OperationRightNotChecked,
    /// A region reaches one byte too far.
    RegionOneByteLong,
    /// A change is carried out again for a repeated copy of its data.
    ChangeCarriedOutAgain,
    /// A change's data counts for any salt of its operation.
    SaltNotCompared,
    /// A change that has happened is forgotten at once, and reported as not having happened.
    FinishedForgotten,
    /// The packets of one read are sealed under one counter.
    PartsShareCounter,
    /// A write is repeated, although it may have happened already and others may write there.
    UncertainWriteRepeated,
    /// The key of a region works for every client.
    HolderNotAmongTerms,
    /// A read that waits is served although its permission has ended.
    WaitingReadServedLate,
    /// A region is opened while the NIC still exposes an ended permission over its object.
    OpenedWhileBound,
    /// An operation that no key has sealed is charged to the client whose name it bears.
    UnprovenCharged,
    /// The share of the solicitation window that an operation took is not returned.
    WindowNotRefunded,
    /// A probe is answered twice.
    ProbeAnsweredTwice,
    /// The end of a permission over UDP is reported while a lane still carries out an operation under it.
    EndedRegionNotAwaited,
    /// Each lane keeps the changes whose packets arrive there.
    ChangesBelongToLanes,
    /// The packets of all lanes have the same counters.
    LanesShareCounters,
    /// A read without an answer waits for ever.
    DeadlineForgotten,
    /// A refusal ends a change although its data is on its way.
    CopysRefusalBelieved,
    /// A transfer that may have happened in part is reported as refused.
    RefusedAfterEffect,
    /// A name stays in the directory when the lease that has registered it ends.
    NamesOutliveLease,
    /// The bytes of heaps that an ended lease held are still charged to its tenant.
    EndedBytesStayUsed,
    /// A heap's addresses are reclaimed when one of its holders has ended.
    HeldHeapReclaimed,
    /// A heap is given addresses without checking the addresses of the other heaps.
    PlaceGivenTwice,
    /// A lease ends when its first period is over, however often it is kept alive.
    LeaseNotExtended,
    /// Any tenant may hold a heap.
    AccessNotAsked,
    /// The sum that a tenant's processes hold is not compared with the tenant's quota.
    TenantsBytesNotCompared,
    /// An ended lease stays a holder of its heaps.
    EndedStayHolders,
    /// A server does not check whether a call was cancelled.
    CancelNotLookedAt,
    /// A cancelled call's reply bears no number.
    CancelledNotNumbered,
    /// A server does not check deadlines.
    DeadlineNotLookedAt,
    /// A server checks a deadline before it copies the arguments, but not afterwards.
    DeadlineLookedAtOnce,
    /// A client does not check deadlines.
    LateNotTold,
    /// Only the first page of the arguments is copied.
    OnePageCopied,
    /// Arguments are looked for in the connection's own heap alone.
    OwnHeapAlone,
    /// A result's scope is not freed with its answer.
    ResultKept,
    /// The result of a call whose caller has stopped waiting is not freed.
    LateResultKept,
    /// The memory that a method had for its result is not freed when the method panics.
    PanickedResultKept,
    /// A line that was read counts as new again when the ring reaches it the next time.
    TurnNotCompared,
    /// The slot of a call that has ended is never free again.
    SlotNotFreed,
    /// A call stays under way although its client has given up the server.
    GoneNotTold,
    /// A look-up of blocks takes no lease of what it finds.
    BlockLeaseNotTaken,
    /// A block is entered and kept before its bytes are written.
    BlockKeptBeforeWritten,
    /// A get of blocks on several nodes looks no further after a node has joined.
    JoinedNodesForgotten,
    /// A removal of blocks does not wait for copies that are on their way to other nodes.
    ForwardedAfterRemoval,
    /// A node that refuses a block counts as one that has a copy.
    RefusalCounted,
    /// The pages that a dead process was about to take are not reclaimed.
    TakingNotReclaimed,
    /// The pages of a run are freed from the first page on.
    FreedFromTheFirst,
    /// When the pages of a dead process are reclaimed, those of all other processes are reclaimed too.
    AllReclaimed,
}

impl Mistake {
    /// Mistakes of the structures that show if one user ends at some step. The tests of the structures find them.
    pub const OF_STEPS: [Self; 19] = [
        Self::VersionNotCompared,
        Self::HeaderBeforeCopy,
        Self::BucketUsedTooEarly,
        Self::SlotsNotFrozen,
        Self::SplitNotTakenOver,
        Self::LateClaimUsed,
        Self::OldBlockNotFreed,
        Self::TurnNotAwaited,
        Self::TurnSharedTooEarly,
        Self::LostRaceCounts,
        Self::ClaimedNotCompared,
        Self::VersionsBeginAgain,
        Self::PiecesNotSpared,
        Self::ExpiryNotCompared,
        Self::SegmentLeftBehind,
        Self::ClaimNotCompared,
        Self::ClaimEndsEarly,
        Self::LapsedNotDelivered,
        Self::SegmentGoesWithClaims,
    ];

    /// Mistakes of the hash table that show if several users race. The simulator's checkers find them.
    pub const OF_RACES: [Self; 5] = [
        Self::FingerprintTrusted,
        Self::VersionNotAdvanced,
        Self::AloneNotChecked,
        Self::PendingSeen,
        Self::SweptAtOnce,
    ];

    /// Mistakes of the queue that show if several users race. The simulator's checkers find them.
    pub const OF_QUEUES: [Self; 4] = [
        Self::SlotFilledBeforeBytes,
        Self::HeadNotCompared,
        Self::DeadSlotNotAbandoned,
        Self::ClosedNotCompared,
    ];

    /// Mistakes of stores of blocks. The simulator's checkers find them.
    pub const OF_BLOCKS: [Self; 2] = [Self::BlockLeaseNotTaken, Self::BlockKeptBeforeWritten];

    /// Mistakes of claims that show among many consumers. The simulator's checkers and the tests of the structures find
    /// them.
    pub const OF_CLAIMS: [Self; 3] =
        [Self::ClaimNotCompared, Self::LapsedNotDelivered, Self::SegmentGoesWithClaims];

    /// Mistakes of the chunks that the NIC hands out. The simulator's checkers find them.
    pub const OF_CHUNKS: [Self; 4] =
        [Self::ChunkNotZeroed, Self::ChunkStaysBound, Self::ChunkUsesNotCounted, Self::DepartedKeepChunks];

    /// Mistakes of the directory's ledger. The directory's own tests find them.
    pub const OF_DIRECTORY: [Self; 4] =
        [Self::NamesOutliveLease, Self::EndedBytesStayUsed, Self::HeldHeapReclaimed, Self::PlaceGivenTwice];

    /// Mistakes of the limits of sessions. The simulator's checkers find them if nodes freeze.
    pub const OF_LIMITS: [Self; 1] = [Self::LimitNotKept];

    /// Mistakes of calls through shared memory, and of the leases that their heaps have. The simulator's checkers find
    /// them.
    pub const OF_CALLS: [Self; 20] = [
        Self::LeaseNotExtended,
        Self::AccessNotAsked,
        Self::TenantsBytesNotCompared,
        Self::EndedStayHolders,
        Self::CancelNotLookedAt,
        Self::CancelledNotNumbered,
        Self::DeadlineNotLookedAt,
        Self::DeadlineLookedAtOnce,
        Self::LateNotTold,
        Self::OnePageCopied,
        Self::OwnHeapAlone,
        Self::ResultKept,
        Self::LateResultKept,
        Self::PanickedResultKept,
        Self::TurnNotCompared,
        Self::SlotNotFreed,
        Self::GoneNotTold,
        Self::TakingNotReclaimed,
        Self::FreedFromTheFirst,
        Self::AllReclaimed,
    ];

    /// Mistakes of clients over UDP. The simulator's checkers find them.
    pub const OF_UDP: [Self; 20] = [
        Self::RegionStaysOpen,
        Self::OperationRightNotChecked,
        Self::RegionOneByteLong,
        Self::ChangeCarriedOutAgain,
        Self::SaltNotCompared,
        Self::FinishedForgotten,
        Self::PartsShareCounter,
        Self::UncertainWriteRepeated,
        Self::HolderNotAmongTerms,
        Self::WaitingReadServedLate,
        Self::OpenedWhileBound,
        Self::UnprovenCharged,
        Self::WindowNotRefunded,
        Self::DeadlineForgotten,
        Self::CopysRefusalBelieved,
        Self::RefusedAfterEffect,
        Self::ProbeAnsweredTwice,
        Self::EndedRegionNotAwaited,
        Self::ChangesBelongToLanes,
        Self::LanesShareCounters,
    ];

    /// Mistakes of the copy units of the software NIC. The simulator's checkers find them.
    pub const OF_COPY_UNITS: [Self; 5] = [
        Self::ConfirmedWhilePiecesMove,
        Self::SleepingUnitNotAwaited,
        Self::LastPieceNotAwaited,
        Self::RefusedWhilePiecesMove,
        Self::ChainGoesOnWhilePiecesMove,
    ];

    /// Mistakes of the engines of the software NIC. The simulator's checkers find them.
    pub const OF_ENGINES: [Self; 3] =
        [Self::EngineNotAwaited, Self::RightsKeptOnEngine, Self::RefusalKeptOnEngine];

    /// Mistakes of the node, the client and the NIC. The simulator's checkers find them.
    pub const ALL: [Self; 40] = [
        Self::KeyNotAdvanced,
        Self::ReusedBeforeUnbind,
        Self::ExpiryNotScanned,
        Self::LingerForever,
        Self::HandoverAcrossTenants,
        Self::StartNotChecked,
        Self::ExecutedReplayed,
        Self::LinkForgotten,
        Self::WordTrustedOverUnbind,
        Self::ScrubSkipped,
        Self::ExclusiveBesideShared,
        Self::ViolationToWrongTenant,
        Self::QueuePairInWrongDomain,
        Self::HeaderReusedWhileBound,
        Self::RightsNotNarrowed,
        Self::RangeOneByteLong,
        Self::KeyNotCompared,
        Self::ServesInError,
        Self::RestOfPackedForgotten,
        Self::WaiterForgotten,
        Self::PutOffForgotten,
        Self::DepartedKeepHolding,
        Self::RestOfDepartedForgotten,
        Self::LateExtensionBelieved,
        Self::BirthNotCompared,
        Self::LatenessChargedToTenant,
        Self::DoubtNotAwaited,
        Self::WaitJudgesByOldTime,
        Self::UnshareEndsNothing,
        Self::MembersStayShared,
        Self::FreedStillGranted,
        Self::MembersNotFreed,
        Self::FreeAnsweredEarly,
        Self::ShareNotCompared,
        Self::GuestInOwnersDomain,
        Self::GuestsBytesNotNoted,
        Self::QueuePairNotCompared,
        Self::SpareStaysBound,
        Self::FlushedInvalidationForgotten,
        Self::PostponedBindForgotten,
    ];
}

/// Whether the mistake of this name is planted on this thread: `planted!(RangeOneByteLong)`.
#[macro_export]
macro_rules! planted {
    ($mistake:ident) => {
        $crate::is($crate::Mistake::$mistake)
    };
}

#[cfg(feature = "planted")]
mod switch {
    use super::Mistake;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    /// Plants a mistake on this thread; `None` removes it.
    pub fn plant(mistake: Option<Mistake>) {
        PLANTED.set(mistake);
    }

    /// Returns a function that plants the same mistake on another thread.
    pub fn for_another_thread() -> impl FnOnce() + Send + 'static {
        let planted = PLANTED.get();
        move || PLANTED.set(planted)
    }

    /// Whether this mistake is planted on this thread.
    #[must_use]
    pub fn is(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    use super::Mistake;

    /// Returns a function that does nothing.
    pub fn for_another_thread() -> impl FnOnce() + Send + 'static {
        || ()
    }

    /// Returns `false`: no mistake is planted.
    #[must_use]
    #[inline(always)]
    pub const fn is(_: Mistake) -> bool {
        false
    }
}

pub use switch::*;
