//! `vramctl tenant …`

use clap::{Args, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use crate::output::{
    Output,
    failure::Failure,
    table::{Column, table},
    text::size_or_dash,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Set the class of a tenant, its weight, or whether its advice is allowed.
    Set(Set),
    /// Let a tenant have the class, the weight and the permission for advice of the configuration again.
    Reset(Reset),
    /// List tenants with their classes, their weights, whether advice is allowed, and what is charged to them.
    List(List),
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// Name of the tenant.
    tenant: String,
    /// Class: memory leaves from the lowest class up, and prefetches begin from the highest down.
    #[arg(long, value_enum, required_unless_present_any = ["weight", "advice"])]
    class: Option<Class>,
    /// Share among the tenants of its class, from 1 to 10000.
    #[arg(long)]
    weight: Option<u32>,
    /// Whether its clients may advise which of its parts leave a device first. Forbidden advice is refused, and has no effect
    /// where it stands.
    #[arg(long, value_enum)]
    advice: Option<Permission>,
}

#[derive(Debug, Args)]
pub(crate) struct Reset {
    /// Name of the tenant.
    tenant: String,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List this tenant alone.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    tenant: Option<String>,
}

/// The classes, first the lowest.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Class {
    Background,
    Utility,
    Initiated,
    Interactive,
}

/// Whether advice is allowed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Permission {
    Allowed,
    Forbidden,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::Set(Set { tenant, class, weight, advice }) => {
            let class = class.map_or(v1::TenantClass::Unspecified, Class::wire).into();
            let advice = advice.map_or(v1::AdvicePermission::Unspecified, Permission::wire).into();
            let request = v1::SetTenantRequest { tenant, class, weight, advice, ..Default::default() };
            show(&admin.set_tenant(request)?, output)
        }
        Verb::Reset(Reset { tenant }) => {
            let request = v1::ResetTenantRequest { tenant, ..Default::default() };
            show(&admin.reset_tenant(request)?, output)
        }
        Verb::List(list) => {
            let tenants = admin.tenants(list.tenant.as_deref())?;
            let fields = json!({ "tenants": tenants.iter().map(to_json).collect::<Vec<_>>() });
            output.show(|| rows(&tenants), fields)
        }
    }
}

fn show(tenant: &v1::Tenant, output: &Output) -> Result<(), Failure> {
    output.show(|| rows(std::slice::from_ref(tenant)), json!({ "tenant": to_json(tenant) }))
}

fn rows(tenants: &[v1::Tenant]) -> String {
    let columns = [
        Column::text("TENANT").key(),
        Column::text("CLASS").always(),
        Column::number("WEIGHT").always(),
        Column::text("ADVICE").always(),
        Column::text("SET BY").always(),
        Column::number("DEVICE").always(),
        Column::number("HOST"),
        Column::number("DISK"),
        Column::number("SESSIONS"),
    ];
    table(
        &columns,
        tenants.iter().map(|it| {
            vec![
                it.name.clone(),
                class_name(it.class()).to_owned(),
                it.weight.to_string(),
                permission_name(it.advice()).to_owned(),
                source_name(it.source()).to_owned(),
                size_or_dash(it.device_bytes),
                size_or_dash(it.host_bytes),
                size_or_dash(it.disk_bytes),
                it.session_count.to_string(),
            ]
        }),
    )
}

pub(crate) const fn class_name(class: v1::TenantClass) -> &'static str {
    match class {
        v1::TenantClass::Unspecified => "unknown",
        v1::TenantClass::Background => "background",
        v1::TenantClass::Utility => "utility",
        v1::TenantClass::Initiated => "initiated",
        v1::TenantClass::Interactive => "interactive",
    }
}

pub(crate) const fn permission_name(permission: v1::AdvicePermission) -> &'static str {
    match permission {
        v1::AdvicePermission::Unspecified => "unknown",
        v1::AdvicePermission::Allowed => "allowed",
        v1::AdvicePermission::Forbidden => "forbidden",
    }
}

pub(crate) const fn source_name(source: v1::StandingSource) -> &'static str {
    match source {
        v1::StandingSource::Unspecified => "unknown",
        v1::StandingSource::Default => "default",
        v1::StandingSource::Configuration => "configuration",
        v1::StandingSource::Operator => "operator",
    }
}

pub(super) fn to_json(tenant: &v1::Tenant) -> Value {
    json!({
        "tenant": tenant.name,
        "class": class_name(tenant.class()),
        "weight": tenant.weight,
        "advice": permission_name(tenant.advice()),
        "source": source_name(tenant.source()),
        "device_bytes": tenant.device_bytes,
        "host_bytes": tenant.host_bytes,
        "disk_bytes": tenant.disk_bytes,
        "session_count": tenant.session_count,
    })
}

impl Permission {
    const fn wire(self) -> v1::AdvicePermission {
        match self {
            Self::Allowed => v1::AdvicePermission::Allowed,
            Self::Forbidden => v1::AdvicePermission::Forbidden,
        }
    }
}

impl Class {
    const fn wire(self) -> v1::TenantClass {
        match self {
            Self::Background => v1::TenantClass::Background,
            Self::Utility => v1::TenantClass::Utility,
            Self::Initiated => v1::TenantClass::Initiated,
            Self::Interactive => v1::TenantClass::Interactive,
        }
    }
}
