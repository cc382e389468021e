//! What the terminal shows, and what keys do to it.
//!
//! Invariants: the cursor lies within the window, and the window within the trace; the window has at least two moments
//! if the trace has.

use highwater::history::read::EventAction;
use highwater::history::timeline::{HeldBytes, Sums, Timeline};
use highwater::history::why::{self, Moment, Verdict, size};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::view::Opened;

/// Most streams that have a pane of their own.
const MOST_STREAMS: usize = 16;
/// Columns of the small curve of a stream.
pub(super) const CURVE_COLUMNS: usize = 24;

/// A stream's pane.
pub(super) struct Stream {
    /// What it is called.
    pub(super) name: String,
    /// Its lanes.
    lanes: Vec<bool>,
    /// The most that it uses in each of so many parts of the trace, bytes.
    pub(super) curve: Vec<u64>,
}

/// Everything that is shown.
pub(super) struct State {
    opened: Opened,
    timeline: Timeline,
    /// Streams that have a pane.
    pub(super) streams: Vec<Stream>,
    /// The stream that is shown alone.
    chosen: Option<usize>,
    /// The sums of what is shown, by moment.
    sums: Vec<Sums>,
    cursor: u32,
    /// First and last moment that are shown.
    window: (u32, u32),
    columns: u32,
    /// Holders that are scrolled past.
    pub(super) skipped: usize,
    pub(super) helps: bool,
    over: bool,
}

/// What a column of the chart shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Column {
    /// The moment of its span at which the most is used.
    pub(super) moment: u32,
    /// The sums of that moment.
    pub(super) sums: Sums,
    /// Whether a request was refused in its span.
    pub(super) refused: bool,
    /// Whether the cursor is in its span.
    pub(super) cursor: bool,
}

impl State {
    /// The first verdict's device, at the moment of that verdict.
    pub(super) fn new(opened: Opened) -> Self {
        let verdict = &opened.verdicts[0];
        let timeline = Timeline::of(&opened.loaded, verdict.device);
        let cursor = verdict.event.map_or(0, |event| u32::try_from(event).unwrap_or(u32::MAX)).min(timeline.events());
        let streams = streams(&opened, &timeline);
        let sums = timeline.sums(|_| true);
        let window = (0, timeline.events());
        Self {
            opened,
            timeline,
            streams,
            chosen: None,
            sums,
            cursor,
            window,
            columns: 80,
            skipped: 0,
            helps: false,
            over: false,
        }
    }

    /// Whether the user has left.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Takes note of how many columns there are to draw on, so that keys move by what is seen.
    pub(super) fn resize(&mut self, columns: u16) {
        self.columns = u32::from(columns).saturating_sub(super::chart::LABELS).max(1);
    }

