use broker_core::Cause;

use super::*;
use crate::trace::{End, Names, PartKey, Record, Start, What};

const HEAD: &str = "# vramd-trace 1\n";

#[track_caller]
fn fails(text: impl AsRef<[u8]>) -> String {
    read(text.as_ref()).unwrap_err().to_string()
}

/// The error of a second line behind a good one.
#[track_caller]
fn second_fails(line: &str) -> String {
    fails(format!("{HEAD}5,allocate,1,0,2MiB,a,gpu,below\n{line}\n"))
}

fn every_record(names: &mut Names) -> Vec<Record> {
    let part = PartKey { allocation: 7, part: 3 };
    let (tenant, device) = (names.tenant("team-a"), names.device("GPU-1"));
    let end = |cause, copied| What::Evict { part, bytes: 9, cause, copied };
    let whats = [
        What::Device { device, bytes: 1 << 30 },
        What::Allocate { part, bytes: 4 << 20, tenant, device, start: Start::Device },
        What::Use { part, deadline: None },
        What::Use { part, deadline: Some(500) },
        What::Write { part },
        What::Hold { part },
        What::Release { part },
        What::Fetch { part, bytes: 4 << 20 },
        end(Cause::Demand, true),
        end(Cause::Rebalance, false),
        end(Cause::Pressure, false),
        end(Cause::Operator, true),
        end(Cause::WriteBack, false),
        end(Cause::Prefetch, true),
        What::WriteBack { part, bytes: 4 << 20 },
        What::Wait { tenant, micros: 77 },
        What::Free { allocation: 7 },
    ];
    (0..).zip(whats).map(|(at, what)| Record { at, what }).collect()
}

#[test]
fn written_trace_is_read_again() {
    let mut names = Names::default();
    let records = every_record(&mut names);
    let mut text = Trace::head(records.len(), End::Full);
    records.iter().for_each(|record| names.write_record(&mut text, record));
    assert_eq!(read(text.as_bytes()).unwrap(), Trace { names, records });
    // Every cut behind the first line is noticed, except that of the last newline.
    let first_line = text.find('\n').unwrap();
    for end in first_line..text.len() - 1 {
        assert!(read(&text.as_bytes()[..end]).is_err(), "{}", &text[..end]);
    }
}

#[test]
fn trace_of_a_person_needs_few_fields() {
    let text = "# vramd-trace 1\n# Two layers.\n\n0, device, , , 4GiB\n0,use,1,0,256MiB\r\n10,use,1,1,1\n20,use,1,0,,,,900\n";
    let trace = read(text.as_bytes()).unwrap();
    let part = |part| PartKey { allocation: 1, part };
    let allocate = |at, number, bytes| Record {
        at,
        what: What::Allocate { part: part(number), bytes, tenant: 0, device: 0, start: Start::Below },
    };
    let uses = |at, number, deadline| Record { at, what: What::Use { part: part(number), deadline } };
    let expected = [
        Record { at: 0, what: What::Device { device: 0, bytes: 4 << 30 } },
        allocate(0, 0, 256 << 20),
        uses(0, 0, None),
        allocate(10, 1, 1),
        uses(10, 1, None),
        uses(20, 0, Some(900)),
    ];
    assert_eq!(trace.records, expected);
}

#[test]
fn damaged_line_is_named_with_the_reason() {
    for (line, problem) in [
        ("x,use,1,0", "line 3: the time is no number: `x`"),
        ("-1,use,1,0", "the time is no number"),
        ("+9,use,1,0", "the time is no number"),
        ("99999999999999999999,use,1,0", "the time is too large"),
        ("4,use,1,0", "time goes back from 5 to 4 us"),
        ("9", "the event is missing"),
        ("9,steal,1,0", "there is no event `steal`"),
        ("9,use", "the allocation is missing"),
        ("9,use,1", "the part is missing"),
        ("9,use,1,4294967296", "the part is too large"),
        ("9,use,1,1", "it has no `allocate` line before, and this line has no bytes"),
        ("9,use,1,1,0", "a part has 1 byte to 16 GiB"),
        ("9,use,1,1,17GiB", "a part has 1 byte to 16 GiB"),
        ("9,use,1,1,50%", "the bytes `50%`"),
        ("9,use,1,1,99999999999999999999", "the bytes `99999999999999999999`"),
        ("9,use,1,0,,,,soon", "the deadline is no number"),
        ("9,use,1,0,,,,,", "a line has at most 8 fields"),
        ("9,use,1,1,2MiB,two words", "`two words` is no name of a tenant"),
        ("9,use,1,1,2MiB,a,GPU 1", "`GPU 1` is no name of a device"),
        ("9,allocate,1,0,2MiB", "part 0 of allocation 1 is allocated twice"),
        ("9,allocate,1,1,2MiB,a,gpu,disk", "a part starts on its `device` or `below`: `disk`"),
        ("9,allocate,1,1", "this line has no bytes"),
        ("9,hold,1,1", "part 1 of allocation 1 was never allocated"),
        ("9,free,2", "allocation 2 is freed and was never allocated"),
        ("9,device,,,,,gpu", "the bytes of the device are missing"),
        ("9,device,,,1MiB,,gpu", "a device has at least 2 MiB"),
        ("9,fetch,1,0", "the bytes are missing"),
        ("9,evict,1,0,5,,,demand", "`demand` is no end of a part's stay"),
        ("9,evict,1,0,5,,,love copied", "no end of a part's stay"),
        ("9,wait,,,,a", "the time that was waited is missing"),
    ] {
        let said = second_fails(line);
        assert!(said.starts_with("line 3: ") && said.contains(problem), "{line}: {said}");
    }
    let free = "free,1\n9,";
    assert!(second_fails(&format!("9,{free}use,1,0")).starts_with("line 4: allocation 1 was freed before"));
    assert!(second_fails(&format!("9,{free}allocate,1,1,2MiB")).contains("allocation 1 was freed before"));
    assert!(second_fails(&format!("9,{free}free,1")).contains("allocation 1 is freed twice"));
    let long = "x".repeat(FIELD_BYTES_MAX + 1);
    assert!(second_fails(&format!("9,{long}")).contains("a field has more than 256 bytes"));
    assert_eq!(fails([HEAD.as_bytes(), b"9,use,1,\xff\n"].concat()), "line 2: it is not UTF-8 text");
}

