//! `[shares]`: the share of a link that each class of copies gets at least while it has work.

use serde::Deserialize;
use toml::Spanned;
use vramd_types::{CopyClass, Shares as Percents};

use super::Wrong;

/// The shares as in [`vramd_types::Shares`], and the error that concerns the table as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "SharesText")]
pub struct Shares {
    percents: Percents,
    pub(super) wrong: Option<Wrong>,
}

impl Shares {
    pub const fn percents(&self) -> Percents {
        self.percents
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SharesText {
    demand_percent: Option<Spanned<u32>>,
    prefetch_percent: Option<Spanned<u32>>,
    write_back_percent: Option<Spanned<u32>>,
}

impl From<SharesText> for Shares {
    fn from(text: SharesText) -> Self {
        let default = Percents::default();
        let given = [
            ("demand_percent", &text.demand_percent),
            ("prefetch_percent", &text.prefetch_percent),
            ("write_back_percent", &text.write_back_percent),
        ];
        let [demand, prefetch, write_back] = CopyClass::ALL.map(|class| {
            let (_, given) = given[class.index()];
            given.as_ref().map_or_else(|| default.percent(class), |it| *it.get_ref())
        });
        match Percents::new(demand, prefetch, write_back) {
            Ok(percents) => Self { percents, wrong: None },
            Err(error) => {
                // The error is reported at the last key in the text: the ones before it may have been right.
                let given = given
                    .into_iter()
                    .filter_map(|(field, given)| Some((field, given.as_ref()?.span().start)));
                let last = given.max_by_key(|(_, at)| *at);
                let wrong = last.map(|(field, at)| Wrong { at, field, problem: error.to_string() });
                Self { percents: default, wrong }
            }
        }
    }
}
