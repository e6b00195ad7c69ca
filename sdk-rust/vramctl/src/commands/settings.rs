//! `vramctl settings …`

use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;
use vramd_types::Quantity;

use crate::output::{
    Output,
    failure::Failure,
    table::{Column, table},
    text::size,
};

/// Printed below settings that differ from the configuration.
const CHANGES_END: &str =
    "Changes last until the daemon ends. At its next start the configuration file applies again.";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the settings in force, and those of the configuration.
    Show,
    /// Change settings until the daemon ends: all that are given, or none.
    Change(Change),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Change {
    /// Fill at which the level `elevated` begins, in percent of the capacity.
    #[arg(long, value_name = "PERCENT")]
    elevated_percent: Option<u32>,
    /// Fill at which `high` begins.
    #[arg(long, value_name = "PERCENT")]
    high_percent: Option<u32>,
    /// Fill at which `critical` begins.
    #[arg(long, value_name = "PERCENT")]
    critical_percent: Option<u32>,
    /// How far the fill falls below the beginning of a level before the level ends.
    #[arg(long, value_name = "PERCENT")]
    fall_percent: Option<u32>,
    /// Fill down to which cold parts are evicted under pressure.
    #[arg(long, value_name = "PERCENT")]
    evict_to_percent: Option<u32>,
    /// How long a part is unused before it is cold, and is evicted or written back under pressure; 0: never.
    #[arg(long, value_name = "MS")]
    cold_after_ms: Option<u64>,
    /// Size of each device's host tier, at most the configured one; 0: no new backing there.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    host_bytes: Option<u64>,
    /// Size of each device's disk tier, at most the configured one; 0: no new backing there.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    disk_bytes: Option<u64>,
    /// Smallest share of a link for copies of class `demand`, in percent.
    #[arg(long, value_name = "PERCENT")]
    demand_percent: Option<u32>,
    /// The same for class `prefetch`.
    #[arg(long, value_name = "PERCENT")]
    prefetch_percent: Option<u32>,
    /// The same for class `write-back`.
    #[arg(long, value_name = "PERCENT")]
    write_back_percent: Option<u32>,
    /// The order in which unused parts leave a full device.
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    eviction_policy: Option<v1::EvictionPolicy>,
}

fn policies() -> impl TypedValueParser<Value = v1::EvictionPolicy> {
    let names = v1::EvictionPolicy::all().map(v1::EvictionPolicy::name);
    PossibleValuesParser::new(names).try_map(|name| v1::EvictionPolicy::named(&name).ok_or("no such policy"))
}

/// The name of the policy in settings. A newer daemon may have one that this program does not know.
fn policy_name(settings: &v1::Settings) -> String {
    let number = settings.eviction.and_then(|eviction| eviction.policy).unwrap_or_default();
    let known = v1::EvictionPolicy::all().find(|policy| *policy as i32 == number);
    known.map_or_else(|| format!("unknown ({number})"), v1::EvictionPolicy::name)
}

/// Parses bytes. A share like `50%` is refused, since there is no total that it could be a share of.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(Quantity::Bytes(bytes)) => Ok(bytes.get()),
        Ok(Quantity::Percent(_)) => Err("this size takes bytes, like `64GiB`, and no share".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    if let Verb::Change(change) = verb {
        admin.change_settings(v1::ChangeSettingsRequest {
            change: Some(change.into_message()),
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
    fn into_message(self) -> v1::Settings {
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
            eviction: Some(v1::EvictionSettings { policy: self.eviction_policy.map(Into::into) }),
        }
    }
}

fn text(now: &v1::Settings, configured: &v1::Settings) -> String {
    let rows = setting_texts(now).into_iter().zip(setting_texts(configured));
    let rows = rows.map(|((name, now), (_, configured))| vec![name.to_owned(), now, configured]);
    let settings =
        table(&[Column::text("SETTING").key(), Column::number("NOW"), Column::number("CONFIGURED")], rows);
    if now == configured { settings } else { format!("{settings}\n\n{CHANGES_END}") }
}

/// Every setting: its flag without dashes, and its value as text.
pub(crate) fn setting_texts(settings: &v1::Settings) -> Vec<(&'static str, String)> {
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
        ("eviction-policy", policy_name(settings)),
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
        "eviction": { "policy": policy_name(settings) },
    })
}
