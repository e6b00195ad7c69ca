//! Runs the commands of a guide: the fenced `console` blocks of a Markdown file. A block ```` ```toml NAME ```` is written to
//! the file NAME in their working directory, in its turn.
//!
//! ```text
//! $ vramctl quota list
//! TENANT  DEVICE  …  ◄ in a line: anything
//! …                  ◄ alone: any number of lines
//! ```
//!
//! All commands of a guide run in one shell, in order. Each must end with status 0 and print the lines below it. A command
//! that is to fail reports that itself (`… || echo "status $?"`). The width of gaps between words does not matter. A command
//! without lines below it may print anything.
//!
//! With `VRAMD_TRANSCRIPTS=FOLDER` each guide that runs leaves a transcript there: every command with the time at which
//! it began, its status and what it printed.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::programs::repository;

/// How long all commands of one guide may take, in seconds.
const GUIDE_SECONDS_MAX: u32 = 300;

const ANYTHING: &str = "…";

#[derive(Debug)]
pub struct Guide {
    path: PathBuf,
    steps: Vec<Step>,
}

#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// In the file, from 1.
    line: usize,
    command: String,
    printed: Vec<String>,
}

/// Where the commands of a guide run.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// Their working directory.
    pub folder: &'a Path,
    /// Where programs are found, before the usual places.
    pub programs: Vec<PathBuf>,
    pub environment: Vec<(&'static str, PathBuf)>,
    /// Texts of the guide, each with its replacement in this run.
    pub replacements: Vec<(&'static str, String)>,
}

impl Guide {
    /// A file of the repository.
    #[track_caller]
    pub fn read(path: &str) -> Self {
        let path = repository().join(path);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { steps: steps(&text), path }
    }

    /// The number of commands.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Runs every command and compares its output. Panics at the first difference.
    #[track_caller]
    pub fn run(&self, surroundings: &Surroundings<'_>) {
        let results = tempfile::tempdir().expect("a folder for results");
        let errors = surroundings.shell(&self.script(surroundings, results.path()), results.path());
        if let Some(folder) = env::var_os("VRAMD_TRANSCRIPTS") {
            let name = self.path.strip_prefix(repository()).unwrap_or(&self.path).display().to_string();
            let file = Path::new(&folder).join(name.replace('/', "_")).with_extension("txt");
            fs::write(file, self.transcript(surroundings, results.path())).expect("the folder is writable");
        }
        for (at, step) in self.steps.iter().enumerate() {
            let place = format!("{}:{}: $ {}", self.path.display(), step.line, step.command);
            let read = |name: String| fs::read_to_string(results.path().join(name));
            let status =
                read(format!("{at}.status")).unwrap_or_else(|_| panic!("{place}\nnever ended\n{errors}"));
            let printed = read(format!("{at}.out")).expect("a command that ended has an output");
            assert_eq!(status.trim(), "0", "{place}\nended with that status and printed:\n{printed}");
            let printed: Vec<&str> = printed.lines().collect();
            let expected: Vec<String> =
                step.printed.iter().map(|line| surroundings.with_replacements(line)).collect();
            assert!(
                expected.is_empty() || matches_lines(&expected, &printed),
                "{place}\nprinted:\n{}\nand not:\n{}",
                printed.join("\n"),
                expected.join("\n")
            );
        }
    }

    fn script(&self, surroundings: &Surroundings<'_>, results: &Path) -> String {
        let results = results.display();
        let step = |(at, step): (usize, &Step)| {
            let command = surroundings.with_replacements(&step.command);
            format!(
                "date +%s%3N >{results}/{at}.began\n{{ {command}\n}} >{results}/{at}.out 2>&1 </dev/null\n\
                 echo $? >{results}/{at}.status\ndate +%s%3N >{results}/{at}.ended\n"
            )
        };
        self.steps.iter().enumerate().map(step).collect()
    }

    /// The commands that ended, as they were run.
    fn transcript(&self, surroundings: &Surroundings<'_>, results: &Path) -> String {
        let read = |at: usize, what: &str| fs::read_to_string(results.join(format!("{at}.{what}"))).ok();
        let milliseconds = |at, what| read(at, what)?.trim().parse::<u64>().ok();
        let seconds =
            |since: u64, until: u64| Duration::from_millis(until.saturating_sub(since)).as_secs_f64();
        let begin = milliseconds(0, "began").unwrap_or_default();
        let (mut text, mut end, mut count) = (String::new(), begin, 0);
        for (at, step) in self.steps.iter().enumerate() {
            let (Some(began), Some(ended)) = (milliseconds(at, "began"), milliseconds(at, "ended")) else {
                break;
            };
            let (command, printed) = (surroundings.with_replacements(&step.command), read(at, "out"));
            let (printed, status) = (printed.unwrap_or_default(), read(at, "status").unwrap_or_default());
            let since = seconds(begin, began);
            let _ = writeln!(text, "[{since:6.1} s] $ {command}\n{printed}status {status}");
            (end, count) = (ended, count + 1);
        }
        let _ = writeln!(text, "{count} of {} commands in {:.1} s", self.len(), seconds(begin, end));
        text
    }
}

impl Surroundings<'_> {
    fn shell(&self, script: &str, results: &Path) -> String {
        let file = results.join("script");
        fs::write(&file, script).expect("the script is written");
        let own: Vec<_> = self.programs.iter().map(|path| path.display().to_string()).collect();
        let mut command = Command::new("timeout");
        command
            .arg(GUIDE_SECONDS_MAX.to_string())
            .arg("sh")
            .arg(&file)
            .current_dir(self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", own.join(":")));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let child = command.spawn().expect("a shell starts");
        let group = Pid::from_child(&child);
        let output = child.wait_with_output().expect("a shell ends");
        // `timeout` leads a process group of its own. The signal ends programs that the guide left running.
        let _ = kill_process_group(group, Signal::TERM);
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn with_replacements(&self, text: &str) -> String {
        self.replacements.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here))
    }
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut inside, mut continues, mut is_file) = (false, false, false);
    for (line, number) in text.lines().zip(1..) {
        if line.starts_with("```") {
            if is_file && let Some(step) = steps.last_mut() {
                step.command += "\nEND_OF_FILE";
            }
            (inside, continues, is_file) = (line == "```console", false, false);
            if let Some(name) = line.strip_prefix("```toml ") {
                is_file = true;
                let command = format!("cat >{name} <<'END_OF_FILE'");
                steps.push(Step { line: number, command, printed: vec![] });
            }
        } else if is_file && let Some(step) = steps.last_mut() {
            step.command = format!("{}\n{line}", step.command);
        } else if inside {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) if !continues => {
                    steps.push(Step { line: number, command: command.to_owned(), printed: vec![] });
                }
                (_, Some(step)) if continues => step.command = format!("{}\n{line}", step.command),
                (_, Some(step)) => step.printed.push(line.to_owned()),
                (_, None) => panic!("line {number}: output without a command above it"),
            }
            continues = line.ends_with('\\');
        }
    }
    steps
}

