//! Applies the operator's rules that name the tenant of a peer. They use what the kernel says of the peer, never the
//! peer's own word.

use std::{
    fmt, io,
    sync::{Arc, PoisonError, RwLock},
};

use thiserror::Error;

use super::{cgroup, peer::Peer};

/// Rules in the operator's order. The first matching rule names the tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// A rule, which matches a peer if all its conditions do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub tenant: String,
    pub uid: Option<u32>,
    /// The primary group, at connect time.
    pub gid: Option<u32>,
    pub cgroup: Option<cgroup::Pattern>,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = [
            self.uid.map(|uid| format!("uid={uid}")),
            self.gid.map(|gid| format!("gid={gid}")),
            self.cgroup.as_ref().map(|cgroup| format!("cgroup={cgroup}")),
        ];
        f.write_str(&texts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// The rules in force, which a tenants file may replace while the daemon runs. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct SharedRules(Arc<RwLock<Arc<Rules>>>);

impl SharedRules {
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(rules))))
    }

    pub fn now(&self) -> Arc<Rules> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the rules for sessions that begin later.
    pub fn replace(&self, rules: Rules) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }
}

/// A rule needs the peer's cgroup, and it could not be read.
#[derive(Debug, Error)]
pub enum NoTenant {
    #[error("the peer's cgroup cannot be read: {0}")]
    CgroupUnknown(#[source] io::Error),
    #[error("the peer ended while its cgroup was read")]
    Ended,
    #[error("the peer's cgroup is outside the daemon's cgroup namespace, so no rule can be applied")]
    OutsideNamespace,
}

/// A rule by cgroup, while the daemon is in a cgroup namespace of its own: clients could choose their tenant.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "tenants: the rule of tenant {tenant} matches the cgroup `{cgroup}`, but the daemon runs in a cgroup namespace of its own, where `{own}` is what it sees of itself and clients can make cgroups of any name. Run it in the host's cgroup namespace (`--cgroupns=host`), or match by uid or gid"
)]
pub struct Namespaced {
    tenant: String,
    cgroup: String,
    own: String,
}

impl Rules {
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// Refuses rules by cgroup in a cgroup namespace of the daemon's own. A rule that matches every cgroup is none of them.
    pub fn check_namespace(&self) -> Result<(), Namespaced> {
        let by_cgroup = |rule: &Rule| {
            let cgroup = rule.cgroup.as_ref().filter(|cgroup| !cgroup.matches_all())?;
            let own = cgroup::of_process(std::process::id()).unwrap_or_default();
            Some(Namespaced { tenant: rule.tenant.clone(), cgroup: cgroup.to_string(), own })
        };
        if !cgroup::is_namespaced() {
            return Ok(());
        }
        self.0.iter().find_map(by_cgroup).map_or(Ok(()), Err)
    }

    /// Lists rules by cgroup whose directory does not exist, with the tenant. Services that have not started yet may
    /// make it later.
    pub fn without_cgroup(&self) -> Vec<(&str, String)> {
        let missing = |rule: &'_ Rule| {
            let cgroup = rule.cgroup.as_ref()?;
            (!cgroup::exists(cgroup.directory())?).then(|| cgroup.to_string())
        };
        self.0.iter().filter_map(|rule| Some((rule.tenant.as_str(), missing(rule)?))).collect()
    }

    /// Returns the tenant of a peer; `uid-N` if no rule matches.
    pub fn tenant_of(&self, peer: &Peer) -> Result<String, NoTenant> {
        if self.0.iter().all(|rule| rule.cgroup.is_none()) {
            return Ok(self.tenant(peer.uid, peer.gid, ""));
        }
        let cgroup = cgroup::of_process(peer.pid).map_err(NoTenant::CgroupUnknown)?;
        // The peer was alive after the file was read, so the file was not that of another process with its pid.
        if peer.has_ended() {
            return Err(NoTenant::Ended);
        }
        if cgroup::is_outside(&cgroup) && !self.is_settled_without_cgroup(peer) {
            return Err(NoTenant::OutsideNamespace);
        }
        Ok(self.tenant(peer.uid, peer.gid, &cgroup))
    }

    /// Whether the peer's cgroup does not matter: the first rule that its uid and gid fit matches every cgroup.
    fn is_settled_without_cgroup(&self, peer: &Peer) -> bool {
        let fits = |rule: &&Rule| {
            rule.uid.is_none_or(|uid| uid == peer.uid) && rule.gid.is_none_or(|gid| gid == peer.gid)
        };
        let first = self.0.iter().find(fits);
        first.is_none_or(|rule| rule.cgroup.as_ref().is_none_or(cgroup::Pattern::matches_all))
    }

    fn tenant(&self, uid: u32, gid: u32, cgroup: &str) -> String {
        let fits = |rule: &&Rule| {
            rule.uid.is_none_or(|wanted| wanted == uid)
                && rule.gid.is_none_or(|wanted| wanted == gid)
                && rule.cgroup.as_ref().is_none_or(|pattern| pattern.matches(cgroup))
        };
        self.0.iter().find(fits).map_or_else(|| format!("uid-{uid}"), |rule| rule.tenant.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::net::UnixStream};

    use super::*;

    fn rule(tenant: &str, uid: Option<u32>, gid: Option<u32>, cgroup: Option<&str>) -> Rule {
        let cgroup = cgroup.map(|pattern| pattern.parse().unwrap());
        Rule { tenant: tenant.to_owned(), uid, gid, cgroup }
    }

    #[test]
    fn the_first_rule_that_fits_in_full() {
        let rules = Rules::new(vec![
            rule("pods", None, None, Some("/kubepods.slice/**")),
            rule("both", Some(1), Some(2), None),
            rule("one", Some(1), None, None),
        ]);
        assert_eq!(rules.tenant(1, 2, "/kubepods.slice/a"), "pods");
        assert_eq!(rules.tenant(1, 2, "/"), "both");
        assert_eq!(rules.tenant(1, 3, "/"), "one");
        assert_eq!(rules.tenant(4, 2, "/"), "uid-4");
        assert_eq!(Rules::default().tenant(0, 0, ""), "uid-0");
    }

    #[test]
    fn a_real_peer_is_matched_by_its_cgroup() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(ours.as_fd()).unwrap();
        let cgroup = cgroup::of_process(std::process::id()).unwrap();
        let rules = Rules::new(vec![rule("here", None, None, Some(&cgroup))]);
        assert_eq!(rules.tenant_of(&peer).unwrap(), "here");
    }
}
