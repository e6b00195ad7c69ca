//! The folders of handlers are layers: a folder calls only itself and folders of a lower layer. So no cycle of
//! calls is larger than one folder.
//!
//! The tests read the source: they find the methods of `Broker` and of its tables by name, and every call of such a
//! name. Each folder changes the tables of the broker that docs/ARCHITECTURE.md says, and no others.

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
            // A chain of calls may go on in the next line.
            let code = code.map(|line| match line.trim_start() {
                chain if chain.starts_with('.') => chain.to_owned(),
                _ => format!("\n{line}"),
            });
            sources.push(Source { layer, path, text: code.collect() });
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

/// A method of `Broker`.
struct Method<'t> {
    name: &'t str,
    signature: &'t str,
    body: &'t str,
}

impl<'t> Method<'t> {
    /// Whether its caller gets a refusal. `Start` is a result with one.
    fn returns_refusal(&self) -> bool {
        let returned = self.signature.rsplit_once("->").map(|(_, returned)| returned.trim());
        returned.is_some_and(|returned| returned.contains("Refusal") || returned == "Start")
    }

    /// The names of the methods that it calls.
    fn called(&self) -> impl Iterator<Item = &'t str> + use<'t> {
        called_in(self.body)
    }
}

/// The methods of `Broker` in a text. They are defined four spaces deep, in `impl Broker`.
fn methods(text: &str) -> impl Iterator<Item = Method<'_>> {
    let in_broker = text.split("impl Broker {").skip(1);
    let in_broker = in_broker.filter_map(|block| block.split("\n}").next());
    in_broker.flat_map(|block| block.split("\n    }")).filter_map(|method| {
        let (signature, body) = method.split_once(" {\n")?;
        let (_, named) = signature.split_once("fn ")?;
        let end = named.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        Some(Method { name: &named[..end], signature, body })
    })
}

fn called_in(text: &str) -> impl Iterator<Item = &str> {
    let callers = ["self.", "broker.", "view.", "Self::"];
    callers.into_iter().flat_map(move |caller| names(text, caller, '('))
}

#[test]
fn no_folder_calls_a_higher_layer() {
    let sources = sources();
    assert!(sources.len() > 40, "found {} files only", sources.len());
    let rank = |layer: &str| {
        let found = LAYERS.iter().position(|known| *known == layer);
        found.unwrap_or_else(|| panic!("`{layer}` is no layer: list it, or move its files"))
    };
    let mut defined: BTreeMap<&str, &str> = BTreeMap::new();
    for source in &sources {
        methods(&source.text).for_each(|method| _ = defined.insert(method.name, &source.layer));
    }
    assert!(defined.len() > 300, "found {} methods only", defined.len());
    let mut wrong = Vec::new();
    for Source { layer, path, text } in &sources {
        for name in called_in(text) {
            if let Some(of) = defined.get(name).filter(|of| rank(of) > rank(layer)) {
                wrong.push(format!("{}: `{name}` is in the higher layer `{of}`", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The text behind each call of a method, and its arguments.
fn behind_calls<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let call = format!(".{name}(");
    let behind = |(at, _)| {
        let rest: &str = &text[at + call.len()..];
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        })?;
        rest.get(end + 1..)
    };
    text.match_indices(&*call).filter_map(behind).collect()
}

/// A refusal is for the client: the method that gets one returns it, or names it to tell the client. No method asks only
/// whether there is one. A decision asks a method that returns a reason of the core, such as a shortage. The shell's
/// questions (`pub fn`) decide nothing.
#[test]
fn no_decision_reads_a_refusal() {
    let sources = sources();
    let all = || sources.iter().flat_map(|source| methods(&source.text).map(move |it| (&source.path, it)));
    let refusing: BTreeSet<&str> =
        all().filter(|(_, method)| method.returns_refusal()).map(|(_, method)| method.name).collect();
    assert!(refusing.len() > 60, "found {} methods only", refusing.len());
    let mut wrong = Vec::new();
    for (path, method) in all().filter(|(_, method)| !method.signature.contains("pub fn ")) {
        for name in &refusing {
            let asks = [
                ".is_err()",
                ".is_ok()",
                ".ok()",
                ".is_some()",
                ".is_none()",
                ".err().is_",
                ".err().map(|_|",
            ];
            let behind = behind_calls(method.body, name);
            if behind.iter().any(|behind| asks.iter().any(|ask| behind.starts_with(ask))) {
                wrong.push(format!("{}: `{}` asks whether `{name}` refuses", path.display(), method.name));
            }
        }
        let tells = ["refus", "Refus", "Command::Reply"].iter().any(|word| method.body.contains(word));
        if method.returns_refusal() || tells {
            continue;
        }
        for name in method.called().filter(|name| refusing.contains(name)) {
            wrong.push(format!("{}: `{}` drops a refusal of `{name}`", path.display(), method.name));
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
        for (at, before) in text.match_indices("fn ") {
            let head = text[at + before.len()..].split(')').next().unwrap_or_default();
            let name = head.split(['(', '<']).next().unwrap_or_default().to_owned();
            match () {
                () if head.contains("&mut self") => _ = changing.insert(name),
                () if head.contains("self") => _ = asking.insert(name),
                () => {}
            }
        }
    }
    changing.retain(|name| !asking.contains(name));
    changing.extend(CHANGE_COLLECTIONS.map(str::to_owned));
    changing
}

/// The fields of the broker that the text changes: by a method, by an assignment, or by a `&mut`. A field that was taken
/// apart or borrowed before, and all behind the first call of a chain, are not seen.
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
        let of_layer = is.entry(layer).or_default();
        of_layer.extend(changed(&text, &fields, &methods).into_iter().map(str::to_owned));
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
    assert!(said.keys().all(|layer| LAYERS.contains(&&**layer)), "a row of no layer: {said:?}");
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
