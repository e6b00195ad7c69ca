//! One seed, one trace: everything else here rests on it.

use std::process::Command;

/// The trace of a seed, from a process of its own.
fn trace(seed: u64) -> Vec<u8> {
    let program = env!("CARGO_BIN_EXE_simulator");
    let output = Command::new(program)
        .args(["trace", &seed.to_string(), "--events", "3000"])
        .output()
        .expect("the simulator runs");
    assert!(output.status.success(), "seed {seed}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn the_same_seed_gives_the_same_trace_in_two_processes() {
    // In the world of seed 3 copies go by lanes and files are loaded.
    for seed in [1, 3, 5, 77] {
        let (first, second) = (trace(seed), trace(seed));
        assert!(first.len() > 100_000, "the trace of seed {seed} is too short");
        assert!(first == second, "seed {seed} gives two traces");
    }
    assert!(trace(1) != trace(2), "two seeds give one trace");
}
