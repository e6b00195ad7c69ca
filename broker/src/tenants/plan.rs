//! The difference between a tenants file and what is stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use broker_core::{DeviceSelector, OperatorRequest, Standing, Tier};
use vramd_types::{Bytes, Quantity};

use super::{
    Node,
    book::{Amounts, Book, QuotaKey},
    node::Capacities,
};
use crate::{
    config::{ErrorLocation, TenantsFile},
    platform::tenant_rules::Rule,
    state::{Applied, Stored},
};

/// The field of a change of rules that moves rules of several tenants past each other.
const ORDER: &str = "order of rules";

/// The changes by which a tenants file is applied.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) before: Book,
    pub(super) after: Book,
    /// The file as it will be remembered.
    pub(super) applied: Applied,
    /// By tenant.
    pub changes: Vec<Change>,
    /// Whether the file says the same as the one that was applied last.
    pub(super) is_known: bool,
}

/// One value of a tenant that changes. A value that is `None` is the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub tenant: String,
    /// `class`, `weight`, `advice`, `guarantee`, `limit`, `rules` or `order of rules`.
    pub field: &'static str,
    /// Of a guarantee or a limit.
    pub place: Option<(Tier, String)>,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// One request to the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Quota(QuotaKey, Option<Amounts>),
    Standing(String, Option<Standing>),
}

/// The quotas and standings of a file, and where its quotas stand in the text.
struct Declared {
    tenants: BTreeSet<String>,
    book: Book,
    quotas: BTreeMap<QuotaKey, InFile>,
}

/// Where the guarantee of a quota stands, or else the quota.
struct InFile {
    at: usize,
    field: String,
}

impl Plan {
    /// Plans against a node on which no other program holds memory, as at the start.
    pub fn at_start(
        file: &TenantsFile,
        source: String,
        stored: &Stored,
        node: &Node,
    ) -> Result<Self, ErrorLocation> {
        Self::new(file, source, stored, node, &node.whole())
    }

    pub(super) fn new(
        file: &TenantsFile,
        source: String,
        stored: &Stored,
        node: &Node,
        capacities: &Capacities,
    ) -> Result<Self, ErrorLocation> {
        let declared = declared(file, node)?;
        let before = Book::of_stored(&stored.quotas);
        let named_before = stored.applied.iter().flat_map(|applied| applied.tenants.iter().cloned());
        let managed: BTreeSet<_> = declared.tenants.iter().cloned().chain(named_before).collect();
        let after = before.with(&managed, &declared.book);
        check_backed(file, &declared, node, capacities, (&before, &after))?;
        let rules = file.rules();
        let last = stored.applied.as_ref();
        let rules_before = last.map(|applied| &*applied.rules).unwrap_or_default();
        let changes = changes(&before, &after, rules_before, &rules);
        let applied = Applied {
            source,
            at_s: 0,
            tenants: declared.tenants,
            rules,
            quotas: declared.book.quota_rows(),
            standings: declared.book.standing_rows(),
        };
        let is_known = last.is_some_and(|last| Applied { at_s: 0, ..last.clone() } == applied);
        Ok(Self { before, after, applied, changes, is_known })
    }

    /// Whether nothing has to be stored.
    pub fn is_nothing(&self) -> bool {
        self.changes.is_empty() && self.is_known
    }

    /// Returns what is stored once the plan is carried out at once, as at the start.
    pub fn stored(self, before: Stored, now_s: u64) -> Stored {
        let mut quotas = before.quotas;
        (quotas.quotas, quotas.tenants) = (self.after.quota_rows(), self.after.standing_rows());
        Stored { quotas, applied: Some(Applied { at_s: now_s, ..self.applied }) }
    }

