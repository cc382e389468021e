//! Keys go in, cells come out; the figures on them are those of the timeline.

use std::path::Path;

use highwater::history::read;
use highwater::history::timeline::{Sums, Timeline};
use highwater::history::why::{Options, explain, size, stream_name};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::draw::draw;
use super::state::{Column, State};
use crate::view::{Opened, open};

fn data(name: &str) -> Opened {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../allocator/history/tests/data");
    open(&folder.join(format!("{name}.pickle.xz")), None).unwrap()
}

fn timeline(name: &str) -> Timeline {
    let opened = data(name);
    Timeline::of(&opened.loaded, opened.verdicts[0].device)
}

fn drawn(state: &mut State, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    state.resize(width);
    terminal.draw(|frame| draw(state, frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..buffer.area.height).map(row).collect::<Vec<_>>().join("\n")
}

fn press(state: &mut State, keys: &str) {
    keys.chars().for_each(|key| state.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE)));
}

#[test]
fn it_opens_at_the_verdict_with_its_figures() {
    let mut state = State::new(data("oom_leak"));
    let screen = text(&drawn(&mut state, 120, 40));
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines[0].ends_with("oom_leak.pickle.xz: device 0"), "{screen}");
    assert!(lines[1].starts_with("F1 a leak: live memory grows with each iteration  (sufficient, explains 1.51 GiB)"));
    assert!(lines[2].contains("out of memory at event 4519: 8.00 MiB were asked for, 4.00 MiB were missing"));
    let timeline = timeline("oom_leak");
    let sums = timeline.sums(|_| true)[4519];
    assert!(screen.contains(&format!("Moment 4519: held {}", size(sums.live_bytes))), "{screen}");
    let first = timeline.held(4519, |_| true)[0];
    let line =
        format!("{:>12} {:>6}  /home/user/projects/a/train_m.py:124 in oom_leak", size(first.bytes), first.blocks);
    assert!(screen.contains(&line), "{line}\n{screen}");
    assert!(screen.contains("events 0 to 5297") && screen.contains('▼') && screen.contains("q leave"), "{screen}");
}

/// Lines of the list stay lines, and end with the function.
#[test]
fn a_narrow_terminal_shows_the_ends_of_lines_and_a_low_one_the_beginning_of_all() {
    let mut state = State::new(data("oom_leak"));
    let screen = text(&drawn(&mut state, 80, 30));
    assert!(
        screen.lines().any(|line| line.contains("385  …") && line.ends_with("rain_m.py:124 in oom_leak")),
        "{screen}"
    );
    let screen = text(&drawn(&mut state, 80, 12));
    assert!(screen.contains("F1 a leak") && screen.contains('▼') && screen.contains("Moment 4519"), "{screen}");
    for (width, height) in [(20, 5), (1, 1), (300, 3), (12, 80)] {
        drawn(&mut state, width, height);
    }
}

#[test]
fn each_column_shows_the_fullest_moment_of_its_span() {
    let mut state = State::new(data("oom_leak"));
    let sums = timeline("oom_leak").sums(|_| true);
    state.resize(91);
    for keys in ["", "++", "+++++++++"] {
        press(&mut state, keys);
        let (first, last) = state.window();
        let columns = state.columns(80);
        assert_eq!(columns.iter().filter(|column| column.cursor).count().min(1), 1);
        let all = columns.iter().map(|column| column.sums.used_bytes()).max();
        let expected = sums[first as usize..=last as usize].iter().map(Sums::used_bytes).max();
        assert_eq!(all, expected, "nothing is passed over");
        assert!(columns.iter().all(|column| column.sums == sums[column.moment as usize]));
        assert!(columns.iter().any(|column| column.refused), "the failure is marked in {first} to {last}");
    }
}

#[test]
fn cells_are_as_high_as_their_bytes() {
    let mut state = State::new(data("oom_cross_stream"));
    let buffer = drawn(&mut state, 111, 60);
    // The column of the verdict: 3 GiB wait, and nothing else is there.
    let mark = (0..111).flat_map(|x| (0..60).map(move |y| (x, y))).find(|&at| buffer[at].symbol() == "▼").unwrap();
    let below = (mark.1 + 1..60).map(|y| buffer[(mark.0, y)].symbol()).take_while(|&sign| sign != "─");
    let signs: Vec<&str> = below.collect();
    assert!(signs.len() > 10 && signs.iter().all(|&sign| sign == "▒"), "{signs:?}");
    // Where a part of it waits, and the rest is cached.
    let columns = state.columns(100);
    let mixed = |c: &Column| c.sums.pending_bytes > 0 && c.sums.cached_bytes > 0 && c.sums.live_bytes == 0;
    let (index, column) = columns.iter().enumerate().find(|(_, column)| mixed(column)).unwrap();
    let count = |sign| (mark.1..60).filter(|&y| buffer[(11 + index as u16, y)].symbol() == sign).count() as f64;
    for (sign, bytes) in [("▒", column.sums.pending_bytes), ("·", column.sums.cached_bytes)] {
        let rows = signs.len() as f64 * bytes as f64 / state.most() as f64;
        assert!((count(sign) - rows).abs() <= 1.0, "{sign} {rows}");
    }
}