    /// Does what a key says.
    pub(super) fn key(&mut self, key: KeyEvent) {
        let whole = key.modifiers.contains(KeyModifiers::SHIFT);
        let step = if whole { self.columns / 10 } else { 1 }.max(1) * self.moments_a_column();
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => self.over = true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => self.over = true,
            KeyCode::Left | KeyCode::Char('h') => self.go_to(self.cursor.saturating_sub(step)),
            KeyCode::Right | KeyCode::Char('l') => self.go_to(self.cursor.saturating_add(step)),
            KeyCode::Char(',') => self.go_to(self.cursor.saturating_sub(1)),
            KeyCode::Char('.') => self.go_to(self.cursor.saturating_add(1)),
            KeyCode::Char('+' | '=') => self.zoom(0.5),
            KeyCode::Char('-') => self.zoom(2.0),
            KeyCode::Char('0') => self.window = (0, self.timeline.events()),
            KeyCode::Home => self.go_to(0),
            KeyCode::End | KeyCode::Char('e') => self.go_to(self.timeline.events()),
            KeyCode::Char('p') => self.go_to(self.peak()),
            KeyCode::Char('v') => self.go_to(self.verdict().event.map_or(0, |event| event as u32)),
            KeyCode::Char('o') => self.next_refused(),
            KeyCode::Tab => self.choose(self.chosen.map_or(Some(0), |chosen| Some(chosen + 1))),
            KeyCode::BackTab => self.choose(match self.chosen {
                None => self.streams.len().checked_sub(1),
                Some(chosen) => chosen.checked_sub(1),
            }),
            KeyCode::Down | KeyCode::Char('j') => {
                self.skipped = (self.skipped + 1).min(self.held().len().saturating_sub(1))
            }
            KeyCode::Up | KeyCode::Char('k') => self.skipped = self.skipped.saturating_sub(1),
            KeyCode::Char('?') => self.helps = !self.helps,
            _ => {}
        }
    }

    /// Puts the cursor on a moment, and moves the window if it is not in it.
    fn go_to(&mut self, moment: u32) {
        self.cursor = moment.min(self.timeline.events());
        self.skipped = 0;
        let (first, last) = self.window;
        if !(first..=last).contains(&self.cursor) {
            let span = last - first;
            self.show(self.cursor.saturating_sub(span / 2), span);
        }
    }

    /// Shows as many moments from one on as there are.
    fn show(&mut self, first: u32, span: u32) {
        let end = self.timeline.events();
        let span = span.clamp(1, end.max(1)).min(end);
        let first = first.min(end - span);
        self.window = (first, first + span);
    }

    /// Shows so many times as much, with the cursor where it is seen.
    fn zoom(&mut self, factor: f64) {
        let (first, last) = self.window;
        let span = (f64::from(last - first) * factor).round().clamp(1.0, f64::from(u32::MAX)) as u32;
        let before = (f64::from(self.cursor - first) * factor).round() as u32;
        self.show(self.cursor.saturating_sub(before), span);
        // Rounding may have put the cursor just outside.
        let (first, last) = self.window;
        self.show(first.min(self.cursor), last - first);
        let (first, last) = self.window;
        self.show(first + self.cursor.saturating_sub(last), last - first);
    }

    fn choose(&mut self, stream: Option<usize>) {
        self.chosen = stream.filter(|&stream| stream < self.streams.len());
        self.skipped = 0;
        self.sums = match self.chosen {
            None => self.timeline.sums(|_| true),
            Some(stream) => self.timeline.sums(|lane| self.streams[stream].lanes[lane]),
        };
    }

    fn next_refused(&mut self) {
        let trace = &self.opened.loaded.devices[self.verdict().device].trace;
        let refused = |row: &u32| trace.action(*row as usize) == EventAction::OutOfMemory;
        let next = (self.cursor + 1..self.timeline.events()).find(refused);
        if let Some(row) = next.or_else(|| (0..self.timeline.events()).find(refused)) {
            self.go_to(row);
        }
    }

    fn peak(&self) -> u32 {
        let most = self.sums.iter().map(Sums::used_bytes).max();
        self.sums.iter().position(|sums| Some(sums.used_bytes()) == most).unwrap_or(0) as u32
    }

    /// Moments that a column stands for.
    fn moments_a_column(&self) -> u32 {
        ((self.window.1 - self.window.0 + 1) / self.columns).max(1)
    }

    /// The moment under the cursor.
    pub(super) fn cursor(&self) -> u32 {
        self.cursor
    }

    /// First and last moment that are shown.
    pub(super) fn window(&self) -> (u32, u32) {
        self.window
    }

    /// The verdict.
    pub(super) fn verdict(&self) -> &Verdict {
        &self.opened.verdicts[0]
    }

    /// Name of the file, and the device.
    pub(super) fn title(&self) -> String {
        format!("{}: device {}", self.opened.place, self.verdict().device)
    }

    /// The verdict in a few lines, the cause in front.
    pub(super) fn told(&self) -> Vec<String> {
        let verdict = self.verdict();
        let Some(first) = verdict.findings.first() else { return vec!["nothing is known".to_owned()] };
        let sure = if first.sufficient { "sufficient, " } else { "" };
        let mut lines = vec![format!("{}  ({sure}explains {})", first.title, size(first.explained_bytes))];
        let event = verdict.event.map_or(String::new(), |event| format!(" at event {event}"));
        lines.push(match (verdict.moment, verdict.request_bytes, verdict.deficit_bytes) {
            (Moment::OutOfMemory, Some(request), Some(deficit)) => {
                format!("out of memory{event}: {} were asked for, {} were missing", size(request), size(deficit))
            }
            (Moment::Stall, ..) => format!("no request failed; the host waited for memory, told is the wait{event}"),
            (Moment::Peak, ..) => format!("no request failed; told is the peak{event}"),
            _ => format!("told is the end{event}"),
        });
        lines.extend(first.evidence.iter().take(2).cloned());
        lines
    }

    /// What the chart shows: all streams, or the chosen one.
    pub(super) fn shown(&self) -> &str {
        self.chosen.map_or("all streams", |chosen| &self.streams[chosen].name)
    }

    /// The stream that is shown alone.
    pub(super) fn chosen(&self) -> Option<usize> {
        self.chosen
    }

    /// The sums under the cursor, of what is shown.
    pub(super) fn sums(&self) -> Sums {
        self.sums[self.cursor as usize]
    }

    /// The sums under the cursor of each stream.
    pub(super) fn stream_sums(&self) -> Vec<Sums> {
        let mut sums = vec![Sums::default(); self.streams.len()];
        for segment in self.timeline.map(self.cursor) {
            let Some(stream) = self.streams.iter().position(|stream| stream.lanes[segment.lane]) else { continue };
            let sum = &mut sums[stream];
            let used: u64 = segment.blocks.iter().map(|block| block.bytes).sum();
            sum.cached_bytes += segment.bytes - used;
            for block in &segment.blocks {
                let asked = self.timeline.blocks()[block.block].requested_bytes.min(block.bytes);
                if block.pending {
                    sum.pending_bytes += block.bytes;
                } else {
                    sum.live_bytes += asked;
                    sum.rounding_bytes += block.bytes - asked;
                }
            }
        }
        sums
    }

    /// Who holds memory under the cursor, of what is shown; most first.
    pub(super) fn held(&self) -> Vec<HeldBytes> {
        self.timeline.held(self.cursor, |lane| self.chosen.is_none_or(|chosen| self.streams[chosen].lanes[lane]))
    }

    /// A holder by its line.
    pub(super) fn site(&self, held: &HeldBytes) -> String {
        let site = why::site(&self.opened.loaded, held.holder.stack);
        site.map_or_else(|| format!("blocks of {}, no stack recorded", size(held.holder.bytes)), |(_, site)| site)
    }

    /// What happened right before the cursor.
    pub(super) fn last_event(&self) -> String {
        let Some(row) = self.cursor.checked_sub(1) else { return "the trace begins".to_owned() };
        let trace = &self.opened.loaded.devices[self.verdict().device].trace;
        let event = trace.event(row as usize);
        let name = self.opened.loaded.symbols.text(event.action.text());
        let time = match trace.is_timed() {
            true => format!(", {:.3} ms in", event.time_us.saturating_sub(trace.times_us()[0]) as f64 / 1e3),
            false => String::new(),
        };
        let site = why::site(&self.opened.loaded, event.stack).map_or(String::new(), |(_, site)| format!(", {site}"));
        format!("{name} {}{time}{site}", size(event.bytes))
    }

    /// Columns of the chart, so many.
    pub(super) fn columns(&self, count: usize) -> Vec<Column> {
        let (first, last) = (self.window.0 as usize, self.window.1 as usize);
        let span = last - first + 1;
        let trace = &self.opened.loaded.devices[self.verdict().device].trace;
        let refused = |row: usize| row < trace.len() && trace.action(row) == EventAction::OutOfMemory;
        let column = |index: usize| {
            let start = first + index * span / count;
            let end = (first + (index + 1) * span / count).max(start + 1);
            let most = (start..end).max_by_key(|&moment| (self.sums[moment].used_bytes(), std::cmp::Reverse(moment)));
            let moment = most.expect("a column has a moment");
            Column {
                moment: moment as u32,
                sums: self.sums[moment],
                refused: (start..end).any(refused),
                cursor: (start..end).contains(&(self.cursor as usize)),
            }
        };
        (0..count).map(column).collect()
    }

    /// The most that is mapped at any moment of what is shown, bytes.
    pub(super) fn most(&self) -> u64 {
        self.sums.iter().map(Sums::reserved_bytes).max().unwrap_or(0)
    }
}

/// The streams, those that ever use the most first.
fn streams(opened: &Opened, timeline: &Timeline) -> Vec<Stream> {
    let device = &opened.loaded.devices[opened.verdicts[0].device];
    let mut numbers: Vec<u64> = timeline.lanes().iter().map(|lane| lane.stream).collect();
    numbers.dedup();
    let mut streams: Vec<(u64, Stream)> = Vec::new();
    for number in numbers {
        let lanes: Vec<bool> = timeline.lanes().iter().map(|lane| lane.stream == number).collect();
        let sums = timeline.sums(|lane| lanes[lane]);
        let part = sums.len().div_ceil(CURVE_COLUMNS);
        let curve: Vec<u64> =
            sums.chunks(part).map(|sums| sums.iter().map(Sums::used_bytes).max().unwrap_or(0)).collect();
        let most = sums.iter().map(Sums::reserved_bytes).max().unwrap_or(0);
        streams.push((most, Stream { name: why::stream_name(device, number), lanes, curve }));
        streams.sort_by_key(|(most, _)| std::cmp::Reverse(*most));
        streams.truncate(MOST_STREAMS);
    }
    streams.into_iter().map(|(_, stream)| stream).collect()
}
