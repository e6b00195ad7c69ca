//! The bounds that `deploy/config/vramd.toml` and `limits.rs` promise, written a second time, and the uses of
//! a configuration that need nothing else.

use std::{path::Path, time::Duration};

use broker_core::{PressureBounds, TurnLimits};
use broker_driver::sim::{Effect, Operation};
use vramd::{
    config::{self, Config, DeviceChoice, Limits, SimDevices, Telemetry},
    platform::descriptors::Descriptors,
};
use vramd_types::{Bytes, CopyClass, Quantity};

const GRANULE: u64 = 2 << 20;
const PART_SIZE_MAX: u64 = 16 << 30;
const FEW: Descriptors = Descriptors { limit: 64, open: 60 };

pub(super) fn check(config: &Config) {
    let Config {
        memory,
        disk,
        quota,
        tenants,
        limits,
        driver,
        telemetry,
        pressure,
        shares,
        files,
        turns,
        daemon: _,
    } = config;
    of_turns(&turns.limits());
    assert!(files.immutable_paths.iter().all(|path| path.is_absolute()), "{files:?}");
    assert!(files.are_loaded() || files.immutable_paths.is_empty(), "{files:?}");
    of_pressure(&pressure.bounds());
    let percents = CopyClass::ALL.map(|class| shares.percents().percent(class));
    assert!(percents.iter().sum::<u32>() <= 100, "{shares:?}");
    let defaults = [quota.default.limit, quota.default.host_limit, quota.default.disk_limit];
    for share in defaults.into_iter().chain([memory.device_share, memory.margin]) {
        assert!(!matches!(share, Quantity::Percent(101..)), "{share}");
    }
    let part_size = memory.part_size.get();
    assert!(
        part_size.is_multiple_of(GRANULE) && (GRANULE..=PART_SIZE_MAX).contains(&part_size),
        "{part_size}"
    );
    assert!(disk.size.get().is_multiple_of(GRANULE), "{disk:?}");
    assert_eq!(disk.directory.is_some(), !disk.size.is_zero(), "{disk:?}");
    assert_eq!(
        disk.config(2).map(|it| it.capacity),
        disk.directory.as_ref().map(|_| disk.size.saturating_add(disk.size))
    );
    if let DeviceChoice::These(devices) = &memory.devices {
        assert!(!devices.is_empty(), "no devices were chosen");
    }
    for tenant in tenants {
        assert!(crate::names::is_name(&tenant.name), "{tenant:?}");
    }
    for standing in vramd::config::standings(tenants).values() {
        assert!((1..=10_000).contains(&standing.weight.get()), "{standing:?}");
    }
    for rule in tenants.iter().filter_map(|tenant| tenant.rule.as_ref()) {
        assert!(
            rule.uid.is_some() || rule.gid.is_some() || rule.cgroup.is_some(),
            "{rule:?} fits every process"
        );
        assert!(crate::names::is_name(&rule.tenant), "{rule:?}");
    }
    counts_and_times(limits);
    of_core(limits);
    devices(config, driver);
    of_telemetry(telemetry);
}

/// Checks that levels ascend, that each is left before the one below it is entered, and that the eviction
/// target ends the level that causes it.
fn of_pressure(bounds: &PressureBounds) {
    let steps = [0, bounds.elevated_percent, bounds.high_percent, bounds.critical_percent, 101];
    assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "{bounds:?}");
    assert!(steps[1..4].windows(2).all(|pair| bounds.fall_percent < pair[1] - pair[0]), "{bounds:?}");
    assert!(bounds.fall_percent < bounds.elevated_percent, "{bounds:?}");
    let max = bounds.high_percent - bounds.fall_percent;
    assert!((1..max).contains(&bounds.evict_to_percent), "{bounds:?}");
}

fn of_telemetry(telemetry: &Telemetry) {
    assert!((0.0..=1.0).contains(&telemetry.traces_sample_ratio.get()), "{telemetry:?}");
    assert!((512..=1_000_000).contains(&telemetry.cardinality_max), "{telemetry:?}");
    assert!(telemetry.export_interval > Duration::ZERO, "{telemetry:?}");
    if let Some(endpoint) = &telemetry.otlp_endpoint {
        assert!(
            endpoint.as_str().starts_with("http://") && !endpoint.as_str().ends_with('/'),
            "{telemetry:?}"
        );
    }
}

