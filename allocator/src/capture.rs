//! Captures: a stream's work recorded into a graph instead of being executed.
//!
//! While a stream of the device captures, this crate neither records, asks nor waits for fences, on any stream. Memory
//! that a capturing stream is given belongs to its graph: when it is dropped, it is kept until the graph is dropped too.
//! Memory from before the capture that the captured work uses has to be kept by the program as long as the graph runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_device::{DeviceError, DeviceResult};
use parking_lot::Mutex;

use crate::allocation::Leftover;
use crate::error::{Doing, StreamError};
use crate::fence::capturing;
use crate::stream::Stream;

/// Memory that a graph keeps.
pub(crate) struct GraphPool {
    /// `None` when the graph is gone.
    kept: Mutex<Option<Vec<Leftover>>>,
}

impl GraphPool {
    /// Keeps freed memory as long as the graph lives.
    pub(crate) fn keep(&self, freed: Leftover) {
        let mut kept = self.kept.lock();
        if let Some(kept) = kept.as_mut() {
            return kept.push(freed);
        }
        drop(kept);
        freed.give_back();
    }

    fn release(&self) {
        let kept = self.kept.lock().take();
        kept.into_iter().flatten().for_each(Leftover::give_back);
    }
}

/// The graph that a stream is recording into, if it does.
#[derive(Default)]
pub(crate) struct GraphSlot {
    /// Whether there is one: what each allocation asks. Changed inside of the lock.
    some: AtomicBool,
    pool: Mutex<Option<Arc<GraphPool>>>,
}

impl GraphSlot {
    /// The graph. The stream's own capture began before, or runs beside what is asked here.
    #[inline]
    pub(crate) fn get(&self) -> Option<Arc<GraphPool>> {
        if self.some.load(Ordering::Acquire) { self.pool.lock().clone() } else { None }
    }

    fn set(&self, pool: Option<Arc<GraphPool>>) {
        let mut held = self.pool.lock();
        self.some.store(pool.is_some(), Ordering::Release);
        *held = pool;
    }
}

/// A capture in progress. Dropping it ends it and throws the graph away.
#[must_use = "dropping a capture throws it away"]
pub struct Capture {
    stream: Stream,
    /// `None` when ended.
    pool: Option<Arc<GraphPool>>,
}

impl Capture {
    pub(crate) fn begin(stream: &Stream) -> Result<Self, StreamError> {
        let shared = stream.shared();
        let _alone = shared.captures.write();
        let graph = &stream.slot().graph;
        // Nobody else begins one: captures begin alone.
        if graph.get().is_some() {
            return Err(capturing("beginning a capture"));
        }
        shared.device.begin_capture(stream.id()).doing(|| format!("beginning a capture of {:?}", stream.name()))?;
        let pool = Arc::new(GraphPool { kept: Mutex::new(Some(Vec::new())) });
        graph.set(Some(pool.clone()));
        Ok(Capture { stream: stream.clone(), pool: Some(pool) })
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// When something spoilt it, or the device failed; the memory of the graph is free then.
    pub fn end(mut self) -> Result<Graph, StreamError> {
        let result = self.finish();
        if matches!(result, Err(DeviceError::CaptureViolation { .. })) {
            // It is over, for the device too. After any other error the drop tries once more.
            self.give_up();
        }
        result.doing(|| format!("ending the capture of {:?}", self.stream.name()))?;
        let pool = self.pool.take().expect("a capture is ended once");
        Ok(Graph { pool })
    }

    fn finish(&self) -> DeviceResult<()> {
        self.stream.slot().graph.set(None);
        self.stream.shared().device.end_capture(self.stream.id())
    }

    /// Frees the memory of the graph.
    fn give_up(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.release();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.pool.is_none() || self.stream.shared().process.is_forked() {
            return;
        }
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "ending a capture that is thrown away failed");
        }
        self.give_up();
    }
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// A captured graph: as long as it lives, it keeps the memory that was allocated inside the capture.
pub struct Graph {
    pool: Arc<GraphPool>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.pool.release();
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}
