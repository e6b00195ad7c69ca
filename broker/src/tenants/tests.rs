//! Plans: the check of a file, its differences, and the order of changes.

use broker_core::{DeviceConfig, StoredQuota, StoredQuotas, StoredTenant, Tier};
use vramd_types::{Bytes, Quantity};

use super::{
    book::{Amounts, Book},
    plan::{Plan, Step, drift},
    *,
};
use crate::{
    config::{DefaultQuota, TenantsFile},
    state::Stored,
};

/// Two devices of 16 GiB, the first with a host tier of 8 GiB beside it.
fn node() -> Node {
    let device = |uuid: &str, host| DeviceConfig {
        uuid: uuid.to_owned(),
        name: String::new(),
        total: Bytes::gib(16),
        share: Bytes::gib(16),
        host,
        maps_host: false,
        disk: Bytes::ZERO,
        context_bytes: Bytes::ZERO,
        makes_fixed: true,
    };
    let defaults = DefaultQuota { limit: Quantity::Percent(90), ..DefaultQuota::default() };
    Node::new(&[device("GPU-0", Bytes::gib(8)), device("GPU-1", Bytes::ZERO)], &defaults)
}

fn quota(tenant: &str, device: &str, guarantee: &str, limit: &str) -> StoredQuota {
    let quantity = |text: &str| text.parse().unwrap();
    StoredQuota {
        tenant: tenant.to_owned(),
        device: device.to_owned(),
        tier: Tier::Device,
        guarantee: quantity(guarantee),
        limit: quantity(limit),
    }
}

fn stored(quotas: Vec<StoredQuota>) -> Stored {
    Stored { quotas: StoredQuotas { quotas, ..StoredQuotas::default() }, applied: None }
}

fn plan(text: &str, stored: &Stored) -> Result<Plan, String> {
    let file = TenantsFile::parse(text).map_err(|wrong| wrong.to_string())?;
    Plan::at_start(&file, "f".to_owned(), stored, &node()).map_err(|wrong| wrong.to_string())
}

/// The state after a file was applied.
fn applied(text: &str, before: &Stored) -> Stored {
    plan(text, before).unwrap().stored(before.clone(), 7)
}

/// One line for each change.
fn lines(changes: &[Change]) -> Vec<String> {
    let line = |change: &Change| {
        let place = change.place.as_ref().map(|(tier, device)| format!(" {}/{device}", tier.name()));
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let (before, after) = (value(&change.before), value(&change.after));
        format!("{}{} {}: {before} > {after}", change.tenant, place.unwrap_or_default(), change.field)
    };
    changes.iter().map(line).collect()
}

const TEAM_A: &str = "[[tenants]]\ntenant = \"a\"\nclass = \"background\"\n[[tenants.rules]]\nuid = 1\n\
                      [[tenants.quotas]]\nguarantee = \"4GiB\"\nlimit = \"75%\"\n[[tenants.quotas]]\ndevice = \"1\"\nlimit = \"2GiB\"\n";

#[test]
fn a_plan_lists_each_value_that_changes() {
    let before = stored(vec![quota("a", "*", "4GiB", "50%"), quota("b", "*", "1GiB", "2GiB")]);
    let planned = plan(TEAM_A, &before).unwrap();
    assert_eq!(
        lines(&planned.changes),
        [
            "a class: - > background",
            "a weight: - > 100",
            "a advice: - > allowed",
            "a device/* limit: 50% > 75%",
            "a device/GPU-1 guarantee: - > 0",
            "a device/GPU-1 limit: - > 2GiB",
            "a rules: - > uid=1",
        ]
    );
    let after = applied(TEAM_A, &before);
    assert_eq!(after.quotas.quotas.len(), 3, "the other tenant keeps its quota");
    assert!(plan(TEAM_A, &after).unwrap().is_nothing(), "a second time nothing differs");
}

#[test]
fn a_tenant_that_a_file_no_longer_names_returns_to_the_default() {
    let before = applied(TEAM_A, &stored(vec![quota("b", "*", "1GiB", "2GiB")]));
    let after = applied("", &before);
    assert_eq!(after.quotas.quotas, [quota("b", "*", "1GiB", "2GiB")]);
    assert!(after.quotas.tenants.is_empty() && after.applied.unwrap().rules.is_empty());
}

#[test]
fn values_that_a_file_leaves_out_of_its_tenants_are_the_default() {
    let before = stored(vec![quota("a", "GPU-0", "1GiB", "2GiB"), quota("a", "GPU-gone", "1GiB", "2GiB")]);
    let planned =
        plan("[[tenants]]\ntenant = \"a\"\n[[tenants.quotas]]\nguarantee = \"1GiB\"\n", &before).unwrap();
    assert_eq!(planned.after.quotas.len(), 1);
    assert_eq!(planned.after.amounts("a", Tier::Device, "GPU-1").unwrap().limit, Quantity::Percent(90));
    let last = planned.steps(&node()).pop().unwrap();
    assert!(matches!(&last, Step::Quota(key, None) if key.device == "GPU-gone"), "{last:?}");
}

