//! The command line: what applies to every subcommand. The subcommands are in [`crate::commands`].

use std::path::PathBuf;

use clap::Parser;

use crate::commands::Command;

/// Shows and controls the GPU memory daemon of this node, and puts files into memory that it owns.
///
/// Exit status: 0 success, 1 refusal or failure, 2 wrong usage or unreadable file, 3 no daemon, 4 a dry run found
/// differences. A refusal goes to standard error with its reason, with `--json` as an object.
///
/// Quantities are `24GiB` or `24Gi` (binary), `24GB` (decimal), a bare integer of bytes, or a share like `90%`.
#[derive(Debug, Parser)]
#[command(name = "vramctl", version, propagate_version = true)]
pub(crate) struct Args {
    /// Directory of the daemon's sockets.
    ///
    /// Without it, the first of these where a daemon listens: $XDG_RUNTIME_DIR/vramd or else /tmp/vramd-UID, unless the
    /// user is root; then /run/vramd.
    #[arg(long, global = true, value_name = "DIR", env = "VRAMD_SOCKET_DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
    /// Seconds to wait for each answer of the daemon; `put` and `verify` wait as long as their work takes.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// Print one JSON object with a version, in a watch one for each line; sizes in bytes.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show UUIDs of devices in tables, not indexes; JSON always has UUIDs.
    #[arg(long, global = true)]
    pub(crate) uuids: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn clap_accepts_the_definition() {
        Args::command().debug_assert();
    }

    #[test]
    fn valid_lines_parse_and_invalid_lines_do_not() {
        for line in [
            "vramctl quota set team-a --device 0 --limit 24GiB",
            "vramctl quota set team-a --device * --tier device --guarantee 10% --limit 90%",
            "vramctl quota list --json",
            "vramctl top",
            "vramctl top --interval 0.5",
            "vramctl top --once --width 80",
            "vramctl top --once --json",
            "vramctl apply -f tenants.toml --dry-run",
            "vramctl apply --file - --json",
            "vramctl session end s-1099511627777 --kill",
            "vramctl alloc show team-a/llama",
            "vramctl alloc free a-1099511627777",
            "vramctl alloc revoke team-a/llama --part 0 --part 3 --wait",
            "vramctl alloc evict team-a/llama --part 0-99 --part 120",
            "vramctl alloc write-back team-a/llama --part 3-3",
            "vramctl alloc bring-in a-1099511627777 --json",
            "vramctl alloc hold team-a/llama --part 0",
            "vramctl alloc unhold a-1099511627777",
            "vramctl quota set team-a --tier host --limit 64GiB",
            "vramctl watch --kind move",
            "vramctl wait list team-a --json",
            "vramctl wait cancel 17",
            "vramctl move list",
            "vramctl link list --json",
            "vramctl move list team-a --json",
            "vramctl --socket-dir /x --json status",
            "vramctl put model.safetensors llama --reader team-b --reader team-c --replace",
            "vramctl verify team-a/llama model.safetensors --hold",
            "vramctl estimate llama/config.json",
            "vramctl estimate llama --memory 24GiB --link 28GB --weights 140GB --batch 8 --tokens 2048 --step-tokens 512",
            "vramctl mine",
            "vramctl mine --json",
            "vramctl mine free llama",
            "vramctl mine free a-1099511627777",
            "vramctl session show s-1099511627777",
            "vramctl device show GPU-5eed0000-0000-4000-8000-000000000000",
            "vramctl node show",
            "vramctl node undrain --json",
            "vramctl doctor",
            "vramctl doctor --readings gh200.json --json",
            "vramctl doctor --save node.json --overwrite",
            "vramctl settings show --json",
            "vramctl --uuids status",
            "vramctl quota list --uuids",
            "vramctl settings change --high-percent 90 --host-bytes 64GiB",
            "vramctl settings change --disk-bytes 0 --cold-after-ms 500",
            "vramctl watch --kind settings",
            "vramctl watch --tenant team-a --kind refusal --kind revoke --count 3 --json",
            "vramctl trace start --records 1000",
            "vramctl trace stop --json",
            "vramctl trace save day.trace --overwrite",
            "vramctl replay day.trace",
            "vramctl replay day.trace --policy lru --policy known-future --device-bytes 24GiB --link 50GB --json",
            "vramctl replay day.csv --policy all --device-bytes 1GiB",
            "vramctl completions zsh",
            "vramctl run python3 -c pass --json",
            "vramctl run --tenant team-a --limit 20GiB --report -- ./train --limit 7",
        ] {
            Args::try_parse_from(line.split(' ')).unwrap();
        }
        for line in [
            "vramctl",
            "vramctl apply",
            "vramctl apply tenants.toml",
            "vramctl quota set team-a",
            "vramctl quota set team-a --limit 1GiB --device ",
            "vramctl session list ",
            "vramctl session end seven",
            "vramctl alloc show llama",
            "vramctl quota set team-a --tier tape --limit 1",
            "vramctl alloc revoke",
            "vramctl alloc revoke team-a/llama --part -1",
            "vramctl alloc evict",
            "vramctl alloc hold",
            "vramctl alloc bring-in team-a/llama --part x",
            "vramctl alloc bring-in team-a/llama --part 1-",
            "vramctl alloc write-back team-a/llama --part 9-3",
            "vramctl watch --kind weather",
            "vramctl watch --count 0",
            "vramctl device show",
            "vramctl estimate",
            "vramctl estimate llama --memory 50%",
            "vramctl estimate llama --link 0",
            "vramctl estimate llama --batch 0",
            "vramctl mine free",
            "vramctl top --width 80",
            "vramctl top --once --width 19",
            "vramctl top --interval 0",
            "vramctl top --interval often",
            "vramctl top --once --interval 2",
            "vramctl wait",
            "vramctl wait cancel a-7",
            "vramctl move",
            "vramctl doctor --overwrite",
            "vramctl settings",
            "vramctl settings change",
            "vramctl settings change --high-percent high",
            "vramctl settings change --high-percent -1",
            "vramctl settings change --host-bytes 50%",
            "vramctl trace",
            "vramctl trace start --records 0",
            "vramctl trace save",
            "vramctl replay",
            "vramctl replay day.trace --policy belady",
            "vramctl replay day.trace --policy LRU",
            "vramctl replay day.trace --device-bytes 50%",
            "vramctl replay day.trace --link 0",
            "vramctl completions tcsh",
            "vramctl run",
            "vramctl run --tenant team-a",
            "vramctl run --limit 50% -- true",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
