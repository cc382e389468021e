//! A stream's place: its heap, its clock and its number, which outlive the stream.
//!
//! When the last handle to a stream is gone, its place becomes idle with all the memory in its heap. A new stream takes
//! an idle place over when all work of the former one is complete: the clock simply goes on, so what others have proven
//! about earlier positions stays true.

use std::sync::Arc;

use highwater_core::{Clock, Openness, Position, Station, StreamIndex, Until};
use highwater_device::StreamId;
use parking_lot::{Mutex, RwLock};

use crate::capture::GraphSlot;
use crate::fence::Recorded;
use crate::heap_state::{FreeMessage, HeapState};
use crate::peak::Share;
use crate::stamp::Stamp;

/// The driver's stream that a place stands for.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) id: StreamId,
    pub(crate) name: Arc<str>,
}

/// A stream's place. It shares no cache line with another one.
#[repr(align(128))]
pub(crate) struct Slot {
    pub(crate) index: StreamIndex,
    pub(crate) clock: Clock<Arc<Recorded>>,
    pub(crate) openness: Openness<Arc<Recorded>>,
    /// Held while a fence is recorded: of two fences the later one covers more.
    pub(crate) recording: Mutex<()>,
    pub(crate) station: Station<HeapState, FreeMessage>,
    /// The time that the heap's records tell.
    pub(crate) stamp: Arc<Stamp>,
    /// Its live bytes, and its share of the peak of all.
    pub(crate) share: Arc<Share>,
    /// `None` while idle. Held (shared) while a mark is set by anyone who does not hold the stream, and while a fence is
    /// recorded, so that no mark comes after the last fence of a stream that goes away.
    pub(crate) driver: RwLock<Option<Driver>>,
    /// The name of the present or the last stream.
    pub(crate) name: Mutex<Arc<str>>,
    /// The graph that the stream is recording into.
    pub(crate) graph: GraphSlot,
}

impl Slot {
    /// Without a driver it is a place for work of streams that the allocator does not know.
    pub(crate) fn new(
        name: Arc<str>,
        driver: Option<Driver>,
        state: HeapState,
        stamp: Arc<Stamp>,
        share: Arc<Share>,
    ) -> Self {
        let index = state.index();
        Slot {
            index,
            clock: Clock::new(index),
            openness: Openness::new(),
            recording: Mutex::new(()),
            station: Station::new(state),
            stamp,
            share,
            name: Mutex::new(name),
            driver: RwLock::new(driver),
            graph: GraphSlot::default(),
        }
    }

    /// The position after which a use is over. For a whole-stream use that is a mark set now: whatever the stream was
    /// given so far, seen by us or not, is before every fence that covers it.
    pub(crate) fn end_of_use(&self, until: Until) -> Position {
        match until {
            Until::Position(position) => position,
            Until::Free => self.mark(),
        }
    }

    /// A mark set now; of an idle place the last one, which the last fence of its stream covers.
    pub(crate) fn mark(&self) -> Position {
        let driver = self.driver.read();
        if driver.is_some() { self.clock.mark() } else { self.clock.now() }
    }

    /// The place of `driver` from now on.
    pub(crate) fn take(&self, driver: &Driver) {
        *self.name.lock() = driver.name.clone();
        *self.driver.write() = Some(driver.clone());
    }

    /// The name for people.
    pub(crate) fn name(&self) -> Arc<str> {
        self.name.lock().clone()
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("index", &self.index).field("name", &self.name()).finish_non_exhaustive()
    }
}
