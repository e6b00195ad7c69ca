//! The tables of the view, each made from one snapshot.

use std::{collections::BTreeMap, time::Duration};

use prost_types::Timestamp;
use vramd_client::{AllocationId, SessionId};
use vramd_proto::v1;
use vramd_types::PrefetchNumber;

use super::{
    grid::{Bar, Cell, Column, Grid, Row, RowId, Tone, percent},
    rates::LaneRate,
    snapshot::{Snapshot, resident},
};
use crate::{
    commands::{
        alloc, link, moves,
        names::{level_name, tier_name},
        prefetch, quota, session, tenant, wait,
    },
    output::{
        device_names::DeviceNames,
        text::{after_epoch, age_at, text_or_dash, until_at},
    },
};

const TIERS: [v1::Tier; 3] = [v1::Tier::Device, v1::Tier::Host, v1::Tier::Disk];
/// From this share of its limit on, a tenant is marked.
const NEAR_LIMIT_PERCENT: u64 = 90;

/// A snapshot with the names and the time that its tables need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) names: &'a DeviceNames,
    /// The time of the snapshot after the epoch.
    pub(super) now: Duration,
}

impl Scene<'_> {
    /// A row for each tier of each device.
    pub(super) fn tiers(&self) -> Grid {
        let columns = vec![
            Column::text("DEVICE", 0),
            Column::text("TIER", 0),
            Column::text("USE", 6),
            Column::number("CHARGED", 0),
            Column::number("RESIDENT", 4),
            Column::number("CAPACITY", 1),
            Column::text("PRESSURE", 2),
            Column::number("MOVING IN", 7),
            Column::number("MOVING OUT", 7),
            Column::number("WAITING", 5),
            Column::number("UNBROKERED", 8),
            Column::number("CACHED", 9),
            Column::number("UNRETURNED", 9),
        ];
        let devices = &self.snapshot.devices;
        let rows = devices.iter().flat_map(|status| TIERS.map(|tier| self.tier_row(status, tier)));
        Grid { title: "TIERS", columns, rows: rows.flatten().collect() }
    }

    fn tier_row(&self, status: &v1::DeviceStatus, tier: v1::Tier) -> Option<Row> {
        let uuid = status.device.as_ref().map(|device| device.uuid.clone()).unwrap_or_default();
        let (capacity, charged, pressure) = match tier {
            v1::Tier::Host => (status.host_capacity_bytes, status.host_held_bytes, status.host_pressure()),
            v1::Tier::Disk => (status.disk_capacity_bytes, status.disk_held_bytes, status.disk_pressure()),
            _ => (status.capacity_bytes, status.held_bytes, status.pressure()),
        };
        if tier != v1::Tier::Device && capacity == 0 && charged == 0 {
            return None;
        }
        let resident = self.snapshot.resident(&uuid, tier);
        let there = resident.min(charged);
        let tone = pressure_tone(pressure);
        let bar = Bar { whole: capacity, there, beyond: charged - there };
        let of_device = |cell: Cell| if tier == v1::Tier::Device { cell } else { Cell::text("-") };
        let level = level_name(pressure).unwrap_or_else(|| "-".to_owned());
        let cells = vec![
            Cell::text(self.names.name(&uuid)),
            Cell::text(tier_name(tier)),
            Cell::bar(bar).tone(tone),
            Cell::size_or_dash(charged),
            Cell::size_or_dash(resident),
            Cell::size(capacity),
            Cell::ranked(level, u64::try_from(i32::from(pressure)).unwrap_or(0)).tone(tone),
            of_device(Cell::size_or_dash(status.moving_in_bytes)),
            of_device(Cell::size_or_dash(status.moving_out_bytes)),
            of_device(Cell::count(status.awaited_part_count.into())),
            of_device(Cell::size_or_dash(status.unbrokered_bytes)),
            of_device(Cell::size_or_dash(status.cached_bytes)),
            of_device(Cell::size_or_dash(status.unreturned_bytes)),
        ];
        Some(Row::new(RowId::Figures(format!("{uuid} {}", tier_name(tier))), cells))
    }

    /// A row for each tenant, summed up over devices.
    pub(super) fn tenants(&self) -> Grid {
        let columns = vec![
            Column::text("TENANT", 0),
            Column::text("CLASS", 8),
            Column::text("USE", 6),
            Column::number("CHARGED", 0),
            Column::number("GUARANTEE", 3),
            Column::number("LIMIT", 1),
            Column::text("FULLEST", 2),
            Column::number("HOST", 4),
            Column::number("DISK", 5),
            Column::number("WAITS", 4),
            Column::number("MOVES", 7),
            Column::number("SESSIONS", 9),
        ];
        let sums = self.tenant_sums();
        let rows = sums.into_iter().map(|(name, sum)| self.tenant_row(name, &sum));
        Grid { title: "TENANTS", columns, rows: rows.collect() }
    }

    fn tenant_sums(&self) -> BTreeMap<&str, TenantSum<'_>> {
        let mut sums: BTreeMap<&str, TenantSum<'_>> = BTreeMap::new();
        for tenant in &self.snapshot.tenants {
            sums.entry(&tenant.name).or_default().tenant = Some(tenant);
        }
        for row in self.snapshot.quotas.iter().filter(|row| quota::in_force(row)) {
            let sum = sums.entry(&row.tenant).or_default();
            match row.tier() {
                v1::Tier::Host => sum.host = sum.host.saturating_add(row.held_bytes),
                v1::Tier::Disk => sum.disk = sum.disk.saturating_add(row.held_bytes),
                _ => sum.add_device(row),
            }
        }
        for wait in &self.snapshot.waits {
            sums.entry(&wait.tenant).or_default().waits += 1;
        }
        for moving in &self.snapshot.moves.moving {
            sums.entry(&moving.tenant).or_default().moves += 1;
        }
        sums
    }

    fn tenant_row(&self, name: &str, sum: &TenantSum<'_>) -> Row {
        let class = sum.tenant.map_or("-", |it| tenant::class_name(it.class()));
        let sessions = sum.tenant.map_or(0, |it| it.session_count);
        let (share, place) = sum.fullest.unwrap_or((0, ""));
        let tone = match share {
            0..NEAR_LIMIT_PERCENT => Tone::Plain,
            NEAR_LIMIT_PERCENT..=99 => Tone::Warning,
            _ => Tone::Alarm,
        };
        let fullest = match share {
            0 => "-".to_owned(),
            _ => format!("{share}% on {}", self.names.name(place)),
        };
        let cells = vec![
            Cell::text(name),
            Cell::text(class),
            Cell::bar(Bar { whole: sum.limit, there: sum.charged, beyond: 0 }).tone(tone),
            Cell::size_or_dash(sum.charged),
            Cell::size_or_dash(sum.guarantee),
            Cell::size_or_dash(sum.limit),
            Cell::ranked(fullest, share).tone(tone),
            Cell::size_or_dash(sum.host),
            Cell::size_or_dash(sum.disk),
            Cell::count(sum.waits).tone(if sum.waits > 0 { Tone::Warning } else { Tone::Plain }),
            Cell::count(sum.moves),
            Cell::count(sessions.into()),
        ];
        Row::new(RowId::Tenant(name.to_owned()), cells)
    }

    /// A row for each allocation: of one tenant, or of all.
    pub(super) fn allocations(&self, tenant: Option<&str>) -> Grid {
        let columns = vec![
            Column::text("ALLOCATION", 1),
            Column::text("TENANT", 3),
            Column::text("NAME", 0),
            Column::text("DEVICE", 6),
            Column::text("STATE", 5),
            Column::text("TIER", 7),
            Column::number("SIZE", 8),
            Column::number("CHARGED", 4),
            Column::number("RESIDENT", 0),
            Column::number("HOST", 2),
            Column::number("DISK", 6),
            Column::number("MAPPERS", 9),
        ];
        let of = |allocation: &&v1::Allocation| tenant.is_none_or(|tenant| tenant == allocation.tenant);
        let rows = self.snapshot.allocations.iter().filter(of).map(|it| {
            let id = AllocationId::from_raw(it.allocation_id).to_string();
            // A column that narrow tables keep needs a text for each row.
            let name = if it.name.is_empty() { id.clone() } else { it.name.clone() };
            let cells = vec![
                Cell::text(id),
                Cell::text(&it.tenant),
                Cell::text(name),
                Cell::text(self.names.name(&it.device)),
                Cell::text(alloc::state_name(it.state())),
                Cell::text(alloc::tiers(it)),
                Cell::size(it.size_bytes),
                Cell::size_or_dash(it.charged_bytes),
                Cell::size_or_dash(resident(it, v1::Tier::Device)),
                Cell::size_or_dash(resident(it, v1::Tier::Host)),
                Cell::size_or_dash(resident(it, v1::Tier::Disk)),
                Cell::count(it.mapper_count.into()),
            ];
            Row::new(RowId::Allocation { id: it.allocation_id, name: it.name.clone() }, cells)
        });
        Grid { title: "ALLOCATIONS", columns, rows: rows.collect() }
    }

    /// A row for each part that moves.
    pub(super) fn moves(&self) -> Grid {
        let columns = vec![
            Column::text("ALLOCATION", 0),
            Column::number("PART", 0),
            Column::text("TENANT", 2),
            Column::text("DEVICE", 8),
            Column::text("FROM", 4),
            Column::text("TO", 3),
            Column::number("BYTES", 4),
            Column::text("PROGRESS", 6),
            Column::number("DONE", 0),
            Column::text("CAUSE", 1),
            Column::text("STATE", 5),
            Column::number("AGE", 7),
        ];
        let rows = self.snapshot.moves.moving.iter().map(|moving| {
            let part = moving.part.unwrap_or_default();
            let copied = moving.copied_bytes;
            let bar = Bar { whole: moving.bytes, there: copied.unwrap_or(0), beyond: 0 };
            let done = match copied {
                Some(copied) => {
                    let percent = percent(copied, moving.bytes);
                    Cell::ranked(format!("{percent}%"), percent + 1)
                }
                None => Cell::ranked("-", 0),
            };
            let cells = vec![
                Cell::text(AllocationId::from_raw(part.allocation_id).to_string()),
                Cell::number(part.part_index.into()),
                Cell::text(&moving.tenant),
                Cell::text(self.names.name(&moving.device)),
                Cell::text(moves::from_name(moving.from_tier())),
                Cell::text(tier_name(moving.tier())),
                Cell::size(moving.bytes),
                Cell::bar(bar).tone(Tone::Good),
                done,
                Cell::text(moves::cause_name(moving.cause())),
                Cell::text(moves::state_name(moving.state())),
                self.age(moving.began_at.as_ref()),
            ];
            Row::new(RowId::Part { id: part.allocation_id, index: part.part_index }, cells)
        });
        Grid { title: "MOVES", columns, rows: rows.collect() }
    }

    /// A row for each move that ended, the latest first.
    pub(super) fn ended_moves(&self) -> Grid {
        let columns = vec![
            Column::text("ALLOCATION", 0),
            Column::number("PART", 0),
            Column::text("TENANT", 2),
            Column::text("DEVICE", 8),
            Column::text("FROM", 4),
            Column::text("TO", 3),
            Column::number("BYTES", 5),
            Column::text("CAUSE", 1),
            Column::text("OUTCOME", 0),
            Column::number("TOOK", 6),
            Column::number("AGE", 7),
        ];
        let rows = self.snapshot.moves.ended.iter().map(|ended| {
            let part = ended.part.unwrap_or_default();
            let cells = vec![
                Cell::text(AllocationId::from_raw(part.allocation_id).to_string()),
                Cell::number(part.part_index.into()),
                Cell::text(&ended.tenant),
                Cell::text(self.names.name(&ended.device)),
                Cell::text(moves::from_name(ended.from_tier())),
                Cell::text(tier_name(ended.tier())),
                Cell::size(ended.bytes),
                Cell::text(moves::cause_name(ended.cause())),
                Cell::text(moves::outcome_name(ended.outcome())),
                Cell::ranked(format!("{:.1?}", Duration::from_micros(ended.duration_us)), ended.duration_us),
                self.age(ended.began_at.as_ref()),
            ];
            let id = RowId::Part { id: part.allocation_id, index: part.part_index };
            Row::new(id, cells).note(&ended.detail)
        });
        Grid { title: "ENDED MOVES", columns, rows: rows.collect() }
    }

    /// A row for each request that waits, with its reason below it.
    pub(super) fn line(&self) -> Grid {
        let columns = vec![
            Column::number("WAIT", 0),
            Column::text("TENANT", 0),
            Column::text("DEVICE", 3),
            Column::number("BYTES", 1),
            Column::number("AGE", 2),
            Column::text("UNTIL", 4),
            Column::text("WAITER", 5),
            Column::text("BEHIND", 6),
        ];
        let rows = wait::requests(&self.snapshot.waits).into_iter().map(|waits| {
            let first = waits[0];
            let bytes = waits.iter().map(|wait| wait.bytes).fold(0, u64::saturating_add);
            let cells = vec![
                Cell::number(first.wait_id),
                Cell::text(&first.tenant),
                Cell::text(self.names.name(&first.device)),
                Cell::size(bytes),
                self.age(first.began_at.as_ref()),
                Cell::text(until_at(self.now, first.until.as_ref())),
                Cell::text(wait::waiter(&waits)),
                Cell::text(wait::behind(first)),
            ];
            let why = first.reason.as_ref().map(wait::why).unwrap_or_default();
            let why = if why.is_empty() { "the daemon names no reason".to_owned() } else { why };
            Row::new(RowId::Wait(first.wait_id), cells).note(&why)
        });
        Grid { title: "LINE", columns, rows: rows.collect() }
    }

    /// A row for each prefetch request, with the reason below it if it has not begun.
    pub(super) fn prefetches(&self) -> Grid {
        let columns = vec![
            Column::text("SESSION", 0),
            Column::number("PREFETCH", 1),
            Column::text("TENANT", 2),
            Column::text("DEVICE", 7),
            Column::number("BYTES", 3),
            Column::text("PROGRESS", 6),
            Column::number("PARTS", 5),
            Column::number("MISSING", 4),
            Column::number("UNUSED", 5),
            Column::text("STATE", 0),
            Column::number("AGE", 8),
            Column::text("DEADLINE", 9),
        ];
        let rows = self.snapshot.prefetches.iter().map(|it| {
            let (parts, missing) = (u64::from(it.part_count), u64::from(it.parts_missing));
            let cells = vec![
                Cell::text(SessionId::from_raw(it.session_id).to_string()),
                Cell::named_number(it.prefetch_id, PrefetchNumber(it.prefetch_id)),
                Cell::text(&it.tenant),
                Cell::text(self.names.name(&it.device)),
                Cell::size(it.bytes),
                Cell::bar(Bar { whole: parts, there: parts.saturating_sub(missing), beyond: 0 })
                    .tone(Tone::Good),
                Cell::count(parts),
                Cell::count(missing),
                Cell::count(it.parts_unused.into()),
                Cell::text(prefetch::phase_name(it.phase())),
                self.age(it.began_at.as_ref()),
                Cell::text(until_at(self.now, it.deadline.as_ref())),
            ];
            let id = RowId::Prefetch { session: it.session_id, prefetch: it.prefetch_id };
            Row::new(id, cells).note(prefetch::deferral_text(it.deferred()))
        });
        Grid { title: "PREFETCHES", columns, rows: rows.collect() }
    }

    pub(super) fn sessions(&self) -> Grid {
        let columns = vec![
            Column::text("SESSION", 0),
            Column::text("TENANT", 1),
            Column::text("STATE", 0),
            Column::number("PID", 2),
            Column::number("UID", 6),
            Column::text("CLIENT", 5),
            Column::number("ALLOCATIONS", 7),
            Column::number("MAPPED", 3),
            Column::number("AGE", 4),
        ];
        let rows = self.snapshot.sessions.iter().map(|it| {
            let state = session::state_name(it.state());
            let tone = if it.state() == v1::SessionState::Silent { Tone::Warning } else { Tone::Plain };
            let cells = vec![
                Cell::text(SessionId::from_raw(it.session_id).to_string()),
                Cell::text(&it.tenant),
                Cell::text(state).tone(tone),
                Cell::number(it.pid.into()),
                Cell::number(it.uid.into()),
                Cell::text(text_or_dash(&it.client_name)),
                Cell::count(it.allocation_count.into()),
                Cell::size_or_dash(it.mapped_bytes),
                self.age(it.opened_at.as_ref()),
            ];
            Row::new(RowId::Session(it.session_id), cells).note(&it.silent_reason)
        });
        Grid { title: "SESSIONS", columns, rows: rows.collect() }
    }

    /// A row for each lane: how fast it has begun copies lately, of its speed.
    pub(super) fn links(&self, rates: &[LaneRate]) -> Grid {
        let columns = vec![
            Column::text("DIRECTION", 0),
            Column::text("DEVICE", 0),
            Column::text("USE", 5),
            Column::number("DEMAND", 2),
            Column::number("PREFETCH", 3),
            Column::number("WRITE-BACK", 3),
            Column::number("ALL", 0),
            Column::number("SPEED", 1),
        ];
        let rate = |bytes: u64| Cell::ranked(rate_text(bytes), bytes);
        let rows = rates.iter().map(|lane| {
            let all = lane.demand.saturating_add(lane.prefetch).saturating_add(lane.write_back);
            let bar = Bar { whole: lane.speed, there: all, beyond: 0 };
            let direction = link::direction_name(lane.way);
            let cells = vec![
                Cell::text(&direction),
                Cell::text(text_or_dash(&self.names.name(&lane.device))),
                Cell::bar(bar).tone(Tone::Good),
                rate(lane.demand),
                rate(lane.prefetch),
                rate(lane.write_back),
                rate(all),
                rate(lane.speed),
            ];
            Row::new(RowId::Figures(format!("{direction} {}", lane.device)), cells)
        });
        Grid { title: "LINKS", columns, rows: rows.collect() }
    }

    fn age(&self, since: Option<&Timestamp>) -> Cell {
        let age = since.map_or(Duration::ZERO, |since| self.now.saturating_sub(after_epoch(since)));
        Cell::ranked(age_at(self.now, since), u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The charges and quotas of one tenant on all devices together.
#[derive(Debug, Default)]
struct TenantSum<'a> {
    tenant: Option<&'a v1::Tenant>,
    charged: u64,
    guarantee: u64,
    limit: u64,
    /// The largest share of a limit, in percent, and the device where it is.
    fullest: Option<(u64, &'a str)>,
    host: u64,
    disk: u64,
    waits: u64,
    moves: u64,
}

impl<'a> TenantSum<'a> {
    fn add_device(&mut self, row: &'a v1::Quota) {
        self.charged = self.charged.saturating_add(row.held_bytes);
        self.guarantee = self.guarantee.saturating_add(row.guarantee_bytes);
        self.limit = self.limit.saturating_add(row.limit_bytes);
        let share = percent(row.held_bytes, row.limit_bytes);
        if self.fullest.is_none_or(|(most, _)| share > most) {
            self.fullest = Some((share, &row.device));
        }
    }
}

/// Bytes a second, in the decimal units of links.
fn rate_text(bytes: u64) -> String {
    match bytes {
        0 => "-".to_owned(),
        1..1_000_000_000 => format!("{:.1} MB/s", bytes as f64 / 1e6),
        _ => format!("{:.1} GB/s", bytes as f64 / 1e9),
    }
}

pub(super) fn pressure_tone(level: v1::PressureLevel) -> Tone {
    match level {
        v1::PressureLevel::Unspecified | v1::PressureLevel::Normal => Tone::Good,
        v1::PressureLevel::Elevated | v1::PressureLevel::High => Tone::Warning,
        v1::PressureLevel::Critical => Tone::Alarm,
    }
}
