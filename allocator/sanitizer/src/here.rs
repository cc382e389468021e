//! The line of the program that a call of the device comes from.
//!
//! Calls of a device carry no line. Whoever calls one says where he was called from, for his thread, as long as a
//! [`Here`] lives.

use std::cell::Cell;
use std::marker::PhantomData;

use highwater_history::Context;

thread_local! {
    static HERE: Cell<Option<Context>> = const { Cell::new(None) };
}

/// The line and the span path of what this thread submits, as long as it lives. The innermost one counts.
#[must_use = "it says where calls come from only as long as it lives"]
#[derive(Debug)]
pub struct Here {
    before: Option<Context>,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Here {
    /// The caller's line and span path.
    #[track_caller]
    pub fn new() -> Self {
        Self::at(Context::here())
    }

    /// This line and span path.
    pub fn at(context: Context) -> Self {
        Here { before: HERE.replace(Some(context)), thread: PhantomData }
    }

    /// What was said last, if somebody said it.
    #[must_use]
    pub fn current() -> Option<Context> {
        HERE.get()
    }
}

impl Default for Here {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_line_counts_while_it_lives() {
        let line = || Here::current().map(|context| context.location.line());
        assert_eq!(line(), None);
        let outer = Here::new();
        let outer_line = line();
        {
            let _inner = Here::new();
            assert_ne!(line(), outer_line);
        }
        assert_eq!(line(), outer_line);
        drop(outer);
        assert_eq!(line(), None);
    }
}
