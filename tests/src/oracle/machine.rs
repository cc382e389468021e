//! The device, as far as time, bytes and failures go: streams are numbers that say when they are through.
//!
//! A stream is first in, first out, and calls take no time: so all that is needed to know when everything ends is one
//! number a stream, the time at which what it was given so far is over. A launch adds its duration, a fence remembers
//! the number, a wait takes the larger of two.

use std::collections::BTreeMap;

use highwater::device::DeviceCall;

/// The call that failed.
pub(super) type Fault = DeviceCall;

/// Addresses begin here.
const FIRST_ADDRESS: u64 = 1 << 46;

#[derive(Clone, Debug, Default)]
struct Queue {
    /// When everything submitted so far is over.
    through_ns: u64,
    captures: bool,
}

/// The device.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) now_ns: u64,
    pub(super) granularity: u64,
    pub(super) total: u64,
    /// Bytes in handles, whoever holds them.
    pub(super) held: u64,
    next_address: u64,
    streams: Vec<Queue>,
    /// What is going to fail, and how many calls are left.
    failures: Vec<(DeviceCall, u64)>,
    calls: BTreeMap<DeviceCall, u64>,
    /// How often the host was blocked, and how long, ns.
    pub(super) blocked: u64,
    pub(super) blocked_ns: u64,
}

impl Machine {
    pub(super) fn new(granularity: u64, granules: u64) -> Self {
        Machine {
            now_ns: 0,
            granularity,
            total: granularity * granules,
            held: 0,
            next_address: FIRST_ADDRESS,
            streams: vec![Queue::default()],
            failures: Vec::new(),
            calls: BTreeMap::new(),
            blocked: 0,
            blocked_ns: 0,
        }
    }

    pub(super) fn fail(&mut self, call: DeviceCall, nth: u64) {
        self.failures.push((call, nth));
    }

    /// Whether anything is going to fail.
    pub(super) fn will_fail(&self) -> bool {
        !self.failures.is_empty()
    }

    /// A call: counted, and failed if its turn has come.
    pub(super) fn call(&mut self, call: DeviceCall) -> Result<(), Fault> {
        *self.calls.entry(call).or_default() += 1;
        for (_, left) in self.failures.iter_mut().filter(|(kind, _)| *kind == call) {
            *left -= 1;
        }
        let before = self.failures.len();
        self.failures.retain(|&(_, left)| left > 0);
        if self.failures.len() < before { Err(call) } else { Ok(()) }
    }

    pub(super) fn calls(&self, call: DeviceCall) -> u64 {
        self.calls.get(&call).copied().unwrap_or(0)
    }

    // ---- streams

    pub(super) fn create_stream(&mut self) -> Result<usize, Fault> {
        self.call(DeviceCall::CreateStream)?;
        self.streams.push(Queue::default());
        Ok(self.streams.len() - 1)
    }

    /// When everything that the stream was given so far is over, ns.
    pub(super) fn through_ns(&self, stream: usize) -> u64 {
        self.streams[stream].through_ns
    }

    /// When something that is submitted now would start, ns.
    pub(super) fn next_start_ns(&self, stream: usize) -> u64 {
        self.through_ns(stream).max(self.now_ns)
    }

    /// Submits an operation; its start, unless the stream captures.
    pub(super) fn launch(&mut self, stream: usize, ns: u64) -> Result<Option<u64>, Fault> {
        self.call(DeviceCall::Launch)?;
        if self.streams[stream].captures {
            return Ok(None);
        }
        let start_ns = self.next_start_ns(stream);
        self.streams[stream].through_ns = start_ns + ns;
        Ok(Some(start_ns))
    }

    /// Records a fence; when it will be complete, ns.
    pub(super) fn record(&mut self, stream: usize) -> Result<u64, Fault> {
        self.call(DeviceCall::Record)?;
        Ok(self.through_ns(stream))
    }

    pub(super) fn wait(&mut self, stream: usize, fence_ns: u64) -> Result<(), Fault> {
        self.call(DeviceCall::Wait)?;
        let queue = &mut self.streams[stream];
        queue.through_ns = queue.through_ns.max(fence_ns);
        Ok(())
    }

    pub(super) fn query(&mut self, fence_ns: u64) -> Result<bool, Fault> {
        self.call(DeviceCall::Query)?;
        Ok(fence_ns <= self.now_ns)
    }

    /// Blocks the host; whether the fence is complete.
    pub(super) fn synchronize(&mut self, fence_ns: u64, timeout_ns: u64) -> Result<bool, Fault> {
        self.call(DeviceCall::Synchronize)?;
        if fence_ns <= self.now_ns {
            return Ok(true);
        }
        if timeout_ns == 0 {
            return Ok(false);
        }
        let until_ns = fence_ns.min(self.now_ns.saturating_add(timeout_ns));
        self.blocked += 1;
        self.blocked_ns += until_ns - self.now_ns;
        self.now_ns = until_ns;
        Ok(fence_ns <= until_ns)
    }

    // ---- captures

    pub(super) fn begin_capture(&mut self, stream: usize) -> Result<(), Fault> {
        self.call(DeviceCall::BeginCapture)?;
        if self.streams[stream].captures {
            return Err(DeviceCall::BeginCapture);
        }
        self.streams[stream].captures = true;
        Ok(())
    }

    pub(super) fn end_capture(&mut self, stream: usize) -> Result<(), Fault> {
        self.call(DeviceCall::EndCapture)?;
        self.streams[stream].captures = false;
        Ok(())
    }

    pub(super) fn captures(&self, stream: usize) -> bool {
        self.streams[stream].captures
    }

    /// Whether any stream captures.
    pub(super) fn is_capturing(&self) -> bool {
        self.streams.iter().any(|queue| queue.captures)
    }

    // ---- memory

    /// Reserves addresses: one range after the other, a granule between two.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, Fault> {
        self.call(DeviceCall::Reserve)?;
        let address = self.next_address;
        self.next_address += bytes + self.granularity;
        Ok(address)
    }

    /// Takes bytes; whether there were so many. A failure on request looks the same.
    pub(super) fn create(&mut self, bytes: u64) -> bool {
        let fits = self.call(DeviceCall::Create).is_ok() && self.held + bytes <= self.total;
        if fits {
            self.held += bytes;
        }
        fits
    }

    pub(super) fn release(&mut self, bytes: u64) -> Result<(), Fault> {
        self.call(DeviceCall::Release)?;
        self.held -= bytes;
        Ok(())
    }

    /// Bytes that no handle holds.
    pub(super) fn free(&mut self) -> Result<u64, Fault> {
        self.call(DeviceCall::MemoryInfo)?;
        Ok(self.total - self.held)
    }
}
