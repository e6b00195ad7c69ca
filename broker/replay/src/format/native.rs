//! The format of vramd: one event a line. `docs/reference/traces.md` documents it.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use broker_core::{Cause, limits::PART_SIZE_MAX};
use vramd_types::{GRANULARITY, Quantity, name};

use super::{Row, Rows, TraceError};
use crate::trace::{End, Names, PartKey, RECORDS_MAX, Record, Start, Trace, What};

/// The beginning of the first line.
pub(super) const MAGIC: &str = "# vramd-trace";
const VERSION: u32 = 1;
const COLUMNS: &str = "time_us,event,allocation,part,bytes,tenant,device,detail";
/// The tenant of parts for which the trace names none.
const ANY_TENANT: &str = "trace";

/// The columns behind time and event.
const ALLOCATION: usize = 2;
const PART: usize = 3;
const BYTES: usize = 4;
const TENANT: usize = 5;
const DEVICE: usize = 6;
const DETAIL: usize = 7;
const COLUMN_COUNT: usize = 8;

impl Trace {
    /// Returns the first lines of a recording with so many records.
    pub fn head(records: usize, end: End) -> String {
        let end = match end {
            End::Stopped => "stopped",
            End::Full => "full",
        };
        format!("{MAGIC} {VERSION} records={records} end={end}\n{COLUMNS}\n")
    }
}

impl Names {
    /// Writes one record as a line.
    pub fn write_record(&self, out: &mut String, record: &Record) {
        // Writing to a text cannot fail.
        let _ = self.try_write(out, record);
    }

    fn try_write(&self, out: &mut String, Record { at, what }: &Record) -> fmt::Result {
        let event = |out: &mut String, name: &str, part: &PartKey| {
            write!(out, "{at},{name},{},{}", part.allocation, part.part)
        };
        match what {
            What::Device { device, bytes } => {
                write!(out, "{at},device,,,{bytes},,{}", self.device_name(*device))
            }
            What::Allocate { part, bytes, tenant, device, start } => {
                event(out, "allocate", part)?;
                let (tenant, device) = (self.tenant_name(*tenant), self.device_name(*device));
                let start = match start {
                    Start::Device => "device",
                    Start::Below => "below",
                };
                write!(out, ",{bytes},{tenant},{device},{start}")
            }
            What::Free { allocation } => write!(out, "{at},free,{allocation}"),
            What::Use { part, deadline } => {
                event(out, "use", part)?;
                deadline.map_or(Ok(()), |deadline| write!(out, ",,,,{deadline}"))
            }
            What::Write { part } => event(out, "write", part),
            What::Hold { part } => event(out, "hold", part),
            What::Release { part } => event(out, "release", part),
            What::Fetch { part, bytes } => {
                event(out, "fetch", part)?;
                write!(out, ",{bytes}")
            }
            What::Evict { part, bytes, cause, copied } => {
                event(out, "evict", part)?;
                write!(out, ",{bytes},,,{} {}", cause.name(), if *copied { "copied" } else { "clean" })
            }
            What::WriteBack { part, bytes } => {
                event(out, "write-back", part)?;
                write!(out, ",{bytes}")
            }
            What::Wait { tenant, micros } => {
                write!(out, "{at},wait,,,,{},,{micros}", self.tenant_name(*tenant))
            }
        }?;
        out.write_char('\n')
    }
}

/// Reads the rest of a file. `head` is the rest of its first line.
pub(super) fn read<R: std::io::Read>(head: &str, mut rows: Rows<R>) -> Result<Trace, TraceError> {
    let announced = announced_records(head).map_err(|problem| TraceError::at(1, problem))?;
    let mut reader = Reader::default();
    let (mut count, mut last_line) = (0, 1);
    while let Some(row) = rows.next()? {
        last_line = row.line;
        if count == 0 && row.fields.iter().eq(COLUMNS.split(',')) {
            continue;
        }
        count += 1;
        if count > RECORDS_MAX {
            return Err(row.fails(format!("a trace has at most {RECORDS_MAX} records")));
        }
        reader.take(&row)?;
    }
    match announced {
        Some(announced) if announced != count => {
            let problem = format!("the trace is damaged: it announces {announced} records and has {count}");
            Err(TraceError::at(last_line, problem))
        }
        _ => Ok(reader.trace),
    }
}

