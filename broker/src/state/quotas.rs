//! Quotas on disk, with the standings of tenants, as JSON:
//! `{"version": 1, "quotas": […], "tenants": […], "requests": […], "applied": {…}}`.
//!
//! Quantities are stored as the operator set them, so that a share stays a share when the device changes.

use std::{collections::BTreeSet, io, path::Path};

use broker_core::{
    AdvicePermission, Standing, StoredChange, StoredQuota, StoredQuotas, StoredRequest, StoredTenant,
    TenantWeight, Tier,
};
use serde::{Deserialize, Serialize};
use vramd_types::{Quantity, name};

use super::{Applied, StateError, Stored, atomic_file};
use crate::platform::{cgroup, tenant_rules::Rule};

pub(super) const NAME: &str = "quotas.json";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    quotas: Vec<Quota>,
    /// Left out if there are none: so older daemons read a file without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tenants: Vec<Tenant>,
    requests: Vec<Request>,
    /// The tenants file that was applied last. Left out if there never was one, for the same reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    applied: Option<AppliedFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AppliedFile {
    source: String,
    at_s: u64,
    names: BTreeSet<String>,
    rules: Vec<RuleRow>,
    quotas: Vec<Quota>,
    tenants: Vec<Tenant>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleRow {
    tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tenant {
    tenant: String,
    class: String,
    weight: u32,
    /// Left out if it is allowed, for the same reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quota {
    tenant: String,
    device: String,
    tier: String,
    guarantee: String,
    limit: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    uid: u32,
    deleted: bool,
    id: String,
    fingerprint: String,
    tenant: String,
    /// Only of a request that changed a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
}

/// Loads the quotas. A missing file is no damage, unless its copy is there.
pub(super) fn load(dir: &Path) -> Result<Stored, StateError> {
    let path = dir.join(NAME);
    let has_copy = matches!(read(dir, &atomic_file::old(NAME)), Ok(Some(_)));
    let damaged = |problem: String| {
        let others = if has_copy { "quotas.json.old, from before the last change" } else { "no tenant" };
        StateError::Damaged {
            path: path.clone(),
            problem,
            remedy: format!(
                "Repair it, or start once with --reset-state, which sets it aside and goes on with the quotas of {others}"
            ),
        }
    };
    match read(dir, NAME) {
        Ok(None) if has_copy => Err(damaged("the file is missing, and its copy is not".to_owned())),
        Ok(stored) => Ok(stored.unwrap_or_default()),
        Err(Unusable::Damaged(problem)) => Err(damaged(problem)),
        Err(Unusable::Io(source)) => Err(StateError::Io { path, source }),
    }
}

/// Says what is wrong with the copy, if it cannot be used.
pub(super) fn copy_problem(dir: &Path) -> Option<String> {
    match read(dir, &atomic_file::old(NAME)) {
        Ok(_) => None,
        Err(Unusable::Damaged(problem)) => Some(problem),
        Err(Unusable::Io(error)) => Some(error.to_string()),
    }
}

/// Whether quotas were ever stored here.
pub(super) fn are_stored(dir: &Path) -> bool {
    dir.join(NAME).exists()
}

/// Sets the damaged file aside, and stores the quotas of its copy, or none, in its place.
pub(super) fn reset(dir: &Path) -> io::Result<Stored> {
    let stored = read(dir, &atomic_file::old(NAME)).ok().flatten().unwrap_or_default();
    atomic_file::set_aside(dir, NAME)?;
    store(dir, &stored)?;
    Ok(stored)
}

/// Why a file of quotas cannot be used.
enum Unusable {
    Damaged(String),
    Io(io::Error),
}

fn read(dir: &Path, name: &str) -> Result<Option<Stored>, Unusable> {
    match atomic_file::read(dir, name) {
        Ok(text) => text.map(|text| parse(&text)).transpose().map_err(Unusable::Damaged),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(Unusable::Damaged(error.to_string())),
        Err(error) => Err(Unusable::Io(error)),
    }
}

pub(super) fn store(dir: &Path, Stored { quotas: stored, applied }: &Stored) -> io::Result<()> {
    let file = File {
        version: VERSION,
        quotas: stored.quotas.iter().map(Quota::from).collect(),
        tenants: stored.tenants.iter().map(Tenant::from).collect(),
        requests: stored.requests.iter().map(Request::from).collect(),
        applied: applied.as_ref().map(AppliedFile::from),
    };
    atomic_file::replace(dir, NAME, &serde_json::to_vec_pretty(&file)?)
}

fn parse(text: &str) -> Result<Stored, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!("it has version {}, but this daemon reads version {VERSION}", file.version));
    }
    let (quotas, tenants) = rows(file.quotas, file.tenants)?;
    let requests = file.requests.into_iter().map(StoredRequest::try_from).collect::<Result<_, _>>()?;
    let applied = file.applied.map(Applied::try_from).transpose()?;
    Ok(Stored { quotas: StoredQuotas { quotas, tenants, requests }, applied })
}

