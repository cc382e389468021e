//! What only this project's recorder writes: the key `recorder`.

use super::{
    Part, ReadError, Recorder, TextId,
    assemble::{Assembly, Parts, Read},
    heap::Value,
    shape::{bits, small, text, truth, unsigned},
    words,
};
use crate::{
    DeviceMemory, DeviceNotes, FenceState, Noted, PendingFree, PendingWait, ProcessMemory, Rung, RungTaken, StackId,
    Stall, StreamName, StreamUse, WaitInserted,
};

const PLACE: &str = "the recorder's part";
const NUMBER: &str = "a number of 0 or more";

/// The entries of a note, a stream or a wait.
struct Fields {
    entries: Vec<(Value, Value)>,
    offset: u64,
}

impl Fields {
    fn needs(&self, key: u32, expected: &'static str) -> ReadError {
        ReadError::Needs { offset: self.offset, place: PLACE, key: words::ALL[key as usize], expected }
    }

    fn get(&self, key: u32) -> Option<Value> {
        // The last one counts, as everywhere in a pickle.
        self.entries.iter().rev().find(|entry| entry.0 == Value::Text(key)).map(|entry| entry.1)
    }

    fn number(&self, key: u32) -> Read<u64> {
        self.get(key).and_then(|value| unsigned(value).ok()).ok_or_else(|| self.needs(key, NUMBER))
    }

    /// An address or a stream.
    fn bits(&self, key: u32) -> Read<u64> {
        self.get(key).and_then(|value| bits(value).ok()).ok_or_else(|| self.needs(key, NUMBER))
    }

    fn small(&self, key: u32) -> Read<u32> {
        self.get(key).and_then(|value| small(value).ok()).ok_or_else(|| self.needs(key, NUMBER))
    }
}

impl Assembly {
    pub(super) fn recorder(&mut self, dict: Value, parts: &mut Parts) -> Read<()> {
        let fields = self.fields(dict)?;
        let version = fields.number(words::VERSION)?;
        let writer = fields.get(words::WRITER).and_then(|value| text(value).ok()).unwrap_or(words::EMPTY);
        let mut recorder = Recorder { version, writer: TextId(writer), settings: Vec::new(), span_paths: Vec::new() };
        for &(key, value) in &fields.entries {
            let Value::Text(key) = key else { continue };
            match key {
                words::VERSION | words::WRITER => {}
                words::SETTINGS => recorder.settings = self.pairs(value)?,
                words::SPAN_PATHS => {
                    let paths = self.list(value, words::SPAN_PATHS)?;
                    let paths = paths.into_iter().map(|path| text(path).map(TextId));
                    recorder.span_paths =
                        paths.collect::<Result<_, _>>().map_err(|expected| fields.needs(key, expected))?;
                }
                words::DEVICES => {
                    for (index, device) in (0..).zip(self.list(value, words::DEVICES)?) {
                        let notes = self.notes(device);
                        if let Some(notes) = self.tolerate(notes)? {
                            self.device(&mut parts.devices, index)?.notes = Some(notes);
                        }
                    }
                }
                _ => self.found.count_unknown(Part::Recorder, key),
            }
        }
        parts.recorder = Some(recorder);
        Ok(())
    }

    fn fields(&mut self, dict: Value) -> Read<Fields> {
        let wrong = self.needs(PLACE, "", "a dictionary, listed once");
        Ok(Fields { entries: self.found.heap.take_entries(dict).ok_or(wrong)?, offset: self.offset })
    }

    fn list(&mut self, list: Value, key: u32) -> Read<Vec<Value>> {
        let wrong = self.needs(PLACE, words::ALL[key as usize], "a list, listed once");
        self.found.heap.take_items(list).ok_or(wrong)
    }

    fn pairs(&mut self, list: Value) -> Read<Vec<(TextId, TextId)>> {
        let wrong = self.needs(PLACE, "settings", "a list of pairs of texts");
        let items = self.list(list, words::SETTINGS)?;
        let pair = |value| match self.found.heap.items(value) {
            Some(&[Value::Text(name), Value::Text(value)]) => Some((TextId(name), TextId(value))),
            _ => None,
        };
        items.into_iter().map(pair).collect::<Option<_>>().ok_or(wrong)
    }

    /// A text to keep. All such texts together are not longer than the file.
    fn owned(&mut self, value: Value) -> Read<String> {
        let wrong = self.needs(PLACE, "name", "a text");
        let text = self.found.symbols.text(TextId(text(value).map_err(|_| wrong)?));
        let left = self.text_bytes.checked_sub(text.len() as u64);
        self.text_bytes = left.ok_or(ReadError::Inflated { offset: self.offset, what: "long texts are" })?;
        Ok(text.to_owned())
    }

