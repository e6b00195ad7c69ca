//! Every command on a page is run by a test, or listed here with the reason why not. Commands that no test runs, and
//! those in sentences, must at least exist.

use std::{collections::BTreeMap, fs, path::Path};

use clap::{Command as CommandLine, CommandFactory as _};
use serde_json::Value;
use vramd_tests::{
    Config, Daemon,
    guide::Guide,
    programs::{program, repository},
};

use super::commands::surroundings;

/// Pages whose blocks `console` have a test of their own, since they need more than a node with all tiers.
const PAGES_WITH_A_TEST: [&str; 6] = [
    "README.md",
    "docs/start/README.md",
    "docs/guides/operators.md",
    "docs/guides/moving.md",
    "docs/operations/settings.md",
    "docs/operations/stack.md",
];

/// Blocks of programs and shell lines that other tests run: page, language, and the test.
const RUN_ELSEWHERE: [(&str, &str, &str); 18] = [
    ("README.md", "python", "sdk-python/tests/test_guide.py"),
    ("docs/start/README.md", "python", "sdk-python/tests/test_guide.py"),
    ("docs/guides/python.md", "python", "sdk-python/tests/test_guide.py"),
    ("docs/guides/python.md", "python torch", "tests/gpu/torch_model.py"),
    ("docs/guides/python.md", "sh", "sdk-python/tests/run"),
    ("docs/guides/pytorch.md", "python", "sdk-python/tests/test_guide.py"),
    ("docs/guides/pytorch.md", "python gpu", "tests/gpu/torch_pool.py"),
    ("docs/guides/engines.md", "python", "sdk-python/tests/test_transformers.py"),
    ("docs/guides/engines.md", "python agent", "sdk-python/tests/test_llm_d.py"),
    ("docs/guides/engines.md", "python checkpoint", "sdk-python/tests/test_away.py"),
    ("docs/guides/python-examples.md", "python", "sdk-python/tests/test_examples.py"),
    ("docs/guides/turns.md", "python", "sdk-python/tests/test_guide.py"),
    ("docs/guides/rust.md", "rust", "tests/e2e/guides/programs.rs"),
    ("docs/guides/moving.md", "rust", "tests/e2e/guides/programs.rs"),
    ("docs/testing/simulated-driver.md", "toml", "broker/src/config/tests.rs"),
    ("docs/operations/install.md", "sh", "tests/packages/pages"),
    ("docs/operations/kubernetes.md", "sh", "tests/packages/pages"),
    ("docs/operations/stack.md", "sh", "tests/e2e/guides/stack.rs"),
];

/// How many blocks `norun` a page has, and why no test runs them.
const NOT_RUN: [(&str, usize, &str); 20] = [
    ("README.md", 1, "a release build takes minutes, and its daemon takes the node's own folders"),
    ("docs/start/README.md", 1, "a release build takes minutes"),
    ("CONTRIBUTING.md", 1, "CI runs these targets as checks of their own"),
    ("docs/TESTING.md", 3, "CI runs shares of these, which take hours as a whole"),
    ("docs/benchmarks/ci/README.md", 1, "CI runs these as checks of their own, without transcripts"),
    ("docs/benchmarks/copies/README.md", 1, "a benchmark on a GPU"),
    ("docs/benchmarks/hostile/README.md", 1, "a benchmark, which overwrites the committed figures"),
    ("docs/benchmarks/order/README.md", 1, "a benchmark, which overwrites the committed figures"),
    ("docs/benchmarks/pins/README.md", 2, "benchmarks, one of them on a GPU"),
    ("docs/benchmarks/pins/small.md", 1, "a benchmark that builds a C library"),
    ("docs/benchmarks/pytorch/README.md", 1, "a benchmark on a GPU"),
    ("docs/benchmarks/residency/README.md", 2, "benchmarks, one of them on a GPU"),
    ("docs/benchmarks/rpc/README.md", 1, "benchmarks, which overwrite the committed figures"),
    ("docs/benchmarks/simulator/README.md", 1, "a run of hours"),
    ("docs/benchmarks/telemetry/README.md", 1, "a benchmark, which overwrites the committed figures"),
    ("docs/benchmarks/tiers/README.md", 2, "benchmarks, one of them on a GPU"),
    (
        "docs/guides/engines.md",
        3,
        "the engines are too large; sdk-python/tests/test_engines.py reads their sources",
    ),
    (
        "docs/guides/run.md",
        2,
        "it needs a GPU; tests/preload runs such programs over a driver library without one",
    ),
    ("docs/operations/install.md", 1, "it needs Docker; tests/e2e/packages runs the containers by hand"),
    (
        "docs/operations/kubernetes.md",
        2,
        "one needs Docker and a registry, the other a cluster that starts pods; tests/e2e/packages runs them by hand",
    ),
];

/// Languages of blocks that are no commands.
const SHOWN_ONLY: [&str; 4] = ["mermaid", "text", "csv", "yaml"];

struct Block {
    page: String,
    line: usize,
    language: String,
    text: String,
}

