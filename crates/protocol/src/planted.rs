//! Faults that a test plants to make sure that a checker finds them.
//!
//! Without the feature `planted`, which only the simulator's own test turns on, [`is`] is always false and the code
//! that asks it is compiled out. With it, a thread has at most one fault at a time.

/// A mistake that the real code does not make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A window is bound again under the key it had.
    KeyNotAdvanced,
    /// Memory is reused before its window is known to be unbound.
    ReusedBeforeUnbind,
    /// Leases are never checked for their end.
    ExpiryNotScanned,
    /// Windows that linger stay bound for ever.
    LingerForever,
    /// Windows are handed from tenant to tenant, so that a key opens in every tenant's domain.
    HandoverAcrossTenants,
    /// A permission's start is not compared: a late revoke ends its successor.
    StartNotChecked,
    /// A request that may have been executed is posted again.
    ExecutedReplayed,
    /// A permission that was revoked continues while its lifetime word says so.
    WordTrustedOverUnbind,
    /// Memory is given to another tenant with the last tenant's bytes in it.
    ScrubSkipped,
    /// An exclusive permission is granted beside shared ones.
    ExclusiveBesideShared,
    /// A violation is charged to the tenant that came first.
    ViolationToWrongTenant,
    /// A client's queue pairs are put into another tenant's domain.
    QueuePairInWrongDomain,
    /// A header goes to another permission while its window is still bound.
    HeaderReusedWhileBound,
    /// The holder of one right gets all rights.
    RightsNotNarrowed,
    /// A window reaches one byte too far.
    RangeOneByteLong,
    /// The NIC does not compare the key's low byte.
    KeyNotCompared,
    /// A queue pair serves on after a refusal: what should be flushed is executed.
    ServesInError,
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
    /// An access that came too late is charged to its tenant, as a guess is.
    LatenessChargedToTenant,
    /// After a request without an answer, later requests use a spare while the first may still arrive.
    DoubtNotAwaited,
    /// A waiting session judges what arrives by a time up to 64 looks old.
    WaitJudgesByOldTime,
    /// The client gives nothing up that takes longer than its limit.
    LimitNotKept,
    /// What other tenants hold of an object is not ended when it is shared with them no more.
    UnshareEndsNothing,
    /// What other tenants hold of a head's members stays when the head is not shared any more.
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
    /// What another tenant wrote into a shared object is not scrubbed for the object's own tenant.
    GuestsBytesNotNoted,
    /// A key of a window group opens on any queue pair of its domain.
    QueuePairNotCompared,
    /// When a permission ends, the windows of its holder's spare queue pairs stay bound.
    SpareStaysBound,
    /// A window stays bound whose invalidation was flushed because its holder has broken the queue pair.
    FlushedInvalidationForgotten,
    /// A window whose bind was postponed, because its queue pair was broken, is never bound.
    PostponedBindForgotten,
    /// A key whose fingerprint equals another's is taken for that one.
    FingerprintTrusted,
    /// A block that was used again is taken for what it was before.
    VersionNotCompared,
    /// A block has the same version each time it is used.
    VersionNotAdvanced,
    /// A split gives a bucket's keys away before their copy is in place.
    HeaderBeforeCopy,
    /// A new bucket is used while the old one still counts.
    BucketUsedTooEarly,
    /// A split copies slots that other clients still change.
    SlotsNotFrozen,
    /// A split that a dead client has begun stays as it is.
    SplitNotTakenOver,
    /// A new key counts before its client has looked for another of the same name.
    AloneNotChecked,
    /// A key is found before its insertion is decided.
    PendingSeen,
    /// A block goes into a slot however long ago it was claimed.
    LateClaimUsed,
    /// A sweep frees what is in no slot at its first look.
    SweptAtOnce,
    /// The block of a value that was replaced stays claimed.
    OldBlockNotFreed,
    /// An extent is given back although clients have claimed blocks of it.
    ClaimedNotCompared,
    /// The versions of an extent's blocks begin again where another extent had its number.
    VersionsBeginAgain,
    /// A sweep takes the pieces of values for orphans.
    PiecesNotSpared,
    /// A key whose time had come is removed although it was stored again meanwhile.
    ExpiryNotCompared,
    /// A slot of a queue says that it is filled before its bytes are there.
    SlotFilledBeforeBytes,
    /// A consumer takes entries without looking whether another one was quicker.
    HeadNotCompared,
    /// A slot whose producer has died stays as it is.
    DeadSlotNotAbandoned,
    /// What a client leaves that dies while it adds or retires a segment is not freed.
    SegmentLeftBehind,
    /// A claim's word is changed without looking whether the claim is still there.
    ClaimNotCompared,
    /// An entry is delivered again before its claim's lease is over.
    ClaimEndsEarly,
    /// An entry whose claim has ended is not delivered again.
    LapsedNotDelivered,
    /// A segment goes back to the node although entries of it are not acknowledged.
    SegmentGoesWithClaims,
    /// Producers go on in a queue that is closed.
    ClosedNotCompared,
    /// The NIC hands a chunk on with the bytes of its earlier holder.
    ChunkNotZeroed,
    /// The windows of a chunk that was freed stay bound.
    ChunkStaysBound,
    /// All uses of a chunk have the same number and the same keys.
    ChunkUsesNotCounted,
    /// The chunks of a client that is gone are not freed.
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
    /// A change that has happened is forgotten at once, and said not to have happened.
    FinishedForgotten,
    /// The packets of one read are sealed under one counter.
    PartsShareCounter,
    /// A write of which nobody knows whether it has happened is repeated although others may write there.
    UncertainWriteRepeated,
    /// The key of a region works for every client.
    HolderNotAmongTerms,
    /// A read that waits is served although its permission has ended.
    WaitingReadServedLate,
    /// A region is opened while the NIC still exposes an ended permission over its object.
    OpenedWhileBound,
    /// An operation that nobody has sealed is charged to the client whose name it bears.
    UnprovenCharged,
    /// What an operation has taken of the solicitation window does not come back.
    WindowNotRefunded,
    /// A probe is answered twice.
    ProbeAnsweredTwice,
    /// A read without an answer waits for ever.
    DeadlineForgotten,
    /// A refusal ends a change although its data is on its way.
    CopysRefusalBelieved,
    /// A transfer that may have happened in part is said to have been refused.
    RefusedAfterEffect,
    /// A name stays in the directory when the lease that has registered it ends.
    NamesOutliveLease,
    /// The bytes of heaps that an ended lease held stay in its tenant's use.
    EndedBytesStayUsed,
    /// A heap's addresses are taken back when one of its holders has gone.
    HeldHeapReclaimed,
    /// Addresses are given to a heap without a look at the other heaps.
    PlaceGivenTwice,
    /// A lease ends when its first time is over, however often it is kept alive.
    LeaseNotExtended,
    /// Any tenant may hold a heap.
    AccessNotAsked,
    /// What a tenant's processes hold together is not compared with its quota.
    TenantsBytesNotCompared,
    /// An ended lease stays a holder of its heaps.
    EndedStayHolders,
    /// A server does not look whether a call was cancelled.
    CancelNotLookedAt,
    /// A cancelled call's reply bears no number.
    CancelledNotNumbered,
    /// A server does not look at deadlines.
    DeadlineNotLookedAt,
    /// A server looks at a deadline before it copies the arguments, and not afterwards.
    DeadlineLookedAtOnce,
    /// A client does not look at deadlines.
    LateNotTold,
    /// Of the arguments only the first page is copied.
    OnePageCopied,
    /// Arguments are looked for in the connection's own heap alone.
    OwnHeapAlone,
    /// A result's scope is not freed with its answer.
    ResultKept,
    /// The result of a call whose caller waits no more is not freed.
    LateResultKept,
    /// What a method had for its result stays when it panics.
    PanickedResultKept,
    /// A line that was read is new again when the ring comes round to it.
    TurnNotCompared,
    /// The slot of a call that has ended is never free again.
    SlotNotFreed,
    /// A call of a client that has given its server up stays under way.
    GoneNotTold,
    /// What a dead process was about to take is not taken back.
    TakingNotReclaimed,
    /// The pages of a run are freed from the first one on.
    FreedFromTheFirst,
    /// What a dead process had is taken back from everybody.
    AllReclaimed,
}

