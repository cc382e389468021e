//! The end of a program: everything is dropped, and everything has to go back to the device.

use highwater::device::{Device, DeviceCall};

use super::host::{Host, lock};
use super::oracle::Oracle;
use super::verdict::{Coverage, Failure, Rule, Transcript};

/// What is left of a host when its allocators are gone.
pub(super) struct Remains {
    pub(super) oracle: Oracle,
    pub(super) met: Coverage,
    pub(super) transcript: Transcript,
    pub(super) story: Option<Vec<String>>,
    pub(super) poisoned: bool,
    /// The rule that was broken during the run.
    pub(super) failure: Option<Failure>,
}

impl Host<'_> {
    /// Drops everything and looks at what is left.
    pub(super) fn end(mut self, failure: Option<Failure>) -> Remains {
        let result = match failure {
            Some(failure) => Err(failure),
            None => self.end_orderly(),
        };
        self.count_what_was_met();
        let clean = result.is_ok();
        // Allocators are gone when nothing of theirs is left.
        let Host { device, oracle, mut met, transcript, story, mut poisoned, program, lenient, fence_armed, .. } = {
            let dropped = self.guarded(|host| {
                host.drop_all();
                Ok(())
            });
            self.lanes.clear();
            if let (true, Err(failure)) = (clean, dropped) {
                return self.remains(Some(failure));
            }
            self
        };
        // A fence that fails may do so as late as now.
        if fence_armed && device.sim().memory_info().is_err() {
            poisoned = true;
        }
        let surely = program.config.host_wait_ns.is_none() && program.config.fail_at_end.is_none() && !lenient;
        let result = result.and_then(|()| if poisoned || !surely { Ok(()) } else { nothing_is_left(&device) });
        if clean && !poisoned && program.config.abrupt_end {
            met.add("ended with work queued", 1);
        }
        Remains { oracle, met, transcript, story, poisoned, failure: result.err() }
    }

    fn remains(self, failure: Option<Failure>) -> Remains {
        let Host { oracle, met, transcript, story, poisoned, .. } = self;
        Remains { oracle, met, transcript, story, poisoned, failure }
    }

    /// Ends captures and callbacks, then perhaps waits for all work and trims.
    fn end_orderly(&mut self) -> Result<(), Failure> {
        self.step = self.program.steps.len();
        self.device.disarm();
        self.guarded(|host| host.end_capture(false))?;
        self.graphs.clear();
        self.callbacks.clear();
        while !self.aliases.is_empty() {
            if !self.guarded(|host| host.unalias(0))? {
                // Only broken devices refuse now.
                break;
            }
        }
        if !self.program.config.abrupt_end {
            self.guarded(Host::catch_up)?;
            self.guarded(|host| {
                host.drop_pieces();
                Ok(())
            })?;
            self.check()?;
            if !self.poisoned && !self.lenient {
                self.all_can_go()?;
            }
        }
        if let Some(call) = self.program.config.fail_at_end {
            self.device.fail_call(call, 1);
        }
        Ok(())
    }

    fn all_can_go(&mut self) -> Result<(), Failure> {
        for allocator in &self.allocators {
            let held = allocator.trim(0);
            let stats = allocator.memory_stats();
            let broken = self.fence_armed && self.device.sim().memory_info().is_err();
            if (held, stats.live.now) != (0, 0) && !broken {
                return Err(Host::leak(format!("{held} bytes cannot be returned: {stats:?}")));
            }
        }
        self.check()
    }

    fn drop_pieces(&mut self) {
        self.pieces.clear();
        let pool = std::mem::take(&mut *lock(&self.pool));
        drop(pool);
        self.copies.clear();
    }

    fn drop_all(&mut self) {
        self.drop_pieces();
        self.capture = None;
        self.graphs.clear();
        self.callbacks.clear();
        self.fences.clear();
        self.op_marks.clear();
        self.last_marks.clear();
        self.graveyard.clear();
        self.kept.clear();
        self.lanes.clear();
        self.allocators.clear();
    }
}

/// The device has everything back: memory, addresses, streams and fences.
fn nothing_is_left(device: &super::watched::Watched) -> Result<(), Failure> {
    let info = device.sim().memory_info().map_err(|error| Failure::new(Rule::Fault, error.to_string()))?;
    if info.free != info.total {
        return Err(Host::leak(format!("{} bytes are not returned", info.total - info.free)));
    }
    if device.reserved() > 0 {
        return Err(Host::leak(format!("{} ranges of addresses are not returned", device.reserved())));
    }
    let (calls, fired) = (device.counters(), device.fired());
    let pairs = [
        ("streams", calls.of(DeviceCall::CreateStream), calls.of(DeviceCall::DestroyStream)),
        ("fences", calls.of(DeviceCall::Record), calls.fences_released),
    ];
    match pairs.iter().find(|(_, made, gone)| fired.is_empty() && made != gone) {
        Some((what, made, gone)) => Err(Host::leak(format!("of {made} {what} {gone} are returned"))),
        None => Ok(()),
    }
}

/// The same, for one that could not be made.
pub(super) fn never_began(failure: Failure) -> Remains {
    Remains {
        oracle: Oracle::default(),
        met: Coverage::default(),
        transcript: Transcript::default(),
        story: None,
        poisoned: false,
        failure: Some(failure),
    }
}