/// The pages of the book: those in `docs/`, and those of the repository's root.
fn pages() -> BTreeMap<String, String> {
    fn add(folder: &Path, deep: bool, pages: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && deep {
                add(&path, deep, pages);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(repository()).unwrap().to_str().unwrap().to_owned();
                pages.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut pages = BTreeMap::new();
    add(repository(), false, &mut pages);
    add(&repository().join("docs"), true, &mut pages);
    assert!(pages.len() > 40 && pages.contains_key("docs/README.md"), "{} pages", pages.len());
    pages
}

fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (page, text) in pages() {
        let mut inside = false;
        for (line, number) in text.lines().zip(1..) {
            match line.trim_start().strip_prefix("```") {
                Some(_) if inside => inside = false,
                Some(language) => {
                    inside = true;
                    let (page, language) = (page.clone(), language.trim().to_owned());
                    blocks.push(Block { page, line: number, language, text: String::new() });
                }
                None if inside => blocks.last_mut().unwrap().text += &format!("{line}\n"),
                None => {}
            }
        }
        assert!(!inside, "{page}: a block does not end");
    }
    blocks
}

/// A page that needs nothing but a node needs no test of its own.
#[test]
fn other_pages_run_as_written() {
    let mut pages: Vec<_> =
        blocks().into_iter().filter(|block| block.language == "console").map(|block| block.page).collect();
    pages.dedup();
    for listed in PAGES_WITH_A_TEST {
        assert!(pages.iter().any(|page| page == listed), "{listed} has no commands any more");
    }
    for page in pages.iter().filter(|page| !PAGES_WITH_A_TEST.contains(&page.as_str())) {
        let node = Config::devices(&["1GiB", "1GiB"]).memory("host_size = \"256MiB\"").disk("256MiB");
        let daemon = Daemon::start(&node);
        Guide::read(page).run(&surroundings(&daemon));
    }
}

#[test]
fn settings_page_runs_as_written() {
    let daemon = Daemon::start(&Config::default().memory("host_size = \"512MiB\"").disk("256MiB"));
    let guide = Guide::read("docs/operations/settings.md");
    assert!(guide.len() >= 6, "{} commands", guide.len());
    let mut surroundings = surroundings(&daemon);
    // The page's node is larger.
    surroundings.replacements.push(("64GiB", "256MiB".to_owned()));
    guide.run(&surroundings);
    let shown = daemon.vramctl().args(["settings", "show"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("hit-density") && shown.contains("256 MiB"), "{shown}");
}

#[test]
fn every_block_is_run_or_listed() {
    let mut not_run: BTreeMap<String, usize> = BTreeMap::new();
    let mut elsewhere: Vec<(String, String)> = Vec::new();
    for block in blocks() {
        let Block { page, line, language, .. } = block;
        let first = language.split(' ').next().unwrap_or_default();
        if language == "sh norun" {
            *not_run.entry(page).or_default() += 1;
        } else if RUN_ELSEWHERE.iter().any(|(on, of, _)| (*on, *of) == (&page, &language)) {
            elsewhere.push((page, language));
        } else {
            let is_config = first == "toml" && page.starts_with("docs/");
            assert!(
                language == "console" || is_config || SHOWN_ONLY.contains(&language.as_str()),
                "{page}:{line}: no test runs a block `{language}`: make it `console`, or add it to this file"
            );
        }
    }
    let listed = NOT_RUN.iter().map(|(page, count, _)| ((*page).to_owned(), *count)).collect();
    assert_eq!(not_run, listed, "the pages' blocks `sh norun`, and the list in this file");
    for (page, language, test) in RUN_ELSEWHERE {
        assert!(
            elsewhere.contains(&(page.to_owned(), language.to_owned())),
            "{page} has no block `{language}`"
        );
        assert!(repository().join(test).is_file(), "{test} is missing");
    }
}

/// A block `toml` is a part of a configuration. The tutorial's commands use its own; another test compares the blocks of
/// the simulated driver with the code.
#[test]
fn configurations_on_pages_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for block in blocks().into_iter().filter(|block| block.language == "toml") {
        if RUN_ELSEWHERE.iter().any(|(page, language, _)| (*page, *language) == (&block.page, "toml")) {
            continue;
        }
        let home = folder.path();
        let file = home.join("vramd.toml");
        let own =
            format!("[daemon]\nsocket_dir = {home:?}\nstate_dir = {home:?}\n[driver]\nkind = \"sim\"\n");
        // A check wants what a configuration names.
        let text = block.text.replace("/models", &home.display().to_string());
        fs::write(&file, own + &text).unwrap();
        let output =
            std::process::Command::new(program("vramd")).arg("--config").arg(&file).arg("--check").output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}:{}: {said}", block.page, block.line);
        checked += 1;
    }
    assert!(checked > 0, "no page has a block `toml`");
}

/// Packages, programs, targets and scripts that blocks `norun` name.
#[test]
fn commands_that_no_test_runs_exist() {
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    let metadata = metadata();
    let mut seen = 0;
    for block in blocks().into_iter().filter(|block| block.language.ends_with(" norun")) {
        for line in block.text.replace("\\\n", " ").lines() {
            let command = line.split(" # ").next().unwrap_or_default().trim();
            for command in
                command.split("&&").filter(|command| !command.is_empty() && !command.starts_with('#'))
            {
                let problem = problem_of(command, &makefile, &metadata);
                assert!(problem.is_empty(), "{}:{}: {command}: {problem}", block.page, block.line);
                seen += 1;
            }
        }
    }
    assert!(seen >= 20, "{seen} commands");
}

