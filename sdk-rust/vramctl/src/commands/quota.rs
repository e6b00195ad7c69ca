//! `vramctl quota …`

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use crate::output::{
    Output,
    failure::Failure,
    table::{size, size_or_dash, table},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Sets guarantee, limit, or both.
    Set(Set),
    /// Shows what is in force for a tenant on one device.
    Get(Get),
    /// Shows all quotas in force, and what is held against them.
    List(List),
    /// Returns a tenant to the default quota.
    Delete(Delete),
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    tenant: String,
    #[command(flatten)]
    place: Place,
    /// What the tenant can always have: `24GiB`, `24GB`, bytes, or a share like `25%`.
    #[arg(long, value_name = "QUANTITY", required_unless_present = "limit")]
    guarantee: Option<String>,
    /// What the tenant can have at most.
    #[arg(long, value_name = "QUANTITY")]
    limit: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    tenant: String,
    /// Index or UUID [default: the first device].
    #[arg(long, default_value = "", hide_default_value = true)]
    device: String,
    #[arg(long, value_enum, default_value_t = Tier::Device)]
    tier: Tier,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Of this tenant alone.
    #[arg(default_value = "", hide_default_value = true)]
    tenant: String,
}

#[derive(Debug, Args)]
pub(crate) struct Delete {
    tenant: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    /// Index, UUID, or `*` for every device.
    #[arg(long, default_value = "*")]
    device: String,
    #[arg(long, value_enum, default_value_t = Tier::Device)]
    tier: Tier,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Tier {
    Device,
    Host,
    Disk,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::Set(set) => {
            let request = v1::SetQuotaRequest {
                tenant: set.tenant,
                device: set.place.device,
                tier: set.place.tier.wire(),
                guarantee: set.guarantee.unwrap_or_default(),
                limit: set.limit.unwrap_or_default(),
                ..Default::default()
            };
            show(&admin.set_quota(request)?, output)
        }
        Verb::Get(get) => {
            let request =
                v1::GetQuotaRequest { tenant: get.tenant, device: get.device, tier: get.tier.wire() };
            show(&admin.get_quota(request)?, output)
        }
        Verb::List(list) => {
            let quotas = admin.quotas(&list.tenant)?;
            let fields = json!({ "quotas": quotas.iter().map(to_json).collect::<Vec<_>>() });
            output.show(|| rows(&quotas), fields)
        }
        Verb::Delete(delete) => {
            let (tenant, device) = (delete.tenant, delete.place.device);
            let text = format!("tenant {tenant} is back at the default quota on device {device}");
            let fields = json!({ "deleted": { "tenant": tenant, "device": device } });
            admin.delete_quota(v1::DeleteQuotaRequest {
                tenant,
                device,
                tier: delete.place.tier.wire(),
                ..Default::default()
            })?;
            output.show(|| text, fields)
        }
    }
}

fn show(quota: &v1::Quota, output: &Output) -> Result<(), Failure> {
    output.show(|| rows(std::slice::from_ref(quota)), json!({ "quota": to_json(quota) }))
}

/// One line for each tenant, device and tier.
pub(crate) fn rows(quotas: &[v1::Quota]) -> String {
    let columns = [
        "TENANT",
        "DEVICE",
        "TIER",
        ">GUARANTEE",
        ">LIMIT",
        ">HELD",
        ">RESERVED",
        ">CACHED",
        ">UNRETURNED",
        "NOTE",
    ];
    table(
        &columns,
        quotas.iter().map(|quota| {
            let in_force = |text: &str, bytes: u64| match in_force(quota) {
                true => size(bytes),
                false => text.to_owned(),
            };
            vec![
                quota.tenant.clone(),
                quota.device.clone(),
                tier_name(quota.tier()).to_owned(),
                in_force(&quota.guarantee, quota.guarantee_bytes),
                in_force(&quota.limit, quota.limit_bytes),
                size_or_dash(quota.held_bytes),
                size_or_dash(quota.reserved_bytes),
                size_or_dash(quota.cached_bytes),
                size_or_dash(quota.unreturned_bytes),
                note(quota).to_owned(),
            ]
        }),
    )
}

pub(crate) fn to_json(quota: &v1::Quota) -> Value {
    let in_force = |bytes: u64| if in_force(quota) { Value::from(bytes) } else { Value::Null };
    json!({
        "tenant": quota.tenant,
        "device": quota.device,
        "tier": tier_name(quota.tier()),
        "guarantee": quota.guarantee,
        "limit": quota.limit,
        "guarantee_bytes": in_force(quota.guarantee_bytes),
        "limit_bytes": in_force(quota.limit_bytes),
        "held_bytes": in_force(quota.held_bytes),
        "reserved_bytes": in_force(quota.reserved_bytes),
        "cached_bytes": in_force(quota.cached_bytes),
        "unreturned_bytes": in_force(quota.unreturned_bytes),
        "default_quota": quota.default_quota,
        "device_absent": quota.device_absent,
    })
}

/// Rows of every device, or of one that is not there, have no bytes.
fn in_force(quota: &v1::Quota) -> bool {
    quota.device != "*" && !quota.device_absent
}

fn note(quota: &v1::Quota) -> &'static str {
    match (quota.device_absent, quota.default_quota) {
        (true, _) => "device absent",
        (false, true) => "default",
        (false, false) if in_force(quota) && quota.held_bytes > quota.limit_bytes => "over its limit",
        (false, false) => "",
    }
}

pub(crate) fn tier_name(tier: v1::Tier) -> &'static str {
    match tier {
        v1::Tier::Unspecified | v1::Tier::Device => "device",
        v1::Tier::Host => "host",
        v1::Tier::Disk => "disk",
    }
}

impl Tier {
    fn wire(self) -> i32 {
        match self {
            Self::Device => v1::Tier::Device,
            Self::Host => v1::Tier::Host,
            Self::Disk => v1::Tier::Disk,
        }
        .into()
    }
}