#[test]
fn drift_is_what_operators_set_since() {
    let mut now = applied(TEAM_A, &stored(vec![]));
    assert!(drift(&now).is_empty());
    now.quotas.quotas.push(quota("b", "*", "1GiB", "2GiB"));
    assert!(drift(&now).is_empty(), "the file says nothing of that tenant");
    now.quotas.quotas[0].limit = Quantity::Percent(60);
    now.quotas.tenants.clear();
    let drifted = drift(&now);
    assert_eq!(drifted.len(), 4, "{drifted:?}");
    assert!(lines(&drifted).iter().any(|line| line.ends_with("limit: 60% > 75%")), "{drifted:?}");
    assert!(drift(&Stored { applied: None, ..now }).is_empty());
}

#[test]
fn a_file_that_the_node_cannot_keep_is_refused_with_its_line() {
    let a = "[[tenants]]\ntenant = \"a\"\n[[tenants.quotas]]\n";
    let b = "[[tenants]]\ntenant = \"b\"\n[[tenants.quotas]]\n";
    for (text, expected) in [
        (format!("{a}device = \"2\"\nlimit = 1\n"), "4:10: tenants[0].quotas[0].device: no device"),
        (
            format!("{a}tier = \"disk\"\nlimit = 1\n"),
            "4:8: tenants[0].quotas[0].tier: this node has no tier disk",
        ),
        (
            format!("{a}guarantee = \"4GiB\"\nlimit = \"10%\"\n"),
            "4:13: tenants[0].quotas[0].guarantee: a guarantee of 4 GiB",
        ),
        (format!("{a}guarantee = \"95%\"\n"), "above the limit of 14.39 GiB on device GPU-0"),
        (
            format!("{a}device = \"0\"\nlimit = 1\n[[tenants.quotas]]\ndevice = \"GPU-0\"\nlimit = 2\n"),
            "7:10: tenants[0].quotas[1].device: line 4 has a quota",
        ),
        (
            format!("{a}guarantee = \"9GiB\"\n{b}device = \"1\"\nguarantee = \"8GiB\"\n"),
            "tenants[0].quotas[0].guarantee: the guarantees in tier device of device GPU-1 would come to 17 GiB of 16 GiB",
        ),
        (
            format!("{a}tier = \"host\"\nguarantee = \"9GiB\"\nlimit = \"9GiB\"\n"),
            "would come to 9 GiB of 8 GiB",
        ),
    ] {
        let said = plan(&text, &stored(vec![])).expect_err(&text);
        assert!(said.contains(expected), "{text}: {said}");
    }
}

#[test]
fn an_overcommitted_node_takes_a_file_that_raises_nothing() {
    let before = stored(vec![quota("a", "*", "12GiB", "100%"), quota("b", "*", "12GiB", "100%")]);
    let text = "[[tenants]]\ntenant = \"a\"\n[[tenants.quotas]]\nguarantee = \"11GiB\"\n";
    assert!(plan(text, &before).is_ok());
    assert!(plan(&text.replace("11", "13"), &before).is_err());
}

#[test]
fn rules_that_change_places_are_a_change() {
    let rule = |tenant: &str, uid: u32| {
        format!("[[tenants]]\ntenant = \"{tenant}\"\n[[tenants.rules]]\nuid = {uid}\n")
    };
    let before = applied(&(rule("a", 1) + &rule("b", 2)), &stored(vec![]));
    let planned = plan(&(rule("b", 2) + &rule("a", 1)), &before).unwrap();
    assert_eq!(lines(&planned.changes), ["* order of rules: a, b > b, a"]);
}

/// Two tenants with each a quota for all devices and one for the first, before and after, in every combination.
#[test]
fn steps_lead_to_the_file_and_never_guarantee_more_than_both_ends() {
    let node = node();
    let choices = [None, Some("0"), Some("6GiB"), Some("10GiB")];
    let books: Vec<Book> = (0..256)
        .map(|number| {
            let of = |at: u32| choices[number / 4usize.pow(at) % 4];
            let rows = [("a", "*", of(0)), ("a", "GPU-0", of(1)), ("b", "*", of(2)), ("b", "GPU-0", of(3))];
            let rows: Vec<_> = rows
                .into_iter()
                .filter_map(|(tenant, device, guarantee)| Some(quota(tenant, device, guarantee?, "100%")))
                .collect();
            Book::of(&rows, &[] as &[StoredTenant])
        })
        .collect();
    let total = |book: &Book, uuid: &str| {
        let of = |tenant| {
            book.amounts(tenant, Tier::Device, uuid)
                .map_or(Bytes::ZERO, |it: Amounts| it.guarantee.of(Bytes::gib(16)))
        };
        of("a").saturating_add(of("b"))
    };
    let empty = plan("", &stored(vec![])).unwrap();
    for before in books.iter().step_by(3) {
        for after in books.iter().step_by(5) {
            let plan = Plan { before: before.clone(), after: after.clone(), ..empty.clone() };
            let mut now = before.clone();
            let steps = plan.steps(&node);
            for step in &steps {
                let Step::Quota(key, amounts) = step else { panic!("{step:?}") };
                now.set_quota(key, *amounts);
                for uuid in ["GPU-0", "GPU-1"] {
                    let most = total(before, uuid).max(total(after, uuid));
                    assert!(total(&now, uuid) <= most, "{before:?}\n{after:?}\n{steps:?}");
                }
            }
            assert_eq!(now, *after);
            for step in steps.iter().rev().map(|step| plan.reverse(step)) {
                let Step::Quota(key, amounts) = step else { panic!("{step:?}") };
                now.set_quota(&key, amounts);
            }
            assert_eq!(now, *before);
        }
    }
}