    /// Lists the requests to the core, in an order in which each of them can be granted: guarantees fall before others
    /// rise. Quotas of devices that are not here go last, since they cannot be set again.
    pub(super) fn steps(&self, node: &Node) -> Vec<Step> {
        let Self { before, after, .. } = self;
        let keys: BTreeSet<_> = before.quotas.keys().chain(after.quotas.keys()).collect();
        let differs = |key: &&&QuotaKey| before.quotas.get(**key) != after.quotas.get(**key);
        let is_here = |key: &&QuotaKey| key.device == "*" || node.uuid_of(&key.device).is_some();
        let (mut waiting, absent): (Vec<_>, Vec<_>) = keys.iter().filter(differs).copied().partition(is_here);
        let mut now = before.clone();
        let mut ordered = Vec::new();
        loop {
            let count = waiting.len();
            waiting.retain(|key| {
                let raises = raises_guarantee(&now, key, after.quotas.get(*key).copied(), node);
                if !raises {
                    now.set_quota(key, after.quotas.get(*key).copied());
                    ordered.push(*key);
                }
                raises
            });
            if waiting.len() == count {
                break;
            }
        }
        // Of one tenant, quotas of single devices are set before that of all devices, and removed after it. So no device
        // gets a guarantee on the way that is neither the old nor the new one.
        waiting.sort_by_key(|key| match (key.device.as_str(), after.quotas.get(*key)) {
            ("*", _) => 1,
            (_, Some(_)) => 0,
            (_, None) => 2,
        });
        ordered.extend(waiting);
        let quota = |key: &QuotaKey| Step::Quota(key.clone(), after.quotas.get(key).copied());
        let tenants: BTreeSet<_> = before.standings.keys().chain(after.standings.keys()).collect();
        let standing = |tenant: &String| Step::Standing(tenant.clone(), after.standings.get(tenant).copied());
        let changed = tenants
            .into_iter()
            .filter(|tenant| before.standings.get(*tenant) != after.standings.get(*tenant));
        let mut steps: Vec<_> = ordered.into_iter().map(quota).collect();
        steps.extend(changed.map(standing));
        steps.extend(absent.into_iter().map(quota));
        steps
    }

    /// The step that takes another one back.
    pub(super) fn reverse(&self, step: &Step) -> Step {
        match step {
            Step::Quota(key, _) => Step::Quota(key.clone(), self.before.quotas.get(key).copied()),
            Step::Standing(tenant, _) => {
                Step::Standing(tenant.clone(), self.before.standings.get(tenant).copied())
            }
        }
    }
}

impl Step {
    pub(super) fn request(&self) -> OperatorRequest {
        match self.clone() {
            Self::Quota(QuotaKey { tenant, tier, device }, amounts) => {
                let device = match device.as_str() {
                    "*" => DeviceSelector::All,
                    _ => DeviceSelector::One(device),
                };
                match amounts {
                    Some(Amounts { guarantee, limit }) => OperatorRequest::SetQuota {
                        tenant,
                        device,
                        tier,
                        guarantee: Some(guarantee),
                        limit: Some(limit),
                    },
                    None => OperatorRequest::DeleteQuota { tenant, device, tier },
                }
            }
            Self::Standing(tenant, Some(Standing { class, weight, advice })) => OperatorRequest::SetTenant {
                tenant,
                class: Some(class),
                weight: Some(weight.get()),
                advice: Some(advice),
            },
            Self::Standing(tenant, None) => OperatorRequest::ResetTenant { tenant },
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(QuotaKey { tenant, tier, device }, _) => {
                write!(f, "the quota of tenant {tenant} in tier {} of device {device}", tier.name())
            }
            Self::Standing(tenant, _) => write!(f, "class and weight of tenant {tenant}"),
        }
    }
}

/// Counts in how many values what is stored differs from the tenants file that was applied last.
pub(super) fn drift(stored: &Stored) -> Vec<Change> {
    let Some(applied) = &stored.applied else { return Vec::new() };
    let now = Book::of_stored(&stored.quotas);
    let declared = Book::of(&applied.quotas, &applied.standings);
    changes(&now, &now.with(&applied.tenants, &declared), &applied.rules, &applied.rules)
}

