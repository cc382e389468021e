//! `highwater tui`: a snapshot in a terminal, for machines that are reached by ssh: the verdict, memory over time, and what
//! holds it at the moment under the cursor.
//!
//! What is shown and what keys do is in [`state`], without a terminal; [`draw`] puts it on any of ratatui's backends.

mod chart;
mod draw;
mod state;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::{DefaultTerminal, backend::Backend};

use crate::cli::TuiArgs;
use crate::failure::{Failure, InputError};
use crate::view::open;
use state::State;

/// Shows the snapshot until the user leaves.
///
/// # Errors
/// When stdout is no terminal, the input is no snapshot, or the terminal fails.
pub(crate) fn run(arguments: &TuiArgs) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        return Err(InputError::NoTerminal.into());
    }
    let mut state = State::new(open(&arguments.snapshot, arguments.capacity)?);
    let terminal = ratatui::try_init().map_err(Failure::Terminal)?;
    let shown = show(terminal, &mut state);
    ratatui::restore();
    shown.map_err(Failure::Terminal)
}

fn show(mut terminal: DefaultTerminal, state: &mut State) -> std::io::Result<()> {
    while !state.is_over() {
        let size = terminal.backend().size()?;
        state.resize(size.width);
        terminal.draw(|frame| draw::draw(state, frame))?;
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            state.key(key);
        }
    }
    Ok(())
}