/// Checks the version. Returns how many records the file should have, if it says so.
fn announced_records(head: &str) -> Result<Option<usize>, String> {
    let mut words = head.split_ascii_whitespace();
    let version = words.next().unwrap_or_default();
    if version != VERSION.to_string() {
        return Err(format!("the version of the trace is `{version}`; this program reads version {VERSION}"));
    }
    let mut announced = None;
    for word in words {
        match word.split_once('=') {
            Some(("records", count)) => {
                announced = Some(count.parse().map_err(|_| format!("`{word}` has no number of records"))?);
            }
            Some(("end", "stopped" | "full")) => {}
            _ => return Err(format!("the first line has the unknown word `{word}`")),
        }
    }
    Ok(announced)
}

#[derive(Default)]
struct Reader {
    trace: Trace,
    at: u64,
    /// Live and freed allocations, with the sizes of their parts.
    allocations: BTreeMap<u64, Allocation>,
}

#[derive(Default)]
struct Allocation {
    freed: bool,
    parts: BTreeMap<u32, u64>,
}

impl Reader {
    fn take(&mut self, row: &Row<'_>) -> Result<(), TraceError> {
        if row.fields.len() > COLUMN_COUNT {
            return Err(row.fails(format!("a line has at most {COLUMN_COUNT} fields: {COLUMNS}")));
        }
        let at = row.number(0, "the time")?;
        if at < self.at {
            return Err(row.fails(format!("time goes back from {} to {at} us", self.at)));
        }
        self.at = at;
        let what = match row.field(1) {
            "device" => {
                let bytes = bytes(row)?.ok_or_else(|| row.fails("the bytes of the device are missing"))?;
                if bytes < GRANULARITY.get() {
                    return Err(row.fails("a device has at least 2 MiB"));
                }
                What::Device { device: self.device(row)?, bytes }
            }
            "allocate" => {
                let start = match row.field(DETAIL) {
                    "" | "device" => Start::Device,
                    "below" => Start::Below,
                    other => {
                        return Err(row.fails(format!("a part starts on its `device` or `below`: `{other}`")));
                    }
                };
                self.allocate(row, start)?
            }
            "free" => {
                let allocation = row.number(ALLOCATION, "the allocation")?;
                let known = self.allocations.entry(allocation).or_default();
                if known.parts.is_empty() {
                    return Err(
                        row.fails(format!("allocation {allocation} is freed and was never allocated"))
                    );
                }
                if std::mem::replace(&mut known.freed, true) {
                    return Err(row.fails(format!("allocation {allocation} is freed twice")));
                }
                What::Free { allocation }
            }
            "use" => {
                let part = part_key(row)?;
                if self.size(part).is_none() {
                    let below = self.allocate(row, Start::Below)?;
                    self.trace.records.push(Record { at, what: below });
                }
                let deadline = match row.field(DETAIL) {
                    "" => None,
                    _ => Some(row.number(DETAIL, "the deadline")?),
                };
                What::Use { part: self.live(row)?, deadline }
            }
            "write" => What::Write { part: self.live(row)? },
            "hold" => What::Hold { part: self.live(row)? },
            "release" => What::Release { part: self.live(row)? },
            "fetch" => What::Fetch { part: part_key(row)?, bytes: some_bytes(row)? },
            "evict" => {
                let (cause, end) = row.field(DETAIL).split_once(' ').unwrap_or_default();
                let cause = Cause::ALL.into_iter().find(|known| known.name() == cause);
                let copied = match end {
                    "copied" => Some(true),
                    "clean" => Some(false),
                    _ => None,
                };
                match (cause, copied) {
                    (Some(cause), Some(copied)) => {
                        What::Evict { part: part_key(row)?, bytes: some_bytes(row)?, cause, copied }
                    }
                    _ => return Err(row.fails(format!("`{}` is no end of a part's stay", row.field(DETAIL)))),
                }
            }
            "write-back" => What::WriteBack { part: part_key(row)?, bytes: some_bytes(row)? },
            "wait" => What::Wait {
                tenant: self.tenant(row)?,
                micros: row.number(DETAIL, "the time that was waited")?,
            },
            "" => return Err(row.fails("the event is missing")),
            other => return Err(row.fails(format!("there is no event `{other}`"))),
        };
        self.trace.records.push(Record { at, what });
        Ok(())
    }

