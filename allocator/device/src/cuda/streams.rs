//! The streams that a device knows, by the driver's id.
//!
//! A stream is kept alive as long as it is known. The per-thread default stream is never known: its handle means another
//! stream in each thread.

use std::collections::BTreeMap;
use std::sync::Arc;

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
    known: RwLock<BTreeMap<StreamId, Known>>,
    /// Captures that were begun here, each with the first call that spoilt it.
    captures: RwLock<BTreeMap<StreamId, Option<DeviceCall>>>,
}

/// A stream.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) stream: Arc<CudaStream>,
    pub(super) name: Arc<str>,
    /// Somebody outside has the stream, and may capture it without asking.
    exposed: bool,
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
        known.insert(id, Known { stream, name: name.into(), exposed });
        Ok(id)
    }

    pub(super) fn get(&self, call: DeviceCall, stream: StreamId) -> DeviceResult<Known> {
        let known = self.known.read().get(&stream).cloned();
        known.ok_or_else(|| invalid(call, format!("{stream:?} is not a stream of the device")))
    }

    /// The id of a known stream, by its handle: what is known is alive, so no other stream has the handle.
    pub(super) fn id_of(&self, stream: &CudaStream) -> Option<StreamId> {
        self.known.read().iter().find(|(_, known)| *known.stream == *stream).map(|(&id, _)| id)
    }

    /// The stream for somebody outside.
    pub(super) fn expose(&self, stream: StreamId) -> Option<Arc<CudaStream>> {
        let mut known = self.known.write();
        let known = known.get_mut(&stream)?;
        known.exposed = true;
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
        drop(forgotten);
        Ok(())
    }

    pub(super) fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        let known = self.get(DeviceCall::BeginCapture, stream)?;
        let mut captures = self.captures.write();
        if captures.contains_key(&stream) {
            return Err(invalid(DeviceCall::BeginCapture, format!("{stream:?} captures already")));
        }
        driver::begin_capture(&known.stream)?;
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
        !self.captures.read().is_empty()
            || self.known.read().values().any(|known| known.exposed && driver::is_capturing(&known.stream))
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
