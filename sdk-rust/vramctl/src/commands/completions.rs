//! `vramctl completions`: scripts that complete this command line in a shell.

use clap::{Args, CommandFactory as _, ValueEnum};
use serde_json::json;

use crate::output::{Output, failure::Failure};

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell to write the script for.
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn run(completions: &Completions, output: &Output) -> Result<(), Failure> {
    let script = script(completions.shell);
    output.show(|| script.clone(), json!({ "script": script }))
}

fn script(shell: Shell) -> String {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::args::Args::command(), "vramctl", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
