//! Writes the broker's notices to the log, as lines with fields.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use broker_core::Notice;
use tokio::{task::AbortHandle, time::Instant};
use tracing::{debug, error, info, trace, warn};
use vramd_types::SessionId;

use crate::telemetry::PeerLines;

/// Minimum time between two lines of one kind about single parts: one request, or the end of one process, can concern
/// tens of thousands of parts.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a session is silent before an operator should look at it. A client that exits may close its channel a moment
/// before its process ends.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Writes notices to the log.
#[derive(Debug, Default)]
pub(super) struct NoticeLog {
    map_failed: RateLimit,
    create_failed: RateLimit,
    move_failed: RateLimit,
    shadow_differs: RateLimit,
    pin_stalled: RateLimit,
    unreturned: RateLimit,
    returned: RateLimit,
    silent: BTreeMap<SessionId, SilentLine>,
    /// Lines about sessions, by tenant.
    sessions: PeerLines<Arc<str>>,
}

/// The line about a silent session, which is logged unless the session ends before.
#[derive(Debug)]
struct SilentLine(AbortHandle);

impl SilentLine {
    fn new(session: SessionId, reason: String) -> Self {
        let line = async move {
            tokio::time::sleep(SILENT_AFTER).await;
            warn!(%session, reason, "session is silent: its mappings stand and stay charged");
        };
        Self(tokio::spawn(line).abort_handle())
    }
}

impl Drop for SilentLine {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Limits the lines of one kind.
#[derive(Debug, Default)]
struct RateLimit {
    last: Option<Instant>,
    left_out: u64,
}

impl RateLimit {
    /// Returns the number of lines left out since the last one, if a line may be logged now.
    fn take_turn(&mut self) -> Option<u64> {
        if self.last.is_some_and(|last| last.elapsed() < LINE_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.left_out))
    }
}

impl NoticeLog {
    pub(super) fn log(&mut self, notice: &Notice) {
        match notice {
            Notice::SessionSilent { session, reason, .. } => {
                let line = SilentLine::new(*session, reason.clone());
                return drop(self.silent.insert(*session, line));
            }
            Notice::SessionAnswered { session, .. } | Notice::SessionGone { session, .. } => {
                self.silent.remove(session);
            }
            _ => {}
        }
        let rate_limit = match notice {
            Notice::MapFailed { .. } => &mut self.map_failed,
            Notice::CreateFailed { .. } => &mut self.create_failed,
            Notice::MoveFailed { .. } => &mut self.move_failed,
            Notice::CleanBackingDiffers { .. } => &mut self.shadow_differs,
            Notice::PinStalled { .. } => &mut self.pin_stalled,
            Notice::Unreturned { .. } => &mut self.unreturned,
            Notice::Returned { .. } => &mut self.returned,
            Notice::SessionOpened { tenant, .. }
            | Notice::SessionSilent { tenant, .. }
            | Notice::SessionAnswered { tenant, .. }
            | Notice::SessionGone { tenant, .. } => {
                if self.sessions.may_write(tenant) {
                    log(notice, 0);
                }
                return;
            }
            _ => return log(notice, 0),
        };
        if let Some(left_out) = rate_limit.take_turn() {
            log(notice, left_out);
        }
    }
}

