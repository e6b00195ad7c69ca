//! What the broker wants operators to read, as log lines with fields.

use broker_core::Notice;
use tracing::{error, info, warn};

pub(super) fn log(notice: &Notice) {
    match notice {
        Notice::SessionOpened { session, tenant, pid } => info!(%session, tenant, pid, "session opened"),
        Notice::SessionSilent { session, reason } => {
            warn!(%session, reason, "session is silent: what it maps stands and stays charged");
        }
        Notice::SessionAnswered { session } => info!(%session, "session answered and is live again"),
        Notice::SessionGone { session } => info!(%session, "session gone"),
        Notice::MapFailed { session, part, problem } => {
            warn!(%session, allocation = %part.allocation, part = part.part.0, problem, "client could not map a part");
        }
        Notice::Unreturned { extent, bytes } => {
            warn!(%extent, bytes = bytes.get(), "released memory is still held by some process; it stays charged");
        }
        Notice::Returned { extent, bytes } => {
            info!(%extent, bytes = bytes.get(), "unreturned memory is back")
        }
        Notice::CreateFailed { extent, problem } => warn!(%extent, problem, "driver could not make memory"),
        Notice::Unbrokered { device, bytes } if bytes.is_zero() => {
            info!(device = device.0, "memory of the device is held by tenants alone");
        }
        Notice::Unbrokered { device, bytes } => {
            warn!(
                device = device.0,
                bytes = bytes.get(),
                "memory of the device is held by processes of no tenant"
            );
        }
        Notice::Shortfall { device, tier, bytes } if bytes.is_zero() => {
            info!(device = device.0, %tier, "capacity covers what is guaranteed and held again");
        }
        Notice::Shortfall { device, tier, bytes } => {
            warn!(device = device.0, %tier, bytes = bytes.get(), "capacity does not cover what is guaranteed and held");
        }
        Notice::InvariantBroken { invariant, detail } => {
            error!(invariant, detail, "an invariant broke: this is a bug")
        }
    }
}
