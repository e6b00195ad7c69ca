//! `vramctl run`: executes a program whose GPU memory the daemon serves, by a library that the loader loads before it.
//!
//! It becomes the program, so that signals and the exit status are the program's own. Before that
//! it checks what the library cannot say from inside of the program: that a daemon serves this user as that tenant, and
//! that the loader will load the library at all.

mod program;

use std::{
    env,
    ffi::OsString,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{self, Path, PathBuf},
    process::Command,
};

use clap::Args;
use vramd_client::{Bytes, ClientBuilder, Tier};
use vramd_types::Quantity;

use crate::output::failure::Failure;

/// The file of the library.
const LIBRARY: &str = "libvramd_preload.so";
/// Exit statuses of programs that execute others.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Fail unless the daemon knows this process as that tenant.
    ///
    /// The daemon takes the tenant from the kernel's credentials: this names it, and does not choose it.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    tenant: Option<String>,
    /// The most device memory that each process of the program may have on each device, below the tenant's own limit.
    #[arg(long, value_name = "BYTES", value_parser = Quantity::parse_bytes)]
    limit: Option<Bytes>,
    /// Use the device in turns with other programs whose memory does not fit beside that of this one.
    ///
    /// The program's kernels and copies wait for its turn, and its memory leaves the device meanwhile. While all fits
    /// together, no program waits.
    #[arg(long)]
    turns: bool,
    /// With `--turns`, yield after so long without a call for the device and without work on it.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "turns", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_after: u64,
    /// Have each process write what the driver served instead of the daemon, to standard error at its end.
    #[arg(long)]
    report: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) fn run(run: &Run, socket_dir: Option<&Path>, client: ClientBuilder) -> Result<(), Failure> {
    let Some((name, arguments)) = run.program.split_first() else {
        return Err(failed(NOT_FOUND, "no program is named"));
    };
    let program = program::find(name)
        .ok_or_else(|| failed(NOT_FOUND, &format!("no program `{}` is found", name.display())))?;
    program::check(&program)
        .map_err(|problem| failed(NOT_EXECUTABLE, &format!("{}: {problem}", program.display())))?;
    let library = library()?;
    check_daemon(run, client)?;
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments).env("LD_PRELOAD", preloaded(&library));
    if let Some(tenant) = &run.tenant {
        command.env("VRAMD_TENANT", tenant);
    }
    if let Some(limit) = run.limit {
        command.env("VRAMD_LIMIT", limit.get().to_string());
    }
    if run.turns {
        command.env("VRAMD_TURNS", "1").env("VRAMD_TURNS_IDLE_SECONDS", run.idle_after.to_string());
    }
    if run.report {
        command.env("VRAMD_PRELOAD_REPORT", "1");
    }
    if let Some(dir) = socket_dir {
        command.env("VRAMD_SOCKET_DIR", path::absolute(dir).unwrap_or_else(|_| dir.to_owned()));
    }
    // It returns only if the program could not be executed.
    let error = command.exec();
    Err(failed(NOT_EXECUTABLE, &format!("{}: {error}", program.display())))
}

fn check_daemon(run: &Run, client: ClientBuilder) -> Result<(), Failure> {
    // Without devices of its own: CUDA must not begin in a process that becomes another program.
    let client = client.name("vramctl run").connect_raw()?;
    if client.devices().iter().any(|device| device.simulated) {
        return Err(failed(
            1,
            "the daemon's devices are simulated: a program for CUDA finds no memory there",
        ));
    }
    if let Some(wanted) = run.tenant.as_deref().filter(|wanted| *wanted != client.tenant()) {
        let own = client.tenant();
        return Err(failed(1, &format!("the daemon knows this process as tenant `{own}`, not `{wanted}`")));
    }
    if run.turns {
        let has_tier_below =
            client.quota()?.iter().any(|own| own.tier != Tier::Device && own.capacity > Bytes::ZERO);
        why_no_turns(client.takes_turns(), has_tier_below)
            .map_or(Ok(()), |problem| Err(failed(1, problem)))?;
    }
    Ok(())
}

/// Why programs cannot take turns on this node, if so.
fn why_no_turns(takes_turns: bool, has_tier_below: bool) -> Option<&'static str> {
    if !takes_turns {
        return Some("--turns: the daemon gives no turns. It is older than this vramctl: update it");
    }
    let problem =
        "--turns: the node has no tier below its devices, so no memory could leave. Set memory.host_size";
    (!has_tier_below).then_some(problem)
}

/// The library: as `VRAMD_PRELOAD` names it, beside this program, or in `../lib/vramd`.
fn library() -> Result<PathBuf, Failure> {
    let found = match env::var_os("VRAMD_PRELOAD").filter(|named| !named.is_empty()) {
        Some(named) if Path::new(&named).is_file() => PathBuf::from(named),
        Some(named) => {
            return Err(failed(2, &format!("VRAMD_PRELOAD names {}, which is no file", named.display())));
        }
        None => beside_this_program()?,
    };
    // Programs change their folders.
    let found = found.canonicalize().map_err(Failure::file(&found))?;
    match found.as_os_str().as_bytes().iter().any(|byte| b" :\t".contains(byte)) {
        true => {
            Err(failed(2, &format!("{}: the loader takes no path with blanks or colons", found.display())))
        }
        false => Ok(found),
    }
}

fn beside_this_program() -> Result<PathBuf, Failure> {
    let own = env::current_exe().ok();
    let folder = own.as_deref().and_then(Path::parent);
    let installed = |folder: &Path| folder.join("../lib/vramd").join(LIBRARY);
    let places: Vec<_> =
        folder.into_iter().flat_map(|folder| [folder.join(LIBRARY), installed(folder)]).collect();
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let tried: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        failed(2, &format!("{LIBRARY} is in none of {}: name it by VRAMD_PRELOAD", tried.join(", ")))
    })
}

/// The list of libraries that the loader loads before the program: this one, then those that were named anyway.
fn preloaded(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

fn failed(status: u8, problem: &str) -> Failure {
    Failure::Run { status, problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_need_a_daemon_that_gives_them_and_a_tier_below() {
        let says = |problem: Option<&str>, part| problem.is_some_and(|problem| problem.contains(part));
        assert!(says(why_no_turns(false, true), "gives no turns"));
        assert!(says(why_no_turns(false, false), "gives no turns"));
        assert!(says(why_no_turns(true, false), "memory.host_size"));
        assert_eq!(why_no_turns(true, true), None);
    }
}
