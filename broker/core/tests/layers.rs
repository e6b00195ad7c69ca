//! The folders of handlers are layers: a folder calls only itself and folders of a lower layer. So no cycle of
//! calls is larger than one folder.
//!
//! The test reads the source: it finds the methods of `Broker` by name, and every call of such a name.

use std::{
    collections::BTreeMap,
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/broker.rs");
    let text = fs::read_to_string(path).expect("a source file");
    let fields = text.split("pub struct Broker {").nth(1).and_then(|rest| rest.split("\n}").next());
    let fields: Vec<_> = names(fields.expect("the struct"), "\n    pub(crate) ", ':').collect();
    assert!((10..=16).contains(&fields.len()), "the fifteen and the planted bug: {fields:?}");
}
