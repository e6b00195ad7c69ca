//! Planted bugs: mistakes built in on purpose, for the simulator to find.
//!
//! Each bug is one line at the place of a plausible mistake, in front of the code that it spoils or behind
//! it. That code reads as if the line were not there:
//! - `planted!(self, WaiterForgotten => return);` makes the mistake;
//! - `planted!(self, CopiedToFile => clean = false);` shadows a local variable with a wrong value.
//!
//! [`Broker::plant`] chooses the active bug when a run begins. Without the feature `planted` the lines, the
//! list and the choice are not compiled. The helpers of mistakes are in `handler/mistakes.rs`.

/// Makes a mistake if that bug is active in this broker or ledger.
#[cfg(feature = "planted")]
macro_rules! planted {
    ($at:expr, $bug:ident => $name:ident = $wrong:expr) => {
        let $name = if $at.planted == Some(crate::planted::Bug::$bug) { $wrong } else { $name };
    };
    ($at:expr, $bug:ident => $($mistake:tt)+) => {
        if $at.planted == Some(crate::planted::Bug::$bug) {
            $($mistake)+
        }
    };
}

#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($at:expr, $bug:ident => $($mistake:tt)+) => {};
}

#[cfg(feature = "planted")]
pub use bugs::Bug;

#[cfg(feature = "planted")]
mod bugs {
    use vramd_types::IdSource;

    use crate::{broker::Broker, invariants};

