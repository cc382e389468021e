//! A snapshot as a Chrome trace, which ui.perfetto.dev opens.
//!
//! A device is a process. Live, pending and reserved bytes are counters; each block is a slice from its allocation to its
//! free, and one behind it as long as it waited; marks of the program are slices too. Slices of blocks overlap, so they are
//! asynchronous ones, each with an id of its own. Times are µs since the first event of the file; where events have none,
//! their indices stand in.

use std::io::{self, Write};

use highwater::history::Stage;
use highwater::history::inspect::{Curves, site_text, stream_text};
use highwater::history::read::{EventAction, LoadedDevice};
use highwater::history::timeline::Timeline;
use serde::Serialize;

use super::super::input::Opened;

/// One event, with the names of the format.
#[derive(Serialize)]
struct Event<'a, A> {
    ph: &'static str,
    pid: usize,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<u64>,
    /// `p`: the mark goes through all of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<A>,
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct Bytes {
    bytes: u64,
}

#[derive(Serialize)]
struct Instant {
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Block {
    bytes: u64,
    address: String,
    stream: String,
    /// Indices of the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocated_by: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_by: Option<usize>,
}

/// The file while it is written.
struct Sink<'a> {
    out: &'a mut dyn Write,
    first: bool,
    /// Slices so far.
    slices: u64,
}

impl Sink<'_> {
    fn event<A: Serialize>(&mut self, event: &Event<'_, A>) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn counter(&mut self, pid: usize, name: &str, ts: u64, bytes: u64) -> io::Result<()> {
        let args = Some(Bytes { bytes });
        self.event(&Event { ph: "C", pid, name, cat: None, id: None, ts: Some(ts), s: None, args })
    }

    /// A slice that others may overlap.
    fn slice<A: Serialize>(
        &mut self,
        pid: usize,
        cat: &'static str,
        name: &str,
        times: (u64, u64),
        args: A,
    ) -> io::Result<()> {
        self.slices += 1;
        let (cat, id) = (Some(cat), Some(self.slices));
        self.event(&Event { ph: "b", pid, name, cat, id, ts: Some(times.0), s: None, args: Some(args) })?;
        let args = None::<Bytes>;
        self.event(&Event { ph: "e", pid, name, cat, id, ts: Some(times.1.max(times.0)), s: None, args })
    }
}

/// One device on its time line.
struct Lane<'a> {
    opened: &'a Opened,
    device: &'a LoadedDevice,
    index: usize,
    /// Of the process. 0 is the idle process of some readers.
    pid: usize,
    /// Time of the first event of the file, µs.
    start_us: u64,
}

/// Writes the trace. Blocks below `min_bytes` get no slice.
pub(super) fn write(opened: &Opened, min_bytes: u64, out: &mut dyn Write) -> io::Result<()> {
    let devices = &opened.loaded.devices;
    let times = devices.iter().filter_map(|device| device.trace.times_us().first());
    let start_us = times.copied().min().unwrap_or(0);
    let mut sink = Sink { out, first: true, slices: 0 };
    write!(sink.out, "{{\"traceEvents\":[")?;
    for (index, device) in devices.iter().enumerate() {
        if device.trace.is_empty() && device.segments.is_empty() {
            continue;
        }
        let lane = Lane { opened, device, index, pid: index + 1, start_us };
        lane.name(&mut sink)?;
        lane.counters(&mut sink)?;
        lane.instants(&mut sink)?;
        lane.blocks(&mut sink, min_bytes)?;
        lane.marks(&mut sink)?;
    }
    sink.out.write_all(b"\n]}\n")
}

