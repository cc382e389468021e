//! Default streams: what CUDA's two kinds of them order without being asked.
//!
//! The *legacy* default stream orders implicitly: each of its operations, fences and waits comes after all that the
//! *blocking* streams of the device were given before, and whatever a blocking stream is given later comes after what
//! the legacy stream was given before. Streams that are not blocking are exempt. The order is made of waits in the
//! queues, as if a program had recorded and waited; nobody waited, so the timeline names none of them.
//!
//! Nothing that an allocator may rely on comes from here: it knows the order of its own fences only.

use super::engine::State;
use super::queue::{Entry, WaitEntry, stream_id, stream_index};
use crate::error::invalid;
use crate::{DeviceCall, DeviceResult, StreamId};

/// What [`Device::default_stream`](crate::Device::default_stream) of a simulated device is, and of which kind the streams
/// are that [`create_stream`](crate::Device::create_stream) makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DefaultStream {
    /// A stream like any other. No stream is ordered with another implicitly. So does the CUDA device.
    #[default]
    Plain,
    /// The legacy default stream: one for all threads. Streams are blocking, as those of `cudaStreamCreate`.
    Legacy,
    /// The per-thread default stream: another one for each thread that asks, made when it first does. Streams are
    /// blocking, but no legacy stream is there that they would be ordered with.
    PerThread,
}

impl DefaultStream {
    /// The kind of the first stream of a device: its default stream, or that of the first thread that asks.
    pub(super) fn kind_of_first(self) -> StreamKind {
        match self {
            DefaultStream::Plain => StreamKind::NonBlocking,
            DefaultStream::Legacy => StreamKind::Legacy,
            DefaultStream::PerThread => StreamKind::Blocking,
        }
    }

    /// The kind of a stream that is created.
    pub(super) fn kind_of_created(self) -> StreamKind {
        match self {
            DefaultStream::Plain => StreamKind::NonBlocking,
            DefaultStream::Legacy | DefaultStream::PerThread => StreamKind::Blocking,
        }
    }
}

/// How a stream stands to the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// Exempt from its order.
    NonBlocking,
    /// Ordered with it.
    Blocking,
    /// It is the legacy default stream.
    Legacy,
}

impl State {
    /// The default stream of the calling thread.
    pub(super) fn thread_stream(&mut self, device: usize) -> StreamId {
        let thread = std::thread::current().id();
        let known = &self.devices[device].thread_streams;
        if let Some(&(_, stream)) = known.iter().find(|&&(owner, _)| owner == thread) {
            return stream_id(stream);
        }
        let id = match known.len() {
            0 => stream_id(self.devices[device].streams[0]),
            others => self.add_stream(device, &format!("default of thread {others}"), StreamKind::Blocking),
        };
        self.devices[device].thread_streams.push((thread, stream_index(id)));
        id
    }

    /// Whether a stream is the default one, or that of any thread.
    pub(super) fn is_default(&self, device: usize, stream: usize) -> bool {
        let device = &self.devices[device];
        stream == device.streams[0] || device.thread_streams.iter().any(|&(_, known)| known == stream)
    }

    /// Whether the device has a legacy default stream.
    pub(super) fn has_legacy(&self, device: usize) -> bool {
        let mut streams = self.devices[device].streams.iter().map(|&stream| &self.streams[stream]);
        streams.any(|stream| stream.kind == StreamKind::Legacy && !stream.destroyed)
    }

    /// Puts the waits into the queue of `stream` that it needs implicitly before it is given anything more.
    pub(super) fn order_implicitly(&mut self, stream: usize) {
        let others = match self.streams[stream].kind {
            StreamKind::NonBlocking => return,
            StreamKind::Blocking => StreamKind::Legacy,
            StreamKind::Legacy => StreamKind::Blocking,
        };
        let device = self.streams[stream].device;
        for other in self.devices[device].streams.clone() {
            // Of what is complete nothing is left to wait for.
            if self.streams[other].kind == others && !self.streams[other].is_idle() {
                let position = self.streams[other].submitted;
                let known = self.streams[stream].implied.insert(other, position);
                if known != Some(position) {
                    self.push(stream, Entry::Wait(WaitEntry { stream: other, position, last_operation: None }));
                }
            }
        }
    }

    /// Refuses what would order a stream that captures with another one: work for the legacy stream while a blocking
    /// stream captures. It spoils the captures.
    pub(super) fn forbid_implicit_order(&mut self, device: usize, stream: usize, call: DeviceCall) -> DeviceResult<()> {
        let kind_of = |&id: &StreamId| self.streams[stream_index(id)].kind;
        let captures = &self.devices[device].captures;
        if self.streams[stream].kind == StreamKind::Legacy
            && captures.keys().any(|id| kind_of(id) == StreamKind::Blocking)
        {
            return self.forbid_in_capture(device, call);
        }
        Ok(())
    }

    /// Refuses to capture the legacy stream.
    pub(super) fn check_capturable(&self, stream: usize) -> DeviceResult<()> {
        match self.streams[stream].kind {
            StreamKind::Legacy => {
                Err(invalid(DeviceCall::BeginCapture, "the legacy default stream cannot be captured"))
            }
            StreamKind::Blocking | StreamKind::NonBlocking => Ok(()),
        }
    }
}
