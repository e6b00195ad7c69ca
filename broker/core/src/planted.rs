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

    use crate::broker::Broker;

    macro_rules! bugs {
        ($($name:ident: $what:literal,)*) => {
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
            }
        };
    }

    bugs! {
        SettleSkipped: "what was made stays reserved",
        ReservationKept: "what could not be made stays reserved",
        DoubleFree: "an extent is released twice",
        WrongTenantCharged: "an allocation is charged to another tenant",
        UnreturnedToNobody: "bytes that did not come back are charged to nobody",
        DebtToOwnerOnly: "bytes that did not come back are charged to their owner alone, whoever else was sent them",
        GuaranteeIgnored: "what is guaranteed to others is handed out",
        LimitOffByOnePart: "a tenant gets one granule more than its limit",
        SumOverflows: "the sizes of a batch are added up without a look at the overflow",
        StagedGuaranteeForgotten: "a guarantee that is being written to disk is not held back meanwhile",
        UnstoredQuotaHolds: "a quota that could not be stored holds all the same",
        DefaultQuotaForgotten: "a deleted quota goes on being enforced",
        ShortfallIgnored: "memory that others took still counts as capacity",
        AnswerLost: "the second of two calls that wait for one thing is not answered",
        AnswerToAnother: "an answer goes to another call that waits",
        AnsweredTwice: "a repeated call is answered twice",
        RequestIdForgotten: "a repeated request is done again",
        ReusedRequestIdServed: "a request id with other content is taken for a repetition",
        ForeignProcessServed: "a call is not held against the process of its session",
        ReleasedWhileMapped: "an extent is released while a session maps it",
        ReleasedWhileHashed: "an extent is released while the driver reads it",
        HashedWhileMapped: "sealed memory is hashed while its writer maps it",
        HalfABatchKept: "a failed batch leaves its later allocations behind",
        FreedIsSent: "what waits to be sent of an allocation is sent though it was freed",
        MapToDeadSession: "a descriptor is sent to a session whose channel has ended",
        TwoPacketsInFlight: "a second packet of descriptors is sent before the first is answered",
        FdBudgetKept: "descriptors in flight to a session that is gone stay in the budget",
        ExtentOfAnotherTenant: "a session is sent an extent that backs another tenant's memory",
        CachedToAnotherTenant: "a cached extent is given to another tenant",
        CachedThoughRead: "an extent is cached though a reader of another tenant had it",
        CachedThoughCrashed: "an extent is cached though a session that mapped it ended without a word",
        OldContentAsZeros: "memory that was promised to be zero is taken from the cache",
        FullThoughCached: "a batch is refused because of memory that is only cached",
        SealedMappedWritable: "sealed memory is sent to its owner for writing",
        UnsealedShared: "memory that is not sealed is sent to whoever may read it once it is",
        StrangerServed: "a tenant that is not on the readers' list is served",
        LieBelieved: "an answer that does not fit is ignored, and its session trusted on",
        SilentTakenForGone: "a channel's end is taken for the process's end",
        MemoryOutlivesSession: "what a session did not free stays when it is gone",
        NameNotFreed: "a freed allocation keeps its name",
        TimerLost: "nobody looks whether a map is answered in time",
        RevokeTimerLost: "nobody looks whether a revocation is answered in time",
        DrainIgnored: "a draining node takes new memory",
        EpochForgotten: "after a restart ids begin where they began before",
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
