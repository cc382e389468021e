//! Putting the state on a frame.

use highwater::history::timeline::Sums;
use highwater::history::why::size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Wrap};

use super::chart::{Chart, LABELS, Layer};
use super::state::State;

const HELP: &str = "← → move by a column (shift: by a tenth) · , . by an event · + - 0 zoom · tab stream · ↑ ↓ list\n\
                    v verdict · p peak · e end · o next refused request · ? these keys · q leave";

const BARS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Draws everything.
pub(super) fn draw(state: &State, frame: &mut Frame) {
    // Of a low terminal the verdict takes its first lines alone.
    let told = (state.told().len() as u16 + 1).min((frame.area().height / 4).max(2));
    let [verdict, chart, below, keys] = Layout::vertical([
        Constraint::Length(told),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(if state.helps { 2 } else { 1 }),
    ])
    .areas(frame.area());
    draw_verdict(state, frame, verdict);
    draw_chart(state, frame, chart);
    let [streams, held] = Layout::horizontal([Constraint::Percentage(40), Constraint::Fill(1)]).areas(below);
    draw_streams(state, frame, streams);
    draw_held(state, frame, held);
    let text = if state.helps {
        HELP
    } else {
        "q leave · ← → move · + - zoom · tab stream · v verdict · p peak · ? more"
    };
    frame.render_widget(Paragraph::new(text).style(faint()), keys);
}

fn faint() -> Style {
    Style::new().fg(Color::DarkGray)
}

fn strong() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn draw_verdict(state: &State, frame: &mut Frame, area: Rect) {
    let cause = Span::styled(
        format!("{} ", state.verdict().cause().id()),
        Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    );
    let mut told = state.told().into_iter();
    let first = told.next().unwrap_or_default();
    let mut lines = vec![
        Line::styled(fitted(&state.title(), area.width.into()), strong()),
        Line::from(vec![cause, Span::styled(first, strong())]),
    ];
    lines.extend(told.map(|line| Line::raw(format!("   {line}"))));
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_chart(state: &State, frame: &mut Frame, area: Rect) {
    let (first, last) = state.window();
    let layer = |layer: Layer, name: &'static str| {
        [Span::styled(layer.sign(), Style::new().fg(layer.color())), Span::raw(format!(" {name}  "))]
    };
    let mut title = vec![Span::styled(format!(" {} ", state.shown()), strong())];
    title.extend(layer(Layer::Held, "held"));
    title.extend(layer(Layer::Pending, "waiting"));
    title.extend(layer(Layer::Cached, "cached"));
    let block = Block::new().borders(Borders::TOP | Borders::BOTTOM).border_style(faint()).title(Line::from(title));
    let block = block.title_bottom(Line::styled(format!(" events {first} to {last} "), faint()).right_aligned());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let columns = usize::from(inner.width).saturating_sub(LABELS as usize);
    if columns > 0 {
        let columns = state.columns(columns);
        frame.render_widget(Chart { columns: &columns, most: state.most() }, inner);
    }
}

fn draw_streams(state: &State, frame: &mut Frame, area: Rect) {
    let block = Block::new().borders(Borders::RIGHT).border_style(faint());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let mut lines = vec![Line::styled(format!("Streams at {}", state.cursor()), strong())];
    let sums = state.stream_sums();
    // The chosen one is always seen.
    let rows = usize::from(inner.height.saturating_sub(1) / 2).max(1);
    let skipped = state.chosen().map_or(0, |chosen| (chosen + 1).saturating_sub(rows));
    for (index, (stream, sums)) in state.streams.iter().zip(&sums).enumerate().skip(skipped) {
        let chosen = state.chosen() == Some(index);
        let style = if chosen { strong().add_modifier(Modifier::REVERSED) } else { Style::new() };
        let most = stream.curve.iter().copied().max().unwrap_or(0).max(1);
        let bar = |&bytes: &u64| BARS[(bytes as f64 / most as f64 * 8.0).round() as usize];
        let curve: String = stream.curve.iter().map(bar).collect();
        lines.push(Line::from(vec![
            Span::styled(stream.name.clone(), style),
            Span::raw(" "),
            Span::styled(curve, Style::new().fg(Color::Blue)),
        ]));
        lines.push(Line::raw(format!("  {}", told(sums))));
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Sums in a line; what is nothing is left out.
fn told(sums: &Sums) -> String {
    let all = [
        ("held", sums.live_bytes),
        ("rounding", sums.rounding_bytes),
        ("waiting", sums.pending_bytes),
        ("cached", sums.cached_bytes),
    ];
    let parts: Vec<_> =
        all.iter().filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| format!("{name} {}", size(*bytes))).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(" · ") }
}

/// A text that fits a number of columns. It is cut at its front: the end of a line's path tells more.
fn fitted(text: &str, columns: usize) -> String {
    match text.chars().count().saturating_sub(columns) {
        0 => text.to_owned(),
        over => std::iter::once('…').chain(text.chars().skip(over + 1)).collect(),
    }
}

fn draw_held(state: &State, frame: &mut Frame, area: Rect) {
    let area = Rect { x: area.x + 1, width: area.width.saturating_sub(1), ..area };
    let mut lines = vec![
        Line::styled(format!("Moment {}: {}", state.cursor(), told(&state.sums())), strong()),
        Line::styled(format!("last event: {}", state.last_event()), faint()),
    ];
    for held in state.held().iter().skip(state.skipped).take(usize::from(area.height)) {
        let line = format!("{:>12} {:>6}  ", size(held.bytes), held.blocks);
        let site = fitted(&state.site(held), usize::from(area.width).saturating_sub(line.chars().count()));
        lines.push(Line::raw(line + &site));
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}