impl Fault {
    /// Those of the structures that show where one user ends at some step. The tests of the structures find them.
    pub const OF_STEPS: [Self; 16] = [
        Self::VersionNotCompared,
        Self::HeaderBeforeCopy,
        Self::BucketUsedTooEarly,
        Self::SlotsNotFrozen,
        Self::SplitNotTakenOver,
        Self::LateClaimUsed,
        Self::OldBlockNotFreed,
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

    /// Those of the hash table that show where several users race. The simulator's checkers find them.
    pub const OF_RACES: [Self; 5] = [
        Self::FingerprintTrusted,
        Self::VersionNotAdvanced,
        Self::AloneNotChecked,
        Self::PendingSeen,
        Self::SweptAtOnce,
    ];

    /// Those of the queue that show where several users race. The simulator's checkers find them.
    pub const OF_QUEUES: [Self; 4] = [
        Self::SlotFilledBeforeBytes,
        Self::HeadNotCompared,
        Self::DeadSlotNotAbandoned,
        Self::ClosedNotCompared,
    ];

    /// Those of claims that show among many consumers. The simulator's checkers find them, and the tests of the structures do as
    /// well.
    pub const OF_CLAIMS: [Self; 3] =
        [Self::ClaimNotCompared, Self::LapsedNotDelivered, Self::SegmentGoesWithClaims];

    /// Those of the chunks that the NIC hands out. The simulator's checkers find them.
    pub const OF_CHUNKS: [Self; 4] =
        [Self::ChunkNotZeroed, Self::ChunkStaysBound, Self::ChunkUsesNotCounted, Self::DepartedKeepChunks];

    /// Those of the directory's ledger. Its own tests find them.
    pub const OF_DIRECTORY: [Self; 4] =
        [Self::NamesOutliveLease, Self::EndedBytesStayUsed, Self::HeldHeapReclaimed, Self::PlaceGivenTwice];

    /// Those of the limits of sessions. The simulator's checkers find them, where nodes freeze.
    pub const OF_LIMITS: [Self; 1] = [Self::LimitNotKept];

    /// Those of calls through shared memory, and of the leases that their heaps have. The simulator's checkers find them.
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

    /// Those of clients over UDP. The simulator's checkers find them.
    pub const OF_UDP: [Self; 17] = [
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
    ];

    /// Those of the node, the client and the NIC. The simulator's checkers find them.
    pub const ALL: [Self; 38] = [
        Self::KeyNotAdvanced,
        Self::ReusedBeforeUnbind,
        Self::ExpiryNotScanned,
        Self::LingerForever,
        Self::HandoverAcrossTenants,
        Self::StartNotChecked,
        Self::ExecutedReplayed,
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

#[cfg(feature = "planted")]
mod switch {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault on this thread; `None` removes it.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Returns what plants the same fault on another thread.
    pub fn for_another_thread() -> impl FnOnce() + Send + 'static {
        let planted = PLANTED.get();
        move || PLANTED.set(planted)
    }

    /// Whether this fault is planted on this thread.
    #[must_use]
    pub fn is(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    use super::Fault;

    /// Returns a function that does nothing.
    pub fn for_another_thread() -> impl FnOnce() + Send + 'static {
        || ()
    }

    /// Whether this fault is planted: never.
    #[must_use]
    #[inline]
    pub const fn is(_: Fault) -> bool {
        false
    }
}

pub use switch::*;
