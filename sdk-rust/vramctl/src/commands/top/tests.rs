//! The view without a terminal and without a daemon: frames, keys, and any size.
//!
//! Frames are compared with the files in `frames/`. `VRAMD_WRITE_FRAMES=1 cargo test -p vramctl top` writes them anew.

use std::{env, fs, path::Path, time::Duration};

use prost_types::Timestamp;
use ratatui::{Terminal, backend::TestBackend, buffer::Buffer, crossterm::event::KeyCode, layout::Rect};
use vramd_client::admin::Moves;
use vramd_proto::v1::{self, wait::What};

use super::{
    grid::Glyphs,
    render::{draw, page, render},
    snapshot::Snapshot,
    view::{Connection, Message, Mode, Request, Tab, View},
};
use crate::output::device_names::DeviceNames;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// The time of every frame, after the epoch.
const NOW: u64 = 1_800_000_000;

fn ago(seconds: u64) -> Option<Timestamp> {
    Some(Timestamp { seconds: i64::try_from(NOW - seconds).unwrap(), nanos: 0 })
}

fn uuid(index: u32) -> String {
    format!("GPU-{index}7f4a1c2-93be-4d21-a0c5-6f1e2d3c4b5a")
}

/// A node of two devices in the middle of a working day.
fn snapshot() -> Snapshot {
    let device = |index: u32, held: u64, pressure: v1::PressureLevel| v1::DeviceStatus {
        device: Some(v1::Device {
            uuid: uuid(index),
            index,
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            ..Default::default()
        }),
        total_bytes: 80 * GIB,
        capacity_bytes: 78 * GIB,
        held_bytes: held,
        host_capacity_bytes: 64 * GIB,
        host_held_bytes: 20 * GIB,
        disk_capacity_bytes: if index == 0 { 500 * GIB } else { 0 },
        disk_held_bytes: if index == 0 { 5 * GIB } else { 0 },
        moving_out_bytes: if index == 0 { 512 * MIB } else { 0 },
        awaited_part_count: if index == 0 { 3 } else { 0 },
        pressure: pressure.into(),
        host_pressure: v1::PressureLevel::Normal.into(),
        disk_pressure: if index == 0 { v1::PressureLevel::Normal } else { v1::PressureLevel::Unspecified }
            .into(),
        ..Default::default()
    };
    let quota = |tenant: &str, index: u32, tier: v1::Tier, held: u64, guarantee: u64, limit: u64| v1::Quota {
        tenant: tenant.to_owned(),
        device: uuid(index),
        tier: tier.into(),
        held_bytes: held,
        guarantee_bytes: guarantee,
        limit_bytes: limit,
        ..Default::default()
    };
    let tenant = |name: &str, class: v1::TenantClass, session_count| v1::Tenant {
        name: name.to_owned(),
        class: class.into(),
        session_count,
        ..Default::default()
    };
    let allocation = |id: u64, tenant: &str, name: &str, resident: u64, host: u64| v1::Allocation {
        allocation_id: (1 << 40) + id,
        tenant: tenant.to_owned(),
        name: if name.is_empty() { String::new() } else { format!("{tenant}/{name}") },
        device: uuid(0),
        state: v1::AllocationState::Sealed.into(),
        size_bytes: resident + host,
        charged_bytes: resident + host,
        resident_bytes: resident,
        host_bytes: host,
        mapper_count: 2,
        ..Default::default()
    };
    Snapshot {
        node: v1::GetNodeResponse {
            version: "0.1.0".to_owned(),
            driver: "cuda".to_owned(),
            boot_epoch: 3,
            session_count: 9,
            allocation_count: 3,
            ..Default::default()
        },
        devices: vec![
            device(0, 77 * GIB, v1::PressureLevel::Critical),
            device(1, 10 * GIB, v1::PressureLevel::Normal),
        ],
        quotas: vec![
            quota("chat", 0, v1::Tier::Device, 40 * GIB, 40 * GIB, 60 * GIB),
            quota("chat", 1, v1::Tier::Device, 10 * GIB, 20 * GIB, 60 * GIB),
            quota("chat", 0, v1::Tier::Host, 12 * GIB, 0, 32 * GIB),
            quota("nightly-training", 0, v1::Tier::Device, 37 * GIB, 0, 38 * GIB),
            quota("nightly-training", 0, v1::Tier::Host, 8 * GIB, 0, 32 * GIB),
            quota("nightly-training", 0, v1::Tier::Disk, 5 * GIB, 0, 500 * GIB),
            v1::Quota { device: "*".to_owned(), ..quota("idle", 0, v1::Tier::Device, 0, 0, 0) },
        ],
        tenants: vec![
            tenant("chat", v1::TenantClass::Interactive, 7),
            tenant("idle", v1::TenantClass::Initiated, 0),
            tenant("nightly-training", v1::TenantClass::Background, 2),
        ],
        moves: Moves {
            moving: vec![
                v1::Move {
                    part: Some(v1::PartRef { allocation_id: (1 << 40) + 2, part_index: 3 }),
                    tenant: "nightly-training".to_owned(),
                    device: uuid(0),
                    tier: v1::Tier::Host.into(),
                    from_tier: v1::Tier::Device.into(),
                    bytes: 512 * MIB,
                    copied_bytes: Some(200 * MIB),
                    cause: v1::MoveCause::Demand.into(),
                    state: v1::MoveState::Copying.into(),
                    began_at: ago(1),
                },
                v1::Move {
                    part: Some(v1::PartRef { allocation_id: (1 << 40) + 2, part_index: 4 }),
                    tenant: "nightly-training".to_owned(),
                    device: uuid(0),
                    tier: v1::Tier::Host.into(),
                    from_tier: v1::Tier::Device.into(),
                    bytes: 512 * MIB,
                    cause: v1::MoveCause::Pressure.into(),
                    state: v1::MoveState::Preparing.into(),
                    began_at: ago(0),
                    ..Default::default()
                },
            ],
            ended: vec![v1::EndedMove {
                part: Some(v1::PartRef { allocation_id: (1 << 40) + 2, part_index: 2 }),
                tenant: "nightly-training".to_owned(),
                device: uuid(0),
                tier: v1::Tier::Host.into(),
                from_tier: v1::Tier::Device.into(),
                bytes: 512 * MIB,
                cause: v1::MoveCause::Demand.into(),
                outcome: v1::move_event::Change::Failed.into(),
                detail: "the driver reports: unspecified launch failure".to_owned(),
                began_at: ago(4),
                duration_us: 41_300,
            }],
        },
        waits: vec![
            v1::Wait {
                wait_id: 17,
                tenant: "chat".to_owned(),
                device: uuid(0),
                bytes: 512 * MIB,
                began_at: ago(3),
                until: Some(Timestamp { seconds: i64::try_from(NOW + 27).unwrap(), nanos: 0 }),
                what: Some(What::Part(v1::PartWait {
                    part: Some(v1::PartRef { allocation_id: (1 << 40) + 1, part_index: 0 }),
                    session_ids: vec![7],
                })),
                request: 5,
                reason: Some(v1::WaitReason {
                    cause: v1::WaitCause::InUse.into(),
                    bound_bytes: 78 * GIB,
                    held_bytes: 77 * GIB,
                    session_ids: vec![(1 << 40) + 8, (1 << 40) + 9],
                    operator_held_bytes: 2 * GIB,
                    ..Default::default()
                }),
                ..Default::default()
            },
            v1::Wait {
                wait_id: 18,
                tenant: "nightly-training".to_owned(),
                device: uuid(0),
                bytes: GIB,
                began_at: ago(2),
                what: Some(What::Batch(v1::BatchWait { session_id: 9, item_count: 4 })),
                request: 6,
                reason: Some(v1::WaitReason { cause: v1::WaitCause::Turn.into(), ..Default::default() }),
                requests_ahead: 1,
                wait_id_ahead: 17,
                ..Default::default()
            },
        ],
        prefetches: vec![v1::PrefetchEntry {
            session_id: (1 << 40) + 9,
            prefetch_id: vramd_types::PrefetchNumber::OWN + 4,
            tenant: "nightly-training".to_owned(),
            device: uuid(0),
            part_count: 8,
            bytes: 4 * GIB,
            parts_missing: 6,
            began_at: ago(5),
            phase: v1::PrefetchPhase::Queued.into(),
            deferred: v1::PrefetchDeferral::Pressure.into(),
            ..Default::default()
        }],
        allocations: vec![
            allocation(1, "chat", "llama-3-70b", 30 * GIB, 12 * GIB),
            allocation(2, "nightly-training", "optimizer", 37 * GIB, 0),
            allocation(3, "chat", "", 10 * GIB, 0),
        ],
        sessions: vec![v1::Session {
            session_id: (1 << 40) + 9,
            tenant: "nightly-training".to_owned(),
            state: v1::SessionState::Silent.into(),
            pid: 4242,
            uid: 1000,
            client_name: "train\u{1b}[2J\u{202e}er 変換".to_owned(),
            allocation_count: 1,
            mapped_bytes: 37 * GIB,
            opened_at: ago(7300),
            silent_reason: "its process does not answer".to_owned(),
            ..Default::default()
        }],
        links: v1::ListLinksResponse {
            links: [v1::LinkWay::ToDevice, v1::LinkWay::FromDevice]
                .map(|way| v1::Link {
                    name: "device 0".to_owned(),
                    lanes: vec![v1::link::Lane {
                        way: way.into(),
                        device: uuid(0),
                        bytes_per_second: 55_000_000_000,
                    }],
                })
                .into(),
            traffic: [v1::LinkWay::ToDevice, v1::LinkWay::FromDevice]
                .map(|way| v1::LaneTraffic { way: way.into(), device: uuid(0), ..Default::default() })
                .into(),
        },
    }
}

