//! `[[tenants]]`: the rules that name the tenant of a client.

use serde::Deserialize;

use crate::platform::{cgroup::Pattern, tenant_rules};

/// One rule. It has at least one condition, and all its conditions must match.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub struct Tenant(pub tenant_rules::Rule);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    tenant: String,
    uid: Option<u32>,
    gid: Option<u32>,
    cgroup: Option<String>,
}

impl TryFrom<Text> for Tenant {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let Text { tenant, uid, gid, cgroup } = text;
        if !vramd_types::name::is_valid(&tenant) {
            return Err(format!(
                "`{}` is not a valid tenant name: use 1 to 128 letters, digits, `.`, `_`, `-`, and begin with a letter or digit",
                tenant.escape_default()
            ));
        }
        if uid.is_none() && gid.is_none() && cgroup.is_none() {
            return Err(format!("the rule of tenant `{tenant}` needs at least one of uid, gid and cgroup"));
        }
        let cgroup = cgroup
            .map(|pattern| pattern.parse::<Pattern>())
            .transpose()
            .map_err(|error| error.to_string())?;
        Ok(Self(tenant_rules::Rule { tenant, uid, gid, cgroup }))
    }
}