impl Lane<'_> {
    /// When an event happened; past the last one, when that did, and a tick.
    fn time(&self, row: usize) -> u64 {
        let trace = &self.device.trace;
        if !trace.is_timed() {
            return row as u64;
        }
        let time = |us: u64| us.saturating_sub(self.start_us);
        match trace.times_us().get(row) {
            Some(&us) => time(us),
            None => trace.times_us().last().map_or(0, |&us| time(us) + 1),
        }
    }

    fn name(&self, sink: &mut Sink<'_>) -> io::Result<()> {
        let called = self.device.notes.as_ref().map(|notes| &notes.name).filter(|name| !name.is_empty());
        let name = called.map_or(String::new(), |name| format!(" ({name})"));
        let name = format!("device {}{name}", self.index);
        let args = Some(Named { name: &name });
        sink.event(&Event {
            ph: "M",
            pid: self.pid,
            name: "process_name",
            cat: None,
            id: None,
            ts: None,
            s: None,
            args,
        })
    }

    /// The sums after each event, where they change.
    fn counters(&self, sink: &mut Sink<'_>) -> io::Result<()> {
        let curves = Curves::of(self.device);
        let sums =
            [("live", curves.live_bytes()), ("pending", curves.pending_bytes()), ("reserved", curves.reserved_bytes())];
        for (name, sums) in sums {
            sink.counter(self.pid, name, self.time(0), sums[0])?;
            for row in 0..self.device.trace.len() {
                if sums[row + 1] != sums[row] {
                    sink.counter(self.pid, name, self.time(row), sums[row + 1])?;
                }
            }
        }
        Ok(())
    }

    /// What has no duration: failures, snapshots, and memory that is taken or returned.
    fn instants(&self, sink: &mut Sink<'_>) -> io::Result<()> {
        use EventAction::{Alloc, Free, FreeCompleted, FreeRequested};
        let trace = &self.device.trace;
        for row in 0..trace.len() {
            let action = trace.action(row);
            if matches!(action, Alloc | FreeRequested | FreeCompleted | Free) {
                continue;
            }
            let name = self.opened.loaded.symbols.text(action.text());
            let args = Instant { bytes: trace.bytes()[row], device_free_bytes: trace.device_free_bytes(row) };
            let (ts, args) = (Some(self.time(row)), Some(args));
            sink.event(&Event { ph: "i", pid: self.pid, name, cat: None, id: None, ts, s: Some("p"), args })?;
        }
        Ok(())
    }

    fn blocks(&self, sink: &mut Sink<'_>, min_bytes: u64) -> io::Result<()> {
        let timeline = Timeline::of(&self.opened.loaded, self.index);
        let event = |moment| timeline.event_before(moment).map(|event| event as usize);
        // What is older than the trace begins with it; what stays ends behind it.
        let time = |moment: u32| self.time((moment as usize).saturating_sub(1));
        for life in timeline.blocks().iter().filter(|life| life.requested_bytes >= min_bytes) {
            let source = timeline.sources()[life.source];
            let name = site_text(&self.opened.loaded, source.holder.stack, life.requested_bytes);
            let args = Block {
                bytes: life.requested_bytes,
                address: format!("{:#x}", life.address),
                stream: stream_text(self.device, timeline.lanes()[source.lane].stream),
                allocated_by: event(life.first),
                freed_by: event(life.freed),
            };
            let [born, freed, gone] = [life.first, life.freed, life.gone].map(time);
            if life.first < life.freed {
                sink.slice(self.pid, "block", &name, (born, freed), &args)?;
            }
            if freed < gone {
                sink.slice(self.pid, "waits", &name, (freed, gone), &args)?;
            }
        }
        Ok(())
    }

    /// Scopes of the program, each from its begin to the next end of its name.
    fn marks(&self, sink: &mut Sink<'_>) -> io::Result<()> {
        let loaded = &self.opened.loaded;
        let own = loaded.annotations.iter().filter(|mark| mark.device == self.index as u64);
        let mut open: Vec<(&str, u64)> = Vec::new();
        for mark in own {
            let name = loaded.symbols.text(mark.name);
            let time = mark.time_us.saturating_sub(self.start_us);
            if mark.stage == Stage::Start {
                open.push((name, time));
            } else if let Some(place) = open.iter().rposition(|&(known, _)| known == name) {
                let (_, begin) = open.remove(place);
                sink.slice(self.pid, "mark", name, (begin, time), None::<Bytes>)?;
            }
        }
        for (name, begin) in open {
            sink.slice(self.pid, "mark", name, (begin, self.time(self.device.trace.len())), None::<Bytes>)?;
        }
        Ok(())
    }
}