fn view() -> View {
    let snapshot = snapshot();
    let names = DeviceNames::short(&snapshot.devices, []);
    View::new(snapshot, names, Duration::from_secs(NOW))
}

fn press(view: &mut View, keys: &str) -> Option<Request> {
    let mut asked = None;
    for key in keys.chars() {
        asked = view.update(match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            '↓' => KeyCode::Down,
            '↑' => KeyCode::Up,
            letter => KeyCode::Char(letter),
        });
    }
    asked
}

/// The lines of a frame, without the blanks at their ends.
fn frame(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| render(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let line =
        |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    (0..height).map(line).collect()
}

/// Compares with a file of `frames/`, or writes it.
#[track_caller]
fn assert_frame(name: &str, text: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/top/frames").join(format!("{name}.txt"));
    if env::var_os("VRAMD_WRITE_FRAMES").is_some_and(|write| write == "1") {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text, expected, "the frame differs from {}:\n{text}", path.display());
}

#[test]
fn the_overview_looks_as_committed_at_three_widths() {
    let view = view();
    assert_frame("overview-120x40", &frame(&view, 120, 40));
    assert_frame("overview-80x24", &frame(&view, 80, 24));
    assert_frame("overview-40x24", &frame(&view, 40, 24));
}

#[test]
fn each_tab_looks_as_committed() {
    let mut view = view();
    // Rates need two counts.
    let mut later = snapshot();
    later.links.traffic[0].demand_bytes += 60_000_000_000;
    later.links.traffic[1].prefetch_bytes += 1_000_000_000;
    let names = DeviceNames::short(&later.devices, []);
    view.accept(later, names, view.now + Duration::from_secs(2));
    for tab in Tab::ALL {
        view.tab = tab;
        assert_frame(&format!("{}-80x16", tab.title().to_lowercase()), &frame(&view, 80, 16));
    }
}

#[test]
fn a_frame_for_scripts_looks_as_committed() {
    let view = view();
    for width in [120, 80, 40] {
        let text = page(&view, width) + "\n";
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
        assert_frame(&format!("once-{width}"), &text);
    }
}

#[test]
fn dialogs_and_problems_look_as_committed() {
    let mut view = view();
    press(&mut view, "?");
    assert_frame("help-80x24", &frame(&view, 80, 24));
    assert_frame("help-40x24", &frame(&view, 40, 24));
    press(&mut view, "x3e");
    assert_frame("confirm-80x16", &frame(&view, 80, 16));
    press(&mut view, "n");
    view.lose("BROKER_GONE: the daemon cannot be reached: /run/vramd/admin.sock".to_owned(), view.now);
    view.now += Duration::from_secs(7);
    assert_frame("lost-80x16", &frame(&view, 80, 16));
}

#[test]
fn no_size_of_a_terminal_breaks_the_view() {
    let mut view = view();
    view.glyphs = Glyphs::BLOCKS;
    view.filter = "a".to_owned();
    for tab in Tab::ALL {
        view.tab = tab;
        for mode in [Mode::Browse, Mode::Help, Mode::Filter { before: String::new() }] {
            view.mode = mode;
            for width in (0..=20).chain([40, 79, 80, 200]) {
                for height in [0, 1, 2, 3, 5, 8, 24, 60] {
                    let area = Rect::new(0, 0, width, height);
                    draw(&view, area, &mut Buffer::empty(area));
                }
            }
        }
    }
    press(&mut view, "\u{1b}");
    view.tab = Tab::Allocations;
    press(&mut view, "e");
    assert!(matches!(view.mode, Mode::Confirm(_)));
    for width in 0..=24 {
        let area = Rect::new(0, 0, width, 12);
        draw(&view, area, &mut Buffer::empty(area));
    }
}

#[test]
fn text_of_clients_cannot_leave_its_cell() {
    let mut view = view();
    view.tab = Tab::Sessions;
    let text = frame(&view, 120, 16);
    assert!(text.contains("train\u{fffd}[2J\u{fffd}er"), "{text}");
    assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
}

#[test]
fn tabs_that_show_more_ask_for_it_at_once() {
    let mut view = view();
    assert_eq!(view.wants(), super::snapshot::Wants::default(), "the overview needs no list of allocations");
    assert_eq!(press(&mut view, "3"), Some(Request::Refresh));
    assert!(view.wants().allocations && !view.wants().sessions);
    assert_eq!(press(&mut view, "\t"), None, "moves are always there");
    assert_eq!((view.tab, press(&mut view, "7")), (Tab::Moves, Some(Request::Refresh)));
    view.update(KeyCode::BackTab);
    assert_eq!(view.tab, Tab::Prefetches);
    assert_eq!(press(&mut view, "1"), None);
    view.update(KeyCode::BackTab);
    assert_eq!(view.tab, Tab::Links, "before the first comes the last");
    assert_eq!(press(&mut view, "q"), Some(Request::Quit));
}

/// The first cell of each row, in the order of the screen.
fn first_cells(view: &View) -> Vec<String> {
    let text = frame(view, 120, 60);
    let rows = text.lines().skip_while(|line| !line.starts_with("TENANT"));
    let rows = rows.skip(1).take_while(|line| !line.starts_with("MOVES"));
    rows.map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn rows_sort_by_each_column_both_ways() {
    let mut view = view();
    assert_eq!(first_cells(&view), ["chat", "nightly-training", "idle"], "the largest charge first");
    press(&mut view, "S");
    assert_eq!(first_cells(&view), ["idle", "nightly-training", "chat"]);
    press(&mut view, "Ssss");
    assert_eq!(view.sort().map(|sort| sort.column), Some(6), "the fullest");
    press(&mut view, "S");
    assert_eq!(first_cells(&view)[0], "nightly-training", "97% of its limit");
    press(&mut view, "ssssss");
    assert_eq!(view.sort(), None, "after the last column as the daemon lists");
    press(&mut view, "s");
    assert_eq!(first_cells(&view), ["chat", "idle", "nightly-training"]);
}

#[test]
fn a_filter_keeps_rows_until_it_is_cleared() {
    let mut view = view();
    press(&mut view, "/NIGHTX");
    assert_eq!(view.filter, "NIGHTX", "letters of the filter are no commands");
    press(&mut view, "\u{8}\n");
    assert_eq!(first_cells(&view), ["nightly-training"]);
    let text = frame(&view, 80, 24);
    assert!(text.contains("filter `NIGHT`") && !text.contains("interactive"), "{text}");
    press(&mut view, "/zz\u{1b}");
    assert_eq!(view.filter, "NIGHT", "escape brings the filter before back");
    press(&mut view, "\u{1b}");
    assert_eq!(first_cells(&view).len(), 3);
}

#[test]
fn enter_shows_the_allocations_of_the_selected_tenant() {
    let mut view = view();
    assert_eq!(press(&mut view, "↓\n"), Some(Request::Refresh));
    let text = frame(&view, 120, 24);
    assert!(text.contains("nightly-training/optimizer") && !text.contains("chat/llama"), "{text}");
    assert!(text.contains("tenant nightly-training"), "{text}");
    press(&mut view, "\u{1b}");
    assert!(frame(&view, 120, 24).contains("chat/llama"));
}

#[test]
fn an_action_happens_only_after_a_yes() {
    let mut view = view();
    press(&mut view, "e");
    assert!(matches!(&view.message, Some(Message::Failed(text)) if text.contains("select an allocation")));
    press(&mut view, "3e");
    let text = frame(&view, 80, 24);
    assert!(text.contains("Evict all parts of a-1099511627778 (nightly-training/optimizer) to"), "{text}");
    assert_eq!(press(&mut view, "\nx "), None, "no other key confirms");
    assert!(matches!(view.mode, Mode::Confirm(_)));
    assert_eq!(press(&mut view, "n"), None);
    assert_eq!(view.message, Some(Message::Done("nothing was done".to_owned())));

    press(&mut view, "h");
    let asked = press(&mut view, "y");
    assert!(matches!(&asked, Some(Request::Act(action)) if action.question().starts_with("Hold all")));
    press(&mut view, "u");
    assert_eq!(view.mode, Mode::Browse, "one action at a time");
    assert!(matches!(&view.message, Some(Message::Failed(text)) if text.contains("has not answered yet")));
    view.answer(Message::Failed("ALLOCATION_NOT_FOUND: it is gone".to_owned()));
    assert!(frame(&view, 80, 24).ends_with("ALLOCATION_NOT_FOUND: it is gone\n"));
}

#[test]
fn a_question_keeps_its_target_while_rows_change() {
    let mut view = view();
    press(&mut view, "3e");
    let mut changed = snapshot();
    changed.allocations.remove(1);
    let names = DeviceNames::short(&changed.devices, []);
    view.accept(changed, names, view.now + Duration::from_secs(2));
    let asked = press(&mut view, "y");
    assert!(matches!(&asked, Some(Request::Act(action)) if action.question().contains("a-1099511627778")));
}

#[test]
fn the_selection_follows_its_row() {
    let mut view = view();
    press(&mut view, "↓");
    let of_selected = |view: &View| {
        let grid = view.grid();
        grid.rows[view.selected(&grid).unwrap()].id.clone()
    };
    let before = of_selected(&view);
    press(&mut view, "S");
    assert_eq!(of_selected(&view), before, "another order");
    let mut smaller = snapshot();
    smaller.tenants.retain(|tenant| tenant.name == "idle");
    smaller.quotas.clear();
    smaller.waits.clear();
    smaller.moves.moving.clear();
    let names = DeviceNames::short(&smaller.devices, []);
    view.accept(smaller, names, view.now);
    assert_ne!(of_selected(&view), before, "its row is gone, and another is selected");
    view.update(KeyCode::End);
    view.update(KeyCode::PageUp);
    press(&mut view, "↑");
    assert_eq!(view.selected(&view.grid()), Some(0));
}

#[test]
fn a_long_table_shows_the_page_of_the_selected_row() {
    let mut snapshot = snapshot();
    let tenant = |number: u32| v1::Tenant { name: format!("tenant-{number:03}"), ..Default::default() };
    snapshot.tenants = (0..200).map(tenant).collect();
    (snapshot.quotas, snapshot.waits) = (Vec::new(), Vec::new());
    snapshot.moves.moving.clear();
    let names = DeviceNames::short(&snapshot.devices, []);
    let mut view = View::new(snapshot, names, Duration::from_secs(NOW));
    assert!(frame(&view, 80, 24).contains("of 200"));
    for _ in 0..7 {
        view.update(KeyCode::PageDown);
    }
    let text = frame(&view, 80, 24);
    assert!(text.contains("tenant-070") && !text.contains("tenant-000"), "{text}");
    view.update(KeyCode::End);
    assert!(frame(&view, 80, 24).contains("tenant-199"));
}

#[test]
fn old_figures_are_marked_until_the_daemon_answers() {
    let mut view = view();
    view.now += Duration::from_secs(30);
    assert!(frame(&view, 80, 24).contains("NO ANSWER: these figures are 30 s old"));
    press(&mut view, "p");
    assert!(!frame(&view, 80, 24).contains("NO ANSWER"), "they are meant to be old");
    assert_eq!(press(&mut view, "p"), Some(Request::Refresh));
    view.lose("BROKER_GONE: gone".to_owned(), view.now);
    let since = view.now;
    view.lose("BROKER_GONE: still gone".to_owned(), since + Duration::from_secs(5));
    assert!(frame(&view, 80, 24).contains("NO DAEMON for 5 s, trying again: BROKER_GONE: still gone"));
    let mut next = snapshot();
    next.node.boot_epoch += 1;
    let names = DeviceNames::short(&next.devices, []);
    view.accept(next, names, since + Duration::from_secs(9));
    assert_eq!(view.connection, Connection::Up);
    assert!(frame(&view, 80, 24).contains("a new daemon answers, after 9 s"));
}
