//! A snapshot as a pickle.
//!
//! The keys and their order are PyTorch's. Every stack, frame and string that is used more than once is written once
//! and then referred to, so equal stacks are the same list object for whoever loads the file.

use std::io::Write;

use crate::{
    AllocatorSettings, Snapshot, Stacks, TraceAction, TraceEvent,
    pickle::{Pickle, Word},
};

#[cfg(feature = "inspect")]
mod loaded;
mod parts;
mod table;

use parts::{Parts, Written};
use table::Uses;

pub use crate::pickle::WriteError;
#[cfg(feature = "inspect")]
pub(crate) use table::{FrameTexts, Table};

/// Version of what is under the key `recorder`.
const RECORDER_VERSION: u64 = 1;

impl Snapshot {
    /// Writes it as a pickle of protocol 4. The output should be buffered: most writes are a few bytes.
    ///
    /// # Errors
    /// If the output fails, if a number is 2^53 or more, or if a stack is not in the snapshot's table. What has been
    /// written by then is no pickle.
    pub fn write_to(&self, out: impl Write) -> Result<(), WriteError> {
        let pickle = Pickle::begin(out)?;
        let mut writer = Parts::new(pickle, &self.stacks, self.uses()?);
        writer.snapshot(self)?;
        writer.pickle.end()?.flush()?;
        Ok(())
    }

    fn uses(&self) -> Result<Uses, WriteError> {
        let mut uses = Uses::new(&self.stacks);
        for device in &self.devices {
            let segments = device.segments.iter();
            let blocks = segments.clone().flat_map(|segment| &segment.blocks).map(|block| block.stack);
            let events = device.trace.iter().map(|event| event.stack);
            let notes = device.notes.places().map(|(stack, _)| stack);
            for stack in segments.map(|segment| segment.stack).chain(blocks).chain(events).chain(notes) {
                uses.add_stack(&self.stacks, stack)?;
            }
        }
        Ok(uses)
    }
}

impl<W: Write> Parts<'_, W, Stacks> {
    fn snapshot(&mut self, snapshot: &Snapshot) -> Written {
        self.pickle.begin_dict()?;
        self.pickle.text("segments")?;
        let devices = || snapshot.devices.iter().zip(0u64..);
        let segments =
            devices().flat_map(|(device, index)| device.segments.iter().map(move |segment| (index, segment)));
        self.list(segments, |writer, (device, segment)| writer.segment(device, segment))?;
        self.pickle.text("device_traces")?;
        self.list(&snapshot.devices, |writer, device| writer.list(&device.trace, Self::event))?;
        self.pickle.text("allocator_settings")?;
        self.allocator_settings(&snapshot.allocator_settings)?;
        self.pickle.text("external_annotations")?;
        self.list(&snapshot.annotations, |writer, annotation| {
            let device = annotation.device.into();
            writer.annotation(annotation.stage, &annotation.name, device, annotation.time_us)
        })?;
        self.pickle.text("recorder")?;
        self.recorder(snapshot)?;
        self.pickle.end_dict()
    }

    fn event(&mut self, event: &TraceEvent) -> Written {
        self.pickle.begin_dict()?;
        self.word_entry(Word::Action, action_word(event.action))?;
        match event.action {
            TraceAction::OutOfMemory { device_free_bytes } => self.number(Word::DeviceFree, device_free_bytes)?,
            _ => self.number(Word::Addr, event.address)?,
        }
        self.number(Word::Size, event.bytes)?;
        if let TraceAction::Alloc { rounded_bytes: Some(bytes) } = event.action {
            self.number(Word::RoundedSize, bytes)?;
        }
        self.number(Word::Stream, event.stream)?;
        self.number(Word::TimeUs, event.time_us)?;
        self.word_entry(Word::CompileContext, Word::NotCompiled)?;
        self.word_entry(Word::UserMetadata, Word::Empty)?;
        self.pool(Word::PoolId, (0, 0))?;
        self.place(event.stack, event.span)?;
        self.pickle.end_dict()
    }

    fn allocator_settings(&mut self, settings: &AllocatorSettings) -> Written {
        self.pickle.begin_dict()?;
        self.pickle.text("PYTORCH_CUDA_ALLOC_CONF")?;
        self.pickle.text(&settings.text)?;
        self.pickle.text("max_split_size")?;
        self.pickle.signed(settings.max_split_size)?;
        self.pickle.text("garbage_collection_threshold")?;
        self.pickle.float(settings.garbage_collection_threshold)?;
        self.pickle.text("expandable_segments")?;
        self.pickle.bool(settings.expandable_segments)?;
        self.pickle.end_dict()
    }

    fn recorder(&mut self, snapshot: &Snapshot) -> Written {
        self.pickle.begin_dict()?;
        self.pickle.text("version")?;
        self.pickle.unsigned(RECORDER_VERSION)?;
        self.pickle.text("writer")?;
        self.pickle.text(concat!("highwater ", env!("CARGO_PKG_VERSION")))?;
        self.pickle.text("settings")?;
        self.list(&snapshot.settings, |writer, (name, value)| {
            writer.pickle.text(name)?;
            writer.pickle.text(value)?;
            writer.pickle.tuple_of_two()
        })?;
        self.pickle.text("span_paths")?;
        self.list(&snapshot.span_paths, |writer, path| writer.pickle.text(path))?;
        self.pickle.text("devices")?;
        self.list(&snapshot.devices, |writer, device| writer.notes(&device.notes))?;
        self.pickle.end_dict()
    }
}

fn action_word(action: TraceAction) -> Word {
    match action {
        TraceAction::Alloc { .. } => Word::Alloc,
        TraceAction::FreeRequested => Word::FreeRequested,
        TraceAction::FreeCompleted => Word::FreeCompleted,
        TraceAction::SegmentAlloc => Word::SegmentAlloc,
        TraceAction::SegmentFree => Word::SegmentFree,
        TraceAction::SegmentMap => Word::SegmentMap,
        TraceAction::SegmentUnmap => Word::SegmentUnmap,
        TraceAction::OutOfMemory { .. } => Word::OutOfMemory,
        TraceAction::Snapshot => Word::Snapshot,
    }
}
