//! The tenants file: which tenants there are, which clients belong to them, and what each may have.
//!
//! This module checks what the text alone shows. [`crate::tenants`] checks a file against the node, and applies it.

use std::{collections::BTreeMap, fs::File, io::Read as _, path::Path};

use broker_core::{Standing, Tier};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;
use vramd_types::Quantity;

use super::{
    ConfigError, ErrorLocation, QuantityText, deserialize,
    tenants::{Advice, Class, Weight},
};
use crate::platform::{cgroup::Pattern, tenant_rules::Rule};

/// Maximum bytes of a tenants file.
pub const TENANTS_FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum tenants of a file, and maximum rules and quotas of all of them.
const TENANTS_MAX: usize = 1000;
const RULES_MAX: usize = 4000;
const QUOTAS_MAX: usize = 4000;

/// The content of a tenants file.
#[derive(Clone, Debug)]
pub struct TenantsFile {
    pub tenants: Vec<TenantEntry>,
    text: String,
}

/// One tenant.
#[derive(Clone, Debug)]
pub struct TenantEntry {
    pub name: String,
    /// `None` if the file gives neither a class, nor a weight, nor a permission for advice.
    pub standing: Option<Standing>,
    pub rules: Vec<Rule>,
    pub quotas: Vec<QuotaEntry>,
}

/// One quota of a tenant, with the positions of its values in the text.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "QuotaText")]
pub struct QuotaEntry {
    device: Option<Spanned<String>>,
    tier: Option<Spanned<TierName>>,
    guarantee: Option<Spanned<QuantityText>>,
    limit: Option<Spanned<QuantityText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    tenants: Vec<TenantText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantText {
    tenant: Spanned<String>,
    class: Option<Class>,
    weight: Option<Weight>,
    advice: Option<Advice>,
    #[serde(default)]
    rules: Vec<RuleEntry>,
    #[serde(default)]
    quotas: Vec<QuotaEntry>,
}

/// The conditions of a rule, at least one, with their positions.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RuleText")]
struct RuleEntry {
    uid: Option<Spanned<u32>>,
    gid: Option<Spanned<u32>>,
    cgroup: Option<Spanned<Cgroup>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    uid: Option<Spanned<u32>>,
    gid: Option<Spanned<u32>>,
    cgroup: Option<Spanned<Cgroup>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaText {
    device: Option<Spanned<String>>,
    tier: Option<Spanned<TierName>>,
    guarantee: Option<Spanned<QuantityText>>,
    limit: Option<Spanned<QuantityText>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TierName {
    Device,
    Host,
    Disk,
}

#[derive(Clone, Debug)]
struct Cgroup(Pattern);

impl<'de> Deserialize<'de> for Cgroup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

impl TryFrom<RuleText> for RuleEntry {
    type Error = &'static str;

    fn try_from(text: RuleText) -> Result<Self, &'static str> {
        let RuleText { uid, gid, cgroup } = text;
        if uid.is_none() && gid.is_none() && cgroup.is_none() {
            return Err("a rule needs at least one of uid, gid and cgroup");
        }
        Ok(Self { uid, gid, cgroup })
    }
}

impl TryFrom<QuotaText> for QuotaEntry {
    type Error = &'static str;

    fn try_from(text: QuotaText) -> Result<Self, &'static str> {
        let QuotaText { device, tier, guarantee, limit } = text;
        if guarantee.is_none() && limit.is_none() {
            return Err("a quota needs a guarantee, a limit or both");
        }
        Ok(Self { device, tier, guarantee, limit })
    }
}

impl TenantsFile {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let bytes =
            Self::read(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Self::parse_bytes(&bytes).map_err(|location| ConfigError::Wrong { path: path.to_owned(), location })
    }

