//! The same work with unlimited memory: no allocator, so no wait, no driver call and no pause for memory.
//!
//! A few lines of arithmetic: a stream does one thing after the other, and no operation starts before the host has
//! submitted it and the device has come that far. It shares no code with the simulated device; where an allocator costs
//! nothing, the two agree to the ns.

use super::script::StreamNo;

/// The end of each stream's work so far, if memory were unlimited.
pub(crate) struct Ideal {
    behind_ns: u64,
    ends_ns: Vec<u64>,
    /// Time that streams have stood still for waits of the program.
    waited_ns: u64,
}

impl Ideal {
    /// `streams` idle streams of a device that is `behind_ns` behind the host.
    pub(crate) fn new(streams: usize, behind_ns: u64) -> Self {
        Ideal { behind_ns, ends_ns: vec![0; streams], waited_ns: 0 }
    }

    /// An operation that the host submits at `at_ns`.
    pub(crate) fn work(&mut self, stream: StreamNo, at_ns: u64, duration_ns: u64) {
        let end_ns = &mut self.ends_ns[stream];
        *end_ns = (*end_ns).max(at_ns + self.behind_ns) + duration_ns;
    }

    /// `stream` goes on when `other` has done what it was given; said at `at_ns`.
    pub(crate) fn wait(&mut self, stream: StreamNo, other: StreamNo, at_ns: u64) {
        let ready_ns = self.ends_ns[stream].max(at_ns + self.behind_ns);
        self.waited_ns += self.ends_ns[other].saturating_sub(ready_ns);
        self.ends_ns[stream] = self.ends_ns[stream].max(self.ends_ns[other]);
    }

    /// When the last operation ends.
    pub(crate) fn makespan_ns(&self) -> u64 {
        self.ends_ns.iter().copied().max().unwrap_or(0)
    }

    /// Time that streams have stood still for waits of the program.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.waited_ns
    }
}