fn counts_and_times(limits: &Limits) {
    // Without `..`: a new limit must be judged here before this compiles.
    let Limits {
        sessions_max,
        sessions_per_tenant_max,
        allocations_per_tenant_max,
        parts_per_tenant_max,
        extents_max: _,
        batch_items_max,
        readers_max: _,
        pending_requests_max,
        pending_requests_per_tenant_max,
        fds_in_flight_max,
        fds_in_flight_per_tenant_max,
        map_answer_timeout,
        revoke_answer_timeout,
        unmap_answer_timeout,
        end_silent_after: _,
        survey_interval,
        speculation_bytes_max: _,
        cached_bytes_per_tenant_max: _,
        cached_for,
        cached_idle_for,
        words_per_session_max,
        pins_waiting_max,
        pin_parts_waiting_max,
        pin_stall,
        hold_after: _,
        greeting_max,
        greeting_per_uid_max,
        connections_per_uid_max,
        held_bytes_per_uid_max: _,
        watches_max,
        watch_events_max,
        trace_records_max,
        hello_timeout,
        request_read_timeout,
        request_timeout,
    } = limits;
    let counts = [
        sessions_max,
        sessions_per_tenant_max,
        allocations_per_tenant_max,
        parts_per_tenant_max,
        batch_items_max,
        pending_requests_max,
        pending_requests_per_tenant_max,
        fds_in_flight_max,
        fds_in_flight_per_tenant_max,
        greeting_max,
        greeting_per_uid_max,
        connections_per_uid_max,
        pins_waiting_max,
        watches_max,
        watch_events_max,
        trace_records_max,
    ];
    assert!(*pin_parts_waiting_max >= 1024, "{limits:?}");
    assert!((1..=1 << 24).contains(words_per_session_max), "{limits:?}");
    assert!(*trace_records_max <= 10_000_000, "{limits:?}");
    assert!(counts.iter().all(|count| **count > 0), "{limits:?}");
    let times = [
        map_answer_timeout,
        revoke_answer_timeout,
        unmap_answer_timeout,
        survey_interval,
        cached_for,
        cached_idle_for,
        pin_stall,
        hello_timeout,
        request_read_timeout,
        request_timeout,
    ];
    assert!(times.iter().all(|time| **time > Duration::ZERO), "{limits:?}");
}

fn of_turns(turns: &TurnLimits) {
    assert!(turns.min_quantum > Duration::ZERO && turns.min_quantum <= turns.quantum, "{turns:?}");
    assert!(turns.overdue_after > Duration::ZERO, "{turns:?}");
    assert!(turns.end_after.is_zero() || turns.end_after >= turns.overdue_after, "{turns:?}");
}

/// Checks that few descriptors bound what needs them, whatever the operator sets, and never down to nothing.
fn of_core(limits: &Limits) {
    let core = limits.core(FEW);
    assert!(core.extents_max > 0 && core.parts_per_tenant_max > 0, "{core:?}");
    assert!((1..=64).contains(&core.fds_in_flight_max), "{core:?}");
}

fn devices(config: &Config, driver: &config::Driver) {
    let sim = SimDevices { sim: &driver.sim, socket_dir: Path::new("/run/vramd") }.config();
    assert!(!sim.devices.is_empty() && sim.devices.len() == driver.sim.devices.len());
    assert!(sim.devices.iter().all(|device| device.total.get() >= GRANULE), "{sim:?}");
    for fault in &sim.faults {
        assert!(fault.nth > 0, "{fault:?}");
        assert!(fault.on != Operation::Release || matches!(fault.effect, Effect::Delay(_)), "{fault:?}");
    }
    for device in
        config::core_devices(&config.memory, config::HostTier::NONE, &config.disk, &sim.devices, false, true)
    {
        assert!(device.share <= device.total, "{device:?}");
        let all = config.memory.device_share == Quantity::Percent(100);
        let none_kept = config.memory.margin == Quantity::Bytes(Bytes::ZERO);
        assert!(!(all && none_kept) || device.share == device.total, "{device:?}");
    }
}