    fn notes(&mut self, dict: Value) -> Read<DeviceNotes> {
        let fields = self.fields(dict)?;
        let mut notes = DeviceNotes::default();
        let number = |value, key| unsigned(value).map_err(|expected| fields.needs(key, expected));
        for &(key, value) in &fields.entries {
            let Value::Text(key) = key else { continue };
            match key {
                words::NAME => notes.name = self.owned(value)?,
                words::CAPACITY_BYTES => notes.capacity_bytes = Some(number(value, key)?),
                words::OTHER_BYTES => notes.other_bytes = Some(number(value, key)?),
                words::GRANULARITY_BYTES => notes.granularity_bytes = Some(number(value, key)?),
                words::LIMIT_BYTES => notes.limit_bytes = Some(number(value, key)?),
                words::HISTORY_CAPACITY_BYTES => notes.history_capacity_bytes = number(value, key)?,
                words::HISTORY_DROPPED => notes.history_dropped = number(value, key)?,
                words::STREAMS => {
                    for item in self.list(value, key)? {
                        let fields = self.fields(item)?;
                        let name = self.owned(fields.get(words::NAME).unwrap_or(Value::None))?;
                        let open = fields.get(words::OPEN).and_then(|value| truth(value).ok()).unwrap_or(false);
                        notes.streams.push(StreamName { stream: fields.bits(words::STREAM)?, name, open });
                    }
                }
                words::PENDING_WAITS => {
                    for item in self.list(value, key)? {
                        notes.pending_waits.push(pending_wait(&self.fields(item)?)?);
                    }
                }
                words::STREAM_USES => notes.stream_uses = self.noted(value, key, stream_use)?,
                words::PENDING_FREES => notes.pending_frees = self.noted(value, key, pending_free)?,
                words::RUNGS => notes.rungs = self.noted(value, key, rung_taken)?,
                words::STALLS => notes.stalls = self.noted(value, key, stall)?,
                words::WAITS_INSERTED => notes.waits_inserted = self.noted(value, key, wait_inserted)?,
                words::AWAITED => notes.awaited = self.noted(value, key, pending_wait)?,
                words::DEVICE_MEMORY => notes.device_memory = self.noted(value, key, device_memory)?,
                words::PROCESSES => notes.processes = self.noted(value, key, process)?,
                _ => self.found.count_unknown(Part::Recorder, key),
            }
        }
        Ok(notes)
    }

    fn noted<T>(&mut self, list: Value, key: u32, fact: fn(&Fields) -> Read<T>) -> Read<Vec<Noted<T>>> {
        let mut notes = Vec::new();
        for item in self.list(list, key)? {
            let fields = self.fields(item)?;
            let stack = match fields.get(words::FRAMES) {
                Some(frames) => self.found.stack(frames).map_err(|expected| fields.needs(words::FRAMES, expected))?,
                None => StackId::EMPTY,
            };
            let span = if fields.get(words::SPAN).is_some() { fields.small(words::SPAN)? } else { 0 };
            notes.push(Noted { time_us: fields.number(words::TIME_US)?, stack, span, fact: fact(&fields)? });
        }
        Ok(notes)
    }
}

fn stream_use(fields: &Fields) -> Read<StreamUse> {
    let exact = fields.get(words::EXACT).and_then(|value| truth(value).ok());
    Ok(StreamUse {
        address: fields.bits(words::ADDR)?,
        stream: fields.bits(words::STREAM)?,
        exact: exact.ok_or_else(|| fields.needs(words::EXACT, "a truth value"))?,
    })
}

fn pending_free(fields: &Fields) -> Read<PendingFree> {
    Ok(PendingFree {
        address: fields.bits(words::ADDR)?,
        stream: fields.bits(words::STREAM)?,
        waits: fields.small(words::WAITS)?,
    })
}

fn rung_taken(fields: &Fields) -> Read<RungTaken> {
    let rung = u8::try_from(fields.number(words::RUNG)?).ok().and_then(Rung::from_code);
    Ok(RungTaken {
        rung: rung.ok_or_else(|| fields.needs(words::RUNG, "the number of a rung"))?,
        bytes: fields.number(words::SIZE)?,
        stream: fields.bits(words::STREAM)?,
    })
}

fn stall(fields: &Fields) -> Read<Stall> {
    Ok(Stall { stream: fields.bits(words::STREAM)?, stall_ns: fields.number(words::STALL_NS)? })
}

/// What a block waits for. Older files do not say how far it is.
fn pending_wait(fields: &Fields) -> Read<PendingWait> {
    let fence = match fields.get(words::FENCE) {
        None => None,
        Some(Value::Text(words::UNRECORDED)) => Some(FenceState::Unrecorded),
        Some(Value::Text(words::RECORDED)) => Some(FenceState::Recorded),
        Some(Value::Text(words::COMPLETE)) => Some(FenceState::Complete),
        Some(_) => return Err(fields.needs(words::FENCE, "unrecorded, recorded or complete")),
    };
    let held_by = fields.get(words::HELD_BY).map(|_| fields.bits(words::HELD_BY)).transpose()?;
    Ok(PendingWait {
        address: fields.bits(words::ADDR)?,
        stream: fields.bits(words::STREAM)?,
        position: fields.number(words::POSITION)?,
        fence,
        held_by,
    })
}

fn device_memory(fields: &Fields) -> Read<DeviceMemory> {
    Ok(DeviceMemory {
        total_bytes: fields.number(words::TOTAL_BYTES)?,
        free_bytes: fields.number(words::FREE_BYTES)?,
        held_bytes: fields.number(words::HELD_BYTES)?,
    })
}

fn process(fields: &Fields) -> Read<ProcessMemory> {
    let is_own = fields.get(words::OWN).and_then(|value| truth(value).ok()).unwrap_or(false);
    Ok(ProcessMemory { pid: fields.small(words::PID)?, bytes: fields.number(words::SIZE)?, is_own })
}

fn wait_inserted(fields: &Fields) -> Read<WaitInserted> {
    Ok(WaitInserted { stream: fields.bits(words::STREAM)?, for_stream: fields.bits(words::FOR_STREAM)? })
}
