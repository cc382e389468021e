//! A snapshot as tables of a database.
//!
//! Numbers of 64 bits that do not fit SQLite's signed ones (addresses from 2^63 on) become negative. Columns called
//! `stack` are numbers of the table `stacks`.

use std::collections::BTreeSet;
use std::io::{self, Seek, Write};

use highwater::history::inspect::{Curves, frame_text, site_text};
use highwater::history::read::{Loaded, LoadedDevice, TextId};
use highwater::history::timeline::Timeline;
use highwater::history::{StackId, Stage};

use super::super::input::Opened;
use super::super::text;
use super::folded::folded;
use super::json;
use super::sqlite::{Cell, Database};

/// Writes the database.
pub(super) fn write(opened: &Opened, file: impl Write + Seek) -> io::Result<()> {
    // Pages are written whole, so a buffer would only copy them.
    let loaded = &opened.loaded;
    let mut database = Database::begin(file)?;
    facts(&mut database, opened)?;
    stacks(&mut database, loaded)?;
    devices(&mut database, loaded)?;
    segments(&mut database, loaded)?;
    events(&mut database, loaded)?;
    blocks(&mut database, loaded)?;
    recorded(&mut database, loaded)?;
    annotations(&mut database, loaded)?;
    views(&mut database);
    database.end()
}

fn numbered(loaded: &Loaded) -> impl Iterator<Item = (Cell<'static>, &LoadedDevice)> {
    loaded.devices.iter().enumerate().map(|(index, device)| (Cell::from(index), device))
}

fn stack(stack: StackId) -> Cell<'static> {
    if stack == StackId::EMPTY { Cell::Null } else { stack.index().into() }
}

fn facts<W: Write + Seek>(database: &mut Database<W>, opened: &Opened) -> io::Result<()> {
    let loaded = &opened.loaded;
    let mut table = database.table("facts", "name TEXT, value TEXT");
    let protocol = loaded.protocol.to_string();
    table.row(&["file".into(), (&*opened.place).into()])?;
    table.row(&["pickle protocol".into(), (&*protocol).into()])?;
    for note in text::notes(opened, 0) {
        table.row(&["note".into(), (&*note).into()])?;
    }
    if let Some(recorder) = &loaded.recorder {
        table.row(&["writer".into(), loaded.symbols.text(recorder.writer).into()])?;
    }
    table.end()?;
    let mut table = database.table("settings", "name TEXT, value TEXT");
    for (name, value) in &loaded.settings {
        let value = json::setting(loaded, value);
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        table.row(&[loaded.symbols.text(*name).into(), (&*value).into()])?;
    }
    table.end()
}

fn stacks<W: Write + Seek>(database: &mut Database<W>, loaded: &Loaded) -> io::Result<()> {
    let symbols = &loaded.symbols;
    let stacks: Vec<StackId> = json::stacks(loaded).into_iter().filter(|&stack| stack != StackId::EMPTY).collect();
    let mut table = database.table("stacks", "stack INTEGER PRIMARY KEY, site TEXT, folded TEXT");
    for &stack in &stacks {
        let lines: Vec<_> = symbols.stack(stack).map(|frame| frame_text(loaded, frame)).collect();
        let (site, folded) = (site_text(loaded, stack, 0), folded(lines.iter().rev().map(String::as_str)));
        table.numbered(stack.index() as i64, &[Cell::Null, (&*site).into(), (&*folded).into()])?;
    }
    table.end()?;
    let used: BTreeSet<_> = stacks.iter().flat_map(|&stack| symbols.stack(stack)).collect();
    let mut table = database.table("frames", "frame INTEGER PRIMARY KEY, name TEXT, filename TEXT, line INTEGER");
    for &frame in &used {
        let parts = symbols.frame(frame);
        let (name, filename) = (symbols.text(parts.name), symbols.text(parts.filename));
        let line = Cell::from(u64::from(parts.line));
        table.numbered(frame.index() as i64, &[Cell::Null, name.into(), filename.into(), line])?;
    }
    table.end()?;
    // 0 is the innermost frame.
    let mut table = database.table("stack_frames", "stack INTEGER, depth INTEGER, frame INTEGER");
    for &stack in &stacks {
        for (depth, frame) in symbols.stack(stack).enumerate() {
            table.row(&[stack.index().into(), depth.into(), frame.index().into()])?;
        }
    }
    table.end()
}