/// The names of the workspace's packages, and of their programs, examples and tests.
fn metadata() -> Vec<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = std::process::Command::new(cargo)
        .current_dir(repository())
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut names = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        names.push(format!("-p {}", package["name"].as_str().unwrap()));
        for target in package["targets"].as_array().unwrap() {
            let kind = target["kind"][0].as_str().unwrap();
            names.push(format!("--{kind} {}", target["name"].as_str().unwrap()));
        }
    }
    names
}

/// Why a command cannot work, or nothing.
fn problem_of(command: &str, makefile: &str, metadata: &[String]) -> String {
    let words: Vec<_> = command.split_whitespace().collect();
    let is_variable = |word: &&&str| word.split_once('=').is_some_and(|(name, _)| !name.contains(['-', '/']));
    let mut words: Vec<_> = words.iter().skip_while(is_variable).copied().collect();
    // The value of a variable in quotes has words of its own.
    if let Some(cargo) = words.iter().position(|word| *word == "cargo") {
        words.drain(..cargo);
    }
    match words.as_slice() {
        ["make", targets @ ..] => {
            let is_missing = |target: &&&str| !makefile.contains(&format!("\n{target}:"));
            let missing: Vec<_> =
                targets.iter().filter(|word| !word.contains('=')).filter(is_missing).collect();
            if missing.is_empty() { String::new() } else { format!("no target {missing:?}") }
        }
        ["cargo", arguments @ ..] => {
            let own = arguments.split(|word| *word == "--").next().unwrap_or_default();
            for pair in own.windows(2) {
                let named = pair.join(" ");
                if ["-p", "--bin", "--example", "--test"].contains(&pair[0]) && !metadata.contains(&named) {
                    return format!("the workspace has no {named}");
                }
            }
            String::new()
        }
        ["export" | "mkdir" | "cd" | "sed" | "vramd" | "vramctl" | "pip", ..] => String::new(),
        ["vllm" | "python", ..] => String::new(),
        ["apt" | "systemctl" | "tar" | "install" | "docker" | "helm" | "kubectl", ..] => String::new(),
        [path, ..] if path.starts_with("target/") => {
            let name = path.rsplit('/').next().unwrap_or_default();
            let is_known = *path == "target/gpu-bundle/run" || metadata.contains(&format!("--bin {name}"));
            if is_known { String::new() } else { format!("no build makes {path}") }
        }
        [path, ..] if repository().join(path).is_file() => String::new(),
        _ => "this file does not know the program".to_owned(),
    }
}

/// Commands of `vramctl`, `vramd` and `make` in sentences and tables.
#[test]
fn commands_in_sentences_exist() {
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    let (vramctl, vramd) = (vramctl::command_line(), vramd::args::Args::command());
    let mut seen = 0;
    for (page, text) in pages() {
        if page == "CHANGELOG.md" {
            continue;
        }
        for code in inline_code(&text) {
            let words: Vec<_> = code.split_whitespace().collect();
            let problem = match words.as_slice() {
                ["vramctl", arguments @ ..] => unknown_argument(&vramctl, arguments),
                ["vramd", arguments @ ..] => unknown_argument(&vramd, arguments),
                ["make", target, ..] if !makefile.contains(&format!("\n{target}:")) => {
                    Some((*target).to_owned())
                }
                ["make", _, ..] => None,
                _ => continue,
            };
            seen += 1;
            assert!(problem.is_none(), "{page}: `{code}` has no {}", problem.unwrap_or_default());
        }
    }
    assert!(seen >= 100, "{seen} commands");
}

/// The code in the lines of a page, without its blocks.
fn inline_code(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut outside = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        if !inside && !fence {
            outside += line.trim();
            outside.push(if line.is_empty() { '\n' } else { ' ' });
        }
    }
    // A paragraph at a time, so that one unpaired mark does not reach further.
    outside.lines().flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// The first word that is neither a command, an option, nor a value.
fn unknown_argument(root: &CommandLine, words: &[&str]) -> Option<String> {
    let mut command = root;
    for word in words {
        let word = word.trim_end_matches([',', '.', ';', '|']);
        if ["|", ">", "&", "&&", "||", "<", "2>", "#"].contains(&word) {
            return None;
        }
        if let Some(option) = word.strip_prefix("--") {
            let name = option.split('=').next().unwrap_or_default();
            let has = |of: &CommandLine| of.get_arguments().any(|argument| argument.get_long() == Some(name));
            if !has(command) && !has(root) && !["help", "version"].contains(&name) {
                return Some(format!("option --{name}"));
            }
        } else if let Some(below) = command.find_subcommand(word) {
            command = below;
        } else if command.has_subcommands()
            && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
        {
            return Some(format!("command {word}"));
        }
    }
    None
}
