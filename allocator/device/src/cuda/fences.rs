//! Events behind fences: made once, used again.
//!
//! A handle names a place and its generation, so one that was given back is refused, whatever uses the place since. The
//! event of a place is recorded once a generation. Waits that were submitted on it keep their meaning when it is
//! recorded again: the driver takes the event's state at the time of the wait.

use std::sync::Arc;

use parking_lot::Mutex;

use super::driver::Event;
use crate::error::invalid;
use crate::{DeviceCall, DeviceResult, FenceHandle};

/// All fences of a device.
pub(super) struct Fences {
    timing: bool,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    all: Vec<Place>,
    free: Vec<u32>,
}

struct Place {
    event: Arc<Event>,
    generation: u32,
    live: bool,
}

impl Fences {
    /// With `timing` events take the time, which makes a record several times as expensive.
    pub(super) fn new(timing: bool) -> Self {
        Fences { timing, places: Mutex::default() }
    }

    /// A fence, to be recorded now. Gives it back when `record` fails.
    pub(super) fn record(&self, record: impl FnOnce(&Event) -> DeviceResult<()>) -> DeviceResult<FenceHandle> {
        let (fence, event) = self.take()?;
        record(&event).inspect_err(|_| {
            self.release(fence);
        })?;
        Ok(fence)
    }

    fn take(&self) -> DeviceResult<(FenceHandle, Arc<Event>)> {
        let mut places = self.places.lock();
        let index = match places.free.pop() {
            Some(index) => index,
            None => {
                let event = Arc::new(Event::new(DeviceCall::Record, self.timing)?);
                places.all.push(Place { event, generation: 0, live: false });
                u32::try_from(places.all.len() - 1).expect("fewer than 2^32 fences at once")
            }
        };
        let place = &mut places.all[index as usize];
        place.generation = place.generation.wrapping_add(1);
        place.live = true;
        Ok((FenceHandle(u64::from(place.generation) << 32 | u64::from(index)), place.event.clone()))
    }

    pub(super) fn event(&self, call: DeviceCall, fence: FenceHandle) -> DeviceResult<Arc<Event>> {
        let places = self.places.lock();
        let place = places.all.get(index(fence)).filter(|place| place.live && place.generation == generation(fence));
        Ok(place.ok_or_else(|| invalid(call, format!("{fence:?} is not a fence of the device")))?.event.clone())
    }

    /// Whether the fence was there to be given back.
    pub(super) fn release(&self, fence: FenceHandle) -> bool {
        let mut places = self.places.lock();
        let place = places.all.get_mut(index(fence));
        let Some(place) = place.filter(|place| place.live && place.generation == generation(fence)) else {
            return false;
        };
        place.live = false;
        places.free.push(index(fence) as u32);
        true
    }
}

fn index(fence: FenceHandle) -> usize {
    fence.0 as u32 as usize
}

fn generation(fence: FenceHandle) -> u32 {
    (fence.0 >> 32) as u32
}
