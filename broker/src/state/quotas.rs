//! Quotas on disk, as JSON: `{"version": 1, "quotas": […], "requests": […]}`.
//!
//! Quantities are stored as the operator set them, so that a share stays a share when the device changes.

use std::{io, path::Path};

use broker_core::{StoredQuota, StoredQuotas, StoredRequest, Tier};
use serde::{Deserialize, Serialize};

use super::{StateError, atomic_file};

const NAME: &str = "quotas.json";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    quotas: Vec<Quota>,
    requests: Vec<Request>,
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
    device: String,
    tier: String,
}

pub(super) fn load(dir: &Path) -> Result<StoredQuotas, StateError> {
    let path = dir.join(NAME);
    let text =
        atomic_file::read(dir, NAME).map_err(|source| StateError::Io { path: path.clone(), source })?;
    text.map_or_else(|| Ok(StoredQuotas::default()), |text| parse(&text))
        .map_err(|problem| StateError::Damaged { path, problem })
}

pub(super) fn store(dir: &Path, stored: &StoredQuotas) -> io::Result<()> {
    let file = File {
        version: VERSION,
        quotas: stored.quotas.iter().map(Quota::from).collect(),
        requests: stored.requests.iter().map(Request::from).collect(),
    };
    atomic_file::replace(dir, NAME, &serde_json::to_vec_pretty(&file)?)
}

fn parse(text: &str) -> Result<StoredQuotas, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!("it has version {}, but this daemon reads version {VERSION}", file.version));
    }
    Ok(StoredQuotas {
        quotas: file.quotas.into_iter().map(StoredQuota::try_from).collect::<Result<_, _>>()?,
        requests: file.requests.into_iter().map(StoredRequest::try_from).collect::<Result<_, _>>()?,
    })
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
        Self {
            uid: request.uid,
            deleted: request.deleted,
            id: hex(&request.id),
            fingerprint: hex(&request.fingerprint),
            tenant: request.tenant.clone(),
            device: request.device.clone(),
            tier: request.tier.name().to_owned(),
        }
    }
}

impl TryFrom<Request> for StoredRequest {
    type Error = String;

    fn try_from(request: Request) -> Result<Self, String> {
        Ok(Self {
            uid: request.uid,
            deleted: request.deleted,
            id: unhex(&request.id)?,
            fingerprint: unhex(&request.fingerprint)?,
            tier: tier(&request.tier)?,
            tenant: request.tenant,
            device: request.device,
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
    use vramd_types::{Bytes, Quantity};

    use super::*;

    fn sample() -> StoredQuotas {
        StoredQuotas {
            quotas: vec![StoredQuota {
                tenant: "team-a".into(),
                device: "*".into(),
                tier: Tier::Device,
                guarantee: Quantity::Bytes(Bytes::gib(8)),
                limit: Quantity::Percent(90),
            }],
            requests: vec![StoredRequest {
                uid: 1000,
                deleted: true,
                id: [0x0f; 16],
                fingerprint: [0xf0; 16],
                tenant: "team-a".into(),
                device: "GPU-1".into(),
                tier: Tier::Host,
            }],
        }
    }

    #[test]
    fn stored_quotas_are_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), StoredQuotas::default());
        store(dir.path(), &sample()).unwrap();
        assert_eq!(load(dir.path()).unwrap(), sample());
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
            ("]", ""),
        ] {
            assert!(good.contains(from), "{from} in {good}");
            std::fs::write(dir.path().join(NAME), good.replacen(from, to, 1)).unwrap();
            assert!(matches!(load(dir.path()), Err(StateError::Damaged { .. })), "{from} → {to}");
        }
    }
}