fn matches_lines(expected: &[String], printed: &[&str]) -> bool {
    let Some((first, rest)) = expected.split_first() else { return printed.is_empty() };
    if first.trim() == ANYTHING {
        return (0..=printed.len()).any(|from| matches_lines(rest, &printed[from..]));
    }
    match printed.split_first() {
        Some((line, others)) => matches_line(first, line) && matches_lines(rest, others),
        None => false,
    }
}

fn matches_line(expected: &str, printed: &str) -> bool {
    let single = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (expected, printed) = (single(expected), single(printed));
    let mut pieces = expected.split(ANYTHING);
    let Some(mut left) = pieces.next().and_then(|first| printed.strip_prefix(first)) else { return false };
    let mut pieces: Vec<_> = pieces.collect();
    let Some(last) = pieces.pop() else { return left.is_empty() };
    for piece in pieces {
        let Some((_, after)) = left.split_once(piece) else { return false };
        left = after;
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# A guide\n\n```sh\nnot run\n```\n\n```console\n$ echo one \\\n    two\none two\n$ true\n```\n";

    fn surroundings(folder: &Path) -> Surroundings<'_> {
        Surroundings {
            folder,
            programs: vec![],
            environment: vec![],
            replacements: vec![("two", "2".to_owned())],
        }
    }

    fn guide(text: &str) -> Guide {
        Guide { path: PathBuf::from("guide.md"), steps: steps(text) }
    }

    #[test]
    fn commands_are_told_from_their_output() {
        let steps = steps(TEXT);
        assert_eq!(steps[0].command, "echo one \\\n    two");
        assert_eq!((steps[0].line, steps[0].printed.as_slice()), (8, &["one two".to_owned()][..]));
        assert_eq!((steps.len(), steps[1].command.as_str()), (2, "true"));
    }

    #[test]
    fn named_block_becomes_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let text = "```toml some.toml\na = \"two\"\n```\n\n```console\n$ cat some.toml\na = \"two\"\n```\n";
        guide(text).run(&surroundings(folder.path()));
    }

    #[test]
    fn commands_run_in_one_shell() {
        let folder = tempfile::tempdir().unwrap();
        guide(TEXT).run(&surroundings(folder.path()));
        guide("```console\n$ word=there\n$ echo $word; pwd\nthere\n/…\n```\n")
            .run(&surroundings(folder.path()));
    }

    #[test]
    fn transcript_has_each_command_with_its_time_and_status() {
        let (folder, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let surroundings = surroundings(folder.path());
        let guide = guide("```console\n$ echo two\n$ sleep 0.2; echo 3; false\n$ exit 7\n$ true\n```\n");
        surroundings.shell(&guide.script(&surroundings, results.path()), results.path());
        let text = guide.transcript(&surroundings, results.path());
        assert!(text.starts_with("[   0.0 s] $ echo 2\n2\nstatus 0\n\n"), "{text}");
        assert!(text.contains("$ sleep 0.2; echo 3; false\n3\nstatus 1\n\n"), "{text}");
        let last = text.lines().last().unwrap_or_default();
        let took: f64 = last.split(' ').nth(5).and_then(|seconds| seconds.parse().ok()).unwrap_or_default();
        assert!(last.starts_with("2 of 4 commands in ") && took >= 0.2, "{text}");
    }

    #[test]
    #[should_panic(expected = "guide.md:2: $ false")]
    fn failing_command_fails_the_guide() {
        guide("```console\n$ false\n```\n").run(&surroundings(Path::new("/")));
    }

    #[test]
    #[should_panic(expected = "and not:\nmice")]
    fn different_output_fails_the_guide() {
        guide("```console\n$ echo men\nmice\n```\n").run(&surroundings(Path::new("/")));
    }

    #[test]
    fn gaps_and_ellipses_match() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(matches_line("a  … c", "a b b   c"));
        assert!(matches_line("s-…", "s-77"));
        assert!(!matches_line("a … c", "a b c d"));
        assert!(!matches_line("a", "a b"));
        assert!(!matches_line("ab…ab", "ab"));
        assert!(matches_lines(&lines("one\n…\nlast"), &["one", "two", "three", "last"]));
        assert!(!matches_lines(&lines("one\n…\nlast"), &["one", "two"]));
        assert!(!matches_lines(&lines("one"), &["one", "two"]));
    }
}
