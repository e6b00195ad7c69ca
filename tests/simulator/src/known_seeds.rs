//! `known_seeds.txt`: the seed that found each planted bug last, with which a hunt begins.

use std::{collections::BTreeMap, fmt::Write as _, sync::LazyLock};

use broker_core::Bug;

use crate::campaign::Hunt;

const HEAD: &str = "# `BUG SEED`: the seed that found the planted bug last. A hunt begins with it.
# For a new bug add the line. After a change of the worlds this brings all lines up to date:
# `tests/simulator/run bugs --quick --save tests/simulator/known_seeds.txt`
";

/// The file as it was when this program was built.
pub static KNOWN: LazyLock<KnownSeeds> =
    LazyLock::new(|| KnownSeeds::parse(include_str!("../known_seeds.txt")));

/// Seeds by the names of the bugs.
#[derive(Debug)]
pub struct KnownSeeds(BTreeMap<String, u64>);

impl KnownSeeds {
    /// Panics at a line that is neither a comment nor a name and a seed.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let row = |line: &str| {
            let row = line.split_once(' ').and_then(|(bug, seed)| Some((bug.to_owned(), seed.parse().ok()?)));
            row.unwrap_or_else(|| panic!("known_seeds.txt: expected `BUG SEED`, found {line:?}"))
        };
        Self(lines.map(row).collect())
    }

    pub fn seed_of(&self, bug: Bug) -> Option<u64> {
        self.0.get(bug.name()).copied()
    }

    /// The file with what these hunts found. A bug that was not found as it should be keeps its seed, and a bug that
    /// no longer exists loses its line.
    pub fn text_with(&self, hunts: &[Hunt]) -> String {
        let good = hunts.iter().filter(|hunt| hunt.is_good());
        let new: BTreeMap<_, _> =
            good.filter_map(|hunt| Some((hunt.bug.name(), hunt.found.as_ref()?.0))).collect();
        let mut text = HEAD.to_owned();
        for bug in Bug::ALL {
            if let Some(seed) = new.get(bug.name()).copied().or_else(|| self.seed_of(*bug)) {
                writeln!(text, "{} {seed}", bug.name()).expect("a string takes all that is written");
            }
        }
        text
    }
}
