//! Events behind fences: made once, used again.
//!
//! A handle names a place and its generation, so one that was given back is refused, whatever uses the place since. The
//! event of a place is recorded once a generation. Waits that were submitted on it keep their meaning when it is
//! recorded again: the driver takes the event's state at the time of the wait.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::driver::Event;
use crate::error::invalid;
use crate::{DeviceCall, DeviceResult, FenceHandle};

/// All fences of a device.
pub(super) struct Fences {
    timing: bool,
    /// They are never removed, so that whoever looks one up takes no lock.
    places: boxcar::Vec<Place>,
    free: Mutex<Vec<u32>>,
}

struct Place {
    event: Event,
    /// The generation, twice, and one more while there is a fence.
    state: AtomicU64,
}

/// A place's state while the fence of this generation lives.
fn live(generation: u32) -> u64 {
    u64::from(generation) << 1 | 1
}

impl Fences {
    /// With `timing` events take the time, which makes a record several times as expensive.
    pub(super) fn new(timing: bool) -> Self {
        Fences { timing, places: boxcar::Vec::new(), free: Mutex::default() }
    }

    /// A fence, to be recorded now. Gives it back when `record` fails.
    pub(super) fn record(&self, record: impl FnOnce(&Event) -> DeviceResult<()>) -> DeviceResult<FenceHandle> {
        let index = self.take()?;
        let place = &self.places[index as usize];
        // Nobody else has the place.
        let generation = ((place.state.load(Ordering::Acquire) >> 1) as u32).wrapping_add(1);
        place.state.store(live(generation), Ordering::Release);
        let fence = FenceHandle(u64::from(generation) << 32 | u64::from(index));
        record(&place.event).inspect_err(|_| {
            self.release(fence);
        })?;
        Ok(fence)
    }

    /// A place without a fence.
    fn take(&self) -> DeviceResult<u32> {
        if let Some(index) = self.free.lock().pop() {
            return Ok(index);
        }
        let event = Event::new(DeviceCall::Record, self.timing)?;
        let index = self.places.push(Place { event, state: AtomicU64::new(0) });
        Ok(u32::try_from(index).expect("fewer than 2^32 fences at once"))
    }

    pub(super) fn event(&self, call: DeviceCall, fence: FenceHandle) -> DeviceResult<&Event> {
        let place = self.places.get(index(fence));
        let place = place.filter(|place| place.state.load(Ordering::Acquire) == live(generation(fence)));
        Ok(&place.ok_or_else(|| invalid(call, format!("{fence:?} is not a fence of the device")))?.event)
    }

    /// Whether the fence was there to be given back.
    pub(super) fn release(&self, fence: FenceHandle) -> bool {
        let live = live(generation(fence));
        let Some(place) = self.places.get(index(fence)) else { return false };
        let given_back = place.state.compare_exchange(live, live - 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if given_back {
            self.free.lock().push(index(fence) as u32);
        }
        given_back
    }
}

fn index(fence: FenceHandle) -> usize {
    fence.0 as u32 as usize
}

fn generation(fence: FenceHandle) -> u32 {
    (fence.0 >> 32) as u32
}
