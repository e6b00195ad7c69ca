//! Pairs of timings, ours and the bare one in turns in the same run. On a shared machine only ratios are meaningful.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};

/// Untimed rounds before the first pair: first imports, first pages, first frames.
pub(crate) const WARM_UP: usize = 2;

/// Timed pairs of one question.
#[derive(Debug)]
pub(crate) struct Measure {
    target: Option<f64>,
    ours: Vec<Duration>,
    bare: Vec<Duration>,
    /// Further figures of each round, by name.
    beside: Map<String, Value>,
}

/// The further figures of one round of ours.
pub(crate) type Beside = Vec<(&'static str, Duration)>;

impl Measure {
    /// Takes `pairs` pairs, in which the sides swap the first place. A peer has no target. The caller ensures that each side leaves the
    /// device as it found it, and that the driver does not still clear memory that one of them released.
    pub(crate) fn take(
        target: impl Into<Option<f64>>,
        pairs: usize,
        mut ours: impl FnMut() -> Result<(Duration, Beside)>,
        mut bare: impl FnMut() -> Result<Duration>,
    ) -> Result<Self> {
        let mut measure = Self::new(target.into());
        for ((our, told), plain) in in_turns(pairs, &mut ours, &mut bare)? {
            measure.ours.push(our);
            measure.bare.push(plain);
            for (name, time) in told {
                let samples = measure.beside.entry(name).or_insert_with(|| json!([]));
                samples.as_array_mut().into_iter().for_each(|samples| samples.push(milliseconds(&time)));
            }
        }
        Ok(measure)
    }

    /// Takes several timings in each round, each with its own target.
    pub(crate) fn take_each<const N: usize>(
        targets: [f64; N],
        pairs: usize,
        mut ours: impl FnMut() -> Result<[Duration; N]>,
        mut bare: impl FnMut() -> Result<[Duration; N]>,
    ) -> Result<[Self; N]> {
        let mut measures = targets.map(|target| Self::new(Some(target)));
        for (ours, bare) in in_turns(pairs, &mut ours, &mut bare)? {
            for (measure, (our, plain)) in measures.iter_mut().zip(ours.into_iter().zip(bare)) {
                measure.ours.push(our);
                measure.bare.push(plain);
            }
        }
        Ok(measures)
    }

    fn new(target: Option<f64>) -> Self {
        Self { target, ours: Vec::new(), bare: Vec::new(), beside: Map::new() }
    }

    /// Returns the ratios in ascending order.
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.ours.iter().zip(&self.bare);
        let mut ratios: Vec<f64> =
            pairs.map(|(ours, bare)| ours.as_secs_f64() / bare.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    pub(crate) fn median(&self) -> f64 {
        median(&self.ratios())
    }

    /// Returns by how many milliseconds ours is slower: the median of the pairs.
    pub(crate) fn median_difference_ms(&self) -> f64 {
        let pairs = self.ours.iter().zip(&self.bare);
        let mut differences: Vec<f64> =
            pairs.map(|(ours, bare)| (ours.as_secs_f64() - bare.as_secs_f64()) * 1e3).collect();
        differences.sort_by(f64::total_cmp);
        median(&differences)
    }

    pub(crate) fn line(&self, name: &str) -> String {
        let ratios = self.ratios();
        let (least, most) = (ratios.first().copied().unwrap_or(0.0), ratios.last().copied().unwrap_or(0.0));
        let verdict = self.target.map_or_else(String::new, |target| {
            let verdict = if self.median() <= target { "within" } else { "MISSED" };
            format!("; target {target:.2}: {verdict}")
        });
        format!(
            "{name:9} {:.2} times bare ({least:.2} to {most:.2}, {} pairs); ours {:.2} ms, bare {:.2} ms{verdict}",
            self.median(),
            ratios.len(),
            median_ms(&self.ours),
            median_ms(&self.bare),
        )
    }

    pub(crate) fn json(&self) -> Value {
        let ratios = self.ratios();
        json!({
            "median_ratio": self.median(), "least_ratio": ratios.first(), "most_ratio": ratios.last(),
            "target_ratio": self.target, "pairs": ratios.len(), "warm_up_pairs": WARM_UP,
            "median_ours_ms": median_ms(&self.ours), "median_bare_ms": median_ms(&self.bare),
            "ours_ms": self.ours.iter().map(milliseconds).collect::<Vec<_>>(),
            "bare_ms": self.bare.iter().map(milliseconds).collect::<Vec<_>>(),
            "beside_ms": self.beside,
        })
    }

    /// Reports the same for rounds that moved `bytes`, with the speed of both sides.
    pub(crate) fn json_of(&self, bytes: usize) -> Value {
        let speed = |times: &[Duration]| json!(bytes as f64 / 1e6 / median_ms(times));
        let mut json = self.json();
        json["bytes"] = json!(bytes);
        json["median_ours_gb_per_s"] = speed(&self.ours);
        json["median_bare_gb_per_s"] = speed(&self.bare);
        json
    }
}

/// Both sides of each pair, without the warm-up.
fn in_turns<A, B>(
    pairs: usize,
    ours: &mut impl FnMut() -> Result<A>,
    bare: &mut impl FnMut() -> Result<B>,
) -> Result<Vec<(A, B)>> {
    let mut taken = Vec::new();
    for round in 0..WARM_UP + pairs {
        let pair = if round % 2 == 0 {
            let our = ours()?;
            (our, bare()?)
        } else {
            let plain = bare()?;
            (ours()?, plain)
        };
        if round >= WARM_UP {
            taken.push(pair);
        }
    }
    Ok(taken)
}

fn milliseconds(time: &Duration) -> Value {
    json!(time.as_secs_f64() * 1e3)
}

pub(crate) fn median_ms(times: &[Duration]) -> f64 {
    let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    median(&times)
}

/// Returns the median of values in ascending order.
fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_does_not_count_and_the_median_is_of_the_ratios() {
        let mut rounds = 0_u32;
        let ours = || {
            rounds += 1;
            // 100 s in the warm-up, then 10, 20, 30 ms.
            let time = if rounds <= 2 { 100_000 } else { u64::from(rounds - 2) * 10 };
            Ok((Duration::from_millis(time), vec![("step", Duration::from_millis(time))]))
        };
        let measure = Measure::take(1.5, 3, ours, || Ok(Duration::from_millis(10))).unwrap();
        assert!((measure.median() - 2.0).abs() < 1e-9);
        let json = measure.json();
        assert_eq!(json["beside_ms"]["step"], json!([10.0, 20.0, 30.0]));
        assert!(measure.line("x").contains("MISSED"));
        assert!((measure.median_difference_ms() - 10.0).abs() < 1e-9);
        assert_eq!(measure.json_of(40_000_000)["median_ours_gb_per_s"], json!(2.0));
    }

    #[test]
    fn of_several_timings_in_a_round_each_has_its_own_ratio() {
        let ms = Duration::from_millis;
        let [one, other] =
            Measure::take_each([1.5, 0.5], 7, || Ok([ms(10), ms(30)]), || Ok([ms(10), ms(10)])).unwrap();
        assert!((one.median() - 1.0).abs() < 1e-9 && (other.median() - 3.0).abs() < 1e-9);
        assert!(one.line("x").contains("within") && other.line("x").contains("MISSED"));
        assert_eq!(one.json()["pairs"], 7);
    }
}
