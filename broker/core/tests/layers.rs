//! The folders of handlers are layers: a folder calls only itself and folders of a lower layer. So no cycle of
//! calls is larger than one folder.
//!
//! The tests read the source: they find the methods of `Broker` and of its tables by name, and every call of such a
//! name. So each folder changes the tables of the broker that docs/ARCHITECTURE.md says, and no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::purity::source_files;

/// From the lowest to the highest.
const LAYERS: [&str; 18] = [
    "shared",
    "calls",
    "extents",
    "mapping",
    "moves",
    "line",
    "prefetch",
    "sequence",
    "pins",
    "turns",
    "allocation",
    "after_revocation",
    "scan",
    "node",
    "requests",
    "completion",
    "timers",
    "follow_up",
];

/// The folder of a file below `handler/`, or its own name, and its text without comments and test modules.
struct Source {
    layer: String,
    path: PathBuf,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/handler");
    let mut sources = Vec::new();
    for path in source_files("src/handler") {
        let below = path.strip_prefix(&root).expect("below the root");
        let first = below.components().next().expect("a name").as_os_str().to_string_lossy();
        let layer = first.trim_end_matches(".rs").to_owned();
        // A planted bug is no part of the design.
        let is_test = below.ends_with("pin_costs.rs") || below.ends_with("mistakes.rs");
        if layer != "mod" && !is_test {
            let text = fs::read_to_string(&path).expect("a source file");
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = code.filter(|line| !line.trim_start().starts_with("planted!("));
            sources.push(Source { layer, path, text: code.collect::<Vec<_>>().join("\n") });
        }
    }
    sources
}

/// The names that follow `before` in the text, up to `after`.
fn names<'t>(text: &'t str, before: &'t str, after: char) -> impl Iterator<Item = &'t str> {
    text.match_indices(before).filter_map(move |(at, _)| {
        let rest = text.get(at + before.len()..)?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        let (name, next) = rest.split_at(end);
        (next.starts_with(after) || (after == '(' && next.starts_with('<'))).then_some(name)
    })
}

