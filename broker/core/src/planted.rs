//! Bugs on purpose. The simulator must find each of them, or it could not find one that nobody planted.
//!
//! Each is a line at the place where somebody could have made the mistake:
//! `if planted!(self, SettleSkipped) { … }`. Which one is active is chosen when a run begins, with [`Broker::plant`];
//! without the feature `planted` the question is the constant `false`, and neither the list nor the choice exists.

/// Whether the bug is active in this broker, ledger or pool.
#[cfg(feature = "planted")]
macro_rules! planted {
    ($at:expr, $bug:ident) => {
        $at.planted == Some(crate::planted::Bug::$bug)
    };
}

#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($at:expr, $bug:ident) => {
        false
    };
}

#[cfg(feature = "planted")]
pub use bugs::Bug;

#[cfg(feature = "planted")]
mod bugs {
    use vramd_types::IdSource;

    use crate::{broker::Broker, invariants};

    macro_rules! bugs {
        ($($name:ident: $what:literal, [$($breaks:ident),+];)*) => {
            /// What can be planted.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
            pub enum Bug {
                $(#[doc = $what] $name,)*
            }

            impl Bug {
                pub const ALL: &'static [Self] = &[$(Self::$name),*];

                pub const fn name(self) -> &'static str {
                    match self {
                        $(Self::$name => stringify!($name),)*
                    }
                }

                pub const fn what(self) -> &'static str {
                    match self {
                        $(Self::$name => $what,)*
                    }
                }

                /// The invariants that it can break first, as far as anybody has seen.
                pub const fn breaks(self) -> &'static [&'static str] {
                    match self {
                        $(Self::$name => &[$(invariants::$breaks),+],)*
                    }
                }
            }
        };
    }

    bugs! {
        SettleSkipped: "what was made stays reserved", [LEDGER_BALANCES];
        ReservationKept: "what could not be made stays reserved", [LEDGER_BALANCES, LEDGER_ORACLE, BACKED];
        DoubleFree: "an extent is released twice", [EXTENT_USE];
        WrongTenantCharged: "an allocation is charged to another tenant", [LEDGER_ORACLE, EXTENTS, ADMISSION];
        UnreturnedToNobody: "bytes that did not come back are charged to nobody", [LEDGER_ORACLE, LEDGER_BALANCES, ADMISSION, LIMIT];
        DebtToOwnerOnly: "bytes that did not come back are charged to their owner alone, whoever else was sent them", [LEDGER_ORACLE];
        GuaranteeIgnored: "what is guaranteed to others is handed out", [ADMISSION, LEDGER_ORACLE, DEMANDS, BACKED];
        LimitOffByOnePart: "a tenant gets one granule more than its limit", [LIMIT, LEDGER_ORACLE, BACKED, DEVICES];
        SumOverflows: "the sizes of a batch are added up without a look at the overflow", [DRAINS, DEMANDS, LEDGER_ORACLE, BACKED];
        StagedGuaranteeForgotten: "a guarantee that is being written to disk is not held back meanwhile", [LEDGER_ORACLE, ADMISSION, DEMANDS, EVICTED];
        UnstoredQuotaHolds: "a quota that could not be stored holds all the same", [LEDGER_ORACLE, LIMIT, ADMISSION, DEVICES, DEMANDS];
        DefaultQuotaForgotten: "a deleted quota goes on being enforced", [LEDGER_ORACLE, LIMIT, ADMISSION, DEMANDS, DEVICES];
        ShortfallIgnored: "memory that others took still counts as capacity", [ADMISSION, LEDGER_ORACLE];
        AnswerLost: "the second of two calls that wait for one thing is not answered", [DRAINS, CALLS];
        AnswerToAnother: "an answer goes to another call that waits", [CALLS, DEMANDS, DEVICES];
        AnsweredTwice: "a repeated call is answered twice", [CALLS];
        RequestIdForgotten: "a repeated request is done again", [REPEATS, CALLS, CALLERS];
        ReusedRequestIdServed: "a request id with other content is taken for a repetition", [CALLERS];
        ForeignProcessServed: "a call is not held against the process of its session", [CALLERS];
        ReleasedWhileMapped: "an extent is released while a session maps it", [EXTENT_RELEASED, EXTENT_USE, RECYCLED, MAPPERS, CACHED];
        ReleasedWhileHashed: "an extent is released while the driver reads it", [EXTENT_RELEASED, EXTENT_USE, RECYCLED];
        HashedWhileMapped: "sealed memory is hashed while its writer maps it", [SEALED];
        HalfABatchKept: "a failed batch leaves its later allocations behind", [DRAINS, VISIBLE, DEMANDS];
        FreedIsSent: "what waits to be sent of an allocation is sent though it was freed", [MAP_SENT];
        MapToDeadSession: "a descriptor is sent to a session whose channel has ended", [FDS, FDS_SENT, OPS];
        TwoPacketsInFlight: "a second packet of descriptors is sent before the first is answered", [FDS_SENT];
        FdBudgetKept: "descriptors in flight to a session that is gone stay in the budget", [FDS];
        ExtentOfAnotherTenant: "a session is sent an extent that backs another tenant's memory", [EXTENT_USE, EXTENT_TENANT, DEVICES, RECYCLED, FILES];
        CachedToAnotherTenant: "a cached extent is given to another tenant", [EXTENT_TENANT, RECYCLED, LEDGER_ORACLE];
        CachedThoughRead: "an extent is cached though a reader of another tenant had it", [CACHED, RECYCLED];
        CachedThoughCrashed: "an extent is cached though a session that mapped it ended without a word", [CACHED, RECYCLED];
        OldContentAsZeros: "memory that was promised to be zero is taken from the cache", [RECYCLED, LEDGER_ORACLE];
        IdleKept: "what is cached for a tenant that has a session is never given back", [CACHED];
        CachedBeyondMax: "what is freed is cached though as much is as may be, and nothing makes way for it", [LIMIT];
        FullThoughCached: "a batch is refused because of memory that is only cached, or that nobody uses", [LIMIT, ADMISSION, DEMANDS];
        SealedMappedWritable: "sealed memory is sent to its owner for writing", [MAP_SENT];
        UnsealedShared: "memory that is not sealed is sent to whoever may read it once it is", [UNSEALED];
        StrangerServed: "a tenant that is not on the readers' list is served", [MAP_SENT, VISIBLE];
        LieBelieved: "an answer that does not fit is ignored, and its session trusted on", [SESSION_LIES];
        SilentTakenForGone: "a channel's end is taken for the process's end", [EXTENT_USE, LEDGER_ORACLE];
        MemoryOutlivesSession: "what a session did not free stays when it is gone", [LIFETIMES];
        NameNotFreed: "a freed allocation keeps its name", [NAMES];
        TimerLost: "nobody looks whether a map is answered in time", [TIMERS];
        WordsTimerLost: "nobody looks whether a word table is mapped in time", [TIMERS];
        RevokeTimerLost: "nobody looks whether a revocation is answered in time", [TIMERS];
        PinTimerLost: "nobody looks whether a pin call is answered in time", [TIMERS];
        LevelWithoutHysteresis: "a step of pressure is left where it is entered", [PRESSURE];
        ReliefUntold: "nobody is told at once that a device is less full than before", [PRESSURE];
        OutlooksUntold: "who comes is not told how full its devices are", [PRESSURE];
        HotEvicted: "what was just used leaves because of pressure", [PRESSED];
        ColdStays: "what nobody uses stays on a full device until somebody needs the room", [RELIEVED];
        CachedUnderPressure: "what is cached stays on a full device until somebody needs the room", [RELIEVED];
        SettingsBelievedLate: "changed levels of pressure count only once something more is held, or less", [PRESSURE];
        SharesUntold: "changed shares of links are not told to the driver", [SETTINGS];
        SettingsHalfApplied: "of a change of settings that is refused a part holds all the same", [SETTINGS, PRESSURE];
        DrainIgnored: "a draining node takes new memory", [DRAINING];
        EpochForgotten: "after a restart ids begin where they began before", [IDS];
        CountsIgnored: "a tenant has as many allocations and parts as it likes, and the node as many extents", [BOUNDS];
        BatchTooLargeServed: "a batch of more items than may be is served", [BOUNDS];
        ReleaseTooLargeServed: "more allocations are freed at once than may be", [BOUNDS];
        ReadersTooManyServed: "an allocation gets more readers than may be", [BOUNDS];
        SessionLimitIgnored: "a session too many is welcomed", [BOUNDS];
        DeviceNotVisibleServed: "memory is made on a device that its session does not see", [DEVICES];
        AttachedUnseen: "a session attaches memory on a device that it does not see", [DEVICES];
        NameTakenTwice: "a name that is borne is taken for free", [UNIQUE];
        NameTwiceInBatch: "one batch gives a name to two allocations", [UNIQUE];
        MapperNotShown: "of those who map an allocation one is not shown", [VISIBLE];
        NotListed: "what is freed and mapped still is not in its tenant's list", [VISIBLE];
        EvictedThoughPinned: "an evict takes a part that a pin call is on", [PINNED];
        AwayStillMapped: "what is evicted counts as mapped all the same", [SUMS];
        SlotReused: "the slot of an evicted part is given to another", [SLOTS];
        WordNotForgotten: "the word of a part that is gone is not collected before its slot serves another", [SLOT_USE, PIN_ANSWERS];
        PinCallLost: "a pin call whose part was freed is not answered", [PIN_ANSWERS, PINNED, STALLS, DEMANDS, BOUNDS, LINK_AWAITED];
        EvictedStaysAway: "what was evicted is not mapped again for who pins it", [PINS, SENT];
        FenceLetsPinsIn: "a pin call that came after a fence is let through", [FENCES, PINS, LOADED];
        PinPartsUnbounded: "a session has as many parts in its pin calls as it likes", [BOUNDS];
        StallIgnored: "pin calls in each other's way wait for ever", [STALLS];
        OwnerKeepsFreed: "what an operator frees stays mapped by its owner, who is not told", [CALLS];
        CopiedWhileMapped: "a part is copied before its last mapper has unmapped it", [MIGRATIONS, COPIES, TRANSITIONS];
        CopiedInPlace: "a part is copied out of the host's memory while it is mapped there", [MIGRATIONS, COPIES];
        AdviceKept: "what is no more to be read in place stays mapped there", [IN_PLACE, MIGRATIONS];
        ComesThoughAdvised: "what is to be read in place comes to its device for who pins it", [IN_PLACE];
        FailedCopyTaken: "a copy that failed is taken for a good one", [CALLS, COPIES, EXTENT_TENANT, CONTENT, VISIBLE, RECYCLED, PRESSED, BACKED];
        SourceKept: "what a part has left is not released", [DRAINS, DEMANDS, BACKED];
        ReleasedWhileCopied: "an extent is released while it is copied", [MIGRATIONS, EXTENT_RELEASED, WRITTEN_BACK];
        CopiedInPart: "the end of a part is not copied with it", [CONTENT];
        HostChargeForgotten: "what lies in host memory is charged to nobody", [LEDGER_ORACLE, LIMIT, ADMISSION];
        HostChargedToAnother: "what lies in host memory is charged to another tenant", [LEDGER_ORACLE, LIMIT, ADMISSION, EXTENTS, BACKED];
        DemandForgotten: "who waits for room is not looked at when some is given back", [DEMANDS];
        PinGrantedElsewhere: "a pin call is told that it has a part which is elsewhere", [PIN_ANSWERS, DEMANDS];
        SentFromOldExtent: "a part that has moved is sent from the extent that it has left", [DEVICES, EXTENT_USE, FILES, IN_PLACE];
        ComerForgotten: "who attached a part while it was elsewhere is not sent it when it is there", [SENT, DEMANDS];
        ShadowOlderThanPart: "what was written since a part came to its device is lost when it leaves", [CONTENT];
        EvictedBelowGuarantee: "what is guaranteed to a tenant is taken from its device for another", [EVICTED];
        LossNotTold: "who is sent a part is not told that its content was given up", [CONTENT];
        EvictedThoughHeld: "a part that an operator holds leaves its device for another", [HELD];
        GuaranteeAwaited: "who asks for what others' guarantees will never let it have waits for it", [DEMANDS];
        AttachUnbounded: "who attaches more than can be on its device waits for it", [DEMANDS];
        SealBringsIn: "what was elsewhere when it was sealed comes back unasked", [EVICTED, DEMANDS, SENT, PINNED, PIN_ANSWERS];
        BatchOvertakes: "a batch takes room that others wait for", [DEMANDS];
        TouchIgnored: "who is seen to unpin makes no room for who waits", [DEMANDS];
        StarvedForgotten: "a session that finds the budget of descriptors spent is not served later", [SENT];
        MappersFromWords: "who was sent a part and has not answered is no mapper, since its word does not say so", [MIGRATIONS, COPIES, FENCES, SLOT_USE, EXTENT_USE];
        SourceReleasedEarly: "what a part leaves is released before the copy has ended", [EXTENT_RELEASED, MIGRATIONS, COPIES];
        HandedOverUnread: "the extent that a part leaves is handed over before the copy out of it has ended", [EXTENTS, MIGRATIONS, COPIES];
        HandOverChargedTwice: "an extent that is handed over is charged to its tenant once more", [LEDGER_BALANCES, LEDGER_ORACLE];
        HandOverUncharged: "an extent that is handed over is charged to nobody from then on", [LEDGER_ORACLE, LIMIT, ADMISSION];
        FailedCopyKept: "what a failed copy has left below is taken for what the part holds", [CONTENT];
        PinGrantedToLeft: "a pin call is answered though its client wants it no more", [PIN_ANSWERS, DEMANDS];
        OlderShadowKept: "what a part has below is a shadow still when writing it back has failed", [CONTENT];
        WrittenSinceIgnored: "what was written back is a shadow though the part was written meanwhile", [CONTENT];
        UnwrittenTakenForClean: "what does not say that it was written is taken for what lies below, when its word is looked at", [CONTENT];
        WrittenBackToAnother: "a part is written back to what another has below", [COPIES, CONTENT, MIGRATIONS];
        LackingForgotten: "a part for which there were no bytes below never gets any", [BACKED];
        MissingForgotten: "what a driver had not counts as free until it is looked who holds it", [ADMISSION, LEDGER_ORACLE];
        UnmappableLost: "what a client could not map once is lost to it", [PIN_ANSWERS];
        BackedFarther: "what a part has below is set aside on disk though there is room for it in the host", [LEDGER_ORACLE, LIMIT, ADMISSION, BACKED, EXTENTS];
        OtherBackingKept: "what a part had in another tier than the one that it has left for stays its own", [BACKED, LEDGER_ORACLE];
        UnwrittenCopied: "what lies on disk and was never written is copied", [COPIES];
        LossAwaited: "who is to be sent what is lost on disk goes on waiting for it", [PIN_ANSWERS];
        EarlyLookBelieved: "a look that began before a driver had no memory says that there is some", [LEDGER_ORACLE, ADMISSION];
        FirstLackAlone: "a batch that is short in several places is judged by the first", [DEMANDS];
        WrittenBackReleased: "what is being written back to is released before the copy has ended", [COPIES, WRITTEN_BACK, EXTENT_RELEASED];
        FileCharged: "what lies in a file is charged as if it lay on disk", [FILES, LEDGER_ORACLE, CALLS];
        CopiedToFile: "a part that leaves its device is copied to its file", [FILES, COPIES];
        FileForgotten: "the file of a part is let go once the part is on its device", [BACKED];
        UnreadSealed: "what is loaded is sealed before it was read", [LOADED, SEALED, CALLS];
        PiecesFromTheStart: "every part of what is loaded begins where its file does", [LOADED, CONTENT];
        LoadedToOwner: "who loads something is sent it, and has not attached it", [LOADED, EVICTED, PIN_ANSWERS];
        UnreadableKept: "what could not be loaded is not freed", [LOADED];
        FileKept: "the file of a part that is freed is never let go", [EXTENTS, DRAINS];
        DamageIgnored: "what cannot be read as it was written, or as its file was, is taken for good", [COPIES, CONTENT, EXTENT_TENANT, PIN_ANSWERS, RECYCLED, CALLS];
        ClassInverted: "what somebody waits for is copied as what nobody does, and not hastened", [LINK_AWAITED];
        PrefetchBeforeDemand: "a link has a prefetch go before what somebody waits for", [LINK_ORDER, LINK_SHARES];
        ShareLentForEver: "a link does not give back what a class has lent to others", [LINK_SHARES];
        ShareSavedUp: "a link lets a class save up what it does not want", [LINK_SHARES];
        FullWantsNothing: "what waits in a lane that has enough under way is not owed its share of links", [LINK_SHARES];
        FullLacksItsShare: "a lane that has enough under way begins nothing of what lacks its share beside demand", [LINK_SHARES];
        SharedOnlyVetoes: "who lacks its share of a link that lanes share goes no sooner in its lane", [LINK_SHARES];
        OthersNotHeldBack: "who lacks its share of a link that lanes share has others' chunks begun all the same", [LINK_SHARES];
    }

    impl Broker {
        /// Makes one bug active, or none. Before the first event.
        pub fn plant(&mut self, bug: Option<Bug>) {
            self.planted = bug;
            self.ledger.plant(bug);
            if bug == Some(Bug::EpochForgotten) {
                self.ids.allocations = IdSource::new(1);
                self.ids.sessions = IdSource::new(1);
                self.ids.extents = IdSource::new(1);
            }
        }
    }
}
