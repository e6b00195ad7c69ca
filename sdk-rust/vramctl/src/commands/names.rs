//! Names of protocol values, as tables and JSON show them.

use vramd_client::SessionId;
use vramd_proto::v1;

pub(crate) fn tier_name(tier: v1::Tier) -> &'static str {
    match tier {
        v1::Tier::Unspecified | v1::Tier::Device => "device",
        v1::Tier::Host => "host",
        v1::Tier::Disk => "disk",
    }
}

/// A level of pressure. `None` where there is no such tier, or the daemon is too old to report one.
pub(crate) fn level_name(level: v1::PressureLevel) -> Option<String> {
    let name = level.as_str_name().trim_start_matches("PRESSURE_LEVEL_");
    (level != v1::PressureLevel::Unspecified).then(|| name.to_lowercase())
}

pub(crate) fn session_names(ids: &[u64]) -> Vec<String> {
    ids.iter().map(|id| SessionId::from_raw(*id).to_string()).collect()
}
