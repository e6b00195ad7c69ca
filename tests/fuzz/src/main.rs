//! libFuzzer around one target, which `VRAMD_FUZZ_TARGET` names. One binary serves all, since linking takes
//! longest.

#![no_main]

use std::{env, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use vramd_fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let names = TARGETS.map(|target| target.name);
    let wanted = env::var("VRAMD_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.into_iter().find(|target| target.name == wanted);
    found.unwrap_or_else(|| panic!("VRAMD_FUZZ_TARGET is `{wanted}`, but the targets are {names:?}"))
});

fuzz_target!(|input: &[u8]| {
    (TARGET.check)(input);
});
