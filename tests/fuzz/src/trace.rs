//! Traces, of both formats. A trace that is read and written is read again as the same. Played on a small device, no
//! policy fetches less than the bound, and a known future reaches it where the bound says so.

use broker_replay::{End, Options, Policy, Scenario, Trace, What, play, read};

use crate::Verdict;

/// Records of a trace that is played.
const PLAYED_MAX: usize = 200;
/// Four parts of 2 MiB.
const DEVICE_BYTES: u64 = 8 << 20;

pub(crate) fn check(input: &[u8]) -> Verdict {
    let trace = read(input);
    if let Ok(trace) = &trace {
        is_read_again(trace);
        if trace.records.len() <= PLAYED_MAX {
            is_bounded(trace);
        }
    }
    Verdict::of(&trace)
}

fn is_read_again(trace: &Trace) {
    let mut text = Trace::head(trace.records.len(), End::Stopped);
    trace.records.iter().for_each(|record| trace.names.write_record(&mut text, record));
    let again = read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.records, trace.records, "{text}");
}

fn is_bounded(trace: &Trace) {
    let options = Options { device_bytes: Some(DEVICE_BYTES), link_bytes_per_second: 1 << 30 };
    let Ok(scenario) = Scenario::new(trace, options) else { return };
    let (bound, is_exact) = scenario.bound();
    let has_holds = trace.records.iter().any(|record| matches!(record.what, What::Hold { .. }));
    for policy in Policy::all() {
        let counts = play(&scenario, policy).unwrap_or_else(|refusal| panic!("{policy}: {refusal}"));
        assert_eq!(counts.hits + counts.stalls, scenario.uses().0, "{policy}: {counts:?}");
        if has_holds {
            continue;
        }
        assert_eq!(counts.unserved, 0, "{policy}: {counts:?}");
        assert!(counts.fetched_bytes >= bound.get(), "{policy}: {counts:?}, and the bound is {bound}");
        if policy == Policy::KnownFuture && is_exact {
            assert_eq!(counts.fetched_bytes, bound.get(), "{counts:?}");
        }
    }
}