    macro_rules! bugs {
        ($($name:ident: $description:literal, [$($breaks:ident),+];)*) => {
            /// The bugs that can be planted.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
            pub enum Bug {
                $(#[doc = $description] $name,)*
            }

            impl Bug {
                pub const ALL: &'static [Self] = &[$(Self::$name),*];

                pub const fn name(self) -> &'static str {
                    match self {
                        $(Self::$name => stringify!($name),)*
                    }
                }

                pub const fn description(self) -> &'static str {
                    match self {
                        $(Self::$name => $description,)*
                    }
                }

                /// The invariants that a run has been seen to break first with this bug.
                pub const fn breaks(self) -> &'static [&'static str] {
                    match self {
                        $(Self::$name => &[$(invariants::$breaks),+],)*
                    }
                }
            }
        };
    }

    bugs! {
        SettleSkipped: "the ledger keeps a created extent as a reservation", [LEDGER_BALANCES];
        ReservationKept: "the ledger keeps the reservation of an extent that could not be created", [LEDGER_BALANCES, LEDGER_ORACLE, BACKINGS];
        DoubleRelease: "the core releases an extent twice", [EXTENT_USE];
        WrongTenantCharged: "the core charges an allocation to another tenant", [LEDGER_ORACLE, EXTENTS, ADMISSION];
        UnreturnedUncharged: "no tenant is charged for bytes that did not come back", [LEDGER_ORACLE, LEDGER_BALANCES, ADMISSION, LIMIT];
        DebtToOwnerOnly: "only the owner is charged for bytes that did not come back, although other tenants were sent them", [LEDGER_ORACLE];
        GuaranteeIgnored: "the ledger hands out what other tenants are guaranteed", [ADMISSION, LEDGER_ORACLE, LINE_ORDER, BACKINGS];
        LimitOffByOnePart: "a tenant gets one granule more than its limit", [LIMIT, LEDGER_ORACLE, BACKINGS, DEVICES, EFFORT];
        BatchSumOverflows: "the sizes of a batch are added up without a check for overflow", [DRAINS, LINE_ORDER, LEDGER_ORACLE, BACKINGS];
        StagedGuaranteeForgotten: "the ledger does not keep a guarantee free while it is being written to disk", [LEDGER_ORACLE, ADMISSION, LINE_ORDER, EVICTED];
        UnstoredQuotaApplied: "a quota that could not be stored applies all the same", [LEDGER_ORACLE, LIMIT, ADMISSION, DEVICES, LINE_ORDER, STORED, EFFORT];
        QuotaAnsweredUnstored: "a quota is deleted for its operator before that is stored", [CALLS];
        AbsentQuotaLost: "the stored quota of an absent device is lost with the next change", [STORED];
        OtherQuotaChanged: "the change of a quota is stored for another tenant too", [STORED];
        StoredAsDefault: "a value that a change of a quota leaves out is stored as the default", [STORED];
        StoredRequestLost: "the id of a request that changes a quota is not stored with the change", [STORED];
        StoredRequestsHalved: "half of the ids that are stored with the quotas are forgotten", [STORED];
        StoredRequestsShort: "one id fewer than promised is stored with the quotas", [STORED];
        DeletedQuotaEnforced: "the ledger goes on enforcing a deleted quota", [LEDGER_ORACLE, LIMIT, ADMISSION, LINE_ORDER, DEVICES, EFFORT];
        ShortfallIgnored: "memory that other programs took still counts as capacity", [ADMISSION, LEDGER_ORACLE];
        JoinedCallUnanswered: "the second of two calls that wait for one operation is not answered", [DRAINS, CALLS];
        OperatorsLockedOut: "requests of operators find no place because clients have taken all", [CALLS];
        TenantsLockedOut: "a tenant without any request finds no place because others have taken all", [CALLS];
        AnswerToWrongCall: "an answer goes to another waiting call", [CALLS, LINE_ORDER, DEVICES, LOADED];
        AnsweredTwice: "a repeated call is answered twice", [CALLS];
        RequestIdForgotten: "a repeated request is executed again", [REPEATS, CALLS, CALLERS, STORED];
        RequestsHalved: "half as many requests are remembered as promised", [CALLERS, REPEATS];
        RequestsShort: "one request fewer is remembered than promised", [CALLERS, REPEATS];
        MethodsMixed: "the id of a request is taken for that of a request of another method", [CALLS, TIMERS];
        ReusedRequestIdServed: "a request id with other content is taken for a repetition", [CALLERS];
        ForeignProcessServed: "a call is not checked against the process of its session", [CALLERS];
        ReleasedWhileMapped: "the core releases an extent while a session maps it", [EXTENT_RELEASED, EXTENT_USE, CACHE_REUSE, MAPPERS, CACHED];
        ReleasedWhileHashed: "the core releases an extent while the driver reads it", [EXTENT_RELEASED, EXTENT_USE, CACHE_REUSE];
        HashedWhileMapped: "sealed memory is hashed while its writer maps it", [SEALED];
        FailedBatchHalfKept: "a failed batch leaves its later allocations behind", [DRAINS, VISIBLE, LINE_ORDER];
        FreedPartSent: "a queued part is sent although its allocation was freed", [MAP_SENT];
        MapSentToClosedChannel: "a descriptor is sent to a session whose channel has ended", [FDS, FDS_SENT, OPS];
        TwoPacketsInFlight: "a second packet of descriptors is sent before the first is answered", [FDS_SENT];
        FdBudgetLeaked: "descriptors in flight to a session that is gone stay in the budget", [FDS];
        ExtentOfAnotherTenant: "a session is sent an extent that backs another tenant's memory", [EXTENT_USE, EXTENT_TENANT, DEVICES, CACHE_REUSE, FILES, COPIES];
        CachedToAnotherTenant: "a cached extent is given to another tenant", [EXTENT_TENANT, CACHE_REUSE, LEDGER_ORACLE];
        CachedThoughRead: "an extent is cached although a reader of another tenant had it", [CACHED, CACHE_REUSE];
        CachedThoughCrashed: "an extent is cached although a session that mapped it ended without answering", [CACHED, CACHE_REUSE];
        OldContentAsZeros: "memory that was promised to be zero is taken from the cache", [CACHE_REUSE, LEDGER_ORACLE];
        UnzeroedCreated: "new memory is not ordered zeroed", [FIRST_CONTENT, CONTENT];
        UnzeroedBelow: "new memory below a device is not ordered zeroed", [FIRST_CONTENT, CONTENT];
        RemadeUnzeroed: "new memory for a dropped part is not ordered zeroed", [FIRST_CONTENT, CONTENT];
        UnwrittenMovedUnzeroed: "new memory for a part that was never written is not ordered zeroed", [FIRST_CONTENT, CONTENT];
        InPlaceUnzeroed: "memory in which a part may be accessed in place is not ordered zeroed", [FIRST_CONTENT, CONTENT];
        BackingHashed: "the backing of a part is hashed instead of the part", [CONTENT, EXTENT_USE];
        IdleCacheKept: "a cached extent of a tenant that has a session is never released", [CACHED];
        CachedBeyondMax: "a freed extent is cached beyond the tenant's maximum, and no older one is released for it", [LIMIT];
        RefusedThoughCached: "a batch is refused for memory that is only cached, or that no session uses", [LIMIT, ADMISSION, LINE_ORDER];
        SealedMappedWritable: "sealed memory is sent to its owner for writing", [MAP_SENT];
        UnsealedShared: "memory that is not sealed is sent to a reader", [UNSEALED];
        NonReaderServed: "a tenant that is not on the readers' list is served", [MAP_SENT, VISIBLE];
        WrongAnswerAccepted: "an answer that does not fit is ignored, and its session stays trusted", [SESSION_ANSWERS];
        AnsweredByFirst: "a silent session is live again after the first of several answers", [ANSWERED];
        AnsweredButFreed: "a silent session is live again although it has not unmapped what was freed", [ANSWERED];
        AnsweredButEvicted: "a silent session is live again although it has not unmapped what was evicted", [ANSWERED];
        AnswerIgnored: "a silent session that answers everything stays silent", [ANSWERED];
        SilentTooSoon: "a session that unmaps one part after the other is silent all the same", [ANSWERED];
        AskedInSeries: "after a silence the daemon asks one session in doubt after the other", [IN_SERIES];
        DoubtIgnored: "after a silence victims are chosen as if all sessions were sure to answer", [IN_SERIES];
        AnswerUncounted: "a session stays in doubt although it has answered since", [EFFORT, IN_SERIES];
        ReleasedUnanswered: "a session is told that it has released memory that it still maps", [ANSWERED];
        SilentTakenForGone: "the end of a channel is taken for the end of the process", [EXTENT_USE, LEDGER_ORACLE];
        MemoryOutlivesSession: "memory that a session did not free stays when the session is gone", [LIFETIMES];
        NameNotFreed: "a freed allocation keeps its name", [NAMES];
        MapTimerLost: "no timer checks that a map is answered in time", [TIMERS];
        WordsTimerLost: "no timer checks that a word table is mapped in time", [TIMERS];
        RevokeTimerLost: "no timer checks that a revocation is answered in time", [TIMERS];
        PinTimerLost: "no timer checks that a pin call is answered in time", [TIMERS];
        LevelWithoutHysteresis: "a level of pressure is left at the fill at which it is entered", [PRESSURE];
        ReliefUnreported: "a drop of pressure is not reported at once", [PRESSURE];
        OutlooksUnreported: "a new session is not sent the pressure of its devices", [PRESSURE];
        HotEvicted: "a part that was just used is evicted because of pressure", [PRESSURE_EVICTIONS];
        ColdStays: "a cold part stays on a full device until a waiter needs the room", [PRESSURE_RELIEF];
        CachedUnderPressure: "a cached extent stays on a full device until a waiter needs the room", [PRESSURE_RELIEF];
        SettingsAppliedLate: "changed levels of pressure apply only after the next change of a charge", [PRESSURE];
        SharesUnreported: "changed shares of links are not sent to the driver", [SETTINGS];
        ResidentsLostWithPolicy: "a new eviction policy is not told of the parts that are there", [EVICTION_ORDER];
        FreedPartsRemembered: "an eviction policy remembers parts of freed allocations", [EVICTION_ORDER];
        SettingsHalfApplied: "part of a refused change of settings applies all the same", [SETTINGS, PRESSURE];
        DrainIgnored: "a draining node accepts new memory", [DRAINING];
        EpochForgotten: "after a restart ids begin where they began before", [IDS];
        CountsIgnored: "the bounds on a tenant's allocations and parts, and on the node's extents, are not checked", [BOUNDS];
        BatchTooLargeServed: "a batch with more items than allowed is served", [BOUNDS];
        ReleaseTooLargeServed: "a request frees more allocations at once than allowed", [BOUNDS];
        ReadersTooManyServed: "an allocation gets more readers than allowed", [BOUNDS];
        SessionLimitIgnored: "a session beyond the limit is accepted", [BOUNDS];
        DeviceNotVisibleServed: "memory is created on a device that its session does not see", [DEVICES];
        InvisibleDeviceAttached: "a session attaches memory on a device that it does not see", [DEVICES];
        NameTakenTwice: "a name that an allocation has is taken for free", [UNIQUE];
        NameTwiceInBatch: "one batch gives a name to two allocations", [UNIQUE];
        HashedReplaced: "a sealed allocation takes its name from one that is still open or being hashed", [UNIQUE];
        OtherReplaced: "a sealed allocation with `replace` frees another one than the one that has its name", [FREES, UNIQUE, EXTENT_RELEASED, NAMES];
        ReplacedKept: "a sealed allocation that loses its name to another is not freed", [UNIQUE];
        RaceLostFreed: "an allocation that loses a race for its name at its seal is freed", [FREES, MAP_SENT];
        FailedSealStuck: "an allocation that could not be sealed stays as if it were to be sealed", [UNIQUE];
        NameLedAstray: "a name leads to the newest allocation that was requested under it", [UNIQUE, CALLS, VISIBLE];
        PersistentFreed: "sealed persistent memory is freed with its session", [FREES];
        MapperNotShown: "one of the mappers of an allocation is not shown", [VISIBLE];
        FreedNotListed: "an allocation that is freed and still mapped is missing in its tenant's list", [VISIBLE];
        EvictedThoughPinned: "an eviction takes a part that a pin call uses", [PINNED, LOADED];
        AwayCountedAsMapped: "an evicted part still counts as mapped", [RUNNING_SUMS];
        SlotReused: "the slot of an evicted part is given to another part", [SLOTS];
        WordNotCollected: "the word of a part that is gone is not collected before its slot serves another", [SLOT_USE, PIN_ANSWERS];
        PinCallLost: "a pin call whose part was freed is not answered", [PIN_ANSWERS, PINNED, STALLS, LINE_ORDER, BOUNDS, LINK_AWAITED, TURNS];
        EvictedStaysAway: "an evicted part is not mapped again for a session that pins it", [PINS, SENT, LINE_ORDER];
        FenceLetsPinsIn: "a pin call that arrived after a fence is let through", [FENCES, PINS, LOADED];
        FenceIgnoresCalls: "a fence evicts a part that an earlier call waits for others with", [PINNED];
        FenceLost: "a fence that joins an eviction is forgotten when a session is found to pin the part", [FENCES];
        FenceCutShort: "a fence that joins an eviction ends as soon as a session is found to pin the part", [FENCES];
        FenceBeginsLate: "a fence that joins an eviction lets the calls in that came before the words were read", [FENCES];
        PinPartsUnbounded: "the number of parts in the pin calls of a session is not bounded", [BOUNDS];
        StallIgnored: "pin calls that block each other wait for ever", [STALLS];
        OwnerKeepsFreed: "an allocation freed by an operator stays mapped by its owner, which gets no revoke", [CALLS];
        CopiedWhileMapped: "a part is copied before its last mapper has unmapped it", [MIGRATIONS, COPIES, TRANSITIONS];
        CopiedWhileMappedInPlace: "a part is copied out of host memory while a session maps it there", [MIGRATIONS, COPIES];
        EndedAdviceKept: "a part that is no longer accessed in place stays mapped there", [IN_PLACE, MIGRATIONS];
        FetchedThoughAdvised: "a part that is to be accessed in place is fetched for a pin", [IN_PLACE, SENT];
        AdviceIgnored: "parts leave in the order of the policy whatever their owners say", [ADVISED_ORDER, SEQUENCE_ORDER];
        ForbiddenAdviceOrders: "the advice of a tenant still orders its parts while an operator forbids it", [ADVISED_ORDER, EVICTION_ORDER, PLACEMENT];
        OverrideLost: "the advice of an operator is lost when the owner advises the same parts", [ADVISED_ORDER, CALLS];
        OverrideLeaks: "the advice of an operator for parts in a row is also given to the part behind them", [ADVISED_ORDER, CALLS];
        AdviceLeaks: "advice for parts in a row is also given to the part behind them", [ADVISED_ORDER, CALLS];
        UnneededKept: "a part that left its device counts as not needed when it comes back", [ADVISED_ORDER, CALLS];
        SoonKept: "a part that was used counts as needed soon until its time is over", [ADVISED_ORDER, CALLS];
        LoopAsLru: "parts that are used in a loop leave in the order of the policy", [ADVISED_ORDER];
        AdviceKept: "advice is kept although its allocation is gone", [EVICTION_ORDER];
        FailedCopyAccepted: "a failed copy is taken for a good one", [CALLS, COPIES, EXTENT_TENANT, CONTENT, VISIBLE, CACHE_REUSE, PRESSURE_EVICTIONS, BACKINGS, SENT];
        SourceKept: "the extent that a part has left is not released", [DRAINS, LINE_ORDER, BACKINGS, EFFORT];
        ReleasedWhileCopied: "an extent is released while it is copied", [MIGRATIONS, EXTENT_RELEASED, WRITTEN_BACK];
        CopyTruncated: "the end of a part is not copied with it", [CONTENT, FIRST_CONTENT];
        HostChargeForgotten: "no tenant is charged for a part in host memory", [LEDGER_ORACLE, LIMIT, ADMISSION];
        HostChargedToAnother: "a part in host memory is charged to another tenant", [LEDGER_ORACLE, LIMIT, ADMISSION, EXTENTS, BACKINGS];
        WaiterForgotten: "a release does not cause a scan for the waiters of its room", [LINE_ORDER];
        PinGrantedElsewhere: "a pin call is answered although one of its parts is elsewhere", [PIN_ANSWERS, LINE_ORDER, TURN_GRANTED];
        SentFromOldExtent: "a part that has moved is sent from the extent that it has left", [DEVICES, EXTENT_USE, FILES, IN_PLACE, EXTENT_TENANT];
        AttachWaiterForgotten: "a session that attached a part while it was elsewhere is not sent it when it arrives", [SENT, LINE_ORDER];
        StaleBackingTakenForClean: "bytes written since a part was fetched are lost when it leaves", [CONTENT];
        EvictedBelowGuarantee: "a part within its tenant's guarantee is evicted for another tenant", [EVICTED];
        DropUnreported: "a session that is sent a part is not told that its content was dropped", [CONTENT];
        EvictedThoughHeld: "a part under an operator hold is evicted for another", [OPERATOR_HOLDS];
        GuaranteeAwaited: "a request that other tenants' guarantees rule out for ever waits in the line", [LINE_ORDER];
        AttachUnbounded: "an attach of more than fits on the device waits in the line", [LINE_ORDER];
        SealFetches: "parts that were elsewhere at the seal are fetched without a pin", [EVICTED, LINE_ORDER, SENT, PINNED, PIN_ANSWERS, PRESSURE_RELIEF];
        BatchOvertakes: "a batch takes room that earlier waiters need", [LINE_ORDER];
        UnpinIgnored: "a harvested unpin makes no room for waiters", [LINE_ORDER];
        StarvedForgotten: "a session that found the descriptor budget spent is not served later", [SENT, FDS_TURNS];
        MappersFromWords: "a session that was sent a part and has not answered is not a mapper, since its word does not say so", [MIGRATIONS, COPIES, FENCES, SLOT_USE, EXTENT_USE];
        SourceReleasedEarly: "the extent that a part leaves is released before the copy has ended", [EXTENT_RELEASED, MIGRATIONS, COPIES];
        HandedOverUnread: "the extent that a part leaves is handed over before the copy out of it has ended", [EXTENTS, MIGRATIONS, COPIES];
        HandOverChargedTwice: "a handed-over extent is charged to its new tenant twice", [LEDGER_BALANCES, LEDGER_ORACLE];
        HandOverUncharged: "a handed-over extent is charged to no tenant from then on", [LEDGER_ORACLE, LIMIT, ADMISSION];
        FailedCopyTakenForClean: "the bytes that a failed copy left in the backing are taken for the content of the part", [CONTENT, FIRST_CONTENT];
        EndedPinAnswered: "a pin call is answered although its client has ended it", [PIN_ANSWERS, LINE_ORDER];
        FailedWriteBackTakenForClean: "a backing still counts as clean after its write-back failed", [CONTENT];
        WrittenSinceIgnored: "a written-back part counts as clean although it was written meanwhile", [CONTENT];
        UnwrittenTakenForClean: "a dirty part whose word has no WRITTEN bit counts as clean when the word is read", [CONTENT];
        WrittenBackToAnother: "a part is written back to the backing of another part", [COPIES, CONTENT, MIGRATIONS];
        MissingBackingForgotten: "a part without backing never gets one", [BACKINGS];
        MissingMemoryForgotten: "memory that the driver could not give counts as free until the next survey", [ADMISSION, LEDGER_ORACLE];
        UnmappableLost: "a part that a client could not map once is lost to it", [PIN_ANSWERS];
        BackedOnDiskFirst: "backing is reserved on disk although there is room for it in host memory", [LEDGER_ORACLE, LIMIT, ADMISSION, BACKINGS, EXTENTS, DEVICES];
        OtherBackingKept: "a part keeps its backing in another tier than the one that it moved to", [BACKINGS, LEDGER_ORACLE];
        UnwrittenCopied: "an extent on disk that was never written is copied", [COPIES];
        LostContentAwaited: "a session goes on waiting for a part whose content is lost on disk", [PIN_ANSWERS];
        EarlySurveyBelieved: "a survey that began before the driver ran out of memory lifts the cap on the capacity", [LEDGER_ORACLE, ADMISSION];
        FirstShortageAlone: "a batch that is short in several places is judged by the first alone", [LINE_ORDER];
        BackingReleasedWhileWritten: "a backing is released before the copy into it has ended", [COPIES, WRITTEN_BACK, EXTENT_RELEASED];
        FileCharged: "a part in a file is charged as if it lay on disk", [FILES, LEDGER_ORACLE, CALLS];
        CopiedToFile: "a part that leaves its device is copied to its file", [FILES, COPIES];
        FileForgotten: "the file of a part is released once the part is on its device", [BACKINGS];
        UnreadSealed: "a loaded allocation is sealed before it was read", [LOADED, SEALED, CALLS];
        PiecesFromTheStart: "every part of a loaded allocation begins at the start of its file", [LOADED, CONTENT];
        LoadedSentToOwner: "the session that loads a file is sent the parts without an attach", [LOADED, EVICTED, PIN_ANSWERS];
        UnreadableKept: "an allocation that could not be loaded is not freed", [LOADED];
        FileLeaked: "the file of a freed part is never released", [EXTENTS, DRAINS];
        DamageIgnored: "content that cannot be read as it was written, or as its file was, is taken for good", [COPIES, CONTENT, EXTENT_TENANT, PIN_ANSWERS, CACHE_REUSE, CALLS, VISIBLE];
        ClassInverted: "a copy that a client waits for runs as one that no client waits for, and is not raised", [LINK_AWAITED];
        WriteBackNotRaised: "a write-back that delays a move for a waiter is not raised", [LINK_AWAITED];
        FetchNotRaised: "an operator's fetch is not raised when a client comes to want the part", [LINK_AWAITED];
        EveryCopyUrgent: "every move is copied as demand, whether or not a client waits for it", [LINK_AWAITED];
        FullDevicePassed: "a waiter passes an earlier one that finds its device full", [LINE_ORDER];
        LimitPassed: "a waiter passes an earlier one of its tenant, which is at its limit", [LINE_ORDER, EVICTED];
        SecondDevicePassed: "a batch on several devices keeps others waiting on the first of them alone", [LINE_ORDER, LINE_SCANNED];
        SecondDeviceOvertaken: "a new batch on several devices is held back only by waiters of the first", [LINE_ORDER];
        CutScanNotRepeated: "a scan that left out waiters is not repeated once half of the others have left", [LINE_SCANNED, LINE_ORDER];
        HopelessHolds: "a waiter that nothing helps lets none pass", [LINE_ORDER];
        HopelessAlwaysPassed: "a waiter that nothing helps never holds its device", [LINE_ORDER];
        HelpedPassed: "a waiter lets others pass although room is being made for it", [LINE_ORDER];
        SplitBatchStays: "a batch on several devices does not start from the line", [LINE_ORDER];
        ReusedBeyondGuarantee: "cached memory that a batch reuses does not count against its tenant's guarantee", [LINE_ORDER];
        LastStarvedFirst: "of the sessions of a tenant that wait for descriptor budget, the last is served first", [FDS_TURNS];
        AnswererServedFirst: "a session that answers is sent its next descriptors before sessions that wait for budget", [FDS_TURNS];
        EvictedFarBelow: "pressure evicts all cold parts of a device, however little would be enough", [EFFORT];
        DemotedFarBelow: "pressure moves all cold parts from host memory to disk, however few would be enough", [EFFORT];
        LeavingUncounted: "memory that is leaving already counts for no waiter", [EFFORT, LINK_AWAITED, EVICTED, LINE_SCANNED];
        EvictedInVain: "parts leave for a waiter although all of them are not enough", [EFFORT, LINE_ORDER, LINE_SCANNED, LINK_AWAITED];
        OldestAborted: "of the calls that have stalled the oldest is aborted", [STALLS];
        AbortedTooEarly: "a call is aborted as soon as all that it waits for wait as well", [STALLS, DRAINS];
        RunnersIgnored: "a call is aborted although a session in its way does not wait", [STALLS];
        WordlessWritesForgotten: "memory that a session without pins writes counts as clean when it leaves", [CONTENT];
        PrefetchAboveDemand: "a prefetch request begins while clients wait for room on its device", [PREFETCH_ORDER];
        PrefetchClassIgnored: "prefetch requests of all classes take turns as if all tenants were of one", [PREFETCH_ORDER];
        PrefetchWeightIgnored: "fetched bytes count the same for every tenant of a class, whatever its weight", [PREFETCH_ORDER];
        PauseIgnored: "prefetches of the lower classes go on whatever the pressure", [PREFETCH_PAUSED];
        PressureClassIgnored: "cold parts leave for pressure by their last use, whatever the class of their tenant", [CLASS_ORDER];
        VictimClassIgnored: "parts leave for a prefetch by their last use, whatever the class of their tenant", [CLASS_ORDER, ADVISED_ORDER, SEQUENCE_ORDER];
        OldClassKept: "parts that are there stay in the default class when their tenant gets another one", [EVICTION_ORDER];
        StandingUnstored: "the classes and weights of tenants are lost with the next change of a quota", [STORED];
        MissedDeadlinesKept: "a prefetch request that is late goes before one of its tenant that can be in time", [PREFETCH_ORDER];
        CopiesByBegin: "parts of prefetch requests are copied in the order in which their requests began", [PREFETCH_ORDER];
        PrefetchOrderReversed: "of the tenants with prefetch requests the one whose turn is last goes first", [PREFETCH_ORDER];
        PrefetchTriedOnce: "a prefetch request that found no room is not tried again while no other tenant has one", [PREFETCH_BEGINS, PREFETCH_ORDER];
        PrefetchSplit: "a prefetch request for all parts or none begins with some of them", [PREFETCH_TOLD];
        PrefetchEvictsHot: "a prefetch request evicts memory of other tenants that is in use", [PREFETCH_VICTIMS];
        PrefetchedEvicted: "a prefetch request evicts what another one brought and no session has used", [PREFETCH_VICTIMS];
        PrefetchLossUntold: "a client is not told that a prefetched part has left its device again", [PREFETCH_TOLD];
        LatePrefetchInTime: "a prefetch request counts as ready in time after its deadline", [PREFETCH_TOLD];
        PrefetchKeptForEver: "a prefetched part counts as unused although a session uses it", [PREFETCH_HELD];
        CancelledPrefetchKept: "a cancelled prefetch request goes on", [PREFETCH_HELD];
        CancelledMoveGoesOn: "the moves of a cancelled prefetch request go on", [PREFETCH_HELD];
        PrefetchesOutliveSession: "prefetch requests outlive their session", [PREFETCH_HELD];
        PrefetchesUnbounded: "a session may have any number of prefetch requests", [PREFETCH_HELD];
        SequenceWrongStep: "a step of a sequence gets the parts of the step after it", [SEQUENCE_WINDOW];
        SequenceStepSkipped: "the daemon makes no request for the next step of a sequence", [SEQUENCE_WINDOW];
        SequenceWindowUntold: "a client is not told how far ahead of its sequence the daemon works", [SEQUENCE_WINDOW];
        SequenceNotEnded: "requests for the steps of a sequence outlive it", [SEQUENCE_HELD];
        SequenceOutlivesSession: "sequences outlive their session", [SEQUENCE_HELD];
        SequenceOfOtherSession: "a step begins in the sequence of another session", [SEQUENCE_WINDOW];
        SequencePassedKept: "the request for a step that is over goes on", [SEQUENCE_WINDOW];
        SequenceFarthestKept: "parts of a sequence leave in the order of the policy", [SEQUENCE_ORDER];
        SequenceKeptStreamed: "parts that a loop keeps from pass to pass leave as its other parts do", [SEQUENCE_ORDER];
        ManagedUnasked: "managed memory is charged without asking the limit or the room", [LIMIT, ADMISSION, EXTENTS];
        ManagedChargeKept: "managed memory stays charged when it was freed or its session has ended", [MANAGED, LEDGER_ORACLE];
        ManagedCountedTwice: "resident managed memory counts as charged and as another program's", [LEDGER_ORACLE, LINE_ORDER, EFFORT];
        ManagedOrderUnbounded: "managed memory is ordered to the device although its tenant is beyond its limit with it", [MANAGED_ORDERS];
        ManagedOrderTakenAsDone: "managed memory counts as moved as soon as that is ordered", [MANAGED_ORDERS];
        ManagedAnswerOfNewest: "the answer to an order counts for the one that waits behind it", [MANAGED_ORDERS];
        ManagedOrderOfFreed: "a client gets an order for memory that it has freed", [MANAGED_ORDERS];
        EvictedByOthers: "a client evicts memory that another session owns", [CALLS];
        EvictionNeverBegun: "an owner's eviction waits and begins no part", [OPS, TIMERS];
        SequenceNearerEvicted: "a part leaves for one that its sequence needs later", [SEQUENCE_ORDER, PREFETCH_VICTIMS];
        TurnGrantedEarly: "a turn is granted when it is admitted, before the parts of its set are there", [TURN_GRANTED];
        TurnOwnersTwo: "a turn is admitted beside owners whose sets leave no room for its own", [TURN_OWNERS];
        TurnStarved: "of the turns that wait the last one is admitted first", [TURN_ORDER];
        TurnYieldLost: "the yield of a client that was asked for it is lost", [TURN_HELD];
        SetBroughtOutOfTurn: "the set of the turn that comes last is brought ahead", [SPECULATION];
        YieldedPinsBelieved: "a set that was seen pinned stays when its turn is yielded, though others wait for room", [LINE_ORDER];
        TurnOrderIgnored: "parts of working sets leave in the order of the policy, whenever their turns come", [TURN_VICTIMS];
        NextTurnFirst: "parts of the set whose turn comes next leave before those of later turns", [TURN_VICTIMS];
        TurnAskedInVain: "owners are asked to yield whose leaving makes no room for the turn that waits", [TURN_HELD];
        TurnsCounted: "each turn of a tenant counts as much as any other, however long it was", [TURN_ORDER, TURN_HELD];
        LearntElsewhere: "an order that was learnt is applied to another allocation", [SPECULATION];
        SpeculationAboveAll: "parts are brought unasked while clients wait for room or requests are queued", [SPECULATION];
        SpeculationNeverOff: "parts are brought unasked however many of them were wasted", [SPECULATION];
        PlacementFactorIgnored: "a part moves to its device as soon as the benefit is above the cost", [PLACEMENT];
        NearestStepSkipped: "of the parts that a session will pin next the nearest is not brought", [SPECULATION];
        UncopiedMoveMeasured: "a part that came without a copy counts as a copy of no time", [PLACEMENT];
        NamedPartReadInPlace: "a part goes on being read in host memory although a request, a sequence, a hold or advice comes before", [PLACEMENT];
        PrefetchBeforeDemand: "a link lets a prefetch pass demand", [LINK_ORDER, LINK_SHARES];
        ShareLentForEver: "a link does not return the share that a class lent to others", [LINK_SHARES];
        ShareSavedUp: "a link lets a class save up the share that it does not want", [LINK_SHARES];
        FullWantsNothing: "a class in a lane with enough under way is owed no share of its links", [LINK_SHARES];
        FullLacksItsShare: "a lane with enough under way starts nothing of a class below its share beside demand", [LINK_SHARES];
        SharedOnlyVetoes: "a class below its share of a shared link is served no sooner in its lane", [LINK_SHARES];
        OthersNotHeldBack: "chunks of other classes start although a class is below its share of a shared link", [LINK_SHARES];
    }

    impl Broker {
        /// Makes one bug active, or none. Call it before the first event.
        pub fn plant(&mut self, bug: Option<Bug>) {
            self.planted = bug;
            self.ledger.plant(bug);
            if bug == Some(Bug::EpochForgotten) {
                self.allocations.ids = IdSource::new(1);
                self.sessions.ids = IdSource::new(1);
                self.pool.ids = IdSource::new(1);
            }
        }
    }
}
