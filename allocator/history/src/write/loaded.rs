//! A snapshot that was read, as a pickle again: of any origin, and whatever its numbers.
//!
//! What the reader has no place for is not written: keys that it does not know. Everything else comes back the same.

use std::io::Write;

use crate::{
    WriteError,
    pickle::{Pickle, Word},
    read::{EventAction, Loaded, LoadedDevice, Recorder, Setting, Symbols, Trace},
};

use super::{
    parts::{Parts, Written},
    table::Uses,
};

impl Loaded {
    /// Writes it as a pickle of protocol 4, in batches that the viewer takes. The output should be buffered: most
    /// writes are a few bytes.
    ///
    /// # Errors
    /// If the output fails. What has been written by then is no pickle.
    pub fn write_to(&self, out: impl Write) -> Result<(), WriteError> {
        let pickle = Pickle::begin_with_any_number(out)?;
        let mut writer = Parts::new(pickle, &self.symbols, self.uses()?);
        writer.loaded(self)?;
        writer.pickle.end()?.flush()?;
        Ok(())
    }

    fn uses(&self) -> Result<Uses, WriteError> {
        let mut uses = Uses::new(&self.symbols);
        for device in self.devices.iter().chain(&self.host) {
            let segments = device.segments.iter();
            let blocks = segments.clone().flat_map(|segment| &segment.blocks).map(|block| block.stack);
            let notes = device.notes.iter().flat_map(|notes| notes.places()).map(|(stack, _)| stack);
            let events = device.trace.stacks().iter().copied();
            for stack in segments.map(|segment| segment.stack).chain(blocks).chain(events).chain(notes) {
                uses.add_stack(&self.symbols, stack)?;
            }
            device.trace.texts().for_each(|text| uses.add_text(text.number()));
        }
        Ok(uses)
    }
}

impl<W: Write> Parts<'_, W, Symbols> {
    fn loaded(&mut self, loaded: &Loaded) -> Written {
        self.pickle.begin_dict()?;
        self.memory("segments", "device_traces", &loaded.devices, loaded)?;
        if !loaded.host.is_empty() {
            self.memory("host_segments", "host_traces", &loaded.host, loaded)?;
        }
        self.pickle.text("allocator_settings")?;
        self.settings(loaded)?;
        self.pickle.text("external_annotations")?;
        self.list(&loaded.annotations, |writer, mark| {
            writer.annotation(mark.stage, loaded.symbols.text(mark.name), mark.device, mark.time_us)
        })?;
        if let Some(recorder) = &loaded.recorder {
            self.pickle.text("recorder")?;
            self.recorder_of(recorder, loaded)?;
        }
        self.pickle.end_dict()
    }

    fn memory(&mut self, segments: &str, traces: &str, devices: &[LoadedDevice], loaded: &Loaded) -> Written {
        self.pickle.text(segments)?;
        let all = (0u64..).zip(devices);
        let all = all.flat_map(|(index, device)| device.segments.iter().map(move |segment| (index, segment)));
        self.list(all, |writer, (device, segment)| writer.segment(device, segment))?;
        self.pickle.text(traces)?;
        self.list(devices, |writer, device| {
            let trace = &device.trace;
            writer.list(0..trace.len(), |writer, row| writer.row(trace, row, &loaded.symbols))
        })
    }

    fn row(&mut self, trace: &Trace, row: usize, symbols: &Symbols) -> Written {
        let event = trace.event(row);
        self.pickle.begin_dict()?;
        self.pickle.word(Word::Action)?;
        self.text(event.action.text().number())?;
        if let Some(bytes) = trace.device_free_bytes(row) {
            self.number(Word::DeviceFree, bytes)?;
        }
        // A request that failed has none.
        if event.address != 0 || event.action != EventAction::OutOfMemory {
            self.number(Word::Addr, event.address)?;
        }
        self.number(Word::Size, event.bytes)?;
        if let Some(bytes) = trace.rounded_bytes(row) {
            self.number(Word::RoundedSize, bytes)?;
        }
        self.number(Word::Stream, event.stream)?;
        if trace.has_time(row) {
            self.number(Word::TimeUs, event.time_us)?;
        }
        self.pool(Word::PoolId, trace.pool(row))?;
        let texts = [
            ("compile_context", trace.compile_context(row)),
            ("user_metadata", trace.user_metadata(row)),
            ("internal_metadata", trace.internal_metadata(row)),
            ("category", trace.category(row)),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                self.pickle.text(key)?;
                self.text(text.number())?;
            }
        }
        if let Some(stack) = trace.forward_stack(row) {
            self.pickle.text("forward_frames")?;
            let lines = symbols.stack(stack).map(|frame| symbols.text(symbols.frame(frame).name));
            self.list(lines, |writer, line| writer.pickle.text(line))?;
        }
        self.place(event.stack, trace.span(row))?;
        self.pickle.end_dict()
    }

    fn settings(&mut self, loaded: &Loaded) -> Written {
        let text = |id| loaded.symbols.text(id);
        self.dict(&loaded.settings, |writer, (key, value)| {
            writer.pickle.text(text(*key))?;
            match value {
                Setting::Bool(value) => writer.pickle.bool(*value),
                Setting::Int(value) => writer.pickle.signed(*value),
                Setting::Float(value) => writer.pickle.float(*value),
                Setting::Text(value) => writer.pickle.text(text(*value)),
                Setting::Map(map) => writer.dict(map, |writer, (key, value)| {
                    writer.pickle.text(text(*key))?;
                    writer.pickle.signed(*value)
                }),
            }
        })
    }

    /// A dictionary of any number of entries, each written as its key and its value.
    fn dict<T>(&mut self, entries: &[T], mut entry: impl FnMut(&mut Self, &T) -> Written) -> Written {
        self.pickle.empty_dict()?;
        entries.iter().try_for_each(|one| {
            entry(self, one)?;
            self.pickle.set_item()
        })
    }

    fn recorder_of(&mut self, recorder: &Recorder, loaded: &Loaded) -> Written {
        let text = |id| loaded.symbols.text(id);
        self.pickle.begin_dict()?;
        self.pickle.text("version")?;
        self.pickle.unsigned(recorder.version)?;
        self.pickle.text("writer")?;
        self.pickle.text(text(recorder.writer))?;
        self.pickle.text("settings")?;
        self.list(&recorder.settings, |writer, &(name, value)| {
            writer.pickle.text(text(name))?;
            writer.pickle.text(text(value))?;
            writer.pickle.tuple_of_two()
        })?;
        self.pickle.text("span_paths")?;
        self.list(&recorder.span_paths, |writer, &path| writer.pickle.text(text(path)))?;
        self.pickle.text("devices")?;
        let none = crate::DeviceNotes::default();
        self.list(&loaded.devices, |writer, device| writer.notes(device.notes.as_ref().unwrap_or(&none)))?;
        self.pickle.end_dict()
    }
}
