//! Kinds of events and queries that are measured separately, so that a cost that grows in one kind cannot hide
//! among the others.

use broker_core::{ClientFrame, ClientRequest, Completion, Event};

use crate::counted::regions;

macro_rules! kinds {
    ($($variant:ident $region:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($variant,)* }

        impl Kind {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The name of the region in which events of this kind are counted.
            pub const fn region(self) -> &'static str {
                match self { $(Self::$variant => stringify!($region),)* }
            }

            /// Runs the work in the region of this kind.
            pub fn count<R>(self, work: impl FnOnce() -> R) -> R {
                match self { $(Self::$variant => regions::$region(work),)* }
            }
        }
    };
}

kinds! {
    Hello hello "hello",
    ProcessEnded process_ended "process ended",
    AllocateBatch allocate_batch "AllocateBatch",
    FreeBatch free_batch "FreeBatch",
    Attach attach "Attach",
    Detach detach "Detach",
    Seal seal "Seal",
    Mapped mapped "mapped",
    Unmapped unmapped "unmapped",
    Created created "extent created",
    Released released "extent released",
    Returned returned "extent returned",
    Digested digested "digested",
    Surveyed surveyed "surveyed",
    Operator operator "SetQuota",
    QuotasStored quotas_stored "quotas stored",
    Tick tick "tick",
    Other other "other",
    Describe describe "query: describe",
    ListVisible list_visible "query: a tenant's page",
    ListPrefix list_prefix "query: a page by name prefix",
    Show show "query: show by name",
    ListAllocations list_allocations "query: an operator's page",
    ListSessions list_sessions "query: sessions",
    Quota quota "query: quota",
}

impl Kind {
    pub const fn of(event: &Event) -> Self {
        match event {
            Event::Hello { .. } => Self::Hello,
            Event::Frame { frame: ClientFrame::Mapped(_), .. } => Self::Mapped,
            Event::Frame { frame: ClientFrame::Unmapped(_), .. } => Self::Unmapped,
            Event::Frame { .. } => Self::Other,
            Event::ProcessEnded { .. } => Self::ProcessEnded,
            Event::Client { request, .. } => match request {
                ClientRequest::AllocateBatch { .. } => Self::AllocateBatch,
                ClientRequest::FreeBatch(_) => Self::FreeBatch,
                ClientRequest::Attach(_) | ClientRequest::AttachUnpinned(_) => Self::Attach,
                ClientRequest::Detach(_) => Self::Detach,
                ClientRequest::Seal(_) | ClientRequest::Load { .. } => Self::Seal,
                ClientRequest::Advise(..) | ClientRequest::Evict(..) | ClientRequest::CancelBatch(_) => {
                    Self::Other
                }
            },
            Event::Operator { .. } => Self::Operator,
            Event::Completion(completion) => match completion {
                Completion::Created { .. } => Self::Created,
                Completion::Released { .. } => Self::Released,
                Completion::Returned { .. } => Self::Returned,
                Completion::Digested { .. } => Self::Digested,
                Completion::Surveyed { .. } => Self::Surveyed,
                // No operator revokes here.
                Completion::WordsRevoked { .. }
                | Completion::WrittenCleared { .. }
                | Completion::Copied { .. }
                | Completion::Damaged { .. }
                | Completion::CleanBackingDiffers { .. } => Self::Other,
            },
            Event::QuotasStored { .. } => Self::QuotasStored,
            Event::Tick => Self::Tick,
            Event::Malformed { .. }
            | Event::ChannelEnded { .. }
            | Event::ProcessStays { .. }
            | Event::PartsUsed(_) => Self::Other,
        }
    }
}
