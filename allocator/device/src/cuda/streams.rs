//! The streams that a device knows, by the driver's id.
//!
//! A stream is kept alive as long as it is known. The per-thread default stream is never known: its handle means another
//! stream in each thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::RwLock;

use super::driver;
use crate::error::invalid;
use crate::{DeviceCall, DeviceError, DeviceResult, StreamId};

/// The driver's handle of whatever stream is the calling thread's default.
const PER_THREAD: u64 = 2;

/// All streams of a device.
#[derive(Default)]
pub(super) struct Streams {
    known: RwLock<BTreeMap<StreamId, Arc<Known>>>,
    /// Captures that were begun here, each with the first call that spoilt it.
    captures: RwLock<BTreeMap<StreamId, Option<DeviceCall>>>,
    /// Captures that were begun here, and streams that somebody outside has: as long as there is none of either, nobody
    /// captures, and no lock is taken to know it. More before there is one, and less after it is gone.
    suspects: AtomicUsize,
}

/// A stream.
pub(super) struct Known {
    pub(super) stream: Arc<CudaStream>,
    pub(super) name: Arc<str>,
    /// Somebody outside has the stream, and may capture it without asking.
    exposed: AtomicBool,
}

impl Streams {
    /// Knows a stream of this device's own.
    pub(super) fn add(&self, stream: Arc<CudaStream>, name: &str) -> DeviceResult<StreamId> {
        self.insert(stream, name, false)
    }

    /// Knows a stream of somebody else.
    pub(super) fn adopt(&self, context: &CudaContext, stream: &Arc<CudaStream>, name: &str) -> DeviceResult<StreamId> {
        let call = DeviceCall::CreateStream;
        if stream.context().cu_ctx() != context.cu_ctx() {
            return Err(invalid(call, format!("stream {name:?} belongs to another context")));
        }
        if driver::handle(stream).0 == PER_THREAD {
            let what = format!("stream {name:?} is the per-thread default stream: another one in each thread");
            return Err(invalid(call, what));
        }
        self.insert(stream.clone(), name, true)
    }

    fn insert(&self, stream: Arc<CudaStream>, name: &str, exposed: bool) -> DeviceResult<StreamId> {
        let id = StreamId(driver::stream_id(DeviceCall::CreateStream, &stream)?);
        let mut known = self.known.write();
        if known.contains_key(&id) {
            return Err(invalid(DeviceCall::CreateStream, format!("stream {name:?} is known already")));
        }
        self.suspects.fetch_add(usize::from(exposed), Ordering::AcqRel);
        known.insert(id, Arc::new(Known { stream, name: name.into(), exposed: AtomicBool::new(exposed) }));
        Ok(id)
    }

    pub(super) fn get(&self, call: DeviceCall, stream: StreamId) -> DeviceResult<Arc<Known>> {
        let known = self.known.read().get(&stream).cloned();
        known.ok_or_else(|| invalid(call, format!("{stream:?} is not a stream of the device")))
    }

    /// The id of a known stream, by its handle: what is known is alive, so no other stream has the handle.
    pub(super) fn id_of(&self, stream: &CudaStream) -> Option<StreamId> {
        self.known.read().iter().find(|(_, known)| *known.stream == *stream).map(|(&id, _)| id)
    }

    /// The stream for somebody outside.
    pub(super) fn expose(&self, stream: StreamId) -> Option<Arc<CudaStream>> {
        let known = self.known.read();
        let known = known.get(&stream)?;
        if !known.exposed.swap(true, Ordering::AcqRel) {
            self.suspects.fetch_add(1, Ordering::AcqRel);
        }
        Some(known.stream.clone())
    }

    pub(super) fn forget(&self, stream: StreamId) -> DeviceResult<()> {
        let call = DeviceCall::DestroyStream;
        self.get(call, stream)?;
        if self.captures.read().contains_key(&stream) {
            return Err(invalid(call, format!("{stream:?} captures")));
        }
        // Destroyed outside of the lock.
        let forgotten = self.known.write().remove(&stream);
        if forgotten.is_some_and(|known| known.exposed.load(Ordering::Acquire)) {
            self.suspects.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    pub(super) fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        let known = self.get(DeviceCall::BeginCapture, stream)?;
        let mut captures = self.captures.write();
        if captures.contains_key(&stream) {
            return Err(invalid(DeviceCall::BeginCapture, format!("{stream:?} captures already")));
        }
        self.suspects.fetch_add(1, Ordering::AcqRel);
        driver::begin_capture(&known.stream).inspect_err(|_| {
            self.suspects.fetch_sub(1, Ordering::AcqRel);
        })?;
        captures.insert(stream, None);
        Ok(())
    }

    pub(super) fn end_capture(&self, stream: StreamId) -> DeviceResult<()> {
        let call = DeviceCall::EndCapture;
        let known = self.get(call, stream)?;
        // Nobody may take the stream for one that does not capture before the driver does.
        let mut captures = self.captures.write();
        let spoilt = captures.remove(&stream);
        let spoilt = spoilt.ok_or_else(|| invalid(call, format!("{stream:?} does not capture")))?;
        let ended = driver::end_capture(&known.stream);
        self.suspects.fetch_sub(1, Ordering::AcqRel);
        drop(captures);
        match spoilt {
            Some(call) => Err(DeviceError::CaptureViolation { call }),
            None => ended,
        }
    }

    /// Whether this stream captures, as far as the device began it.
    pub(super) fn captures(&self, stream: StreamId) -> bool {
        self.captures.read().contains_key(&stream)
    }

    /// Whether any stream captures: one that was begun here, or one that somebody outside may have begun.
    pub(super) fn is_capturing(&self) -> bool {
        if self.suspects.load(Ordering::Acquire) == 0 {
            return false;
        }
        let outside = |known: &Arc<Known>| known.exposed.load(Ordering::Acquire) && driver::is_capturing(&known.stream);
        !self.captures.read().is_empty() || self.known.read().values().any(outside)
    }

    /// Refuses a call while a stream captures, and spoils the captures that were begun here. The driver is not asked:
    /// a capture of somebody else stays whole.
    pub(super) fn forbid_in_capture(&self, call: DeviceCall) -> DeviceResult<()> {
        if !self.is_capturing() {
            return Ok(());
        }
        for spoilt in self.captures.write().values_mut() {
            spoilt.get_or_insert(call);
        }
        Err(DeviceError::CaptureViolation { call })
    }
}
