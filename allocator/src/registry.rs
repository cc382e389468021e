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
                Ok(shared.open(&mut registry, driver))
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
        // A position of its own, as in `record`: the last fence comes after work that nobody saw, and after waits. A new
        // stream must not inherit an order whose waits are not complete.
        slot.clock.mark();
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
        slot.take(driver);
        Some(slot)
    }
}