fn devices<W: Write + Seek>(database: &mut Database<W>, loaded: &Loaded) -> io::Result<()> {
    let columns = "device INTEGER PRIMARY KEY, name TEXT, events INTEGER, segments INTEGER, capacity_bytes INTEGER, \
                   other_bytes INTEGER, history_dropped INTEGER";
    let mut table = database.table("devices", columns);
    for (index, device) in loaded.devices.iter().enumerate() {
        let notes = device.notes.as_ref();
        table.numbered(
            index as i64,
            &[
                Cell::Null,
                notes.map(|notes| &*notes.name).into(),
                device.trace.len().into(),
                device.segments.len().into(),
                notes.and_then(|notes| notes.capacity_bytes).into(),
                notes.and_then(|notes| notes.other_bytes).into(),
                notes.map(|notes| notes.history_dropped).into(),
            ],
        )?;
    }
    table.end()
}

/// Segments at the end, and the blocks in them.
fn segments<W: Write + Seek>(database: &mut Database<W>, loaded: &Loaded) -> io::Result<()> {
    let columns = "segment INTEGER PRIMARY KEY, device INTEGER, address INTEGER, bytes INTEGER, stream INTEGER, kind TEXT, \
                   pool TEXT, expandable INTEGER, stack INTEGER";
    let mut table = database.table("segments", columns);
    for (index, device) in numbered(loaded) {
        for segment in &device.segments {
            let pool = format!("{},{}", segment.pool.0, segment.pool.1);
            let (address, bytes) = (segment.address.into(), segment.total_bytes.into());
            let kind = Cell::from(text::kind(segment.kind));
            let expandable = Cell::Int(segment.expandable.into());
            let stream = segment.stream.into();
            table.row(&[
                Cell::Null,
                index,
                address,
                bytes,
                stream,
                kind,
                (&*pool).into(),
                expandable,
                stack(segment.stack),
            ])?;
        }
    }
    table.end()?;
    let columns = "segment INTEGER, address INTEGER, bytes INTEGER, requested_bytes INTEGER, state TEXT, stack INTEGER";
    let mut table = database.table("blocks", columns);
    let mut number = 0_u64;
    for segment in loaded.devices.iter().flat_map(|device| &device.segments) {
        number += 1;
        for block in &segment.blocks {
            let (address, bytes, requested) = (block.address, block.bytes, block.requested_bytes);
            let state = json::state(block.state);
            table.row(&[
                number.into(),
                address.into(),
                bytes.into(),
                requested.into(),
                state.into(),
                stack(block.stack),
            ])?;
        }
    }
    table.end()
}

/// Events, each with the sums after it.
fn events<W: Write + Seek>(database: &mut Database<W>, loaded: &Loaded) -> io::Result<()> {
    let columns = "device INTEGER, event INTEGER, action TEXT, address INTEGER, bytes INTEGER, stream INTEGER, \
                   time_us INTEGER, stack INTEGER, live_bytes INTEGER, pending_bytes INTEGER, reserved_bytes INTEGER, \
                   rounded_bytes INTEGER, device_free_bytes INTEGER, pool TEXT, span TEXT, compile_context TEXT, \
                   user_metadata TEXT, category TEXT";
    let mut table = database.table("events", columns);
    let said = |text: Option<TextId>| Cell::from(text.map(|text| loaded.symbols.text(text)));
    let paths = loaded.recorder.as_ref().map_or(&[][..], |recorder| &recorder.span_paths);
    for (index, device) in numbered(loaded) {
        let (trace, curves) = (&device.trace, Curves::of(device));
        for row in 0..trace.len() {
            let event = trace.event(row);
            let pool = trace.pool(row);
            let pool = (pool != (0, 0)).then(|| format!("{},{}", pool.0, pool.1));
            let span = paths.get(trace.span(row) as usize).copied().filter(|_| trace.span(row) != 0);
            table.row(&[
                index,
                row.into(),
                loaded.symbols.text(event.action.text()).into(),
                event.address.into(),
                event.bytes.into(),
                event.stream.into(),
                event.time_us.into(),
                stack(event.stack),
                curves.live_bytes()[row + 1].into(),
                curves.pending_bytes()[row + 1].into(),
                curves.reserved_bytes()[row + 1].into(),
                trace.rounded_bytes(row).into(),
                trace.device_free_bytes(row).into(),
                pool.as_deref().into(),
                said(span),
                said(trace.compile_context(row)),
                said(trace.user_metadata(row)),
                said(trace.category(row)),
            ])?;
        }
    }
    table.end()
}

