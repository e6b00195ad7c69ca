//! The files that `make gpu-bundle` puts beside this program.

use std::{env, path::PathBuf};

pub(crate) fn beside(name: &str) -> PathBuf {
    let own = env::current_exe().expect("a process knows its program");
    let bundle = own.parent().and_then(|bin| bin.parent()).expect("a program lies in a folder of the bundle");
    let path = bundle.join(name);
    assert!(path.exists(), "{} is missing: this runs in a bundle", path.display());
    path
}
