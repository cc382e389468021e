//! What is told: one object for machines, or a few lines for people.

use serde::Serialize;

use super::{AnyError, Bench};
use crate::replay::report::Percentiles;

/// What came of both measurements.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    /// The device.
    pub(super) device: String,
    /// Time of a kernel that memory alone bounds, by itself and while pages move.
    pub(super) kernel_us_alone: f64,
    pub(super) kernel_us_moving: f64,
    /// How much longer it takes.
    pub(super) slowdown_percent: f64,
    /// Handles that were mapped at another place meanwhile.
    pub(super) moves: u64,
    /// Host time of an allocation that moves one handle.
    pub(super) move_us: MoveTimes,
    /// Time of a step of the loop.
    pub(super) prefetch_step_us: OnOff<f64>,
    /// Most physical memory that the loop held.
    pub(super) prefetch_reserved_bytes: OnOff<u64>,
    /// Most bytes that it used at once, as asked for.
    pub(super) prefetch_peak_live_bytes: u64,
    /// Handles that moved, with lending.
    pub(super) prefetch_pages_moved: u64,
}

/// Times of single moves, µs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct MoveTimes {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// A figure with lending, and without.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct OnOff<T> {
    pub(super) lending_on: T,
    pub(super) lending_off: T,
}

impl Report {
    /// Measures both.
    ///
    /// # Errors
    /// When there is no memory, the device fails, or the loop computes something else than it should.
    pub(super) fn measure(bench: &Bench) -> Result<Self, AnyError> {
        let slowed = bench.slowdown.measure(&bench.device)?;
        let [on, off] = bench.prefetch.measure(&bench.device)?;
        let Percentiles { p50, p99, max, .. } = Percentiles::of(slowed.move_ns);
        let us = |ns: u64| ns as f64 / 1e3;
        Ok(Report {
            device: bench.device.properties().name.clone(),
            kernel_us_alone: slowed.alone_ns / 1e3,
            kernel_us_moving: slowed.moving_ns / 1e3,
            slowdown_percent: (slowed.moving_ns / slowed.alone_ns - 1.0) * 100.0,
            moves: slowed.moves,
            move_us: MoveTimes { p50: us(p50), p99: us(p99), max: us(max) },
            prefetch_step_us: OnOff { lending_on: on.step_ns / 1e3, lending_off: off.step_ns / 1e3 },
            prefetch_reserved_bytes: OnOff { lending_on: on.reserved_bytes, lending_off: off.reserved_bytes },
            prefetch_peak_live_bytes: on.peak_live_bytes,
            prefetch_pages_moved: on.pages_moved,
        })
    }

    /// On one line.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text are JSON") + "\n"
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let MoveTimes { p50, p99, max } = self.move_us;
        let mut text = format!("device: {}\n\n", self.device);
        let mut line = |what: &str, told: String| text += &format!("{what:<36}{told}\n");
        line("kernel by itself", format!("{:>10.1} us", self.kernel_us_alone));
        let slower = format!("{:>10.1} us, {:.2} % slower", self.kernel_us_moving, self.slowdown_percent);
        line(&format!("kernel during {} moves", self.moves), slower);
        line("allocation that moves a handle", format!("{p50:>10.1} us (99 %: {p99:.1}, longest {max:.1})"));
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let OnOff { lending_on, lending_off } = self.prefetch_step_us;
        let held = self.prefetch_reserved_bytes;
        let step = |us: f64, bytes: u64| format!("{us:>10.1} us a step, {:.1} MiB held", mib(bytes));
        let moved = format!(", {} handles moved", self.prefetch_pages_moved);
        line("prefetch with lending", step(lending_on, held.lending_on) + &moved);
        line("prefetch without", step(lending_off, held.lending_off));
        line("  in use at most", format!("{:>10.1} MiB", mib(self.prefetch_peak_live_bytes)));
        text
    }
}
