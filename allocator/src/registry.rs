//! The streams of an allocator by the driver's id: finding them, giving them a place, and closing them.
//!
//! A stream is entered when the device gets to know it and taken out when the device forgets it, which is later than the
//! end of its last handle when it could not be closed at once (a stream of the device captured). If the driver's stream
//! comes back before that, it goes on where it was.
//!
//! The lock of the registry comes before the list of idle places and a slot's driver. Nothing is dropped while it is
//! held that could be the last handle of a stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

#[cfg(feature = "cuda")]
use highwater_device::DeviceResult;
use highwater_device::StreamId;

use crate::error::{Doing, StreamError};
use crate::shared::{Gate, Shared};
use crate::slot::{Driver, Slot};
use crate::stream::{Inner, Stream};

/// The streams that the device knows for this allocator.
#[derive(Default)]
pub(crate) struct Registry {
    by_id: BTreeMap<StreamId, Registered>,
}

struct Registered {
    stream: Weak<Inner>,
    #[cfg(feature = "cuda")]
    slot: Arc<Slot>,
}

impl Registry {
    /// A handle for a stream that has a place.
    fn enter(&mut self, shared: &Arc<Shared>, slot: Arc<Slot>, driver: Driver) -> Stream {
        let owned = driver.id != shared.device.default_stream();
        let id = driver.id;
        #[cfg(feature = "sanitizer")]
        shared.tell_name(&driver);
        let stream = Stream::new(shared, slot, driver, owned);
        let registered = Registered {
            stream: Arc::downgrade(stream.inner()),
            #[cfg(feature = "cuda")]
            slot: stream.slot().clone(),
        };
        self.by_id.insert(id, registered);
        stream
    }
}

impl Stream {
    /// The device's default stream.
    pub(crate) fn default_of(shared: &Arc<Shared>) -> Self {
        let driver = Driver { id: shared.device.default_stream(), name: "default".into() };
        let slot = shared.add_slot(driver.clone());
        shared.registry.lock().enter(shared, slot, driver)
    }

    /// A new stream of the device.
    pub(crate) fn create(shared: &Arc<Shared>, name: &str) -> Result<Self, StreamError> {
        let id = shared.device.create_stream(name).doing(|| format!("creating stream {name:?}"))?;
        Ok(shared.open(&mut shared.registry.lock(), Driver { id, name: name.into() }))
    }

