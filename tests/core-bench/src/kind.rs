//! Kinds of events and queries that are timed separately, so that a cost that grows in one kind cannot hide
//! among the others.

use broker_core::{ClientFrame, ClientRequest, Completion, Event};

macro_rules! kinds {
    ($($variant:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($variant,)* }

        impl Kind {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

kinds! {
    Hello "hello",
    ProcessEnded "process ended",
    AllocateBatch "AllocateBatch",
    FreeBatch "FreeBatch",
    Attach "Attach",
    Detach "Detach",
    Seal "Seal",
    Mapped "mapped",
    Unmapped "unmapped",
    Created "extent created",
    Released "extent released",
    Returned "extent returned",
    Digested "digested",
    Surveyed "surveyed",
    Operator "SetQuota",
    QuotasStored "quotas stored",
    Tick "tick",
    Other "other",
    Describe "query: describe",
    ListVisible "query: a tenant's page",
    ListPrefix "query: a page by name prefix",
    Show "query: show by name",
    ListAllocations "query: an operator's page",
    ListSessions "query: sessions",
    Quota "query: quota",
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
                ClientRequest::Advise(..) => Self::Other,
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
            Event::Malformed { .. } | Event::ChannelEnded { .. } | Event::PartsUsed(_) => Self::Other,
        }
    }
}