fn rows(quotas: Vec<Quota>, tenants: Vec<Tenant>) -> Result<(Vec<StoredQuota>, Vec<StoredTenant>), String> {
    let quotas: Vec<_> = quotas.into_iter().map(StoredQuota::try_from).collect::<Result<_, _>>()?;
    check(&quotas)?;
    let tenants: Vec<_> = tenants.into_iter().map(StoredTenant::try_from).collect::<Result<_, _>>()?;
    check_tenants(&tenants)?;
    Ok((quotas, tenants))
}

/// Refuses quotas that no operator can have set.
fn check(quotas: &[StoredQuota]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for StoredQuota { tenant, device, tier, guarantee, limit } in quotas {
        if !name::is_valid(tenant) {
            return Err(format!("`{tenant}` is not the name of a tenant"));
        }
        let is_above = match (guarantee, limit) {
            (Quantity::Bytes(guarantee), Quantity::Bytes(limit)) => guarantee > limit,
            (Quantity::Percent(guarantee), Quantity::Percent(limit)) => guarantee > limit,
            // It depends on the device, which may be another one than before.
            _ => false,
        };
        if is_above {
            return Err(format!(
                "tenant {tenant} is guaranteed {guarantee} on device {device}, above its limit of {limit}"
            ));
        }
        if !seen.insert((tenant, device, tier)) {
            return Err(format!("tenant {tenant} has two quotas on device {device} in tier {tier}"));
        }
    }
    Ok(())
}

/// Refuses tenants whose class and weight no operator can have set.
fn check_tenants(tenants: &[StoredTenant]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for StoredTenant { tenant, .. } in tenants {
        if !name::is_valid(tenant) {
            return Err(format!("`{tenant}` is not the name of a tenant"));
        }
        if !seen.insert(tenant) {
            return Err(format!("tenant {tenant} has two classes"));
        }
    }
    Ok(())
}

impl From<&Applied> for AppliedFile {
    fn from(applied: &Applied) -> Self {
        Self {
            source: applied.source.clone(),
            at_s: applied.at_s,
            names: applied.tenants.clone(),
            rules: applied.rules.iter().map(RuleRow::from).collect(),
            quotas: applied.quotas.iter().map(Quota::from).collect(),
            tenants: applied.standings.iter().map(Tenant::from).collect(),
        }
    }
}

impl TryFrom<AppliedFile> for Applied {
    type Error = String;

    fn try_from(file: AppliedFile) -> Result<Self, String> {
        let (quotas, standings) = rows(file.quotas, file.tenants)?;
        let rules = file.rules.into_iter().map(Rule::try_from).collect::<Result<_, _>>()?;
        Ok(Self { source: file.source, at_s: file.at_s, tenants: file.names, rules, quotas, standings })
    }
}

impl From<&Rule> for RuleRow {
    fn from(rule: &Rule) -> Self {
        let Rule { tenant, uid, gid, cgroup } = rule;
        let cgroup = cgroup.as_ref().map(ToString::to_string);
        Self { tenant: tenant.clone(), uid: *uid, gid: *gid, cgroup }
    }
}

impl TryFrom<RuleRow> for Rule {
    type Error = String;

    fn try_from(row: RuleRow) -> Result<Self, String> {
        let RuleRow { tenant, uid, gid, cgroup } = row;
        if !name::is_valid(&tenant) {
            return Err(format!("`{tenant}` is not the name of a tenant"));
        }
        // Such a rule would give every client to one tenant.
        if uid.is_none() && gid.is_none() && cgroup.is_none() {
            return Err(format!("a rule of tenant {tenant} has no condition"));
        }
        let cgroup = cgroup.map(|text| text.parse()).transpose();
        let cgroup = cgroup.map_err(|error: cgroup::PatternError| error.to_string())?;
        Ok(Self { tenant, uid, gid, cgroup })
    }
}