    /// The stream with an id of the driver: the one that lives, or one in a place of its own, after `introduce` has made
    /// the device know it.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_id(
        shared: &Arc<Shared>,
        id: StreamId,
        name: &str,
        introduce: impl FnOnce() -> DeviceResult<StreamId>,
    ) -> Result<Self, StreamError> {
        let mut registry = shared.registry.lock();
        let driver = Driver { id, name: name.into() };
        match registry.by_id.get(&id) {
            Some(known) => match known.stream.upgrade() {
                Some(inner) => Ok(Stream::from_inner(inner)),
                None => {
                    let slot = known.slot.clone();
                    shared.idle.lock().retain(|idle| idle.index != slot.index);
                    slot.take(&driver);
                    Ok(registry.enter(shared, slot, driver))
                }
            },
            None => {
                introduce().doing(|| format!("adopting stream {name:?}"))?;
                let stream = shared.open(&mut registry, driver);
                // Nobody here knows what it is given.
                stream.mark_open();
                Ok(stream)
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owned || self.shared.process.is_forked() {
            return;
        }
        let mut registry = self.shared.registry.lock();
        let registered = registry.by_id.get(&self.driver.id);
        let own = registered.is_some_and(|registered| std::ptr::eq(registered.stream.as_ptr(), self));
        if !own {
            // The stream was found by its id after its last handle was gone: another handle has its place.
            return;
        }
        if let Some(gate) = self.shared.gate() {
            self.shared.close(&gate, &mut registry, &self.slot);
        }
        self.shared.idle.lock().push(self.slot.clone());
    }
}

impl Shared {
    /// The stream with an id of the driver, if somebody holds it.
    #[cfg(feature = "cuda")]
    pub(crate) fn known_stream(&self, id: StreamId) -> Option<Stream> {
        let registry = self.registry.lock();
        let inner = registry.by_id.get(&id)?.stream.upgrade()?;
        Some(Stream::from_inner(inner))
    }

    /// Opens a stream in an idle place whose former work is complete, or in a new one.
    fn open(self: &Arc<Self>, registry: &mut Registry, driver: Driver) -> Stream {
        let slot = match self.gate().and_then(|gate| self.idle_place(&gate, registry, &driver)) {
            Some(slot) => slot,
            None => self.add_slot(driver.clone()),
        };
        registry.enter(self, slot, driver)
    }

    /// Records the last fence of a stream that nobody holds any more, and destroys it. On failure the place stays open:
    /// it is tried again when somebody looks for a place.
    pub(crate) fn close(&self, _gate: &Gate<'_>, registry: &mut Registry, slot: &Slot) {
        // Held from the fence to the end, so that no mark comes in between: nothing would ever cover it.
        let mut driver = slot.driver.write();
        let Some(open) = driver.as_ref() else { return };
        // The last fence comes after work that nobody saw, and after waits: a new stream must not inherit an order whose
        // waits are not complete.
        let closed = self.record_on(slot, open).and_then(|_| self.device.destroy_stream(open.id));
        if let Err(error) = closed {
            tracing::warn!(%error, stream = &*open.name, "a stream could not be closed; trying again later");
            return;
        }
        registry.by_id.remove(&open.id);
        *driver = None;
    }

    /// An idle place whose former stream has completed everything, taken over by `driver`.
    fn idle_place(&self, gate: &Gate<'_>, registry: &mut Registry, driver: &Driver) -> Option<Arc<Slot>> {
        let mut idle = self.idle.lock();
        let found = idle.iter().position(|slot| {
            if slot.driver.read().is_some() {
                self.close(gate, registry, slot);
            }
            slot.driver.read().is_none() && self.poll(gate, slot).is_ok() && slot.clock.completed() >= slot.clock.now()
        })?;
        let slot = idle.remove(found);
        slot.openness.renew();
        slot.take(driver);
        Some(slot)
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::cell::Cell;

    use highwater_device::sim::SimDevice;
    use highwater_device::{Device, DeviceCall, DeviceError};

    use super::*;
    use crate::{Allocator, Settings};

    fn allocator() -> (Arc<SimDevice>, Allocator) {
        let device = SimDevice::new(Default::default());
        let allocator = Allocator::with_settings(device.clone(), Settings::builder().build().unwrap()).unwrap();
        (device, allocator)
    }

    /// Adopts a stream of the device, and tells whether it was introduced.
    fn adopt(allocator: &Allocator, id: StreamId) -> (Stream, bool) {
        let introduced = Cell::new(false);
        let introduce = || {
            introduced.set(true);
            Ok(id)
        };
        let stream = Stream::with_id(allocator.shared(), id, "adopted", introduce).unwrap();
        (stream, introduced.get())
    }

    #[test]
    fn a_stream_is_found_by_its_id_as_long_as_somebody_holds_it() {
        let (device, allocator) = allocator();
        let own = allocator.create_stream("own").unwrap();
        for known in [&own, &allocator.default_stream()] {
            let (same, introduced) = adopt(&allocator, known.id());
            assert_eq!((&same, introduced), (known, false));
        }
        let id = device.create_stream("made elsewhere").unwrap();
        let (adopted, introduced) = adopt(&allocator, id);
        assert!(introduced && adopted.name() == "adopted");
        assert!(adopted.is_open() && !own.is_open(), "nobody here knows what an adopted stream is given");
        assert_eq!(adopt(&allocator, id), (adopted.clone(), false));
        assert_eq!(allocator.shared().known_stream(id), Some(adopted.clone()));

        // A buffer holds it too.
        let buffer = adopted.alloc::<u8>(1).unwrap();
        drop(adopted);
        assert_eq!(adopt(&allocator, id), (buffer.stream().clone(), false));
        drop(buffer);
        assert_eq!(allocator.shared().known_stream(id), None);
        let gone = device.record(id);
        assert!(matches!(gone, Err(DeviceError::InvalidValue { .. })), "the device has forgotten it: {gone:?}");
        assert!(!allocator.shared().registry.lock().by_id.contains_key(&id));
    }

    #[test]
    fn a_stream_that_comes_back_before_it_could_be_closed_goes_on_where_it_was() {
        let (device, allocator) = allocator();
        let capturing = allocator.create_stream("capturing").unwrap();
        let id = device.create_stream("made elsewhere").unwrap();
        let (adopted, _) = adopt(&allocator, id);
        let (place, position) = (adopted.slot().index, adopted.slot().clock.mark());

        let capture = capturing.begin_capture().unwrap();
        drop(adopted);
        assert_eq!(allocator.shared().known_stream(id), None);
        let (back, introduced) = adopt(&allocator, id);
        assert!(!introduced, "the device knows it still");
        assert_eq!((back.slot().index, back.slot().clock.now()), (place, position));
        assert!(allocator.shared().idle.lock().is_empty());
        drop(capture.end().unwrap());
        drop(back);
        assert_eq!(device.counters().of(DeviceCall::DestroyStream), 1);
    }

    #[test]
    fn the_end_of_an_older_handle_leaves_the_newer_one_alone() {
        let (device, allocator) = allocator();
        let id = device.create_stream("made elsewhere").unwrap();
        let (older, _) = adopt(&allocator, id);
        // As if the older handle's end had been overtaken: its place is another handle's already.
        let driver = Driver { id, name: "newer".into() };
        let shared = allocator.shared();
        let newer = shared.registry.lock().enter(shared, older.slot().clone(), driver);
        drop(older);
        assert_eq!(shared.known_stream(id), Some(newer.clone()));
        newer.record().unwrap();
        drop(newer);
        assert_eq!(device.counters().of(DeviceCall::DestroyStream), 1);
    }

    #[test]
    fn a_stream_that_the_device_refuses_is_not_entered() {
        let (_, allocator) = allocator();
        let refuse = || Err(DeviceError::InvalidValue { call: DeviceCall::CreateStream, what: "no".into() });
        let refused = Stream::with_id(allocator.shared(), StreamId(77), "refused", refuse);
        assert!(matches!(refused, Err(StreamError::Device { doing, .. }) if doing.contains("refused")));
        assert_eq!(allocator.shared().known_stream(StreamId(77)), None);
    }
}