    /// Reads the bytes of a file, and one more than allowed of a file that is too large.
    fn read(path: &Path) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(TENANTS_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Parses the bytes of a file.
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, ErrorLocation> {
        if bytes.len() > TENANTS_FILE_BYTES_MAX {
            let problem = format!("the file has more than {TENANTS_FILE_BYTES_MAX} bytes");
            return Err(ErrorLocation::after("", String::new(), problem));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(text),
            Err(error) => Err(ErrorLocation::of_bytes(&error, bytes)),
        }
    }

    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, ErrorLocation> {
        let file: FileText = deserialize(text)?;
        let wrong = |at: usize, field: String, problem: String| {
            Err(ErrorLocation::after(text.get(..at).unwrap_or_default(), field, problem))
        };
        let mut first_lines: BTreeMap<&str, usize> = BTreeMap::new();
        let mut earlier: Vec<(&str, &RuleEntry)> = Vec::new();
        let (mut rules, mut quotas) = (0, 0);
        for (index, entry) in file.tenants.iter().enumerate() {
            let (at, name) = (entry.tenant.span().start, entry.tenant.get_ref().as_str());
            let field = || format!("tenants[{index}].tenant");
            if !vramd_types::name::is_valid(name) {
                return wrong(at, field(), invalid_name(name));
            }
            if let Some(line) = first_lines.insert(name, line_of(text, at)) {
                return wrong(at, field(), format!("line {line} has the tenant `{name}` already"));
            }
            (rules, quotas) = (rules + entry.rules.len(), quotas + entry.quotas.len());
            let counts = [
                (index + 1, TENANTS_MAX, "tenants"),
                (rules, RULES_MAX, "rules"),
                (quotas, QUOTAS_MAX, "quotas"),
            ];
            if let Some((_, most, nouns)) = counts.into_iter().find(|(count, most, _)| count > most) {
                return wrong(at, field(), format!("the file has more than {most} {nouns}"));
            }
            for (number, rule) in entry.rules.iter().enumerate() {
                let shadows = |(other, before): &&(&str, &RuleEntry)| *other != name && before.covers(rule);
                if let Some((other, before)) = earlier.iter().find(shadows) {
                    let line = line_of(text, before.start());
                    let problem = format!(
                        "the rule of tenant `{other}` in line {line} matches all these clients, so this one never applies"
                    );
                    return wrong(rule.start(), format!("tenants[{index}].rules[{number}]"), problem);
                }
            }
            earlier.extend(entry.rules.iter().map(|rule| (name, rule)));
        }
        let tenants = file.tenants.into_iter().map(TenantEntry::from).collect();
        Ok(Self { tenants, text: text.to_owned() })
    }

    /// An error at a position in the text.
    pub fn wrong(&self, at: usize, field: String, problem: String) -> ErrorLocation {
        ErrorLocation::after(self.text.get(..at).unwrap_or_default(), field, problem)
    }

    /// Returns the rules of all tenants, in the order of the file.
    pub fn rules(&self) -> Vec<Rule> {
        self.tenants.iter().flat_map(|entry| entry.rules.iter().cloned()).collect()
    }
}

impl QuotaEntry {
    /// `*`, a UUID or an index.
    pub fn device(&self) -> &str {
        self.device.as_ref().map_or("*", |device| device.get_ref())
    }

    pub fn tier(&self) -> Tier {
        match self.tier.as_ref().map(Spanned::get_ref) {
            None | Some(TierName::Device) => Tier::Device,
            Some(TierName::Host) => Tier::Host,
            Some(TierName::Disk) => Tier::Disk,
        }
    }

    pub fn guarantee(&self) -> Option<Quantity> {
        self.guarantee.as_ref().map(|text| text.get_ref().0)
    }

    pub fn limit(&self) -> Option<Quantity> {
        self.limit.as_ref().map(|text| text.get_ref().0)
    }

    /// The position of the value of a key, or else of the first value of the quota.
    pub fn at(&self, key: &str) -> usize {
        let starts = [
            ("device", self.device.as_ref().map(|it| it.span().start)),
            ("tier", self.tier.as_ref().map(|it| it.span().start)),
            ("guarantee", self.guarantee.as_ref().map(|it| it.span().start)),
            ("limit", self.limit.as_ref().map(|it| it.span().start)),
        ];
        let own = starts.iter().find(|(name, _)| *name == key).and_then(|(_, start)| *start);
        own.or_else(|| starts.iter().filter_map(|(_, start)| *start).min()).unwrap_or_default()
    }
}

impl RuleEntry {
    /// Whether this rule matches every client that the other one matches, as far as their conditions show it.
    fn covers(&self, other: &Self) -> bool {
        let uid = |rule: &Self| rule.uid.as_ref().map(|uid| *uid.get_ref());
        let gid = |rule: &Self| rule.gid.as_ref().map(|gid| *gid.get_ref());
        let cgroup = |rule: &'_ Self| rule.cgroup.as_ref().map(|cgroup| cgroup.get_ref().0.clone());
        uid(self).is_none_or(|own| uid(other) == Some(own))
            && gid(self).is_none_or(|own| gid(other) == Some(own))
            && cgroup(self).is_none_or(|own| own.matches_all() || cgroup(other) == Some(own))
    }

