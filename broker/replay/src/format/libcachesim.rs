//! libCacheSim's CSV: a time in seconds, an object, and its size in bytes; further columns are ignored.
//!
//! The first line may name the columns. All objects are of one tenant on one device and lie below it at first. An object
//! keeps the size that it has first.

use std::collections::BTreeMap;

use broker_core::limits::PART_SIZE_MAX;

use super::{Row, Rows, TraceError};
use crate::trace::{PartKey, RECORDS_MAX, Record, Start, Trace, What};

const TIME: [&str; 3] = ["time", "timestamp", "clock_time"];
const OBJECT: [&str; 3] = ["object_id", "obj_id", "object"];
const SIZE: [&str; 3] = ["object_size", "obj_size", "size"];

/// Where each column is.
#[derive(Clone, Copy)]
struct Columns {
    time: usize,
    object: usize,
    size: usize,
}

pub(super) fn read<R: std::io::Read>(mut rows: Rows<R>) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    let (tenant, device) = (trace.names.tenant("trace"), trace.names.device("0"));
    let mut columns: Option<Columns> = None;
    let mut objects: BTreeMap<String, u64> = BTreeMap::new();
    let (mut last, mut count) = (0, 0);
    while let Some(row) = rows.next()? {
        let Columns { time, object, size } = match columns {
            Some(columns) => columns,
            None => {
                let (found, is_heading) = Columns::of_first(&row)?;
                columns = Some(found);
                if is_heading {
                    continue;
                }
                found
            }
        };
        count += 1;
        if count > RECORDS_MAX {
            return Err(row.fails(format!("a trace has at most {RECORDS_MAX} records")));
        }
        let seconds: u64 = row.number(time, "the time")?;
        let Some(at) = seconds.checked_mul(1_000_000) else {
            return Err(row.fails(format!("the time is too large: {seconds}")));
        };
        if at < last {
            return Err(row.fails(format!("time goes back to {seconds} s")));
        }
        last = at;
        let name = row.field(object);
        if name.is_empty() {
            return Err(row.fails("the object is missing"));
        }
        let bytes: u64 = row.number(size, "the size")?;
        if bytes == 0 || bytes > PART_SIZE_MAX.get() {
            return Err(row.fails(format!("an object has 1 byte to {PART_SIZE_MAX}: {bytes}")));
        }
        let number = match objects.get(name) {
            Some(number) => *number,
            None => {
                let number = u64::try_from(objects.len()).unwrap_or(u64::MAX);
                objects.insert(name.to_owned(), number);
                let part = PartKey { allocation: number, part: 0 };
                let what = What::Allocate { part, bytes, tenant, device, start: Start::Below };
                trace.records.push(Record { at, what });
                number
            }
        };
        let part = PartKey { allocation: number, part: 0 };
        trace.records.push(Record { at, what: What::Use { part, deadline: None } });
    }
    match columns {
        Some(_) => Ok(trace),
        None => Err(TraceError::not_a_trace(1)),
    }
}

impl Columns {
    /// Returns the columns by the first row, and whether that row only names them.
    fn of_first(row: &Row<'_>) -> Result<(Self, bool), TraceError> {
        let find = |names: [&str; 3]| {
            row.fields.iter().position(|field| names.iter().any(|name| field.eq_ignore_ascii_case(name)))
        };
        if let (Some(time), Some(object), Some(size)) = (find(TIME), find(OBJECT), find(SIZE)) {
            return Ok((Self { time, object, size }, true));
        }
        let is_number = |at: usize| row.number::<u64>(at, "it").is_ok();
        if row.fields.len() >= 3 && is_number(0) && is_number(2) {
            return Ok((Self { time: 0, object: 1, size: 2 }, false));
        }
        Err(TraceError::not_a_trace(row.line))
    }
}
