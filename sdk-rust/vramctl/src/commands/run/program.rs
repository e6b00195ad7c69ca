//! The program to execute: where it is, and whether the loader will load a library before it.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, access, getxattr},
    process::{getegid, geteuid},
};

/// As much of a program as this reads: its headers, or its first line.
const HEAD_MAX: u64 = 4096;
/// How many interpreters may stand behind each other, as in the kernel.
const INTERPRETERS_MAX: u32 = 4;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const PT_INTERP: u32 = 3;

/// Finds a program as a shell does.
pub(super) fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let found = env::split_paths(&folders).map(|folder| folder.join(name));
    found.filter(|path| path.is_file()).find(|path| access(path, Access::EXEC_OK).is_ok())
}

/// Refuses a program that the library cannot be loaded into, with the reason.
pub(super) fn check(program: &Path) -> Result<(), String> {
    check_behind(program, INTERPRETERS_MAX)
}

fn check_behind(program: &Path, interpreters: u32) -> Result<(), String> {
    let head = head(program)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let interpreter = words.next().ok_or("its first line names no interpreter")?;
        // `/usr/bin/env NAME` executes what it finds, which has the library too.
        return match interpreters.checked_sub(1) {
            Some(left) => check_behind(Path::new(OsStr::from_bytes(interpreter)), left),
            None => Err("it has too many interpreters".to_owned()),
        };
    }
    check_rights(program)?;
    check_elf(&head)
}

fn head(program: &Path) -> Result<Vec<u8>, String> {
    let mut head = Vec::new();
    let file = File::open(program).map_err(|error| error.to_string())?;
    file.take(HEAD_MAX).read_to_end(&mut head).map_err(|error| error.to_string())?;
    Ok(head)
}

/// The loader ignores libraries of the environment where a program runs with rights that its user has not.
fn check_rights(program: &Path) -> Result<(), String> {
    let about = fs::metadata(program).map_err(|error| error.to_string())?;
    let gains_user = about.mode() & SET_USER != 0 && about.uid() != geteuid().as_raw();
    let gains_group = about.mode() & SET_GROUP != 0 && about.gid() != getegid().as_raw();
    let mut capabilities = [0; 64];
    let has_capabilities = getxattr(program, "security.capability", &mut capabilities).is_ok();
    match gains_user || gains_group || has_capabilities && !geteuid().is_root() {
        true => Err("it runs with other rights than its user's (setuid, setgid or capabilities), so the loader loads no \
                     library of the user's choice into it"
            .to_owned()),
        false => Ok(()),
    }
}

/// A program needs a loader, and one that takes this library.
fn check_elf(head: &[u8]) -> Result<(), String> {
    let Some((_, [class, order, ..])) =
        head.split_first_chunk::<4>().filter(|(magic, _)| *magic == b"\x7fELF")
    else {
        return Err("it is no program of this system, nor a script with an interpreter".to_owned());
    };
    if (*class, *order) != (2, 1) {
        return Err("it is a program of another kind of machine: the library has 64 bits".to_owned());
    }
    let number = |at: usize, bytes: usize| {
        let bytes = head.get(at..at + bytes)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let headers = || -> Option<Vec<(u64, u64, u64)>> {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let one = |index: u64| -> Option<(u64, u64, u64)> {
            let at = usize::try_from(start + index * size).ok()?;
            Some((number(at, 4)?, number(at + 8, 8)?, number(at + 32, 8)?))
        };
        (0..count).map(one).collect()
    };
    let headers = headers().ok_or("its headers are damaged")?;
    let Some((_, start, size)) = headers.iter().find(|(kind, _, _)| *kind == u64::from(PT_INTERP)) else {
        return Err("it is linked statically: no loader runs, so no library can be loaded before it. Link it dynamically, \
                    or use an SDK"
            .to_owned());
    };
    let path = usize::try_from(*start).ok().zip(usize::try_from(*size).ok());
    let loader = path.and_then(|(start, size)| head.get(start..start.checked_add(size)?)).unwrap_or_default();
    if loader.windows(7).any(|part| part == b"ld-musl") {
        return Err("its C library is musl, and the library needs glibc".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program header table with these kinds, and an interpreter behind it.
    fn elf(kinds: &[u32], loader: &[u8]) -> Vec<u8> {
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = u8::try_from(kinds.len()).unwrap();
        let text_at = u64::try_from(64 + 56 * kinds.len()).unwrap();
        for kind in kinds {
            let mut header = vec![0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&text_at.to_le_bytes());
            header[32..40].copy_from_slice(&u64::try_from(loader.len()).unwrap().to_le_bytes());
            elf.extend(header);
        }
        elf.extend(loader);
        elf
    }

    #[test]
    fn only_a_program_with_a_loader_of_glibc_is_accepted() {
        let loader = b"/lib64/ld-linux-x86-64.so.2\0";
        assert_eq!(check_elf(&elf(&[6, 3, 1], loader)), Ok(()));
        let refused = |head: &[u8]| check_elf(head).unwrap_err();
        assert!(refused(&elf(&[6, 1], loader)).contains("statically"));
        assert!(refused(&elf(&[3], b"/lib/ld-musl-x86_64.so.1\0")).contains("musl"));
        assert!(refused(b"hello").contains("no program"));
        assert!(refused(&elf(&[3], loader)[..70]).contains("damaged"));
        let mut other = elf(&[3], loader);
        other[4] = 1;
        assert!(refused(&other).contains("64 bits"));
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, first: &str| {
            let path = dir.path().join(name);
            fs::write(&path, format!("{first}\nexit 0\n")).unwrap();
            path
        };
        assert_eq!(check(&script("shell", "#! /bin/sh -e")), Ok(()));
        assert!(check(&script("none", "#!")).unwrap_err().contains("no interpreter"));
        let endless = dir.path().join("endless");
        fs::write(&endless, format!("#!{}\n", endless.display())).unwrap();
        assert!(check(&endless).unwrap_err().contains("too many"));
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(find(OsStr::new("/bin/sh")), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find(OsStr::new("no-such-program-of-vramd")), None);
        assert_eq!(find(OsStr::new("/no/such/program")), None);
    }
}