    /// The position of its first value.
    fn start(&self) -> usize {
        let starts = [
            self.uid.as_ref().map(|uid| uid.span().start),
            self.gid.as_ref().map(|gid| gid.span().start),
            self.cgroup.as_ref().map(|cgroup| cgroup.span().start),
        ];
        starts.into_iter().flatten().min().unwrap_or_default()
    }
}

impl From<TenantText> for TenantEntry {
    fn from(text: TenantText) -> Self {
        let TenantText { tenant, class, weight, advice, rules, quotas } = text;
        let name = tenant.into_inner();
        let is_given = class.is_some() || weight.is_some() || advice.is_some();
        let standing = is_given.then(|| Standing {
            class: class.map(|it| it.0).unwrap_or_default(),
            weight: weight.map(|it| it.0).unwrap_or_default(),
            advice: advice.map(|it| it.0).unwrap_or_default(),
        });
        let rule = |rule: RuleEntry| Rule {
            tenant: name.clone(),
            uid: rule.uid.map(Spanned::into_inner),
            gid: rule.gid.map(Spanned::into_inner),
            cgroup: rule.cgroup.map(|cgroup| cgroup.into_inner().0),
        };
        let rules = rules.into_iter().map(rule).collect();
        Self { standing, rules, quotas, name }
    }
}

fn invalid_name(name: &str) -> String {
    format!(
        "`{}` is not a valid tenant name: use 1 to 128 letters, digits, `.`, `_`, `-`, and begin with a letter or digit",
        name.escape_default()
    )
}

fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or_default().matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../deploy/config/tenants.toml");

    #[test]
    fn example_is_a_tenants_file() {
        let file = TenantsFile::parse(EXAMPLE).unwrap();
        assert!(file.tenants.len() >= 2 && !file.rules().is_empty());
    }

    #[test]
    fn keys_of_a_tenant_are_read() {
        let text = "[[tenants]]\ntenant = \"a\"\nclass = \"interactive\"\n[[tenants.rules]]\nuid = 7\ngid = 8\n\
                    [[tenants.rules]]\ncgroup = \"/a/**\"\n[[tenants.quotas]]\ndevice = \"0\"\ntier = \"host\"\n\
                    guarantee = 4096\nlimit = \"75%\"\n[[tenants.quotas]]\nlimit = \"1GiB\"\n[[tenants]]\ntenant = \"b\"\n";
        let file = TenantsFile::parse(text).unwrap();
        let [a, b] = &*file.tenants else { panic!("{file:?}") };
        assert_eq!(a.standing.unwrap().class, broker_core::TenantClass::Interactive);
        assert_eq!((a.rules.len(), a.rules[0].uid, a.rules[0].gid), (2, Some(7), Some(8)));
        let quota = &a.quotas[0];
        assert_eq!(
            (quota.device(), quota.tier(), quota.limit()),
            ("0", Tier::Host, Some(Quantity::Percent(75)))
        );
        assert_eq!(
            (a.quotas[1].device(), a.quotas[1].tier(), a.quotas[1].guarantee()),
            ("*", Tier::Device, None)
        );
        assert!(b.standing.is_none() && b.rules.is_empty() && b.quotas.is_empty());
    }

