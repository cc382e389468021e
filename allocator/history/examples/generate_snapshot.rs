//! Writes a snapshot of any size, to measure and to test readers with:
//!
//! ```text
//! generate_snapshot FILE [--events N] [--frames N] [--stacks N] [--slots N] [--style own|cpp|python2..5]
//! ```
//!
//! - `--events`: events of the one busy device (1,000,000).
//! - `--frames`: frames of each stack (30).
//! - `--stacks`: distinct stacks, which events choose at random: few programs have as many, or jump so (20,000).
//! - `--slots`: blocks that are live at once, and that the segment lists (4,096).
//! - `--style`: whose habits to follow. `cpp` is the pickler inside PyTorch, `pythonN` that of Python with protocol N
//!   (python4), `own` the writer of this project.
//!
//! The same arguments give the same bytes, and the same snapshot in every style.

mod pickler;

use std::{env, fs, process::ExitCode};

use pickler::{Shape, Style, snapshot};

fn main() -> ExitCode {
    match run() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            eprintln!(
                "usage: generate_snapshot FILE [--events N] [--frames N] [--stacks N] [--slots N] [--style own|cpp|python2..5]"
            );
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<String, String> {
    let (mut file, mut style) = (None, Style::Python(4));
    let mut shape = Shape::default();
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| match text.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{text} is no number above 0")),
        };
        match argument.as_str() {
            "--events" => shape.events = number(value()?)?,
            "--frames" => shape.frames = number(value()?)?,
            "--stacks" => shape.stacks = number(value()?)?,
            "--slots" => shape.slots = number(value()?)?,
            "--style" => {
                style = match value()?.as_str() {
                    "own" => Style::Own,
                    "cpp" => Style::Cpp,
                    "python2" => Style::Python(2),
                    "python3" => Style::Python(3),
                    "python4" => Style::Python(4),
                    "python5" => Style::Python(5),
                    other => return Err(format!("there is no style {other}")),
                }
            }
            _ if file.is_none() && !argument.starts_with('-') => file = Some(argument),
            _ => return Err(format!("{argument} is not known")),
        }
    }
    let file = file.ok_or("which file?")?;
    let bytes = snapshot(style, shape);
    fs::write(&file, &bytes).map_err(|error| format!("{file}: {error}"))?;
    Ok(format!("{file}: {} events, {} bytes, {style:?}", shape.events, bytes.len()))
}