impl From<&StoredTenant> for Tenant {
    fn from(row: &StoredTenant) -> Self {
        Self {
            tenant: row.tenant.clone(),
            class: row.standing.class.name().to_owned(),
            weight: row.standing.weight.get(),
            advice: row.standing.advice.is_forbidden().then(|| row.standing.advice.name().to_owned()),
        }
    }
}

impl TryFrom<Tenant> for StoredTenant {
    type Error = String;

    fn try_from(row: Tenant) -> Result<Self, String> {
        let class = row.class.parse().map_err(|error: broker_core::UnknownClass| error.to_string())?;
        let weight = TenantWeight::new(row.weight)
            .ok_or_else(|| format!("tenant {} has the weight {}", row.tenant, row.weight))?;
        let permission = |text: String| text.parse::<AdvicePermission>().map_err(|error| error.to_string());
        let advice = row.advice.map(permission).transpose()?.unwrap_or_default();
        Ok(Self { tenant: row.tenant, standing: Standing { class, weight, advice } })
    }
}

impl From<&StoredQuota> for Quota {
    fn from(quota: &StoredQuota) -> Self {
        Self {
            tenant: quota.tenant.clone(),
            device: quota.device.clone(),
            tier: quota.tier.name().to_owned(),
            guarantee: quota.guarantee.to_string(),
            limit: quota.limit.to_string(),
        }
    }
}

impl TryFrom<Quota> for StoredQuota {
    type Error = String;

    fn try_from(quota: Quota) -> Result<Self, String> {
        let quantity =
            |text: &str| text.parse().map_err(|error: vramd_types::QuantityError| error.to_string());
        Ok(Self {
            guarantee: quantity(&quota.guarantee)?,
            limit: quantity(&quota.limit)?,
            tier: tier(&quota.tier)?,
            tenant: quota.tenant,
            device: quota.device,
        })
    }
}

impl From<&StoredRequest> for Request {
    fn from(request: &StoredRequest) -> Self {
        let (deleted, place) = match &request.change {
            StoredChange::QuotaSet { device, tier } => (false, Some((device, tier))),
            StoredChange::QuotaDeleted { device, tier } => (true, Some((device, tier))),
            StoredChange::TenantSet => (false, None),
            StoredChange::TenantReset => (true, None),
        };
        Self {
            uid: request.uid,
            deleted,
            id: hex(&request.id),
            fingerprint: hex(&request.fingerprint),
            tenant: request.tenant.clone(),
            device: place.map(|(device, _)| device.clone()),
            tier: place.map(|(_, tier)| tier.name().to_owned()),
        }
    }
}

impl TryFrom<Request> for StoredRequest {
    type Error = String;

    fn try_from(request: Request) -> Result<Self, String> {
        let change = match (request.device, request.tier.as_deref().map(tier).transpose()?) {
            (Some(device), Some(tier)) if request.deleted => StoredChange::QuotaDeleted { device, tier },
            (Some(device), Some(tier)) => StoredChange::QuotaSet { device, tier },
            (None, None) if request.deleted => StoredChange::TenantReset,
            (None, None) => StoredChange::TenantSet,
            _ => return Err(format!("the request {} has a device or a tier alone", request.id)),
        };
        Ok(Self {
            uid: request.uid,
            id: unhex(&request.id)?,
            fingerprint: unhex(&request.fingerprint)?,
            tenant: request.tenant,
            change,
        })
    }
}

fn tier(name: &str) -> Result<Tier, String> {
    let found = [Tier::Device, Tier::Host, Tier::Disk].into_iter().find(|tier| tier.name() == name);
    found.ok_or_else(|| format!("there is no tier `{name}`"))
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

fn unhex(text: &str) -> Result<[u8; 16], String> {
    let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|_| plain);
    number.map(u128::to_be_bytes).ok_or_else(|| format!("`{text}` is not 16 bytes in hexadecimal"))
}

#[cfg(test)]
mod tests {
    use vramd_types::Bytes;

    use super::*;

    fn request(change: StoredChange) -> StoredRequest {
        let (id, fingerprint) = ([0x0f; 16], [0xf0; 16]);
        StoredRequest { uid: 1000, id, fingerprint, tenant: "team-a".into(), change }
    }

