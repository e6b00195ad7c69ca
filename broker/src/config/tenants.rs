//! `[[tenants]]`: the rules that name the tenant of a client, the classes and weights of tenants, and whether their advice
//! counts.

use std::collections::BTreeMap;

use broker_core::{AdvicePermission, Standing, TenantClass, TenantWeight, limits::TENANT_WEIGHT_MAX};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::Wrong;
use crate::platform::{cgroup::Pattern, tenant_rules};

/// One entry. All its conditions must match. One without any names no client, and gives a class, a weight or a permission.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub struct Tenant {
    pub name: String,
    pub rule: Option<tenant_rules::Rule>,
    class: Option<Spanned<Class>>,
    weight: Option<Spanned<Weight>>,
    advice: Option<Spanned<Advice>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    tenant: String,
    uid: Option<u32>,
    gid: Option<u32>,
    cgroup: Option<String>,
    class: Option<Spanned<Class>>,
    weight: Option<Spanned<Weight>>,
    advice: Option<Spanned<Advice>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(pub(super) TenantClass);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weight(pub(super) TenantWeight);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advice(pub(super) AdvicePermission);

impl<'de> Deserialize<'de> for Class {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Advice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        let weight = u32::try_from(number).ok().and_then(TenantWeight::new);
        weight
            .map(Self)
            .ok_or_else(|| de::Error::custom(format!("{number} is not between 1 and {TENANT_WEIGHT_MAX}")))
    }
}

impl TryFrom<Text> for Tenant {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let Text { tenant, uid, gid, cgroup, class, weight, advice } = text;
        if !vramd_types::name::is_valid(&tenant) {
            return Err(format!(
                "`{}` is not a valid tenant name: use 1 to 128 letters, digits, `.`, `_`, `-`, and begin with a letter or digit",
                tenant.escape_default()
            ));
        }
        let names_clients = uid.is_some() || gid.is_some() || cgroup.is_some();
        if !names_clients && class.is_none() && weight.is_none() && advice.is_none() {
            return Err(format!(
                "the rule of tenant `{tenant}` needs at least one of uid, gid, cgroup, class, weight and advice"
            ));
        }
        let cgroup = cgroup
            .map(|pattern| pattern.parse::<Pattern>())
            .transpose()
            .map_err(|error| error.to_string())?;
        let rule = tenant_rules::Rule { tenant: tenant.clone(), uid, gid, cgroup };
        Ok(Self { name: tenant, rule: names_clients.then_some(rule), class, weight, advice })
    }
}

/// The standings of tenants by name, from all entries together.
pub fn standings(tenants: &[Tenant]) -> BTreeMap<String, Standing> {
    let mut standings: BTreeMap<String, Standing> = BTreeMap::new();
    for Tenant { name, class, weight, advice, .. } in tenants {
        if class.is_none() && weight.is_none() && advice.is_none() {
            continue;
        }
        let standing = standings.entry(name.clone()).or_default();
        if let Some(class) = class {
            standing.class = class.get_ref().0;
        }
        if let Some(weight) = weight {
            standing.weight = weight.get_ref().0;
        }
        if let Some(advice) = advice {
            standing.advice = advice.get_ref().0;
        }
    }
    standings
}

/// Returns the first entry that contradicts an earlier one of its tenant, with its index.
pub(super) fn contradiction(tenants: &[Tenant]) -> Option<(usize, Wrong)> {
    let mut classes: BTreeMap<&str, TenantClass> = BTreeMap::new();
    let mut weights: BTreeMap<&str, TenantWeight> = BTreeMap::new();
    let mut permissions: BTreeMap<&str, AdvicePermission> = BTreeMap::new();
    for (index, Tenant { name, class, weight, advice, .. }) in tenants.iter().enumerate() {
        let wrong = |at, field, now: &str, before: &str| {
            let problem =
                format!("an earlier entry gives tenant `{name}` the {field} {before}, this one {now}");
            Some((index, Wrong { at, field, problem }))
        };
        if let Some(class) = class {
            let (at, class) = (class.span().start, class.get_ref().0);
            let before = *classes.entry(name).or_insert(class);
            if before != class {
                return wrong(at, "class", class.name(), before.name());
            }
        }
        if let Some(weight) = weight {
            let (at, weight) = (weight.span().start, weight.get_ref().0);
            let before = *weights.entry(name).or_insert(weight);
            if before != weight {
                return wrong(at, "weight", &weight.to_string(), &before.to_string());
            }
        }
        if let Some(advice) = advice {
            let (at, advice) = (advice.span().start, advice.get_ref().0);
            let before = *permissions.entry(name).or_insert(advice);
            if before != advice {
                return wrong(at, "advice", advice.name(), before.name());
            }
        }
    }
    None
}
