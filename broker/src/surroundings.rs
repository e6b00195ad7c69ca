//! Warns at the start of what the machine will not let the daemon or its clients do.

use std::{fs, process};

use crate::{
    config::Config,
    platform::{cgroup, tenant_rules::Rules},
};

/// Mappings that a client needs for itself beside those of its parts.
const OWN_MAPPINGS: u64 = 1024;

/// Logs a warning for each limit or rule that cannot be met here.
pub fn warn(config: &Config, rules: &Rules) {
    warn_of_cgroups(rules);
    let parts = u64::from(config.limits.words_per_session_max);
    let mappings = number("/proc/sys/vm/max_map_count");
    if let Some(most) = mappings.filter(|most| *most < parts.saturating_add(OWN_MAPPINGS)) {
        tracing::info!(
            max_map_count = most,
            words_per_session_max = parts,
            "a client may have fewer parts mapped than limits.words_per_session_max: the kernel allows a process vm.max_map_count mappings"
        );
    }
}

/// A rule whose cgroup does not exist matches no client, so its clients would be charged elsewhere.
fn warn_of_cgroups(rules: &Rules) {
    for (tenant, pattern) in rules.without_cgroup() {
        let own = cgroup::of_process(process::id()).unwrap_or_default();
        tracing::warn!(
            tenant,
            cgroup = pattern,
            own_cgroup = own,
            "no cgroup matches a rule of [[tenants]] now: its clients are charged by the next rule that fits, or as uid-N"
        );
    }
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