    fn sample() -> Stored {
        let quotas = StoredQuotas {
            quotas: vec![StoredQuota {
                tenant: "team-a".into(),
                device: "*".into(),
                tier: Tier::Device,
                guarantee: Quantity::Bytes(Bytes::gib(8)),
                limit: Quantity::Percent(90),
            }],
            tenants: vec![StoredTenant {
                tenant: "team-a".into(),
                standing: Standing {
                    class: broker_core::TenantClass::Background,
                    weight: TenantWeight::new(250).unwrap(),
                    advice: AdvicePermission::Forbidden,
                },
            }],
            requests: [
                StoredChange::QuotaDeleted { device: "GPU-1".into(), tier: Tier::Host },
                StoredChange::QuotaSet { device: "*".into(), tier: Tier::Disk },
                StoredChange::TenantSet,
                StoredChange::TenantReset,
            ]
            .map(request)
            .into(),
        };
        let applied = Applied {
            source: "/etc/vramd/tenants.toml".into(),
            at_s: 1_800_000_000,
            tenants: BTreeSet::from(["team-a".to_owned(), "team-b".to_owned()]),
            rules: vec![
                Rule { tenant: "team-a".into(), uid: Some(4711), gid: None, cgroup: None },
                Rule {
                    tenant: "team-b".into(),
                    uid: None,
                    gid: Some(8),
                    cgroup: Some("/b/**".parse().unwrap()),
                },
            ],
            quotas: quotas.quotas.clone(),
            standings: quotas.tenants.clone(),
        };
        Stored { quotas, applied: Some(applied) }
    }

    #[test]
    fn stored_quotas_are_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), Stored::default());
        store(dir.path(), &sample()).unwrap();
        assert_eq!(load(dir.path()).unwrap(), sample());
    }

    /// A file that was written before tenants had classes.
    #[test]
    fn file_without_tenants_is_loaded_and_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let old = r#"{"version": 1, "quotas": [], "requests": [{"uid": 7, "deleted": false,
            "id": "000102030405060708090a0b0c0d0e0f", "fingerprint": "000102030405060708090a0b0c0d0e0f",
            "tenant": "team-a", "device": "*", "tier": "device"}]}"#;
        std::fs::write(dir.path().join(NAME), old).unwrap();
        let loaded = load(dir.path()).unwrap();
        assert_eq!(
            loaded.quotas.requests[0].change,
            StoredChange::QuotaSet { device: "*".into(), tier: Tier::Device }
        );
        store(dir.path(), &loaded).unwrap();
        let written = std::fs::read_to_string(dir.path().join(NAME)).unwrap();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&written).unwrap(),
            serde_json::from_str::<serde_json::Value>(old).unwrap()
        );
    }

    #[test]
    fn damage_is_never_guessed_at() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &sample()).unwrap();
        let good = std::fs::read_to_string(dir.path().join(NAME)).unwrap();
        for (from, to) in [
            ("\"version\": 1", "\"version\": 2"),
            ("8GiB", "8gigs"),
            ("\"device\",", "\"attic\","),
            ("0f0f", "0g0f"),
            ("\"uid\"", "\"who\""),
            ("\"team-a\"", "\"team a\""),
            ("\"8GiB\"", "\"91%\""),
            ("\"background\"", "\"backstage\""),
            ("250", "0"),
            ("250", "10001"),
            ("      \"device\": \"*\",\n      \"tier\": \"disk\"", "      \"device\": \"*\""),
            ("/b/**", "b"),
            ("        \"tenant\": \"team-a\",\n        \"uid\": 4711", "        \"tenant\": \"team-a\""),
            ("]", ""),
        ] {
            assert!(good.contains(from), "{from} in {good}");
            std::fs::write(dir.path().join(NAME), good.replacen(from, to, 1)).unwrap();
            assert!(matches!(load(dir.path()), Err(StateError::Damaged { .. })), "{from} → {to}");
        }
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Stored::default(), "nothing was ever stored");
    }

    #[test]
    fn a_reset_takes_the_quotas_before_the_last_change() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &sample()).unwrap();
        store(dir.path(), &Stored::default()).unwrap();
        std::fs::write(dir.path().join(NAME), "{").unwrap();
        let said = load(dir.path()).unwrap_err().to_string();
        assert!(said.contains("quotas.json.old") && said.contains("--reset-state"), "{said}");
        assert_eq!(reset(dir.path()).unwrap(), sample());
        assert_eq!(load(dir.path()).unwrap(), sample());
        assert_eq!(std::fs::read_to_string(dir.path().join("quotas.json.damaged")).unwrap(), "{");
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        std::fs::write(dir.path().join("quotas.json.old"), "{}").unwrap();
        assert_eq!(reset(dir.path()).unwrap(), Stored::default(), "the copy is damaged too");
    }
}