/// `left_out` is the number of notices of the same kind since the last line.
fn log(notice: &Notice, left_out: u64) {
    match notice {
        Notice::SessionOpened { session, tenant, pid } => info!(%session, %tenant, pid, "session opened"),
        // Logged later, if it lasts.
        Notice::SessionSilent { .. } => {}
        Notice::SessionKilled { session, reason, .. } => {
            warn!(%session, reason, "the process of a session is killed");
        }
        Notice::SessionAnswered { session, .. } => info!(%session, "session answered and is live again"),
        Notice::SessionGone { session, .. } => info!(%session, "session gone"),
        Notice::Refused { by, request, refusal } => {
            debug!(%by, request, reason = refusal.reason().name(), "request refused");
        }
        Notice::QuotaSet { tenant, device, tier, guarantee, limit } => {
            info!(%tenant, device, %tier, %guarantee, %limit, "quota set");
        }
        Notice::QuotaDeleted { tenant, device, tier } => info!(%tenant, device, %tier, "quota deleted"),
        Notice::TenantChanged { tenant, standing, source } => {
            let (class, weight, advice) = (standing.class, standing.weight, standing.advice);
            info!(%tenant, %class, %weight, %advice, ?source, "standing of a tenant changed");
        }
        Notice::AllocationMade { allocation, tenant, bytes, .. } => {
            debug!(%allocation, %tenant, bytes = bytes.get(), "allocation made");
        }
        Notice::AllocationSealed { allocation, tenant } => debug!(%allocation, %tenant, "allocation sealed"),
        Notice::PartsHeld { allocation, tenant, parts, hold } => {
            info!(%allocation, %tenant, parts, hold, "operator hold changed");
        }
        Notice::Advised { allocation, tenant, advice } => {
            debug!(%allocation, %tenant, ?advice, "advice given");
        }
        Notice::OperatorAdvised { allocation, tenant, parts, change: Some(change) } => {
            info!(%allocation, %tenant, ?parts, ?change, "operator advice given");
        }
        Notice::OperatorAdvised { allocation, tenant, parts, change: None } => {
            info!(%allocation, %tenant, ?parts, "operator advice cleared");
        }
        Notice::AllocationFreed { allocation, tenant } => debug!(%allocation, %tenant, "allocation freed"),
        Notice::AllocationGone { allocation, tenant } => debug!(%allocation, %tenant, "allocation gone"),
        Notice::RevokeSent { session, allocation, parts, reason, .. } => {
            debug!(%session, %allocation, parts, ?reason, "revoke sent");
        }
        Notice::RevokeAnswered { session, allocation, parts, .. } => {
            debug!(%session, %allocation, parts, "revoke answered");
        }
        Notice::RevokeOverdue { session, parts, .. } => warn!(%session, parts, "revoke not answered in time"),
        Notice::Draining { draining: true } => info!("the node drains: it admits nothing new"),
        Notice::Draining { draining: false } => info!("the node is back in service"),
        Notice::MapFailed { session, part, problem, .. } => {
            warn!(%session, allocation = %part.allocation, part = part.part.0, problem, left_out, "a client could not map a part");
        }
        Notice::VictimChosen { part, cause, reason } => {
            debug!(allocation = %part.allocation, part = part.part.0, cause = cause.name(), reason = reason.name(), "part was chosen to leave its device");
        }
        Notice::Evicted { part, mappers } => {
            debug!(allocation = %part.allocation, part = part.part.0, mappers, "part evicted: its mappers are told to unmap it");
        }
        Notice::PinStalled { session, call } => {
            warn!(%session, call, left_out, "pin call aborted: it waited only for sessions that wait themselves");
        }
        Notice::Unreturned { extent, bytes } => {
            warn!(%extent, bytes = bytes.get(), left_out, "released memory is still open in some process: it stays charged");
        }
        Notice::Returned { extent, bytes } => {
            info!(%extent, bytes = bytes.get(), left_out, "unreturned memory was returned")
        }
        Notice::CreateFailed { extent, problem } => {
            warn!(%extent, problem, left_out, "the driver could not create memory")
        }
        Notice::Backed { part, tenant, device, tier, bytes } => {
            debug!(allocation = %part.allocation, part = part.part.0, %tenant, device = device.0, %tier, bytes = bytes.get(), "part has backing now and can be evicted");
        }
        Notice::CreateRetried { device } => {
            info!(device = device.0, "the driver is asked again for memory that it could not create")
        }
        Notice::Moved { part, tenant, device, tier, bytes, .. } => {
            debug!(allocation = %part.allocation, part = part.part.0, %tenant, device = device.0, %tier, bytes = bytes.get(), "part moved");
        }
        Notice::WrittenBack { part, tenant, device, tier, bytes, clean, .. } => {
            debug!(allocation = %part.allocation, part = part.part.0, %tenant, device = device.0, %tier, bytes = bytes.get(), clean, "part written back");
        }
        Notice::Dropped { part, tenant, device, bytes, .. } => {
            debug!(allocation = %part.allocation, part = part.part.0, %tenant, device = device.0, bytes = bytes.get(), "discardable part dropped");
        }
        Notice::MoveFailed { part, tenant, device, tier, problem, .. } => {
            warn!(allocation = %part.allocation, part = part.part.0, %tenant, device = device.0, %tier, problem, left_out, "part could not be moved and is where it was");
        }
        Notice::CleanBackingDiffers { part, tenant, device, tier, bytes } => {
            warn!(allocation = %part.allocation, part = part.part.0, %tenant, device = device.0, %tier, bytes = bytes.get(), left_out, "part was written without a pin for writing, and is copied");
        }
        Notice::MoveStopped { part, tenant, device, tier, .. } => {
            debug!(allocation = %part.allocation, part = part.part.0, %tenant, device = device.0, %tier, "part's move stopped");
        }
        Notice::PrefetchEnded { session, number, tenant, bytes, end, loss, .. } => {
            debug!(%session, prefetch = number, %tenant, bytes = bytes.get(), ?end, ?loss, "prefetch ended");
        }
        Notice::TurnAdmitted { session, tenant, device, set, .. } => {
            debug!(%session, %tenant, device = device.0, %set, "hand-over begun: the working set comes to the device");
        }
        Notice::TurnGranted { session, tenant, device, set, bytes, .. } => {
            debug!(%session, %tenant, device = device.0, %set, bytes = bytes.get(), "turn granted");
        }
        Notice::TurnEnding { session, tenant, device, set, by_operator } => {
            debug!(%session, %tenant, device = device.0, %set, by_operator, "client asked to yield its turn");
        }
        Notice::TurnOverdue { session, tenant, device, set, .. } => {
            warn!(%session, %tenant, device = device.0, %set, "turn is overdue: the client does not yield it");
        }
        Notice::TurnEnded { session, tenant, device, set, end, .. } => {
            debug!(%session, %tenant, device = device.0, %set, ?end, "turn ended");
        }
        Notice::PrefetchUsed { tenant, bytes, lead } => {
            trace!(%tenant, bytes = bytes.get(), lead_us = lead.as_micros(), "prefetched part used");
        }
        Notice::SpeculationEnded { part, tenant, bytes, end } => {
            trace!(allocation = %part.allocation, part = part.part.0, %tenant, bytes = bytes.get(), ?end, "part that was brought unasked");
        }
        Notice::ReadInPlaceEnded { part } => {
            debug!(allocation = %part.allocation, part = part.part.0, "part is no longer to be read in host memory");
        }
        Notice::PlacementChosen { part, tenant, sum, in_place } => {
            debug!(allocation = %part.allocation, part = part.part.0, %tenant, benefit_us = sum.benefit.as_micros(), cost_us = sum.cost.as_micros(), factor_percent = sum.factor, in_place, "placement chosen");
        }
        Notice::ManagedOrdered { allocation, session, to } => {
            debug!(%allocation, %session, %to, "managed memory ordered");
        }
        Notice::ManagedOrderEnded { allocation, session, to, problem: None, .. } => {
            debug!(%allocation, %session, %to, "order for managed memory executed");
        }
        Notice::ManagedOrderEnded { allocation, session, tenant, to, problem: Some(problem) } => {
            info!(%allocation, %session, %tenant, %to, problem, "order for managed memory failed");
        }
        Notice::ManagedCharged { allocation, session, device, bytes } => {
            debug!(%allocation, %session, device = device.0, bytes = bytes.get(), "managed memory charged");
        }
        Notice::Cached { extent, bytes } => {
            debug!(%extent, bytes = bytes.get(), "freed memory cached for its tenant");
        }
        Notice::Reused { extent, part } => {
            debug!(%extent, allocation = %part.allocation, part = part.part.0, "cached memory reused");
        }
        Notice::GivenUp { extent, bytes } => debug!(%extent, bytes = bytes.get(), "cached memory released"),
        Notice::WaitEnded { waiter, end, .. } => trace!(?waiter, ?end, "wait for room ended"),
        Notice::PinWaited { session, call, end, .. } => {
            trace!(%session, call, ?end, "pin call's wait for absent parts ended");
        }
        Notice::RoomMade { tenant } => debug!(tenant, "cached memory made room for a waiting request"),
        Notice::Unbrokered { device, bytes } if bytes.is_zero() => {
            info!(device = device.0, "the device has no unbrokered memory any longer");
        }
        Notice::Unbrokered { device, bytes } => {
            warn!(
                device = device.0,
                bytes = bytes.get(),
                "the device has unbrokered memory: no tenant explains its processes"
            );
        }
        Notice::Shortfall { device, tier, bytes } if bytes.is_zero() => {
            info!(device = device.0, %tier, "shortfall ended: the capacity covers guarantees and charges");
        }
        Notice::Shortfall { device, tier, bytes } => {
            warn!(device = device.0, %tier, bytes = bytes.get(), "shortfall: the capacity does not cover guarantees and charges");
        }
        Notice::PressureChanged { device, tier, from, to, charged, capacity } => {
            info!(
                device = device.0, %tier, %from, %to,
                held_bytes = charged.get(),
                capacity_bytes = capacity.get(),
                "pressure changed"
            );
        }
        Notice::SettingsChanged { uid, before, after } => {
            info!(uid, %before, %after, "an operator changed settings until the daemon ends");
        }
        Notice::InvariantBroken { invariant, detail } => {
            error!(invariant, detail, "an invariant is broken: this is a bug")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second_counts_those_left_out() {
        let mut rate_limit = RateLimit::default();
        assert_eq!(rate_limit.take_turn(), Some(0));
        for _ in 0..10_000 {
            assert_eq!(rate_limit.take_turn(), None);
        }
        tokio::time::advance(LINE_INTERVAL).await;
        assert_eq!(rate_limit.take_turn(), Some(10_000));
        tokio::time::advance(LINE_INTERVAL).await;
        assert_eq!(rate_limit.take_turn(), Some(0));
    }
}
