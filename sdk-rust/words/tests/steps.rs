//! Every step from every state of a word: the whole table as a literal, and each step through the view that may take it.

use vramd_words::{Access, NotMappable, NotPinned, NotUnmappable, PinRefused, Waiting, Word};

const MAX: u64 = Word::PINS_MAX as u64;
const WRITTEN: u64 = 1 << 24;
const MAPPED: u64 = 1 << 25;
const REVOKE: u64 = 1 << 26;
const UNMAPPING: u64 = 1 << 27;

/// Pins, then a letter for each bit that is set.
fn show(word: Word) -> String {
    let letters = [(WRITTEN, 'w'), (MAPPED, 'M'), (REVOKE, 'R'), (UNMAPPING, 'U'), (Word::FORKED.raw(), 'F')];
    let pins = match Word::PINS_MAX - word.pins() {
        0 => "max".to_owned(),
        1 => "max-1".to_owned(),
        _ => word.pins().to_string(),
    };
    letters
        .into_iter()
        .filter(|(bit, _)| word.raw() & bit != 0)
        .fold(pins, |shown, (_, letter)| shown + &letter.to_string())
}

fn pinned(result: Result<Word, PinRefused>) -> String {
    match result {
        Ok(word) => show(word),
        Err(PinRefused::NeedsFrame) => "frame".to_owned(),
        Err(PinRefused::Saturated) => "full".to_owned(),
        Err(PinRefused::Forked) => "forked".to_owned(),
    }
}

fn unpinned(result: Result<Word, NotPinned>) -> String {
    match result {
        Ok(word) => show(word) + if word.is_free_to_unmap() { "!" } else { "" },
        Err(NotPinned::NoPins) => "none".to_owned(),
        Err(NotPinned::Forked) => "forked".to_owned(),
    }
}

fn mapped(result: Result<Word, NotMappable>) -> String {
    match result {
        Ok(word) => show(word),
        Err(NotMappable::NotAbsent(_)) => "no".to_owned(),
        Err(NotMappable::Saturated) => "full".to_owned(),
    }
}

fn unmapped(result: Result<Word, NotUnmappable>) -> String {
    match result {
        Ok(word) => show(word),
        Err(NotUnmappable::Pinned) => "pinned".to_owned(),
        Err(NotUnmappable::Leaving) => "leaving".to_owned(),
        Err(NotUnmappable::NotRevoked) => "kept".to_owned(),
    }
}

#[test]
fn the_whole_table() {
    let words = [
        0,
        WRITTEN,
        MAPPED,
        MAPPED | WRITTEN,
        MAPPED | 2,
        MAPPED | WRITTEN | MAX,
        MAPPED | REVOKE,
        MAPPED | REVOKE | WRITTEN,
        MAPPED | REVOKE | 1,
        MAPPED | REVOKE | MAX,
        UNMAPPING,
        UNMAPPING | WRITTEN,
        Word::FORKED.raw(),
    ];
    let two = Waiting { readers: 1, writers: 1 };
    let mut table = String::from(
        "word     state                  pin r    pin w    pin 2    unpin    map 0    map 2    revoked  unmap    copy     collect\n",
    );
    for word in words.map(Word::from_raw) {
        let state = word.state().map_or_else(|| "impossible".to_owned(), |state| format!("{state:?}"));
        let cells = [
            pinned(word.pin(Access::Read)),
            pinned(word.pin(Access::Write)),
            pinned(word.pin_all(two)),
            unpinned(word.unpin()),
            mapped(word.map(Waiting::default())),
            mapped(word.map(two)),
            unmapped(word.unmap_revoked()),
            unmapped(word.unmap()),
            word.begin_write_back().map_or_else(|| "no".to_owned(), show),
            word.collect().map_or_else(|| "no".to_owned(), show),
        ];
        let state = state.replace("pins: 16777215", "pins: max");
        let row =
            cells.iter().fold(format!("{:8} {state:22}", show(word)), |row, cell| format!("{row} {cell:8}"));
        table += row.trim_end();
        table.push('\n');
    }
    assert_eq!(table, TABLE, "\n{table}");
}

const TABLE: &str = "\
word     state                  pin r    pin w    pin 2    unpin    map 0    map 2    revoked  unmap    copy     collect
0        Absent                 frame    frame    frame    none     0M       2wM      leaving  leaving  no       0
0w       Absent                 frame    frame    frame    none     0wM      2wM      leaving  leaving  no       0
0M       Resident { pins: 0 }   1M       1wM      2wM      none     no       no       kept     0U       0M       no
0wM      Resident { pins: 0 }   1wM      1wM      2wM      none     no       no       kept     0wU      0M       no
2M       Resident { pins: 2 }   3M       3wM      4wM      1M       no       no       kept     pinned   no       no
maxwM    Resident { pins: max } full     full     full     max-1wM  no       no       kept     pinned   no       no
0MR      Revoking { pins: 0 }   frame    frame    frame    none     no       no       0U       0U       no       no
0wMR     Revoking { pins: 0 }   frame    frame    frame    none     no       no       0wU      0wU      no       no
1MR      Revoking { pins: 1 }   2MR      2wMR     3wMR     0MR!     no       no       pinned   pinned   no       no
maxMR    Revoking { pins: max } full     full     full     max-1MR  no       no       pinned   pinned   no       no
0U       Unmapping              frame    frame    frame    none     no       no       leaving  leaving  no       no
0wU      Unmapping              frame    frame    frame    none     no       no       leaving  leaving  no       no
0F       impossible             forked   forked   forked   forked   no       no       leaving  leaving  no       no
";

#[test]
fn invalid_words_have_no_state() {
    let impossible = [
        1,
        MAX,
        REVOKE,
        REVOKE | 1,
        UNMAPPING | 1,
        UNMAPPING | MAPPED,
        UNMAPPING | REVOKE,
        1 << 28,
        MAPPED | 1 << 40,
        u64::MAX,
        Word::FORKED.raw(),
    ];
    for word in impossible.map(Word::from_raw) {
        assert_eq!(word.state(), None, "{word:?}");
    }
}

#[test]
fn calls_beyond_the_counter_are_refused_unchanged() {
    let over = [
        Waiting { readers: Word::PINS_MAX, writers: 1 },
        Waiting { readers: u32::MAX, writers: u32::MAX },
        Waiting { readers: 0, writers: Word::PINS_MAX + 1 },
    ];
    for calls in over {
        assert_eq!(Word::from_raw(0).map(calls), Err(NotMappable::Saturated));
        assert_eq!(Word::from_raw(MAPPED).pin_all(calls), Err(PinRefused::Saturated));
    }
    let all = Waiting { readers: Word::PINS_MAX - 1, writers: 1 };
    assert_eq!(Word::from_raw(0).map(all), Ok(Word::from_raw(MAPPED | WRITTEN | MAX)));
}

#[test]
fn word_prints_its_bits_and_its_unknown_bits() {
    assert_eq!(format!("{:?}", Word::from_raw(MAPPED | REVOKE | 3)), "3 pins MAPPED REVOKE");
    assert_eq!(format!("{:?}", Word::from_raw(WRITTEN | 1 << 40)), "0 pins WRITTEN and 0x10000000000");
}