#[test]
fn foreign_file_is_no_trace() {
    assert_eq!(fails(""), "line 1: the file is empty");
    for text in
        ["\n", "# some comment\n", "hello world\n", "{\"a\": 1}\n", "time,key\n", "1,2\n", "a,b,c\n1,2,3\n"]
    {
        assert!(fails(text).contains("this is no trace"), "{text}: {}", fails(text));
    }
    assert!(fails(b"\x7fELF\xff\xff").contains("this is no trace"));
    assert!(fails("x".repeat(100_000)).contains("256 bytes"));
}

#[test]
fn first_line_says_version_and_records() {
    for (head, problem) in [
        ("# vramd-trace\n", "the version of the trace is ``"),
        ("# vramd-trace 2\n", "the version of the trace is `2`; this program reads version 1"),
        ("# vramd-trace 1 colour=red\n", "the first line has the unknown word `colour=red`"),
        ("# vramd-trace 1 records=many\n", "`records=many` has no number of records"),
        ("# vramd-trace 1 end=bored\n", "unknown word `end=bored`"),
        ("# vramd-trace 1 records=2\n0,use,1,0,2MiB\n", "it announces 2 records and has 1"),
        ("# vramd-trace 1 records=0\n0,use,1,0,2MiB\n", "it announces 0 records and has 1"),
    ] {
        assert!(fails(head).contains(problem), "{head}: {}", fails(head));
    }
    assert_eq!(read("# vramd-trace 1\n".as_bytes()).unwrap(), Trace::default());
}

#[test]
fn csv_of_libcachesim_is_read_with_and_without_headings() {
    let plain = read("1,77,4096,3\n1,x-9,2097153,-1\n3,77,8192,-1\n".as_bytes()).unwrap();
    for headings in ["timestamp,object_id,object_size,next_access_vtime", "Time, obj_id, obj_size, next"] {
        let text = format!("{headings}\n1,77,4096,3\n1,x-9,2097153,-1\n3,77,8192,-1\n");
        assert_eq!(read(text.as_bytes()).unwrap(), plain);
    }
    let turned = read("obj_size,obj_id,time\n4096,77,1\n2097153,x-9,1\n8192,77,3\n".as_bytes()).unwrap();
    assert_eq!(turned, plain);
    let part = |allocation| PartKey { allocation, part: 0 };
    let allocate = |allocation, bytes| What::Allocate {
        part: part(allocation),
        bytes,
        tenant: 0,
        device: 0,
        start: Start::Below,
    };
    let uses = |allocation| What::Use { part: part(allocation), deadline: None };
    let whats: Vec<_> = plain.records.iter().map(|record| (record.at, record.what)).collect();
    let second = 1_000_000;
    let expected = [
        (second, allocate(0, 4096)),
        (second, uses(0)),
        (second, allocate(1, 2_097_153)),
        (second, uses(1)),
        (3 * second, uses(0)),
    ];
    assert_eq!(whats, expected);
}

#[test]
fn damaged_csv_of_libcachesim_is_refused() {
    for (line, problem) in [
        ("soon,1,5", "the time is no number: `soon`"),
        ("99999999999999999,1,5", "the time is too large"),
        ("0,1,5", "time goes back to 0 s"),
        ("2,,5", "the object is missing"),
        ("2,1", "the size is missing"),
        ("2,1,x", "the size is no number"),
        ("2,9,0", "an object has 1 byte to 16 GiB: 0"),
        ("2,9,99999999999", "an object has 1 byte to 16 GiB"),
    ] {
        let said = fails(format!("1,1,5\n{line}\n"));
        assert!(said.starts_with("line 2: ") && said.contains(problem), "{line}: {said}");
    }
}

#[test]
fn unknown_policy_is_refused_with_all_names() {
    use crate::{Policy, UnknownPolicy};
    assert_eq!("belady".parse::<Policy>(), Err(UnknownPolicy));
    let said = UnknownPolicy.to_string();
    for policy in Policy::all() {
        assert_eq!(policy.name().parse(), Ok(policy));
        assert!(said.contains(policy.name()), "{said}");
    }
}
