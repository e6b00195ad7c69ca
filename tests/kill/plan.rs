//! The plan: which clients die, where and how, as a function of the seed and a number.

use std::{env, ops::Range, time::Duration};

use anyhow::{Context as _, Error, Result, bail, ensure};
use clap::ValueEnum as _;
use fastrand::Rng;
use vramd_tests::{
    config::Revocation,
    is_root,
    victim::{Death, Fate, Script, Step},
};

const SEED: u64 = 0x5eed;
/// The users and tenants of victims if the tests run as root. The survivors are root.
pub(crate) const TENANTS: [(u32, &str); 2] = [(20_001, "team-a"), (20_002, "team-b")];

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    numbers: Range<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) fate: Fate,
    pub(crate) uid: Option<u32>,
    /// The time from the victim's step to its end, if the end comes from outside.
    pub(crate) pause: Duration,
    /// Whether the victim reports that everything is unmapped after it has closed its channel. Otherwise it is killed.
    pub(crate) leaves: bool,
    /// Whether an operator that ends the victim's session has its process killed.
    pub(crate) end_kills: bool,
    command: String,
}

impl Plan {
    pub(crate) fn new(seed: u64, numbers: Range<u64>) -> Self {
        Self { seed, numbers }
    }

    /// Reads `VRAMD_KILL_SEED`, `VRAMD_KILL_ROUNDS` and `VRAMD_KILL_CASES`.
    pub(crate) fn from_env() -> Result<Self> {
        let read = |name| env::var(name).ok();
        let seed = read("VRAMD_KILL_SEED").map_or(Ok(SEED), |seed| seed.parse());
        let numbers = numbers(read("VRAMD_KILL_ROUNDS").as_deref(), read("VRAMD_KILL_CASES").as_deref())?;
        Ok(Self::new(seed.context("VRAMD_KILL_SEED is a number")?, numbers))
    }

    pub(crate) fn numbers(&self) -> Range<u64> {
        self.numbers.clone()
    }

    /// The steps at which the daemon revokes mappings: every new mapping at once, and others in the middle of
    /// everything.
    pub(crate) fn revocations(&self) -> Vec<Revocation> {
        let mut random = Rng::with_seed(self.seed);
        let steps = ["map_sent", "mapped", "pin", "revoke_sent", "unmapped", "digest"];
        let drawn = steps.map(|at| Revocation {
            at,
            nth: random.u64(1..20),
            every: random.u64(2..9),
            wait: random.bool(),
        });
        let always = Revocation { at: "mapped", nth: 1, every: 1, wait: true };
        drawn.into_iter().chain([always]).collect()
    }

    /// The command that repeats these cases.
    pub(crate) fn command(&self, numbers: Range<u64>) -> String {
        let (seed, Range { start, end }) = (self.seed, numbers);
        format!(
            "VRAMD_KILL_SEED={seed} VRAMD_KILL_CASES={start}..{end} cargo test -p vramd-tests --test kill"
        )
    }

    pub(crate) fn case(&self, number: u64, target: &str) -> Case {
        let mut combinations = matrix();
        let round = combinations.len() as u64;
        Rng::with_seed(self.seed ^ (number / round)).shuffle(&mut combinations);
        let (script, step, death) = combinations[usize::try_from(number % round).expect("a round is short")];

        // Another stream for each case; the multiplier keeps neighbours apart.
        let mut random = Rng::with_seed(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let parts = *random.choice(&[1, 3, 7]).expect("it is not empty");
        let fate = Fate {
            script,
            step,
            death,
            case: number,
            parts,
            persistent: random.bool(),
            shuts_down: random.bool(),
            late: false,
            spare_fds: random.u64(0..parts),
            target: target.to_owned(),
        };
        let uids: Vec<_> = TENANTS.iter().map(|&(uid, _)| Some(uid)).chain([None]).collect();
        let uid = if is_root() { uids[random.usize(..uids.len())] } else { None };
        let mut case = Case {
            fate,
            uid,
            // Half of the victims end at once, while everything is still in flight.
            pause: if random.bool() { Duration::ZERO } else { Duration::from_micros(random.u64(0..8000)) },
            leaves: random.bool(),
            // A victim without a channel would be killed at once, and is to live on.
            end_kills: random.bool() && death != Death::Close,
            command: self.command(number..number + 1),
        };
        // Last, so that all other draws stay as they were before this field existed.
        case.fate.late = random.bool();
        case
    }

    /// A case whose channel is closed once its client has said hello.
    pub(crate) fn close_at_hello(&self, number: u64, target: &str) -> Case {
        let case = self.case(number, target);
        let (script, step, death) = (Script::SdkAllocate, Step::HelloSent, Death::Close);
        Case { fate: Fate { script, step, death, late: true, ..case.fate }, end_kills: false, ..case }
    }
}

impl Case {
    pub(crate) fn failure(&self, why: &Error) -> String {
        let arguments = self.fate.arguments().join(" ");
        format!("case {}: {why:#}\n  victim {arguments}\n  to repeat it: {}", self.fate.case, self.command)
    }
}

/// The numbers of the cases: of this many rounds, or `FIRST..END`; one round by default. An empty range is an error,
/// since it would pass and show nothing.
pub(crate) fn numbers(rounds: Option<&str>, cases: Option<&str>) -> Result<Range<u64>> {
    let round = matrix().len() as u64;
    let numbers = match (rounds, cases) {
        (None, None) => 0..round,
        (Some(rounds), None) => {
            let rounds: u64 = rounds.parse().context("VRAMD_KILL_ROUNDS is a number")?;
            0..rounds.checked_mul(round).context("VRAMD_KILL_ROUNDS is too large to number its cases")?
        }
        (None, Some(cases)) => {
            let (first, end) = cases.split_once("..").context("VRAMD_KILL_CASES is FIRST..END")?;
            first.parse().context("FIRST is a number")?..end.parse().context("END is a number")?
        }
        (Some(_), Some(_)) => bail!("either VRAMD_KILL_ROUNDS or VRAMD_KILL_CASES"),
    };
    ensure!(!numbers.is_empty(), "there is no case in {numbers:?}");
    Ok(numbers)
}

/// Every script with every step and every death.
pub(crate) fn matrix() -> Vec<(Script, Step, Death)> {
    let scripts = Script::value_variants().iter();
    let places = scripts.flat_map(|&script| script.steps().iter().map(move |&step| (script, step)));
    let all = places
        .flat_map(|(script, step)| Death::value_variants().iter().map(move |&death| (script, step, death)));
    all.collect()
}
