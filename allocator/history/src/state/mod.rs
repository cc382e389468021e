//! Memory at a moment of a trace, and what it says: what [`why`](crate::why) and `inspect` both rest on.
//!
//! A snapshot shows its end. What was there at another moment is found by undoing the trace ([`memory`]); sums of all
//! moments follow from the same events ([`curves`]); what blocks took by the rules of the allocator ([`rules`]). From
//! that come free runs ([`space`]), the lines of the program that hold memory ([`sites`]), and what freed memory waits
//! for ([`pending`]). Requests that failed are in [`failures`].

pub(crate) mod curves;
pub(crate) mod failures;
pub(crate) mod memory;
pub(crate) mod pending;
pub(crate) mod rules;
pub(crate) mod sites;
pub(crate) mod space;

/// A place in the program, and memory that was asked for there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteBytes {
    /// The innermost line that is not a library's: `train.py:31 in step`.
    pub site: String,
    /// Its stack, innermost first.
    pub stack: Vec<String>,
    /// What the program is doing there, if the stack says so: `backward`, `optimizer step`, …
    pub phase: Option<&'static str>,
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// Bytes for people: exact below 1 KiB, else with two decimals.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}
