//! Reads traces of both formats, and writes that of vramd.
//!
//! The first line decides: a trace of vramd begins with `# vramd-trace`, and all else must be libCacheSim's CSV.

mod error;
mod libcachesim;
mod native;

use std::io::{BufRead, Read as _};

pub use error::TraceError;

use crate::trace::Trace;

/// Maximum bytes of a field. Names have at most 128.
const FIELD_BYTES_MAX: usize = 256;
/// Maximum bytes of the first line.
const FIRST_LINE_BYTES_MAX: u64 = 4096;

/// Reads a trace. An error names the line, and nothing of the file is used.
pub fn read(mut from: impl BufRead) -> Result<Trace, TraceError> {
    let mut first = Vec::new();
    from.by_ref().take(FIRST_LINE_BYTES_MAX).read_until(b'\n', &mut first)?;
    if first.is_empty() {
        return Err(TraceError::at(1, "the file is empty"));
    }
    let line = str::from_utf8(&first).map_err(|_| TraceError::not_a_trace(1))?;
    match line.trim_end().strip_prefix(native::MAGIC) {
        Some(head) => native::read(head, rows(from, 1)),
        None => libcachesim::read(rows(first.as_slice().chain(from), 0)),
    }
}

/// The rows of the rest of a file, of which so many lines were read before.
fn rows<R: std::io::Read>(from: R, lines_before: u64) -> Rows<R> {
    let reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .quoting(false)
        .trim(csv::Trim::All)
        .from_reader(from);
    Rows { reader, row: csv::StringRecord::new(), lines_before }
}

struct Rows<R> {
    reader: csv::Reader<R>,
    row: csv::StringRecord,
    lines_before: u64,
}

/// One row, with the number of its line.
struct Row<'a> {
    line: u64,
    fields: &'a csv::StringRecord,
}

impl<R: std::io::Read> Rows<R> {
    fn next(&mut self) -> Result<Option<Row<'_>>, TraceError> {
        let line_of =
            |position: Option<&csv::Position>| self.lines_before + position.map_or(1, csv::Position::line);
        match self.reader.read_record(&mut self.row) {
            Ok(false) => Ok(None),
            Ok(true) => {
                let line = line_of(self.row.position());
                if self.row.iter().any(|field| field.len() > FIELD_BYTES_MAX) {
                    let problem = format!("a field has more than {FIELD_BYTES_MAX} bytes");
                    return Err(TraceError::at(line, problem));
                }
                Ok(Some(Row { line, fields: &self.row }))
            }
            Err(error) => {
                let line = line_of(error.position());
                match error.into_kind() {
                    csv::ErrorKind::Io(error) => Err(TraceError::Io(error)),
                    _ => Err(TraceError::at(line, "it is not UTF-8 text")),
                }
            }
        }
    }
}

impl Row<'_> {
    /// Returns a field; an absent one is empty.
    fn field(&self, at: usize) -> &str {
        self.fields.get(at).unwrap_or_default()
    }

    fn fails(&self, problem: impl Into<String>) -> TraceError {
        TraceError::at(self.line, problem)
    }

    fn number<N: std::str::FromStr>(&self, at: usize, name: &str) -> Result<N, TraceError> {
        let text = self.field(at);
        // The standard library would take a sign.
        let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_digits);
        number.ok_or_else(|| {
            self.fails(match text {
                "" => format!("{name} is missing"),
                text if is_digits => format!("{name} is too large: {text}"),
                text => format!("{name} is no number: `{text}`"),
            })
        })
    }
}

#[cfg(test)]
mod tests;