#[test]
fn keys_move_the_cursor_and_the_window_follows() {
    let mut state = State::new(data("oom_leak"));
    state.resize(91);
    press(&mut state, ",");
    assert_eq!(state.cursor(), 4518);
    press(&mut state, "..");
    assert_eq!(state.cursor(), 4520);
    state.key(KeyEvent::new(KeyCode::Right, KeyModifiers::NONE));
    assert_eq!(state.cursor(), 4520 + 5298 / 80);
    state.key(KeyEvent::new(KeyCode::Left, KeyModifiers::SHIFT));
    assert_eq!(state.cursor(), 4520 + 66 - 8 * 66);
    press(&mut state, "e.");
    assert_eq!(state.cursor(), 5297, "there is nothing behind the end");
    press(&mut state, "v++++++");
    let (first, last) = state.window();
    assert!(first < 4519 && 4519 < last && last - first < 100, "{first} {last}");
    state.key(KeyEvent::new(KeyCode::Home, KeyModifiers::NONE));
    assert_eq!((state.cursor(), state.window().0), (0, 0));
    press(&mut state, ",o");
    assert_eq!(state.cursor(), 4519, "the request that was refused");
    let (first, last) = state.window();
    assert!((first..=last).contains(&4519));
    press(&mut state, "0p");
    let sums = timeline("oom_leak").sums(|_| true);
    let most = sums.iter().map(Sums::used_bytes).max().unwrap();
    assert_eq!((sums[state.cursor() as usize].used_bytes(), state.window()), (most, (0, 5297)));
}

#[test]
fn any_keys_keep_the_cursor_in_the_window_and_the_window_in_the_trace() {
    const KEYS: &[u8] = b"hl,.+-0epvoj";
    let mut state = State::new(data("oom_leak"));
    let mut random = 1_u64;
    for round in 0..4000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        press(&mut state, std::str::from_utf8(&[KEYS[(random >> 33) as usize % KEYS.len()]]).unwrap());
        let (first, last) = state.window();
        assert!(first < last && last <= 5297 && (first..=last).contains(&state.cursor()), "{round}: {first} {last}");
    }
}

#[test]
fn tab_goes_through_the_streams() {
    let mut state = State::new(data("prefetch_record_stream"));
    let timeline = timeline("prefetch_record_stream");
    let device = &data("prefetch_record_stream").loaded.devices[0];
    let whole = state.sums();
    let names: Vec<String> = state.streams.iter().map(|stream| stream.name.clone()).collect();
    assert_eq!(names.len(), 2);
    let each = state.stream_sums();
    for (index, name) in names.iter().enumerate() {
        state.key(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE));
        assert_eq!((state.chosen(), state.shown()), (Some(index), &**name));
        assert_eq!(state.sums(), each[index], "the pane and the chart agree");
        let screen = text(&drawn(&mut state, 100, 36));
        assert!(screen.contains(&format!(" {name} █ held")), "{screen}");
        let own: Vec<bool> = timeline.lanes().iter().map(|lane| stream_name(device, lane.stream) == *name).collect();
        assert_eq!(state.sums(), timeline.sums(|lane| own[lane])[state.cursor() as usize]);
    }
    assert_eq!(each.iter().map(Sums::reserved_bytes).sum::<u64>(), whole.reserved_bytes());
    state.key(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE));
    assert_eq!((state.chosen(), state.sums()), (None, whole));
    state.key(KeyEvent::new(KeyCode::BackTab, KeyModifiers::SHIFT));
    assert_eq!(state.chosen(), Some(1));
}

#[test]
fn q_and_its_like_leave_and_other_keys_do_not() {
    for (code, modifiers, leaves) in [
        (KeyCode::Char('q'), KeyModifiers::NONE, true),
        (KeyCode::Esc, KeyModifiers::NONE, true),
        (KeyCode::Char('c'), KeyModifiers::CONTROL, true),
        (KeyCode::Char('c'), KeyModifiers::NONE, false),
        (KeyCode::Char('x'), KeyModifiers::NONE, false),
    ] {
        let mut state = State::new(data("oom_cross_stream"));
        state.key(KeyEvent::new(code, modifiers));
        assert_eq!(state.is_over(), leaves, "{code:?}");
    }
}

#[test]
fn the_list_scrolls_and_help_lists_the_keys() {
    let mut state = State::new(data("prefetch_record_stream"));
    let held = state.held();
    press(&mut state, "jj");
    let screen = text(&drawn(&mut state, 120, 40));
    let line = |index: usize| {
        format!("{:>12} {:>6}  {}", size(held[index].bytes), held[index].blocks, state.site(&held[index]))
    };
    assert!(!screen.contains(&line(0)) && screen.contains(&line(2)), "{screen}");
    press(&mut state, "kkk?");
    let screen = text(&drawn(&mut state, 120, 40));
    assert!(screen.contains("next refused request"), "{screen}");
}

#[test]
fn any_size_is_drawn() {
    let mut state = State::new(data("oom_leak"));
    for (width, height) in [(1, 1), (5, 40), (12, 3), (40, 10), (300, 5), (200, 80)] {
        drawn(&mut state, width, height);
    }
}

/// Segments alone: one moment, no events.
#[test]
fn a_snapshot_without_events_is_shown() {
    let mut snapshot = highwater::history::Snapshot::new();
    let mapped =
        highwater::history::MappedRange { address: 0x20_0000, bytes: 2 << 20, stream: 1, stack: Default::default() };
    snapshot.device_mut(0).segments = highwater::history::Segment::runs(vec![mapped], vec![]).unwrap();
    let mut file = Vec::new();
    snapshot.write_to(&mut file).unwrap();
    let loaded = read::read(&file, &read::Options::default()).unwrap();
    let verdicts = explain(&loaded, &Options::default());
    let mut state = State::new(Opened { place: "x".to_owned(), loaded, verdicts });
    press(&mut state, "hl,.+-0epvoj");
    let screen = text(&drawn(&mut state, 100, 30));
    assert!(screen.contains("Moment 0: cached 2.00 MiB") && screen.contains("the trace begins"), "{screen}");
}
