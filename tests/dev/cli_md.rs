//! Writes `docs/reference/cli.md` from the command lines of `vramd` and `vramctl`.
//!
//! `cargo run -p vramd-tests --bin cli-md` writes the page; with `--check` it only compares and exits 1 on a difference.

use std::{
    fmt::{self, Write as _},
    process::ExitCode,
};

use clap::{Arg, Command, CommandFactory as _};
use dev_kit::Page;

const HEAD: &str = "\
# Commands

<!-- Generated from the command lines of vramd and vramctl by `make cli-md`. Do not edit. -->

For operators: every command, argument and option. [The operator's guide](../guides/operators.md) shows them in use.
";

fn main() -> anyhow::Result<ExitCode> {
    page().write_or_check()
}

fn page() -> Page {
    Page { name: "reference/cli.md", tool: "cli-md", text: text() }
}

fn text() -> String {
    let mut page = String::from(HEAD);
    for mut command in [vramd::args::Args::command(), vramctl::command_line()] {
        command.build();
        write_command(&mut page, &command, command.get_name()).expect("a String takes all that is written");
    }
    page
}

/// Writes a command and all commands below it; `name` is what a user types.
fn write_command(page: &mut String, command: &Command, name: &str) -> fmt::Result {
    let depth = if name.contains(' ') { "###" } else { "##" };
    writeln!(page, "\n{depth} `{name}`")?;
    if let Some(about) = command.get_long_about().or_else(|| command.get_about()) {
        writeln!(page, "\n{}", about.to_string().trim())?;
    }
    let shown = |argument: &&Arg| {
        !argument.is_hide_set() && argument.get_id() != "help" && argument.get_id() != "version"
    };
    let is_root = !name.contains(' ');
    let arguments: Vec<_> = command
        .get_arguments()
        .filter(shown)
        .filter(|argument| is_root || !argument.is_global_set())
        .collect();
    if !arguments.is_empty() {
        writeln!(page, "\n| Argument | Meaning |\n|---|---|")?;
    }
    for argument in arguments {
        writeln!(page, "| `{}` | {} |", spelling(argument), meaning(argument))?;
    }
    for below in command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set())
    {
        write_command(page, below, &format!("{name} {}", below.get_name()))?;
    }
    Ok(())
}

/// An argument as a user types it.
fn spelling(argument: &Arg) -> String {
    let values: Vec<String> =
        argument.get_value_names().into_iter().flatten().map(ToString::to_string).collect();
    let takes_values = argument.get_num_args().is_some_and(|count| count.takes_values());
    let value = if takes_values { values.join(" ") } else { String::new() };
    let option = argument.get_long().map(|long| format!("--{long}"));
    let option = option.or_else(|| argument.get_short().map(|short| format!("-{short}")));
    let spelling = match option {
        Some(option) if value.is_empty() => option,
        Some(option) => format!("{option} {value}"),
        None if argument.is_required_set() => format!("<{value}>"),
        None => format!("[{value}]"),
    };
    spelling.replace('|', "\\|")
}

fn meaning(argument: &Arg) -> String {
    let help =
        argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let values: Vec<String> =
        argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let takes_values = argument.get_num_args().is_some_and(|count| count.takes_values());
    let mut add = |more: String| {
        let end = if text.is_empty() || text.ends_with(['.', ']']) { "" } else { "." };
        text = format!("{text}{end} {more}").trim().to_owned();
    };
    if takes_values && !values.is_empty() {
        add(format!("One of {}.", values.join(", ")));
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_values && !defaults.is_empty() {
        add(format!("Default: `{}`.", defaults.join(" ")));
    }
    if let Some(variable) = argument.get_env() {
        add(format!("Environment: `{}`.", variable.to_string_lossy()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_page_is_current() {
        page().assert_current();
    }

    #[test]
    fn page_has_every_command_with_its_options() {
        let page = text();
        for command in ["## `vramd`", "## `vramctl`", "### `vramctl quota set`", "### `vramctl alloc evict`"]
        {
            assert!(page.contains(&format!("\n{command}\n")), "{command}");
        }
        assert!(page.contains("| `--config FILE` |") && page.contains("| `--limit "), "{page}");
    }
}
