//! Compares counts with the committed ones.

use std::{collections::BTreeMap, fmt};

/// Instructions by name.
pub type Counts = BTreeMap<String, f64>;

/// A count that differs by more is reported.
pub const PERCENT_MAX: f64 = 3.0;

/// A difference between a count and the committed one.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    Grew {
        name: String,
        before: f64,
        now: f64,
    },
    Shrank {
        name: String,
        before: f64,
        now: f64,
    },
    /// The committed counts do not have it.
    New {
        name: String,
        now: f64,
    },
    /// It is committed, and was not counted.
    Gone {
        name: String,
    },
}

impl Difference {
    /// Whether the check fails. A count that shrank is good news.
    pub const fn fails(&self) -> bool {
        !matches!(self, Self::Shrank { .. })
    }
}

/// Finds the counts that differ by more than [`PERCENT_MAX`].
pub fn compare(committed: &Counts, counted: &Counts) -> Vec<Difference> {
    let mut found = Vec::new();
    for (name, now) in counted {
        let (name, now) = (name.clone(), *now);
        match committed.get(&name).copied() {
            None => found.push(Difference::New { name, now }),
            Some(before) if percent(before, now) > PERCENT_MAX => {
                found.push(Difference::Grew { name, before, now });
            }
            Some(before) if percent(before, now) < -PERCENT_MAX => {
                found.push(Difference::Shrank { name, before, now });
            }
            Some(_) => {}
        }
    }
    let gone = committed.keys().filter(|name| !counted.contains_key(*name));
    found.extend(gone.map(|name| Difference::Gone { name: name.clone() }));
    found
}

/// A count may grow by this factor when there are ten times as many live allocations. Where it grows by more,
/// something walks all of them.
pub const GROWTH_MAX: f64 = 2.0;

/// Finds the counts that grow with the number of live allocations: name, over few, over many.
pub fn growing<'c>(few: &'c Counts, many: &Counts) -> Vec<(&'c str, f64, f64)> {
    let both = few.iter().filter_map(|(name, few)| Some((name.as_str(), *few, *many.get(name)?)));
    both.filter(|(_, few, many)| *many > few * GROWTH_MAX).collect()
}

/// A count that grows faster than the logarithm of what is queued.
#[derive(Clone, Debug, PartialEq)]
pub struct Steep {
    pub name: String,
    pub count: f64,
    pub few: String,
    pub count_with_few: f64,
    pub factor_max: f64,
}

/// Finds the counts that grow faster than the logarithm of what is queued. The first of `work` has the fewest queued,
/// and at least two. A count may be as many times the first as the logarithm of its number queued is that of the first.
pub fn faster_than_logarithm(counts: &Counts, work: &[(&str, u32)]) -> Vec<Steep> {
    let count = |name: &str| counts.get(name).copied();
    let Some((few, queued_few, count_with_few)) =
        work.first().and_then(|(name, queued)| Some((*name, *queued, count(name)?)))
    else {
        return Vec::new();
    };
    let steep = |(name, queued): &(&str, u32)| {
        let factor_max = f64::from(*queued).ln() / f64::from(queued_few).ln();
        let count = count(name).filter(|count| *count > count_with_few * factor_max)?;
        Some(Steep { name: (*name).to_owned(), count, few: few.to_owned(), count_with_few, factor_max })
    };
    work.iter().filter_map(steep).collect()
}

/// How many times the count of `base` the count of `name` is. Not a number if one was not counted.
pub fn times(counts: &Counts, name: &str, base: &str) -> f64 {
    let count = |name: &str| counts.get(name).copied().unwrap_or(f64::NAN);
    count(name) / count(base)
}

/// By how many percent a count has grown.
pub fn percent(before: f64, now: f64) -> f64 {
    (now - before) / before * 100.0
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grew { name, before, now } => {
                write!(f, "GREW   {name}: {before} -> {now} instructions, {:+.1} %", percent(*before, *now))
            }
            Self::Shrank { name, before, now } => {
                write!(f, "shrank {name}: {before} -> {now} instructions, {:+.1} %", percent(*before, *now))
            }
            Self::New { name, now } => write!(f, "NEW    {name}: {now} instructions"),
            Self::Gone { name } => write!(f, "GONE   {name}: it was not counted"),
        }
    }
}

impl fmt::Display for Steep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, count, few, count_with_few, factor_max } = self;
        let factor = count / count_with_few;
        write!(
            f,
            "GROWS  {name}: {count} instructions, {factor:.2} times those of {few}; at most {factor_max:.2}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts<const N: usize>(of: [(&str, f64); N]) -> Counts {
        of.map(|(name, count)| (name.to_owned(), count)).into()
    }

    #[test]
    fn a_count_that_grows_by_more_than_three_percent_fails() {
        let committed = counts([("a move", 1_000.0), ("a pin", 20.0)]);
        assert!(compare(&committed, &committed).is_empty());
        assert!(compare(&committed, &counts([("a move", 1_030.0), ("a pin", 20.0)])).is_empty());
        let found = compare(&committed, &counts([("a move", 1_031.0), ("a pin", 20.0)]));
        let grew = Difference::Grew { name: "a move".to_owned(), before: 1_000.0, now: 1_031.0 };
        assert!(grew.fails());
        assert_eq!(found, [grew]);
        assert_eq!(found[0].to_string(), "GREW   a move: 1000 -> 1031 instructions, +3.1 %");
    }

    #[test]
    fn a_count_that_shrinks_is_told_and_passes() {
        let found = compare(&counts([("a move", 1_000.0)]), &counts([("a move", 900.0)]));
        assert_eq!(found, [Difference::Shrank { name: "a move".to_owned(), before: 1_000.0, now: 900.0 }]);
        assert!(!found[0].fails());
    }

    #[test]
    fn a_count_that_grows_with_what_lives_is_found() {
        let few = counts([("flat", 100.0), ("tree", 100.0), ("walk", 100.0), ("rare", 5.0)]);
        let many = counts([("flat", 100.0), ("tree", 133.0), ("walk", 201.0)]);
        assert_eq!(growing(&few, &many), [("walk", 100.0, 201.0)]);
    }

    #[test]
    fn a_count_that_grows_faster_than_the_logarithm_of_the_queue_is_found() {
        let work = [("100", 100), ("1,000", 1_000), ("10,000", 10_000)];
        let logarithmic = counts([("100", 50.0), ("1,000", 74.9), ("10,000", 99.9)]);
        assert_eq!(faster_than_logarithm(&logarithmic, &work), []);
        let with_walk = counts([("100", 50.0), ("1,000", 70.0), ("10,000", 101.0)]);
        let found = faster_than_logarithm(&with_walk, &work);
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["GROWS  10,000: 101 instructions, 2.02 times those of 100; at most 2.00"]
        );
    }

    #[test]
    fn a_count_that_comes_or_goes_fails() {
        let found = compare(&counts([("old", 5.0)]), &counts([("new", 5.0)]));
        let new = Difference::New { name: "new".to_owned(), now: 5.0 };
        assert_eq!(found, [new, Difference::Gone { name: "old".to_owned() }]);
        assert!(found.iter().all(Difference::fails));
    }
}
