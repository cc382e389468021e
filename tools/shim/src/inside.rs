//! Whether a thread is inside this library: what it calls then is for the driver.
//!
//! The device opens the driver by the name that this library has, so its calls come through the functions in front.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Being inside; ends with its drop.
pub(crate) struct Inside {
    before: bool,
}

/// From now on the thread is inside.
pub(crate) fn enter() -> Inside {
    Inside { before: INSIDE.replace(true) }
}

/// Whether the thread is inside.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}
