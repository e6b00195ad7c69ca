//! Which parts of an allocation a command is about.

use std::str::FromStr;

use clap::Args;

use super::Target;

/// No allocation has more parts.
const PARTS_MAX: u32 = 65_536;

/// An allocation, or some of its parts.
#[derive(Debug, Args)]
pub(crate) struct Parts {
    pub(crate) target: Target,
    /// Only this part, or those from a first to a last, as in `0-99`; may be given several times.
    #[arg(long = "part", value_name = "INDEX|FIRST-LAST")]
    ranges: Vec<PartRange>,
}

impl Parts {
    /// As they were given; none is all.
    pub(crate) fn indexes(&self) -> Vec<u32> {
        self.ranges.iter().flat_map(|range| range.first..=range.last).collect()
    }
}

/// `7`, or `0-99` with both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartRange {
    first: u32,
    last: u32,
}

impl FromStr for PartRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (Some(first), Some(last)) = (index(first), index(last)) else {
            return Err("neither the index of a part, like 7, nor a range of them, like 0-99".to_owned());
        };
        if first > last {
            return Err(format!("the range begins with {first}, which comes after its end, {last}"));
        }
        if last - first >= PARTS_MAX {
            return Err(format!("no allocation has more than {PARTS_MAX} parts"));
        }
        Ok(Self { first, last })
    }
}

/// Digits alone: `parse` takes a sign, too.
fn index(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_and_ranges_are_taken_in_the_order_given() {
        let range = |text: &str| text.parse().unwrap();
        let target = "team-a/llama".parse().unwrap();
        let parts = Parts { target, ranges: ["3-5", "0", "7-7"].map(range).into() };
        assert_eq!(parts.indexes(), [3, 4, 5, 0, 7]);
        assert_eq!(range("0-65535"), PartRange { first: 0, last: 65_535 });
        assert_eq!(range("4294967295"), PartRange { first: u32::MAX, last: u32::MAX });
    }

    #[test]
    fn what_is_no_range_is_refused_with_the_reason() {
        let refused = |text: &str| text.parse::<PartRange>().unwrap_err();
        for text in ["", "x", "-", "1-", "-1", "+1", "1-x", "1-2-3", "1..2", "1,2", "0-4294967296", " 1"] {
            assert!(refused(text).starts_with("neither the index"), "{text:?}");
        }
        assert_eq!(refused("9-3"), "the range begins with 9, which comes after its end, 3");
        assert_eq!(refused("0-65536"), "no allocation has more than 65536 parts");
        assert_eq!(refused("0-4294967295"), "no allocation has more than 65536 parts");
    }
}
