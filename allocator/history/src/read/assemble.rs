//! The last step: from what was recognised on the way to a [`Loaded`] snapshot.
//!
//! Every list is taken out of the heap when it is used, so nothing can be in the result twice, and the result is not
//! larger than what was read. With `lenient` a part that is wrong is left out, and the first error is kept as damage.

use super::{
    Loaded, LoadedAnnotation, LoadedDevice, Part, ReadError, Recorder, Setting, TextId,
    heap::{Object, Value},
    shape::{Found, text, unsigned},
    words,
};
use crate::Stage;

/// Most devices of one snapshot.
const MAX_DEVICES: usize = 1024;

pub(super) type Read<T> = Result<T, ReadError>;

pub(super) struct Assembly {
    pub(super) found: Found,
    /// Where the pickle ended, for errors.
    pub(super) offset: u64,
    lenient: bool,
    damage: Option<ReadError>,
    /// Bytes of text that may still be copied: not more than the file has.
    pub(super) text_bytes: u64,
}

/// What the keys of the outermost dictionary stand for.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) devices: Vec<LoadedDevice>,
    host: Vec<LoadedDevice>,
    settings: Vec<(TextId, Setting)>,
    annotations: Vec<LoadedAnnotation>,
    pub(super) recorder: Option<Recorder>,
}

impl Assembly {
    pub(super) fn new(found: Found, offset: u64, lenient: bool) -> Self {
        Self { found, offset, lenient, damage: None, text_bytes: offset }
    }

    /// Puts the snapshot together. `damage` is what ended reading, if anything did.
    pub(super) fn run(mut self, top: Value, protocol: u8, damage: Option<ReadError>) -> Read<Loaded> {
        self.damage = damage;
        let mut parts = Parts::default();
        let result = self.top(top, &mut parts);
        self.tolerate(result)?;
        let is_empty = |device: &LoadedDevice| device.trace.is_empty() && device.segments.is_empty();
        if let Some(error) = &self.damage
            && parts.devices.iter().chain(&parts.host).all(is_empty)
        {
            return Err(error.clone());
        }
        Ok(Loaded {
            devices: parts.devices,
            host: parts.host,
            symbols: self.found.symbols,
            settings: parts.settings,
            annotations: parts.annotations,
            recorder: parts.recorder,
            unknown_keys: self.found.unknown,
            protocol,
            compression: None,
            damage: self.damage,
        })
    }

