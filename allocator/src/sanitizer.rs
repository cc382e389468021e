//! The stream sanitizer: finding work on memory that nothing orders (feature `sanitizer`).
//!
//! ```
//! use highwater::device::{Cost, sim::SimDevice};
//! use highwater::sanitizer::OnRace;
//! use highwater::{Allocator, Settings};
//! # fn main() -> Result<(), highwater::Error> {
//! let settings = Settings::builder().sanitizer(OnRace::Collect).build()?;
//! let allocator = Allocator::with_settings(SimDevice::new(Default::default()), settings)?;
//! let (s1, s2) = (allocator.create_stream("s1")?, allocator.create_stream("s2")?);
//! let a = s1.alloc::<f32>(1024)?;
//! s1.launch("compute", Cost::kernel(0, 4096)).write(&a).submit()?;
//! s2.launch("use", Cost::kernel(0, 4096)).read(&a).submit()?; // nothing makes `s2` wait
//!
//! let races = allocator.sanitizer().expect("it was asked for").take_races();
//! assert!(races[0].to_string().contains(r#""s2" has to wait for a fence recorded on "s1" after "compute""#));
//! # Ok(()) }
//! ```
//!
//! What it sees by itself: launches, copies, external submissions, guards ([`Buffer::on`](crate::Buffer::on) counts as
//! a read and a write, [`Buffer::read_on`](crate::Buffer::read_on) as a read), calls of cudarc on streams of the
//! allocator, host buffers, fences, waits, allocations and frees. What is done past the allocator has to be declared:
//!
//! - work on raw pointers by [`Sanitizer::access`], right behind its submission;
//! - order that is made by other events by [`Sanitizer::ordered`] and [`Sanitizer::host_saw`];
//! - access to pinned memory by [`Sanitizer::host_access`];
//! - or calls of the device, all at once, by calling the device that [`Allocator::watched_device`] gives.
//!
//! Without the feature nothing of this is compiled. With it, and without the setting, each place costs a branch.

use std::sync::Arc;

use highwater_device::{Access, Address, ByteRange, Device, HostMemory, Operand};
use highwater_history::Context;

pub use highwater_sanitizer::{
    BufferInfo, Config, Counters, FencePoint, Here, Missing, OnRace, OpenUse, Race, RaceKind, Sanitizer, Side, Watched,
};

use crate::allocation::Allocation;
use crate::shared::Shared;
use crate::slot::Driver;
use crate::{Allocator, Settings, Stream};

/// The device itself, the device to call, and the sanitizer if the settings ask for it.
pub(crate) fn watch(
    real: Arc<dyn Device>,
    settings: &Settings,
) -> (Arc<dyn Device>, Arc<dyn Device>, Option<Sanitizer>) {
    match settings.on_race() {
        Some(on_race) => {
            let sanitizer = Sanitizer::new(Config { on_race, ..Config::default() });
            (real.clone(), sanitizer.watch(real), Some(sanitizer))
        }
        None => (real.clone(), real, None),
    }
}

impl Allocator {
    /// The sanitizer, if the settings asked for it.
    #[must_use]
    pub fn sanitizer(&self) -> Option<&Sanitizer> {
        self.shared().sanitizer.as_ref()
    }

    /// The device for calls past the allocator that the sanitizer has to see. Without the sanitizer it is the device
    /// itself.
    #[must_use]
    pub fn watched_device(&self) -> &Arc<dyn Device> {
        &self.shared().device
    }
}

impl Shared {
    /// Says where calls of the device come from, as long as the answer lives.
    pub(crate) fn here(&self, context: Context) -> Option<Here> {
        self.sanitizer.as_ref().map(|_| Here::at(context))
    }

    /// Panics with a race, if that is asked for. Nothing must be half done.
    #[track_caller]
    pub(crate) fn raise(&self) {
        if let Some(sanitizer) = &self.sanitizer {
            sanitizer.raise();
        }
    }

    pub(crate) fn tell_free(&self, address: u64) {
        if let Some(sanitizer) = &self.sanitizer {
            sanitizer.freed(Address(address));
        }
    }

    pub(crate) fn tell_name(&self, driver: &Driver) {
        if let Some(sanitizer) = &self.sanitizer {
            sanitizer.name_stream(driver.id, &driver.name);
        }
    }

    #[track_caller]
    pub(crate) fn tell_host_access(&self, memory: &HostMemory, access: Access) {
        if let Some(sanitizer) = &self.sanitizer {
            sanitizer.host_access(memory, 0..memory.len(), access);
        }
    }
}

impl Allocation {
    pub(crate) fn tell_birth(&self) {
        if let Some(sanitizer) = &self.owner().shared().sanitizer
            && self.address() != 0
        {
            let range = ByteRange::new(Address(self.address()), self.bytes());
            sanitizer.allocated(self.owner().id(), range, self.context);
            sanitizer.raise();
        }
    }
}

impl Stream {
    /// Work was submitted past the device.
    pub(crate) fn seen(&self, name: &str, operands: &[Operand], context: Context) {
        if let Some(sanitizer) = &self.shared().sanitizer {
            sanitizer.submitted(self.id(), name.to_owned(), operands, Some(context));
        }
    }

    /// Work of a guard is about to be submitted.
    pub(crate) fn open_use(&self, range: ByteRange, access: Access, context: Context) -> Option<OpenUse> {
        let sanitizer = self.shared().sanitizer.as_ref()?;
        Some(sanitizer.open(self.id(), "work of a guard", Operand { range, access }, context))
    }

    /// The guard is dropped.
    pub(crate) fn close_use(&self, open: Option<OpenUse>) {
        if let (Some(sanitizer), Some(open)) = (&self.shared().sanitizer, open) {
            sanitizer.close(open);
        }
    }
}
