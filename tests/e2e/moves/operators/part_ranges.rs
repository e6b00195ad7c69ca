//! Parts that operators name in commands.

use serde_json::{Value, json};
use vramd_tests::Daemon;

use crate::moves::{assert_nothing_left, open_and_write, pin_words, tiers, unpin_words, vramctl};

#[test]
fn commands_take_single_parts_and_ranges() {
    let daemon = Daemon::start(&tiers("16MiB", "16MiB"));
    let (mut session, id) = open_and_write(&daemon, 6);
    let target = format!("a-{id}");
    let ask =
        |verb: &str, named: &[&str]| vramctl(&daemon, &[&["alloc", verb, &target, "--json"], named].concat());
    let some = ["--part", "4", "--part", "0-2"];
    let held = ask("hold", &some);
    let told: Value = serde_json::from_slice(&held.stdout).unwrap();
    assert_eq!(told["part_indexes"], json!([0, 1, 2, 4]));
    // Every part is pinned, so that no part changes and the answer names each.
    pin_words(&session, id, 6);
    for verb in ["revoke", "evict", "write-back", "bring-in"] {
        let told: Value = serde_json::from_slice(&ask(verb, &some).stdout).unwrap();
        let indexes = told["parts"].as_array().unwrap().iter().map(|part| part["index"].as_u64().unwrap());
        assert_eq!(indexes.collect::<Vec<_>>(), [0, 1, 2, 4], "{verb}: {told}");
    }
    let told: Value = serde_json::from_slice(&ask("unhold", &["--part", "0-5"]).stdout).unwrap();
    assert_eq!(told["part_indexes"], json!([0, 1, 2, 3, 4, 5]));
    unpin_words(&session, id, 6);

    let state = daemon.settled_state();
    let refused = [
        ("5-6", 1, "the allocation has no such part"),
        ("0-65536", 2, "the range `0-65536` is too long: an allocation has at most 65536 parts"),
        ("3-1", 2, "the range `3-1` begins at 3, after its end 1"),
        ("1-", 2, "`1-` is neither a part index, like 7, nor a range of parts, like 0-99"),
        ("x", 2, "`x` is neither a part index, like 7, nor a range of parts, like 0-99"),
    ];
    for (named, status, why) in refused {
        for verb in ["revoke", "evict", "bring-in", "write-back", "hold", "unhold"] {
            let output = vramctl(&daemon, &["alloc", verb, &target, "--part", named]);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(status), "{verb} {named}: {said}");
            assert!(said.contains(why), "{verb} {named}: {said}");
        }
    }
    let twice = vramctl(&daemon, &["alloc", "hold", &target, "--part", "0-2", "--part", "2-3"]);
    assert!(String::from_utf8(twice.stderr).unwrap().contains("a part is named twice"));
    assert_eq!((twice.status.code(), daemon.state()), (Some(1), state));
    session.free(id);
    assert_nothing_left(&daemon);
}
