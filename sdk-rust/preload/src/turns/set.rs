//! The working set of the process, as the daemon knows it.

use std::{cmp::Reverse, env, path::Path, sync::Arc};

use vramd_client::{Client, Error, Pinnable, Turn, WorkingSet};

use super::members::Member;

/// The daemon's bounds of one set. The largest allocations are named, and the rest is pinned after them.
const ALLOCATIONS_MAX: usize = 4096;
const PARTS_MAX: usize = 16_384;
const NAME_MAX: usize = 64;

/// The set that was declared last.
#[derive(Debug)]
pub(super) struct Declared {
    set: WorkingSet,
    /// The numbers of its members.
    members: Vec<u64>,
}

/// Declares the set, if it is another than the last one, and waits for its turn.
pub(super) fn acquire(
    client: &Client,
    members: Vec<(u64, Arc<Member>)>,
    declared: &mut Option<Declared>,
) -> Result<Turn, Error> {
    let named = named(members);
    let numbers: Vec<u64> = named.iter().map(|(number, _)| *number).collect();
    if let Some(known) = declared.as_ref().filter(|known| known.members == numbers) {
        drop(named);
        return known.set.acquire();
    }
    // Its name is free then.
    *declared = None;
    let locked: Vec<_> = named.iter().map(|(_, member)| member.lock()).collect();
    let allocations: Vec<&dyn Pinnable> =
        locked.iter().map(|allocation| &**allocation as &dyn Pinnable).collect();
    let set = client.working_set(&name(), &allocations)?;
    drop(allocations);
    drop(locked);
    // Memory that the program frees during the wait is given back at once.
    drop(named);
    declared.insert(Declared { set, members: numbers }).set.acquire()
}

/// The members that one set may name, in the order of their numbers.
fn named(mut members: Vec<(u64, Arc<Member>)>) -> Vec<(u64, Arc<Member>)> {
    members.sort_by_key(|(_, member)| Reverse(member.bytes));
    let (mut count, mut parts) = (0, 0);
    members.retain(|(_, member)| {
        let fits = count < ALLOCATIONS_MAX && parts + member.parts <= PARTS_MAX;
        if fits {
            count += 1;
            parts += member.parts;
        }
        fits
    });
    members.sort_by_key(|(number, _)| *number);
    members
}

/// The name of the program, as the names of sets may be.
fn name() -> String {
    let program = env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name);
    plain(&program.map_or_else(String::new, |name| name.to_string_lossy().into_owned()))
}

fn plain(name: &str) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "._-".contains(*letter);
    let plain = name.chars().filter(is_plain).skip_while(|letter| !letter.is_ascii_alphanumeric());
    let plain: String = plain.take(NAME_MAX).collect();
    if plain.is_empty() { "program".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_any_name_has_a_set_with_a_valid_one() {
        assert_eq!(plain("python3.12"), "python3.12");
        assert_eq!(plain(".my server (deleted)"), "myserverdeleted");
        assert_eq!(plain("_\u{e4}-x"), "x");
        assert_eq!(plain("..."), "program");
        assert_eq!(plain(&"x".repeat(200)).len(), NAME_MAX);
    }
}