/// Checks each entry of a file by itself.
fn declared(file: &TenantsFile, node: &Node) -> Result<Declared, ErrorLocation> {
    let mut book = Book::default();
    let mut quotas: BTreeMap<QuotaKey, InFile> = BTreeMap::new();
    for (index, entry) in file.tenants.iter().enumerate() {
        if let Some(standing) = entry.standing {
            book.standings.insert(entry.name.clone(), standing);
        }
        for (number, quota) in entry.quotas.iter().enumerate() {
            let field = format!("tenants[{index}].quotas[{number}]");
            let wrong = |key: &str, problem: String| {
                Err(file.wrong(quota.at(key), format!("{field}.{key}"), problem))
            };
            let tier = quota.tier();
            if !node.has_tier(tier) {
                return wrong("tier", format!("this node has no tier {}", tier.name()));
            }
            let device = match quota.device() {
                "*" => "*",
                text => match node.uuid_of(text) {
                    Some(uuid) => uuid,
                    None => {
                        let problem = format!(
                            "no device of this node has the UUID or index `{}`",
                            text.escape_default()
                        );
                        return wrong("device", problem);
                    }
                },
            };
            let key = QuotaKey { tenant: entry.name.clone(), tier, device: device.to_owned() };
            let amounts = Amounts {
                guarantee: quota.guarantee().unwrap_or(Quantity::Bytes(Bytes::ZERO)),
                limit: quota.limit().unwrap_or_else(|| node.default_limit(tier)),
            };
            let place = InFile { at: quota.at("guarantee"), field: format!("{field}.guarantee") };
            if let Some(first) = quotas.insert(key.clone(), place) {
                let line = file.wrong(first.at, String::new(), String::new()).line;
                let problem = format!("line {line} has a quota of this tenant in the same place already");
                return wrong("device", problem);
            }
            book.quotas.insert(key, amounts);
        }
    }
    for (key, place) in &quotas {
        for (uuid, share) in places_of(key, &book, node) {
            let Some(amounts) = book.quotas.get(key) else { continue };
            let (guarantee, limit) = (amounts.guarantee.of(share), amounts.limit.of(share));
            if guarantee > limit {
                let problem =
                    format!("a guarantee of {guarantee} is above the limit of {limit} on device {uuid}");
                return Err(file.wrong(place.at, place.field.clone(), problem));
            }
        }
    }
    let tenants = file.tenants.iter().map(|entry| entry.name.clone()).collect();
    Ok(Declared { tenants, book, quotas })
}

/// The devices on which a quota of the book applies, with the bytes of which its shares are taken.
fn places_of<'a>(
    key: &'a QuotaKey,
    book: &'a Book,
    node: &'a Node,
) -> impl Iterator<Item = (&'a str, Bytes)> {
    let applies = |uuid: &String| {
        let own = || QuotaKey { device: uuid.clone(), ..key.clone() };
        key.device == *uuid || (key.device == "*" && !book.quotas.contains_key(&own()))
    };
    let devices = node.devices().iter().filter(move |device| applies(&device.uuid));
    devices.filter_map(|device| Some((device.uuid.as_str(), *device.tiers.get(&key.tier)?)))
}

/// Refuses guarantees that come to more than a place has, unless they come to no more than before.
fn check_backed(
    file: &TenantsFile,
    declared: &Declared,
    node: &Node,
    capacities: &Capacities,
    (before, after): (&Book, &Book),
) -> Result<(), ErrorLocation> {
    for device in node.devices() {
        for (&tier, &share) in &device.tiers {
            let guarantee = |book: &Book, tenant: &str| {
                let amounts = book.amounts(tenant, tier, &device.uuid);
                amounts.map_or(Bytes::ZERO, |amounts| amounts.guarantee.of(share))
            };
            let total = |book: &Book| {
                let tenants: BTreeSet<_> =
                    book.quotas.keys().filter(|key| key.tier == tier).map(|key| &key.tenant).collect();
                tenants
                    .into_iter()
                    .fold(Bytes::ZERO, |sum, tenant| sum.saturating_add(guarantee(book, tenant)))
            };
            let (was, would) = (total(before), total(after));
            let capacity = capacities.of(&device.uuid, tier);
            if would <= capacity || would <= was {
                continue;
            }
            let rise =
                |key: &QuotaKey| guarantee(after, &key.tenant).saturating_sub(guarantee(before, &key.tenant));
            let here = declared.quotas.iter().filter(|(key, _)| {
                key.tier == tier && places_of(key, after, node).any(|(uuid, _)| uuid == device.uuid)
            });
            let problem = format!(
                "the guarantees in tier {} of device {} would come to {would} of {capacity}. Lower this one or another",
                tier.name(),
                device.uuid
            );
            let first = InFile { at: 0, field: "tenants".to_owned() };
            let place = here.max_by_key(|(key, _)| rise(key)).map_or(&first, |(_, place)| place);
            return Err(file.wrong(place.at, place.field.clone(), problem));
        }
    }
    Ok(())
}

