//! `vramctl settings …`

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;
use vramd_types::Quantity;

use crate::output::{
    Output,
    failure::Failure,
    table::{size, table},
};

/// Follows what is shown where it is not what is configured.
const UNTIL: &str = "What was changed holds until the daemon ends; then the configuration file counts again.";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows what holds now, and what is configured.
    Show,
    /// Changes what is named, until the daemon ends: all of it, or nothing.
    Change(Change),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Change {
    /// Where the level `elevated` begins, in percent of what may be handed out.
    #[arg(long, value_name = "PERCENT")]
    elevated_percent: Option<u32>,
    /// Where `high` begins.
    #[arg(long, value_name = "PERCENT")]
    high_percent: Option<u32>,
    /// Where `critical` begins.
    #[arg(long, value_name = "PERCENT")]
    critical_percent: Option<u32>,
    /// How far below where it begins a level is left.
    #[arg(long, value_name = "PERCENT")]
    fall_percent: Option<u32>,
    /// What leaves because of pressure leaves until no more than this is held.
    #[arg(long, value_name = "PERCENT")]
    evict_to_percent: Option<u32>,
    /// Only what nobody has used for so long leaves, or is copied ahead; 0 is nothing.
    #[arg(long, value_name = "MS")]
    cold_after_ms: Option<u64>,
    /// What each device may have in the host's memory, at most what is configured; 0 is nothing new.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    host_bytes: Option<u64>,
    /// What each device may have on disk, at most what is configured; 0 is nothing new.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    disk_bytes: Option<u64>,
    /// What copies that somebody waits for have of a link at least, in percent.
    #[arg(long, value_name = "PERCENT")]
    demand_percent: Option<u32>,
    /// What is brought in though nobody waits for it has.
    #[arg(long, value_name = "PERCENT")]
    prefetch_percent: Option<u32>,
    /// What leaves, or is written back, though nobody waits for it has.
    #[arg(long, value_name = "PERCENT")]
    write_back_percent: Option<u32>,
}

/// No share: of what, would be another question.
fn bytes(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(Quantity::Bytes(bytes)) => Ok(bytes.get()),
        Ok(Quantity::Percent(_)) => Err("only bytes, like `64GiB`".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    if let Verb::Change(change) = verb {
        admin.change_settings(v1::ChangeSettingsRequest {
            change: Some(change.message()),
            ..Default::default()
        })?;
    }
    let answer = admin.settings()?;
    let (now, configured) = (answer.settings.unwrap_or_default(), answer.configured.unwrap_or_default());
    output.show(
        || text(&now, &configured),
        json!({ "settings": to_json(&now), "configured": to_json(&configured), "hold_until": "the daemon ends" }),
    )
}

impl Change {
    fn message(self) -> v1::Settings {
        v1::Settings {
            pressure: Some(v1::PressureSettings {
                elevated_percent: self.elevated_percent,
                high_percent: self.high_percent,
                critical_percent: self.critical_percent,
                fall_percent: self.fall_percent,
                evict_to_percent: self.evict_to_percent,
                cold_after_ms: self.cold_after_ms,
            }),
            tiers: Some(v1::TierSettings { host_bytes: self.host_bytes, disk_bytes: self.disk_bytes }),
            shares: Some(v1::ShareSettings {
                demand_percent: self.demand_percent,
                prefetch_percent: self.prefetch_percent,
                write_back_percent: self.write_back_percent,
            }),
        }
    }
}

fn text(now: &v1::Settings, configured: &v1::Settings) -> String {
    let rows = shown(now).into_iter().zip(shown(configured));
    let rows = rows.map(|((name, now), (_, configured))| vec![name.to_owned(), now, configured]);
    let shown = table(&["SETTING", ">NOW", ">CONFIGURED"], rows);
    if now == configured { shown } else { format!("{shown}\n\n{UNTIL}") }
}

/// Every setting, by its name in a change, as people read it.
pub(crate) fn shown(settings: &v1::Settings) -> Vec<(&'static str, String)> {
    let pressure = settings.pressure.unwrap_or_default();
    let tiers = settings.tiers.unwrap_or_default();
    let shares = settings.shares.unwrap_or_default();
    let percent = |percent: Option<u32>| format!("{}%", percent.unwrap_or_default());
    vec![
        ("elevated-percent", percent(pressure.elevated_percent)),
        ("high-percent", percent(pressure.high_percent)),
        ("critical-percent", percent(pressure.critical_percent)),
        ("fall-percent", percent(pressure.fall_percent)),
        ("evict-to-percent", percent(pressure.evict_to_percent)),
        ("cold-after-ms", pressure.cold_after_ms.unwrap_or_default().to_string()),
        ("host-bytes", size(tiers.host_bytes.unwrap_or_default())),
        ("disk-bytes", size(tiers.disk_bytes.unwrap_or_default())),
        ("demand-percent", percent(shares.demand_percent)),
        ("prefetch-percent", percent(shares.prefetch_percent)),
        ("write-back-percent", percent(shares.write_back_percent)),
    ]
}

pub(crate) fn to_json(settings: &v1::Settings) -> Value {
    let pressure = settings.pressure.unwrap_or_default();
    let tiers = settings.tiers.unwrap_or_default();
    let shares = settings.shares.unwrap_or_default();
    json!({
        "pressure": {
            "elevated_percent": pressure.elevated_percent,
            "high_percent": pressure.high_percent,
            "critical_percent": pressure.critical_percent,
            "fall_percent": pressure.fall_percent,
            "evict_to_percent": pressure.evict_to_percent,
            "cold_after_ms": pressure.cold_after_ms,
        },
        "tiers": { "host_bytes": tiers.host_bytes, "disk_bytes": tiers.disk_bytes },
        "shares": {
            "demand_percent": shares.demand_percent,
            "prefetch_percent": shares.prefetch_percent,
            "write_back_percent": shares.write_back_percent,
        },
    })
}
