//! Live bytes by stack: a line each, the outermost frame first, frames apart by semicolons. Flame graphs are drawn from
//! such lines.

use std::io::{self, Write};

use highwater::history::inspect::At;

/// Writes the stacks of live memory.
pub(super) fn write(at: &At<'_>, out: &mut dyn Write) -> io::Result<()> {
    for (path, bytes) in at.tree().folded() {
        writeln!(out, "{} {bytes}", folded(path.iter().map(String::as_str)))?;
    }
    Ok(())
}

/// Frames on one line. What would end a frame or the line is replaced.
pub(super) fn folded<'a>(frames: impl Iterator<Item = &'a str>) -> String {
    let frames: Vec<_> = frames.map(|frame| frame.replace(';', ":").replace(['\n', '\r'], " ")).collect();
    frames.join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_cannot_end_a_line() {
        assert_eq!(folded(["a;b", "c\nd 7"].into_iter()), "a:b;c d 7");
    }
}
