//! The words between a victim and its watcher, one in each line.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, Error, Result, bail};

/// A report of a victim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It was welcomed.
    Session(u64),
    Allocation(u64),
    /// It is ready for the node to be drained.
    ReadyToDrain,
    /// It is ready to be ended by an operator.
    ReadyToEnd,
    /// It has come to its step, and ends there.
    Reached,
    /// Its channel is closed, and it lives, with this many mapped parts.
    Closed {
        mapped: usize,
    },
    /// Whether its written or attached bytes are intact where it maps them.
    Intact(bool),
    /// It has unmapped everything and reported that by a new session.
    Left {
        session: u64,
    },
    /// Its life cannot go on.
    Over(String),
}

/// An order to a victim that lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Compare the mapped bytes with their content.
    Check,
    /// Unmap everything and report that by a new session.
    Leave,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(id) => write!(f, "session {id}"),
            Self::Allocation(id) => write!(f, "allocation {id}"),
            Self::ReadyToDrain => f.write_str("ready-to-drain"),
            Self::ReadyToEnd => f.write_str("ready-to-end"),
            Self::Reached => f.write_str("reached"),
            Self::Closed { mapped } => write!(f, "closed {mapped}"),
            Self::Intact(intact) => write!(f, "intact {intact}"),
            Self::Left { session } => write!(f, "left {session}"),
            Self::Over(why) => write!(f, "over {}", why.replace('\n', " ")),
        }
    }
}

impl FromStr for Report {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Ok(match word {
            "session" => Self::Session(rest.parse()?),
            "allocation" => Self::Allocation(rest.parse()?),
            "ready-to-drain" => Self::ReadyToDrain,
            "ready-to-end" => Self::ReadyToEnd,
            "reached" => Self::Reached,
            "closed" => Self::Closed { mapped: rest.parse()? },
            "intact" => Self::Intact(rest.parse()?),
            "left" => Self::Left { session: rest.parse()? },
            "over" => Self::Over(rest.to_owned()),
            _ => bail!("`{line}` is no word of a victim"),
        })
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "check",
            Self::Leave => "leave",
        })
    }
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let all = [Self::Check, Self::Leave];
        all.into_iter()
            .find(|order| order.to_string() == line)
            .with_context(|| format!("`{line}` is no order"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_parse_back() {
        let words = [
            Report::Session(7),
            Report::Allocation(u64::MAX),
            Report::ReadyToDrain,
            Report::ReadyToEnd,
            Report::Reached,
            Report::Closed { mapped: 3 },
            Report::Intact(false),
            Report::Left { session: 9 },
            Report::Over("refused: for a reason".to_owned()),
        ];
        for word in words {
            assert_eq!(word.to_string().parse::<Report>().unwrap(), word);
        }
        assert_eq!(Report::Over("two\nlines".to_owned()).to_string(), "over two lines");
        for order in [Order::Check, Order::Leave] {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        "nonsense 7".parse::<Report>().unwrap_err();
        "check!".parse::<Order>().unwrap_err();
    }
}
