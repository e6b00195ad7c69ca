//! The reasons for which each request can be refused. A reason that is not listed is a mistake, in the core
//! or here.

use broker_core::{ClientRequest, OperatorRequest};
use vramd_types::Reason;

use crate::oracle::facts::Asked;

/// The reasons for which a request can be refused.
pub(crate) fn possible_reasons(asked: &Asked) -> &'static [Reason] {
    use Reason as R;
    match asked {
        Asked::Client { request, .. } => match request {
            ClientRequest::AllocateBatch { .. } => &[
                R::SessionMissing,
                R::SessionNotFound,
                R::SessionLost,
                R::SessionForeign,
                R::RequestIdReused,
                R::QueueFull,
                R::Draining,
                R::RequestInvalid,
                R::BatchTooLarge,
                R::SizeInvalid,
                R::PartSizeInvalid,
                R::NameInvalid,
                R::NameTaken,
                R::DeviceUnknown,
                R::DeviceNotVisible,
                R::KindUnsupported,
                R::QuotaLimit,
                R::DeviceFull,
                R::AllocationsTooMany,
                R::SlotsExhausted,
                R::DriverFailed,
                R::Raced,
                R::AllocationNotFound,
                R::WaitCancelled,
            ],
            ClientRequest::CancelBatch(_) => {
                &[R::SessionMissing, R::SessionNotFound, R::SessionLost, R::SessionForeign, R::WaitNotFound]
            }
            ClientRequest::Advise(..) => &[
                R::SessionMissing,
                R::SessionNotFound,
                R::SessionLost,
                R::SessionForeign,
                R::RequestIdReused,
                R::QueueFull,
                R::AllocationNotFound,
                R::NotOwner,
                R::KindUnsupported,
                R::TierUnsupported,
                R::AdviceContradicts,
                R::AdviceForbidden,
                R::QuotaLimit,
                R::RequestInvalid,
            ],
            ClientRequest::Evict(..) => &[
                R::SessionMissing,
                R::SessionNotFound,
                R::SessionLost,
                R::SessionForeign,
                R::RequestIdReused,
                R::QueueFull,
                R::AllocationNotFound,
                R::NotOwner,
                R::KindUnsupported,
                R::TierUnsupported,
                R::QuotaLimit,
                R::RequestInvalid,
                R::Raced,
            ],
            ClientRequest::Load { .. } => &[
                R::SessionMissing,
                R::SessionNotFound,
                R::SessionLost,
                R::SessionForeign,
                R::RequestIdReused,
                R::QueueFull,
                R::Draining,
                R::RequestInvalid,
                R::BatchTooLarge,
                R::SizeInvalid,
                R::PartSizeInvalid,
                R::NameInvalid,
                R::NameTaken,
                R::DeviceUnknown,
                R::DeviceNotVisible,
                R::KindUnsupported,
                R::AllocationsTooMany,
                R::SlotsExhausted,
                R::DriverFailed,
                R::ContentLost,
                R::Raced,
                R::AllocationNotFound,
            ],
            ClientRequest::FreeBatch(_) | ClientRequest::Detach(_) => &[
                R::SessionMissing,
                R::SessionNotFound,
                R::SessionLost,
                R::SessionForeign,
                R::RequestIdReused,
                R::QueueFull,
                R::RequestInvalid,
                R::BatchTooLarge,
            ],
            ClientRequest::Attach(_) | ClientRequest::AttachUnpinned(_) => &[
                R::SessionMissing,
                R::SessionNotFound,
                R::SessionLost,
                R::SessionForeign,
                R::RequestIdReused,
                R::QueueFull,
                R::Draining,
                R::AllocationNotFound,
                R::NameInvalid,
                R::RequestInvalid,
                R::DeviceFull,
                R::QuotaLimit,
                R::SetTooLarge,
                R::NotSealed,
                R::DeviceNotVisible,
                R::StillMapped,
                R::SlotsExhausted,
                R::KindUnsupported,
            ],
            ClientRequest::Seal(_) => &[
                R::SessionMissing,
                R::SessionNotFound,
                R::SessionLost,
                R::SessionForeign,
                R::RequestIdReused,
                R::QueueFull,
                R::AllocationNotFound,
                R::NotOwner,
                R::Raced,
                R::AlreadySealed,
                R::KindUnsupported,
                R::NameTaken,
                R::StillMapped,
                R::SlotsExhausted,
                R::DriverFailed,
                R::ContentLost,
            ],
        },
        Asked::Operator { request, .. } => match request {
            OperatorRequest::SetQuota { .. } => &[
                R::RequestIdReused,
                R::QueueFull,
                R::RequestInvalid,
                R::DeviceUnknown,
                R::NameInvalid,
                R::TierUnsupported,
                R::QuantityInvalid,
                R::GuaranteeUnbacked,
                R::StoreFailed,
            ],
            OperatorRequest::DeleteQuota { .. } => &[
                R::RequestIdReused,
                R::QueueFull,
                R::NameInvalid,
                R::TierUnsupported,
                R::QuantityInvalid,
                R::GuaranteeUnbacked,
                R::StoreFailed,
                R::QuotaNotFound,
            ],
            OperatorRequest::SetTenant { .. } => {
                &[R::RequestIdReused, R::QueueFull, R::NameInvalid, R::RequestInvalid, R::StoreFailed]
            }
            OperatorRequest::ResetTenant { .. } => {
                &[R::RequestIdReused, R::QueueFull, R::NameInvalid, R::StoreFailed]
            }
            OperatorRequest::EndSession { .. } => &[R::RequestIdReused, R::QueueFull, R::SessionNotFound],
            OperatorRequest::FreeAllocation(_) => {
                &[R::RequestIdReused, R::QueueFull, R::AllocationNotFound, R::NameInvalid, R::KindUnsupported]
            }
            OperatorRequest::RevokeMappings { .. } | OperatorRequest::HoldParts { .. } => &[
                R::RequestIdReused,
                R::QueueFull,
                R::RequestInvalid,
                R::AllocationNotFound,
                R::NameInvalid,
                R::KindUnsupported,
                R::Raced,
            ],
            OperatorRequest::MoveParts { .. } | OperatorRequest::WriteBackParts { .. } => &[
                R::RequestIdReused,
                R::QueueFull,
                R::QuotaLimit,
                R::SessionLost,
                R::RequestInvalid,
                R::AllocationNotFound,
                R::NameInvalid,
                R::KindUnsupported,
                R::TierUnsupported,
                R::Raced,
            ],
            OperatorRequest::AdviseParts { .. } => &[
                R::RequestIdReused,
                R::QueueFull,
                R::RequestInvalid,
                R::AllocationNotFound,
                R::NameInvalid,
                R::KindUnsupported,
                R::TierUnsupported,
                R::AdviceContradicts,
                R::Raced,
            ],
            OperatorRequest::CancelWait { .. } => &[R::RequestIdReused, R::QueueFull, R::WaitNotFound],
            OperatorRequest::YieldTurn { .. } => {
                &[R::RequestIdReused, R::QueueFull, R::SessionNotFound, R::TurnNotFound]
            }
            OperatorRequest::CancelPrefetch { .. } => {
                &[R::RequestIdReused, R::QueueFull, R::SessionNotFound, R::PrefetchNotFound]
            }
            OperatorRequest::ChangeSettings(_) => &[
                R::RequestIdReused,
                R::QueueFull,
                R::RequestInvalid,
                R::SettingInvalid,
                R::TierUnsupported,
                R::TierGuaranteed,
            ],
            OperatorRequest::Drain { .. } => &[R::RequestIdReused, R::QueueFull],
        },
    }
}

/// The reasons for which a pin call can be refused.
pub(crate) const PIN_REASONS: &[Reason] = &[
    Reason::SessionLost,
    Reason::QueueFull,
    Reason::AllocationNotFound,
    Reason::Raced,
    Reason::DeviceFull,
    Reason::QuotaLimit,
    Reason::SetTooLarge,
    Reason::PinStalled,
    Reason::MapFailed,
    Reason::WaitCancelled,
    Reason::DriverFailed,
];

/// The reasons for which a prefetch request can be refused.
pub(crate) const PREFETCH_REASONS: &[Reason] = &[
    Reason::SessionLost,
    Reason::RequestInvalid,
    Reason::AllocationNotFound,
    Reason::KindUnsupported,
    Reason::SetTooLarge,
    Reason::DeviceFull,
    Reason::QuotaLimit,
    Reason::QueueFull,
    Reason::AllocationsTooMany,
    Reason::DriverFailed,
    Reason::ContentLost,
    Reason::Raced,
];