    /// Lets an error pass if that is wanted.
    pub(super) fn tolerate<T>(&mut self, result: Read<T>) -> Read<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.lenient => {
                self.damage.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn needs(&self, place: &'static str, key: &'static str, expected: &'static str) -> ReadError {
        ReadError::Needs { offset: self.offset, place, key, expected }
    }

    fn top(&mut self, top: Value, parts: &mut Parts) -> Read<()> {
        // The oldest files, and some calls of newer versions, are the list of segments alone.
        if let Some(Object::EmptyList | Object::List(_)) = self.found.heap.object(top) {
            return self.segments(top, "segments", &mut parts.devices);
        }
        const PLACE: &str = "the snapshot";
        let entries = self.found.heap.take_entries(top).ok_or_else(|| self.needs(PLACE, "", "a dictionary"))?;
        let mut is_snapshot = false;
        for (key, value) in entries {
            let Value::Text(key) = key else { continue };
            is_snapshot |= matches!(key, words::SEGMENTS | words::DEVICE_TRACES);
            let result = match key {
                words::SEGMENTS => self.segments(value, "segments", &mut parts.devices),
                words::DEVICE_TRACES => self.traces(value, "device_traces", &mut parts.devices),
                words::HOST_SEGMENTS => self.segments(value, "host_segments", &mut parts.host),
                words::HOST_TRACES => self.traces(value, "host_traces", &mut parts.host),
                words::ALLOCATOR_SETTINGS => self.settings(value).map(|settings| parts.settings = settings),
                words::EXTERNAL_ANNOTATIONS => {
                    self.annotations(value).map(|annotations| parts.annotations = annotations)
                }
                words::RECORDER => self.recorder(value, parts),
                _ => {
                    self.found.count_unknown(Part::File, key);
                    Ok(())
                }
            };
            self.tolerate(result)?;
        }
        if is_snapshot { Ok(()) } else { Err(self.needs(PLACE, "segments", "a list, or device_traces")) }
    }

    pub(super) fn device<'a>(&self, devices: &'a mut Vec<LoadedDevice>, index: u64) -> Read<&'a mut LoadedDevice> {
        let too_many = ReadError::TooMany { offset: self.offset, what: "devices", limit: MAX_DEVICES };
        let index = usize::try_from(index).ok().filter(|&index| index < MAX_DEVICES).ok_or(too_many)?;
        if devices.len() <= index {
            devices.resize_with(index + 1, LoadedDevice::default);
        }
        Ok(&mut devices[index])
    }

    fn segments(&mut self, list: Value, key: &'static str, devices: &mut Vec<LoadedDevice>) -> Read<()> {
        let wrong = self.needs("the snapshot", key, "a list of segments, each listed once");
        for item in self.found.heap.take_items(list).ok_or_else(|| wrong.clone())? {
            let result = match self.found.heap.object(item) {
                Some(Object::Segment(segment)) => {
                    let found = &mut self.found.heap.segments[segment as usize];
                    match (found.segment.take(), found.device) {
                        (Some(segment), device) => {
                            self.device(devices, device).map(|device| device.segments.push(segment))
                        }
                        _ => Err(wrong.clone()),
                    }
                }
                _ => Err(wrong.clone()),
            };
            self.tolerate(result)?;
        }
        Ok(())
    }

    fn traces(&mut self, list: Value, key: &'static str, devices: &mut Vec<LoadedDevice>) -> Read<()> {
        let wrong = self.needs("the snapshot", key, "a list of lists of events");
        let traces = self.found.heap.take_items(list).ok_or_else(|| wrong.clone())?;
        let mut runs = Vec::new();
        for trace in traces {
            let rows = self.found.heap.take_rows(trace).ok_or_else(|| wrong.clone());
            runs.push(self.tolerate(rows)?.unwrap_or_default());
        }
        // A row that is listed twice would be copied twice.
        let listed: u64 = runs.iter().flatten().map(|run| u64::from(run.end - run.start)).sum();
        if listed > self.found.rows.len() as u64 {
            return Err(ReadError::Inflated { offset: self.offset, what: "events are" });
        }
        for (index, runs) in (0..).zip(&runs) {
            self.device(devices, index)?.trace = self.found.rows.take(runs);
        }
        Ok(())
    }

    fn settings(&mut self, dict: Value) -> Read<Vec<(TextId, Setting)>> {
        let wrong = self.needs("the snapshot", "allocator_settings", "a dictionary");
        let mut settings = Vec::new();
        for (key, value) in self.found.heap.take_entries(dict).ok_or(wrong)? {
            let (Value::Text(key), Some(value)) = (key, self.setting(value)) else { continue };
            settings.push((TextId(key), value));
        }
        Ok(settings)
    }

    /// A setting, if it has a form that is known.
    fn setting(&mut self, value: Value) -> Option<Setting> {
        Some(match value {
            Value::Bool(value) => Setting::Bool(value),
            Value::Int(value) => Setting::Int(value),
            Value::Float(value) => Setting::Float(value),
            Value::Text(text) => Setting::Text(TextId(text)),
            Value::Object(_) => {
                let entries = self.found.heap.take_entries(value)?.into_iter();
                Setting::Map(
                    entries
                        .filter_map(|entry| match entry {
                            (Value::Text(key), Value::Int(value)) => Some((TextId(key), value)),
                            _ => None,
                        })
                        .collect(),
                )
            }
            _ => return None,
        })
    }

    fn annotations(&mut self, list: Value) -> Read<Vec<LoadedAnnotation>> {
        let wrong = self.needs("the snapshot", "external_annotations", "a list of annotations");
        let mut annotations = Vec::new();
        for item in self.found.heap.take_items(list).ok_or(wrong)? {
            let annotation = self.annotation(item);
            annotations.extend(self.tolerate(annotation)?);
        }
        Ok(annotations)
    }

    fn annotation(&mut self, dict: Value) -> Read<LoadedAnnotation> {
        const PLACE: &str = "an annotation";
        let wrong = self.needs(PLACE, "", "a dictionary, listed once");
        let (mut name, mut stage, mut device, mut time_us) = (TextId::EMPTY, None, 0, 0);
        for (key, value) in self.found.heap.take_entries(dict).ok_or(wrong)? {
            let Value::Text(key) = key else { continue };
            let result = match key {
                words::NAME => text(value).map(|text| name = TextId(text)).map_err(|expected| ("name", expected)),
                words::STAGE => match value {
                    Value::Text(words::START) => Ok(Stage::Start),
                    Value::Text(words::END) => Ok(Stage::End),
                    _ => Err(("stage", "START or END")),
                }
                .map(|value| stage = Some(value)),
                words::DEVICE => unsigned(value).map(|value| device = value).map_err(|expected| ("device", expected)),
                words::TIME_US => {
                    unsigned(value).map(|value| time_us = value).map_err(|expected| ("time_us", expected))
                }
                _ => {
                    self.found.count_unknown(Part::Annotation, key);
                    Ok(())
                }
            };
            result.map_err(|(key, expected)| self.needs(PLACE, key, expected))?;
        }
        let stage = stage.ok_or_else(|| self.needs(PLACE, "stage", "START or END"))?;
        Ok(LoadedAnnotation { name, stage, device, time_us })
    }
}
