//! Finds where the configuration does not fit this machine, though a start succeeds. The start warns of it, and `--check`
//! says it.

use std::{fmt, path::PathBuf, process};

use broker_driver::DeviceInfo;
use vramd_types::Bytes;

use crate::{
    config::{self, Config, HostTier},
    platform::{cgroup, tenant_rules::Rules},
};

/// A start succeeds, but the daemon does not serve as the operator may expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A rule whose cgroup does not exist matches no client, so its clients would be charged elsewhere.
    NoCgroup { tenant: String, pattern: String, own: String },
    /// The configuration leaves the daemon nothing of a device.
    NothingLeft { uuid: String, total: Bytes },
    /// Too little memory is free for a host tier, so no part leaves a device unless there is a disk or a file.
    NoHostTier { reason: String },
    /// The quotas from before the last change, which `--reset-state` would take.
    DamagedCopy { path: PathBuf, problem: String },
}

impl Warning {
    /// Lists the rules and devices that do not fit this machine.
    pub fn all_of(config: &Config, rules: &Rules, devices: &[DeviceInfo], host: HostTier) -> Vec<Self> {
        let empty = devices.iter().filter(|device| config::share_of(&config.memory, device.total).is_zero());
        let empty = empty.map(|device| Self::NothingLeft { uuid: device.uuid.clone(), total: device.total });
        let missing = host.is_missing().then(|| Self::NoHostTier { reason: host.reason.to_string() });
        Self::of_rules(rules).into_iter().chain(empty).chain(missing).collect()
    }

    /// Lists the rules whose cgroup does not exist.
    pub fn of_rules(rules: &Rules) -> Vec<Self> {
        let own = || cgroup::of_process(process::id()).unwrap_or_default();
        let rules = rules.without_cgroup().into_iter();
        rules
            .map(|(tenant, pattern)| Self::NoCgroup { tenant: tenant.to_owned(), pattern, own: own() })
            .collect()
    }

    const fn message(&self) -> &'static str {
        match self {
            Self::NoCgroup { .. } => "no cgroup matches a rule of [[tenants]]",
            Self::NothingLeft { .. } => {
                "memory.device_share and memory.margin leave nothing of a device: it serves no memory"
            }
            Self::NoHostTier { .. } => "no host tier: too little memory is free",
            Self::DamagedCopy { .. } => {
                "the copy of the quotas before the last change is damaged: a start with --reset-state would go on with those of no tenant"
            }
        }
    }

    pub fn log(&self) {
        let message = self.message();
        match self {
            Self::NoCgroup { tenant, pattern, own } => {
                tracing::warn!(tenant, cgroup = pattern, own_cgroup = own, "{message}");
            }
            Self::NothingLeft { uuid, total } => {
                tracing::warn!(uuid, total_bytes = total.get(), "{message}");
            }
            Self::NoHostTier { reason } => tracing::warn!(reason, "{message}"),
            Self::DamagedCopy { path, problem } => {
                tracing::warn!(path = %path.display(), problem, "{message}");
            }
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.message())?;
        match self {
            Self::NoCgroup { tenant, pattern, own } => {
                write!(f, "(tenant `{tenant}`, cgroup {pattern}; this process is in {own})")
            }
            Self::NothingLeft { uuid, total } => write!(f, "(device {uuid}, of {total})"),
            Self::NoHostTier { reason } => write!(f, "({reason})"),
            Self::DamagedCopy { path, problem } => write!(f, "({}: {problem})", path.display()),
        }
    }
}
