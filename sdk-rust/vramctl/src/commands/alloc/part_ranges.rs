//! The arguments of commands on parts: an allocation, and ranges of its parts.

use std::str::FromStr;

use clap::Args;

use super::Target;

/// Largest number of parts of an allocation.
const PARTS_MAX: u32 = 65_536;

/// An allocation, all of it or some of its parts.
#[derive(Debug, Args)]
pub(crate) struct Parts {
    /// Id like a-1099511627777, or `tenant/name`.
    pub(crate) target: Target,
    /// Apply to this part alone, or to a range like `0-99`. May be repeated.
    #[arg(long = "part", value_name = "INDEX|FIRST-LAST")]
    ranges: Vec<PartRange>,
}

impl Parts {
    /// The indexes, in the order of the command line. None means all parts.
    pub(crate) fn indexes(&self) -> Vec<u32> {
        self.ranges.iter().flat_map(|range| range.first..=range.last).collect()
    }
}

/// `7`, or `0-99` with both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartRange {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl FromStr for PartRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (Some(first), Some(last)) = (index(first), index(last)) else {
            return Err(format!("`{text}` is neither a part index, like 7, nor a range of parts, like 0-99"));
        };
        if first > last {
            return Err(format!("the range `{text}` begins at {first}, after its end {last}"));
        }
        if last - first >= PARTS_MAX {
            return Err(format!(
                "the range `{text}` is too long: an allocation has at most {PARTS_MAX} parts"
            ));
        }
        Ok(Self { first, last })
    }
}

/// Parses digits alone, since `parse` accepts a sign.
fn index(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_and_ranges_keep_their_order() {
        let range = |text: &str| text.parse().unwrap();
        let target = "team-a/llama".parse().unwrap();
        let parts = Parts { target, ranges: ["3-5", "0", "7-7"].map(range).into() };
        assert_eq!(parts.indexes(), [3, 4, 5, 0, 7]);
        assert_eq!(range("0-65535"), PartRange { first: 0, last: 65_535 });
        assert_eq!(range("4294967295"), PartRange { first: u32::MAX, last: u32::MAX });
    }

    #[test]
    fn a_malformed_range_is_refused_with_its_text() {
        let refused = |text: &str| text.parse::<PartRange>().unwrap_err();
        for text in ["", "x", "-", "1-", "-1", "+1", "1-x", "1-2-3", "1..2", "1,2", "0-4294967296", " 1"] {
            assert!(refused(text).contains("is neither a part index"), "{text:?}");
        }
        assert_eq!(refused("9-3"), "the range `9-3` begins at 9, after its end 3");
        for text in ["0-65536", "0-4294967295"] {
            let message = format!("the range `{text}` is too long: an allocation has at most 65536 parts");
            assert_eq!(refused(text), message);
        }
    }
}