#[test]
fn no_folder_calls_a_higher_layer() {
    let sources = sources();
    assert!(sources.len() > 40, "found {} files only", sources.len());
    let rank = |layer: &str| {
        let found = LAYERS.iter().position(|known| *known == layer);
        found.unwrap_or_else(|| panic!("`{layer}` is no layer: list it, or move its files"))
    };
    // Methods are defined four spaces deep, in `impl Broker`.
    let mut defined: BTreeMap<&str, &str> = BTreeMap::new();
    for source in &sources {
        let in_broker = source.text.split("impl Broker {").skip(1);
        for block in in_broker.map(|block| block.split("\n}").next().unwrap_or_default()) {
            for before in ["\n    fn ", "\n    pub(crate) fn ", "\n    pub fn ", "\n    pub(crate) const fn "]
            {
                names(block, before, '(').for_each(|name| _ = defined.insert(name, &source.layer));
            }
        }
    }
    assert!(defined.len() > 300, "found {} methods only", defined.len());
    let mut wrong = Vec::new();
    for Source { layer, path, text } in &sources {
        for caller in ["self.", "broker.", "view.", "Self::"] {
            for name in names(text, caller, '(') {
                if let Some(of) = defined.get(name).filter(|of| rank(of) > rank(layer)) {
                    wrong.push(format!("{}: `{name}` is in the higher layer `{of}`", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A table of its own is for what several folders share; the rest stands in the table that it belongs to.
#[test]
fn the_broker_has_few_fields() {
    let text = broker_source("src/broker.rs");
    let fields = fields_of_the_broker(&text);
    assert!((10..=16).contains(&fields.len()), "the fifteen and the planted bug: {fields:?}");
}

/// Methods of the standard library's collections that change them.
const CHANGE_COLLECTIONS: [&str; 22] = [
    "append",
    "clear",
    "drain",
    "entry",
    "extend",
    "get_mut",
    "insert",
    "iter_mut",
    "pop",
    "pop_back",
    "pop_first",
    "pop_front",
    "push",
    "push_back",
    "push_front",
    "remove",
    "replace",
    "retain",
    "split_off",
    "take",
    "truncate",
    "values_mut",
];

fn broker_source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn fields_of_the_broker(text: &str) -> Vec<&str> {
    let fields = text.split("pub struct Broker {").nth(1).and_then(|rest| rest.split("\n}").next());
    names(fields.expect("the struct"), "\n    pub(crate) ", ':').collect()
}

/// The methods of the tables that change them. A name that some other table has for a question is left out.
fn changing_methods() -> BTreeSet<String> {
    let (mut changing, mut asking) = (BTreeSet::new(), BTreeSet::new());
    for path in source_files("src").into_iter().filter(|path| !path.to_string_lossy().contains("/handler/")) {
        let text = fs::read_to_string(path).expect("a source file");
        for name in names(&text, "fn ", '(') {
            let whole = format!("fn {name}");
            let head = text.split(&whole).nth(1).and_then(|rest| rest.split(')').next()).unwrap_or_default();
            match () {
                () if head.contains("&mut self") => _ = changing.insert(name.to_owned()),
                () if head.contains("self") => _ = asking.insert(name.to_owned()),
                () => {}
            }
        }
    }
    changing.retain(|name| !asking.contains(name));
    changing.extend(CHANGE_COLLECTIONS.map(str::to_owned));
    changing
}

/// The fields of the broker that the text changes: by a method, by an assignment, or by a `&mut`.
fn changed<'t>(text: &'t str, fields: &[&str], methods: &BTreeSet<String>) -> BTreeSet<&'t str> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("self.") {
        let (before, after) = (&text[..at], &text[at + "self.".len()..]);
        let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(after.len());
        let (path, next) = after.split_at(end);
        let mut steps = path.split('.');
        let Some(field) = steps.next().filter(|field| fields.contains(field)) else { continue };
        let calls = next.starts_with('(') && steps.next_back().is_some_and(|last| methods.contains(last));
        let next = next.trim_start();
        let assigns = ["= ", "+= ", "-= ", "|= "].iter().any(|operator| next.starts_with(operator));
        if calls || assigns || before.ends_with("&mut ") {
            found.insert(field);
        }
    }
    found
}

#[test]
fn each_folder_changes_the_tables_that_the_architecture_says() {
    let broker = broker_source("src/broker.rs");
    let fields = fields_of_the_broker(&broker);
    let methods = changing_methods();
    assert!(methods.len() > 200, "found {} methods only", methods.len());
    let mut is: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Source { layer, text, .. } in sources() {
        // A chain may go on in the next line.
        let lines: String = text
            .lines()
            .map(|line| match line.trim_start() {
                line if line.starts_with('.') => line.to_owned(),
                line => format!("\n{line}"),
            })
            .collect();
        let of_layer = is.entry(layer).or_default();
        of_layer.extend(changed(&lines, &fields, &methods).into_iter().map(str::to_owned));
    }
    let page = broker_source("../../docs/ARCHITECTURE.md");
    let (_, table) = page.split_once("| `handler/` | Tables that it changes |\n").expect("the table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let mut said: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows {
        let mut cells = row.split('|').skip(1);
        let mut quoted = || cells.next().unwrap_or_default().split('`').skip(1).step_by(2).map(str::to_owned);
        let (layers, tables): (Vec<_>, BTreeSet<_>) = (quoted().collect(), quoted().collect());
        for layer in layers {
            said.insert(layer.trim_end_matches('/').trim_end_matches(".rs").to_owned(), tables.clone());
        }
    }
    let rows = |of: &BTreeMap<String, BTreeSet<String>>| {
        let row = |layer: &str| {
            format!(
                "{layer}: {}",
                of.get(layer).into_iter().flatten().cloned().collect::<Vec<_>>().join(", ")
            )
        };
        LAYERS.map(row).join("\n")
    };
    assert_eq!(rows(&said), rows(&is), "docs/ARCHITECTURE.md, and the source");
}