/// The lives of blocks: the events that they began and ended with.
fn blocks<W: Write + Seek>(database: &mut Database<W>, loaded: &Loaded) -> io::Result<()> {
    let columns = "device INTEGER, address INTEGER, bytes INTEGER, stream INTEGER, stack INTEGER, born INTEGER, \
                   freed INTEGER, completed INTEGER, freed_before INTEGER";
    let mut table = database.table("lives", columns);
    for device in 0..loaded.devices.len() {
        let timeline = Timeline::of(loaded, device);
        let event = |moment| Cell::from(timeline.event_before(moment).map(u64::from));
        for life in timeline.blocks() {
            let source = timeline.sources()[life.source];
            let (address, bytes) = (life.address.into(), life.requested_bytes.into());
            let stream = timeline.lanes()[source.lane].stream.into();
            let [born, freed, completed] = [life.first, life.freed, life.gone].map(event);
            let before = Cell::Int((life.freed == 0).into());
            let stack = stack(source.holder.stack);
            table.row(&[device.into(), address, bytes, stream, stack, born, freed, completed, before])?;
        }
    }
    table.end()
}

/// What this project's recorder adds.
fn recorded<W: Write + Seek>(database: &mut Database<W>, loaded: &Loaded) -> io::Result<()> {
    let all = || numbered(loaded).filter_map(|(index, device)| Some((index, device.notes.as_ref()?)));
    let mut table = database.table("streams", "device INTEGER, stream INTEGER, name TEXT");
    for (device, notes) in all() {
        for stream in &notes.streams {
            table.row(&[device, stream.stream.into(), (&*stream.name).into()])?;
        }
    }
    table.end()?;
    let mut table =
        database.table("pending_waits", "device INTEGER, address INTEGER, stream INTEGER, position INTEGER");
    for (device, notes) in all() {
        for wait in &notes.pending_waits {
            table.row(&[device, wait.address.into(), wait.stream.into(), wait.position.into()])?;
        }
    }
    table.end()?;
    let columns = "device INTEGER, time_us INTEGER, address INTEGER, stream INTEGER, exact INTEGER, stack INTEGER";
    let mut table = database.table("stream_uses", columns);
    for (device, notes) in all() {
        for note in &notes.stream_uses {
            let (address, stream) = (note.fact.address.into(), note.fact.stream.into());
            table.row(&[
                device,
                note.time_us.into(),
                address,
                stream,
                Cell::Int(note.fact.exact.into()),
                stack(note.stack),
            ])?;
        }
    }
    table.end()?;
    let columns = "device INTEGER, time_us INTEGER, rung TEXT, bytes INTEGER, stream INTEGER, stack INTEGER";
    let mut table = database.table("rungs", columns);
    for (device, notes) in all() {
        for note in &notes.rungs {
            let (bytes, stream) = (note.fact.bytes.into(), note.fact.stream.into());
            table.row(&[
                device,
                note.time_us.into(),
                note.fact.rung.name().into(),
                bytes,
                stream,
                stack(note.stack),
            ])?;
        }
    }
    table.end()?;
    let mut table =
        database.table("stalls", "device INTEGER, time_us INTEGER, stream INTEGER, stall_ns INTEGER, stack INTEGER");
    for (device, notes) in all() {
        for note in &notes.stalls {
            table.row(&[
                device,
                note.time_us.into(),
                note.fact.stream.into(),
                note.fact.stall_ns.into(),
                stack(note.stack),
            ])?;
        }
    }
    table.end()
}

fn annotations<W: Write + Seek>(database: &mut Database<W>, loaded: &Loaded) -> io::Result<()> {
    let mut table = database.table("annotations", "name TEXT, stage TEXT, device INTEGER, time_us INTEGER");
    for mark in &loaded.annotations {
        let stage = if mark.stage == Stage::Start { "start" } else { "end" };
        table.row(&[loaded.symbols.text(mark.name).into(), stage.into(), mark.device.into(), mark.time_us.into()])?;
    }
    table.end()
}

/// Questions that are asked often.
fn views<W: Write + Seek>(database: &mut Database<W>) {
    let live = "SELECT l.device, s.site, count(*) AS blocks, sum(l.bytes) AS bytes FROM lives l \
                LEFT JOIN stacks s USING (stack) WHERE l.freed IS NULL AND l.freed_before = 0 GROUP BY l.device, l.stack \
                ORDER BY bytes DESC";
    database.view("live_at_the_end", live);
    let peak = "SELECT device, event, time_us, max(live_bytes + pending_bytes) AS bytes FROM events GROUP BY device";
    database.view("peaks", peak);
}
