//! Memory over time in cells: what is held at the bottom, what waits on it, and what is cached on top.
//!
//! Each layer has a sign of its own, so that nothing depends on colours.

use highwater::history::timeline::Sums;
use highwater::history::why::size;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::Widget;

use super::state::Column;

/// Columns that labels take.
pub(super) const LABELS: u32 = 11;

/// Eighths of a cell.
const EIGHTHS: [&str; 8] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇"];

/// A layer: its sign and its colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layer {
    Held,
    Pending,
    Cached,
    Nothing,
}

impl Layer {
    pub(super) fn sign(self) -> &'static str {
        match self {
            Layer::Held => "█",
            Layer::Pending => "▒",
            Layer::Cached => "·",
            Layer::Nothing => " ",
        }
    }

    pub(super) fn color(self) -> Color {
        match self {
            Layer::Held => Color::Blue,
            Layer::Pending => Color::Yellow,
            Layer::Cached => Color::DarkGray,
            Layer::Nothing => Color::Reset,
        }
    }

    /// The layer at a height, bytes.
    fn at(sums: &Sums, bytes: f64) -> Self {
        let held = sums.live_bytes.saturating_add(sums.rounding_bytes) as f64;
        if bytes < held {
            Layer::Held
        } else if bytes < sums.used_bytes() as f64 {
            Layer::Pending
        } else if bytes < sums.reserved_bytes() as f64 {
            Layer::Cached
        } else {
            Layer::Nothing
        }
    }
}

/// The chart.
pub(super) struct Chart<'a> {
    /// A column for each cell beside the labels.
    pub(super) columns: &'a [Column],
    /// Bytes at the top.
    pub(super) most: u64,
}

impl Widget for Chart<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let labels = LABELS as u16;
        if area.width <= labels || area.height < 3 {
            return;
        }
        // The first row is for marks.
        let plot = Rect { x: area.x + labels, y: area.y + 1, width: area.width - labels, height: area.height - 1 };
        let cell = self.most.max(1) as f64 / f64::from(plot.height);
        for row in 0..plot.height {
            if row % 3 == 0 {
                let bytes = (cell * f64::from(plot.height - row)) as u64;
                let label = format!("{:>10}", size(bytes));
                buffer.set_string(area.x, plot.y + row, label, Style::new().fg(Color::DarkGray));
            }
        }
        for (column, x) in self.columns.iter().zip(plot.x..plot.right()) {
            for row in 0..plot.height {
                let bottom = cell * f64::from(plot.height - 1 - row);
                draw_cell(column, bottom, cell, &mut buffer[(x, plot.y + row)]);
            }
            let mark = match (column.cursor, column.refused) {
                (true, _) => "▼",
                (false, true) => "!",
                (false, false) => continue,
            };
            let color = if column.refused { Color::Red } else { Color::Reset };
            buffer.set_string(x, area.y, mark, Style::new().fg(color).add_modifier(Modifier::BOLD));
        }
    }
}

fn draw_cell(column: &Column, bottom: f64, height: f64, cell: &mut ratatui::buffer::Cell) {
    let held = column.sums.live_bytes.saturating_add(column.sums.rounding_bytes) as f64;
    let part = (held - bottom) / height;
    let above = Layer::at(&column.sums, bottom + height * 0.999);
    if (0.0..1.0).contains(&part) && (part * 8.0) as usize > 0 {
        cell.set_symbol(EIGHTHS[(part * 8.0) as usize]).set_fg(Layer::Held.color());
        // Dots would hide behind the eighths; a plain ground is enough.
        if above == Layer::Pending {
            cell.set_bg(above.color());
        }
    } else {
        let layer = Layer::at(&column.sums, bottom + height / 2.0);
        cell.set_symbol(layer.sign()).set_fg(layer.color());
    }
    if column.cursor && cell.symbol() == Layer::Nothing.sign() {
        cell.set_symbol("│").set_fg(Color::Reset);
    }
}
