//! `vramctl quota …`

use clap::{Args, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use super::{device, names::tier_name};
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
    text::{size, size_or_dash},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Set a guarantee, a limit, or both.
    Set(Set),
    /// Show the quota in force for a tenant in one place.
    Get(Get),
    /// List all quotas in force, with what is charged against them.
    List(List),
    /// Return a tenant to the default quota.
    Delete(Delete),
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// Name of the tenant.
    tenant: String,
    #[command(flatten)]
    place: Place,
    /// Bytes that are kept free for the tenant: `24GiB`, `24GB`, bytes, or a share like `25%`.
    #[arg(long, value_name = "QUANTITY", required_unless_present = "limit")]
    guarantee: Option<String>,
    /// Bytes that the tenant can have at most.
    #[arg(long, value_name = "QUANTITY")]
    limit: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Name of the tenant.
    tenant: String,
    /// Index or UUID [default: the first device].
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    device: Option<String>,
    /// Tier that the quota bounds.
    #[arg(long, value_enum, default_value_t = Tier::Device)]
    tier: Tier,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List this tenant alone.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    tenant: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Name of the tenant.
    tenant: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    /// Index, UUID, or `*` for every device.
    #[arg(long, default_value = "*", value_parser = NonEmptyStringValueParser::new())]
    device: String,
    /// Tier that the quota bounds.
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
                device: Some(set.place.device),
                tier: set.place.tier.wire(),
                guarantee: set.guarantee,
                limit: set.limit,
                ..Default::default()
            };
            show(&admin.set_quota(request)?, admin, output)
        }
        Verb::Get(get) => {
            let request =
                v1::GetQuotaRequest { tenant: get.tenant, device: get.device, tier: get.tier.wire() };
            show(&admin.get_quota(request)?, admin, output)
        }
        Verb::List(list) => {
            let quotas = admin.quotas(list.tenant.as_deref())?;
            let fields = json!({ "quotas": quotas.iter().map(to_json).collect::<Vec<_>>() });
            let names = device::fetch_names(admin, quotas.iter().map(|quota| quota.device.as_str()), output);
            output.show(|| rows(&quotas, &names), fields)
        }
        Verb::Delete(delete) => {
            let (tenant, device) = (delete.tenant, delete.place.device);
            let text = format!("tenant {tenant} has the default quota again on device {device}");
            let fields = json!({ "deleted": { "tenant": tenant, "device": device } });
            admin.delete_quota(v1::DeleteQuotaRequest {
                tenant,
                device: Some(device),
                tier: delete.place.tier.wire(),
                ..Default::default()
            })?;
            output.show(|| text, fields)
        }
    }
}

fn show(quota: &v1::Quota, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let names = device::fetch_names(admin, [quota.device.as_str()], output);
    output.show(|| rows(std::slice::from_ref(quota), &names), json!({ "quota": to_json(quota) }))
}

/// One line for each tenant, device and tier.
pub(crate) fn rows(quotas: &[v1::Quota], names: &DeviceNames) -> String {
    let columns = [
        Column::text("TENANT").key(),
        Column::text("DEVICE").key(),
        Column::text("TIER").key(),
        Column::number("GUARANTEE").always(),
        Column::number("LIMIT").always(),
        Column::number("CHARGED").always(),
        Column::number("RESERVED"),
        Column::number("CACHED"),
        Column::number("MANAGED"),
        Column::number("ORDERED HERE"),
        Column::number("ORDERED TO HOST"),
        Column::number("UNRETURNED"),
        Column::text("NOTE"),
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
                names.name(&quota.device),
                tier_name(quota.tier()).to_owned(),
                in_force(&quota.guarantee, quota.guarantee_bytes),
                in_force(&quota.limit, quota.limit_bytes),
                size_or_dash(quota.held_bytes),
                size_or_dash(quota.reserved_bytes),
                size_or_dash(quota.cached_bytes),
                size_or_dash(quota.managed_bytes),
                size_or_dash(quota.managed_on_device_bytes),
                size_or_dash(quota.managed_on_host_bytes),
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
        "managed_bytes": in_force(quota.managed_bytes),
        "managed_on_device_bytes": in_force(quota.managed_on_device_bytes),
        "managed_on_host_bytes": in_force(quota.managed_on_host_bytes),
        "unreturned_bytes": in_force(quota.unreturned_bytes),
        "default_quota": quota.default_quota,
        "device_absent": quota.device_absent,
    })
}

/// Whether the row has figures: a row of all devices, or of an absent one, has none.
pub(super) fn in_force(quota: &v1::Quota) -> bool {
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
