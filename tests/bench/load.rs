//! 32 clients at once. Each is a thread with its own connection and session, and one call in flight.

use std::{
    io::{self, Write as _},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};
use vramd_tests::RawSession;

use crate::{
    caller::Caller,
    describe::Scene,
    samples::{Figures, Samples, micros},
};

const CLIENTS: usize = 32;
/// Calls of each client that do not count.
pub(crate) const WARM_UP: usize = 100;
const CALLS: usize = 1_000;
const CALLS_QUICK: usize = 100;

/// The calls of one side in one pair.
pub(crate) struct Wave {
    pub(crate) calls_per_second: f64,
    times: Samples,
}

pub(crate) fn run(scene: &Scene, pairs: usize, quick: bool) -> Result<Value> {
    let calls = if quick { CALLS_QUICK } else { CALLS };
    let sessions: Vec<RawSession> = (0..CLIENTS).map(|_| scene.daemon.open()).collect();
    let connect = |by: &dyn Fn(u64) -> Result<Caller>| -> Result<Vec<Caller>> {
        sessions.iter().map(|session| by(session.id())).collect()
    };
    let mut ours_callers = connect(&|session| scene.ours(session))?;
    let mut bare_callers = connect(&|session| scene.bare(session))?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        if pair % 2 == 0 {
            ours.push(wave(&mut ours_callers, calls)?);
            bare.push(wave(&mut bare_callers, calls)?);
        } else {
            bare.push(wave(&mut bare_callers, calls)?);
            ours.push(wave(&mut ours_callers, calls)?);
        }
    }
    summarize(&ours, &bare, calls)
}

/// Starts all clients at once, and ends when the last one has ended.
pub(crate) fn wave(callers: &mut [Caller], calls: usize) -> Result<Wave> {
    let start = Barrier::new(callers.len() + 1);
    let (blocks, began) = thread::scope(|scope| {
        let clients: Vec<_> = callers
            .iter_mut()
            .map(|caller| {
                scope.spawn(|| {
                    let warmed_up = caller.time(WARM_UP);
                    // Every client reaches the barrier, or the others would wait forever.
                    start.wait();
                    warmed_up?;
                    caller.time(calls)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let blocks: Vec<Result<Vec<Duration>>> =
            clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect();
        (blocks, (began, Instant::now()))
    });
    let times = blocks.into_iter().collect::<Result<Vec<_>>>()?.concat();
    let took = (began.1 - began.0).as_secs_f64();
    let count = u32::try_from(times.len())?;
    Ok(Wave { calls_per_second: f64::from(count) / took, times: Samples::new(times) })
}

fn summarize(ours: &[Wave], bare: &[Wave], calls: usize) -> Result<Value> {
    let rates = |side: &[Wave]| side.iter().map(|wave| wave.calls_per_second).collect::<Vec<_>>();
    let p99s = |side: &[Wave]| side.iter().map(|wave| micros(wave.times.percentile(99))).collect::<Vec<_>>();
    let (rate, p99) =
        (Figures::ratios(&rates(ours), &rates(bare)), Figures::ratios(&p99s(ours), &p99s(bare)));
    let middle = |figures: Vec<f64>| Figures::new(figures).median();
    let mut out = io::stdout();
    writeln!(
        out,
        "{CLIENTS} clients  {:.0} calls a second, the bare echo {:.0}: {} of it",
        middle(rates(ours)),
        middle(rates(bare)),
        rate.text(),
    )?;
    writeln!(
        out,
        "          p99 {:.0} us, the bare echo {:.0} us: {} times it",
        middle(p99s(ours)),
        middle(p99s(bare)),
        p99.text(),
    )?;
    let blocks = |side: &[Wave]| -> Vec<Value> {
        let wave =
            |wave: &Wave| json!({ "calls_per_second": wave.calls_per_second, "times": wave.times.json() });
        side.iter().map(wave).collect()
    };
    Ok(json!({
        "clients": CLIENTS, "warm_up_calls_each": WARM_UP, "calls_each": calls, "pairs": ours.len(),
        "throughput_ratio_to_echo": rate.json(), "p99_ratio_to_echo": p99.json(),
        "ours": blocks(ours), "echo": blocks(bare),
    }))
}