    #[test]
    fn an_error_has_its_line_and_its_key() {
        let tenant = "[[tenants]]\ntenant = \"a\"\n";
        for (text, line, field, problem) in [
            ("[[tenant]]\ntenant = \"a\"\n".to_owned(), 1, "tenant", "unknown field `tenant`"),
            (format!("{tenant}wieght = 7\n"), 3, "tenants[0].wieght", "unknown field `wieght`"),
            (format!("{tenant}weight = 0\n"), 3, "tenants[0].weight", "not between 1 and 10000"),
            (format!("{tenant}class = \"first\"\n"), 3, "tenants[0].class", "background, utility"),
            (format!("{tenant}\n{tenant}"), 5, "tenants[1].tenant", "line 2 has the tenant `a` already"),
            ("[[tenants]]\ntenant = \"a b\"\n".to_owned(), 2, "tenants[0].tenant", "not a valid tenant name"),
            ("[[tenants]]\nclass = \"utility\"\n".to_owned(), 1, "tenants[0]", "missing field `tenant`"),
            (format!("{tenant}[[tenants.rules]]\n"), 3, "tenants[0].rules[0]", "at least one of uid, gid"),
            (format!("{tenant}[[tenants.rules]]\nuid = -1\n"), 4, "tenants[0].rules[0].uid", "-1"),
            (
                format!("{tenant}[[tenants.rules]]\ncgroup = \"a\"\n"),
                4,
                "tenants[0].rules[0].cgroup",
                "cgroup pattern",
            ),
            (
                format!("{tenant}[[tenants.quotas]]\ntier = \"host\"\n"),
                3,
                "tenants[0].quotas[0]",
                "a guarantee, a limit",
            ),
            (
                format!("{tenant}[[tenants.quotas]]\nlimitt = 1\n"),
                4,
                "tenants[0].quotas[0].limitt",
                "unknown field `limitt`",
            ),
            (
                format!("{tenant}[[tenants.quotas]]\nlimit = \"1gib\"\n"),
                4,
                "tenants[0].quotas[0].limit",
                "unknown unit",
            ),
            (
                format!("{tenant}[[tenants.quotas]]\ntier = \"tape\"\nlimit = 1\n"),
                4,
                "tenants[0].quotas[0].tier",
                "tape",
            ),
            (format!("{tenant}[[tenants.quotas]\n"), 3, "", ""),
        ] {
            let wrong = TenantsFile::parse(&text).expect_err(&text);
            assert_eq!((wrong.line, &*wrong.field), (line, field), "{text}: {wrong}");
            assert!(wrong.problem.contains(problem), "{text}: {wrong}");
        }
        let wrong = TenantsFile::parse_bytes(b"# fine\n\xff").unwrap_err();
        assert_eq!((wrong.line, wrong.column), (2, 1), "{wrong}");
        assert!(TenantsFile::parse_bytes(&vec![b' '; TENANTS_FILE_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_rule_that_an_earlier_one_covers_is_refused() {
        let two = |first: &str, second: &str| {
            let text = format!(
                "[[tenants]]\ntenant = \"a\"\n[[tenants.rules]]\n{first}\n[[tenants]]\ntenant = \"b\"\n[[tenants.rules]]\n{second}\n"
            );
            TenantsFile::parse(&text).map(|file| file.rules().len()).map_err(|wrong| wrong.to_string())
        };
        for (first, second) in [
            ("uid = 1", "uid = 1"),
            ("uid = 1", "uid = 1\ngid = 2"),
            ("cgroup = \"/**\"", "uid = 1"),
            ("cgroup = \"/a/**\"", "cgroup = \"/a/**\"\nuid = 3"),
        ] {
            let said = two(first, second).unwrap_err();
            assert!(said.contains("8:") && said.contains("tenant `a` in line 4"), "{said}");
        }
        for (first, second) in
            [("uid = 1\ngid = 2", "uid = 1"), ("uid = 1", "gid = 1"), ("cgroup = \"/a/*\"", "uid = 1")]
        {
            assert_eq!(two(first, second), Ok(2));
        }
    }

    #[test]
    fn a_file_has_bounds_on_tenants_rules_and_quotas() {
        let quotas = "[[tenants.quotas]]\nlimit = 1\n".repeat(QUOTAS_MAX + 1);
        let said = TenantsFile::parse(&format!("[[tenants]]\ntenant = \"a\"\n{quotas}")).unwrap_err();
        assert!(said.problem.contains("more than 4000 quotas"), "{said}");
        let many: String = (0..=TENANTS_MAX).map(|at| format!("[[tenants]]\ntenant = \"t{at}\"\n")).collect();
        let said = TenantsFile::parse(&many).unwrap_err();
        assert!(said.problem.contains("more than 1000 tenants") && said.line == 2002, "{said}");
    }
}