    fn allocate(&mut self, row: &Row<'_>, start: Start) -> Result<What, TraceError> {
        let part = part_key(row)?;
        let Some(bytes) = bytes(row)? else {
            let problem = "it has no `allocate` line before, and this line has no bytes";
            return Err(row.fails(format!("part {} of allocation {}: {problem}", part.part, part.allocation)));
        };
        if bytes == 0 || bytes > PART_SIZE_MAX.get() {
            return Err(row.fails(format!("a part has 1 byte to {PART_SIZE_MAX}: {bytes}")));
        }
        let known = self.allocations.entry(part.allocation).or_default();
        if known.freed {
            return Err(row.fails(format!("allocation {} was freed before", part.allocation)));
        }
        if known.parts.insert(part.part, bytes).is_some() {
            let problem = format!("part {} of allocation {} is allocated twice", part.part, part.allocation);
            return Err(row.fails(problem));
        }
        Ok(What::Allocate { part, bytes, tenant: self.tenant(row)?, device: self.device(row)?, start })
    }

    fn size(&self, part: PartKey) -> Option<u64> {
        self.allocations.get(&part.allocation)?.parts.get(&part.part).copied()
    }

    /// Returns the part of a row, which must be live.
    fn live(&self, row: &Row<'_>) -> Result<PartKey, TraceError> {
        let part = part_key(row)?;
        let PartKey { allocation, part: number } = part;
        if self.size(part).is_none() {
            return Err(row.fails(format!("part {number} of allocation {allocation} was never allocated")));
        }
        if self.allocations.get(&allocation).is_some_and(|known| known.freed) {
            return Err(row.fails(format!("allocation {allocation} was freed before")));
        }
        Ok(part)
    }

    fn tenant(&mut self, row: &Row<'_>) -> Result<u32, TraceError> {
        match row.field(TENANT) {
            "" => Ok(self.trace.names.tenant(ANY_TENANT)),
            tenant if name::is_valid(tenant) => Ok(self.trace.names.tenant(tenant)),
            tenant => Err(row.fails(format!("`{tenant}` is no name of a tenant"))),
        }
    }

    fn device(&mut self, row: &Row<'_>) -> Result<u32, TraceError> {
        match row.field(DEVICE) {
            // The first device that the trace names, so that a trace of one device need not repeat its name.
            "" => {
                let first = self.trace.names.devices().first().cloned();
                Ok(self.trace.names.device(first.as_deref().unwrap_or("0")))
            }
            device if name::is_valid(device) => Ok(self.trace.names.device(device)),
            device => Err(row.fails(format!("`{device}` is no name of a device"))),
        }
    }
}

fn part_key(row: &Row<'_>) -> Result<PartKey, TraceError> {
    let allocation = row.number(ALLOCATION, "the allocation")?;
    Ok(PartKey { allocation, part: row.number(PART, "the part")? })
}

/// Returns the bytes of a row, as a number or like `256MiB`.
fn bytes(row: &Row<'_>) -> Result<Option<u64>, TraceError> {
    match row.field(BYTES) {
        "" => Ok(None),
        text => match Quantity::parse_bytes(text) {
            Ok(bytes) => Ok(Some(bytes.get())),
            Err(error) => Err(row.fails(format!("the bytes `{text}`: {error}"))),
        },
    }
}

fn some_bytes(row: &Row<'_>) -> Result<u64, TraceError> {
    bytes(row)?.ok_or_else(|| row.fails("the bytes are missing"))
}