/// Whether a change raises the tenant's guarantee on some device.
fn raises_guarantee(now: &Book, key: &QuotaKey, amounts: Option<Amounts>, node: &Node) -> bool {
    let guarantee =
        |own: Option<Amounts>, share: Bytes| own.map_or(Bytes::ZERO, |amounts| amounts.guarantee.of(share));
    places_of(key, now, node).any(|(uuid, share)| {
        let before = now.amounts(&key.tenant, key.tier, uuid);
        let of_all = QuotaKey { device: "*".to_owned(), ..key.clone() };
        let beneath = || now.quotas.get(&of_all).copied().filter(|_| key.device != "*");
        guarantee(amounts.or_else(beneath), share) > guarantee(before, share)
    })
}

fn changes(before: &Book, after: &Book, rules_before: &[Rule], rules_after: &[Rule]) -> Vec<Change> {
    let mut changes = Vec::new();
    let tenants: BTreeSet<_> = before.standings.keys().chain(after.standings.keys()).collect();
    for tenant in tenants {
        let texts = |book: &Book| {
            let standing = book.standings.get(tenant);
            let text = |of: fn(&Standing) -> String| standing.map(of);
            [
                ("class", text(|it| it.class.to_string())),
                ("weight", text(|it| it.weight.to_string())),
                ("advice", text(|it| it.advice.to_string())),
            ]
        };
        let both = texts(before).into_iter().zip(texts(after));
        changes.extend(both.filter(|(old, new)| old != new).map(|((field, old), (_, new))| Change {
            tenant: tenant.clone(),
            field,
            place: None,
            before: old,
            after: new,
        }));
    }
    let keys: BTreeSet<_> = before.quotas.keys().chain(after.quotas.keys()).collect();
    for key in keys {
        let texts = |book: &Book| {
            let amounts = book.quotas.get(key);
            [
                ("guarantee", amounts.map(|it| it.guarantee.to_string())),
                ("limit", amounts.map(|it| it.limit.to_string())),
            ]
        };
        let both = texts(before).into_iter().zip(texts(after));
        changes.extend(both.filter(|(old, new)| old != new).map(|((field, old), (_, new))| Change {
            tenant: key.tenant.clone(),
            field,
            place: Some((key.tier, key.device.clone())),
            before: old,
            after: new,
        }));
    }
    changes.extend(rule_changes(rules_before, rules_after));
    changes.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    changes
}

fn rule_changes(before: &[Rule], after: &[Rule]) -> Vec<Change> {
    let texts = |rules: &[Rule]| {
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for rule in rules {
            texts.entry(rule.tenant.clone()).or_default().push(rule.to_string());
        }
        texts
    };
    let (old, new) = (texts(before), texts(after));
    let tenants: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let joined = |rules: Option<&Vec<String>>| rules.map(|rules| rules.join(", "));
    let changed = tenants.into_iter().filter(|tenant| old.get(*tenant) != new.get(*tenant));
    let mut changes: Vec<_> = changed
        .map(|tenant| Change {
            tenant: tenant.clone(),
            field: "rules",
            place: None,
            before: joined(old.get(tenant)),
            after: joined(new.get(tenant)),
        })
        .collect();
    if changes.is_empty() && before != after {
        let order = |rules: &[Rule]| {
            let mut names: Vec<_> = rules.iter().map(|rule| rule.tenant.as_str()).collect();
            names.dedup();
            Some(names.join(", "))
        };
        changes.push(Change {
            tenant: "*".to_owned(),
            field: ORDER,
            place: None,
            before: order(before),
            after: order(after),
        });
    }
    changes
}
