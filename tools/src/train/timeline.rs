//! Executed operations as a Chrome trace, which ui.perfetto.dev opens.
//!
//! A rank is a process (one for each track), a stream a thread, an operation a complete event, and a wait an arrow from the last nanosecond
//! of the operation waited for to the start of the one that waits.
//!
//! The readers of this format are particular:
//! - Times are µs. Perfetto reads a number as a double, multiplies by 1000 and *cuts off*: 1.001 becomes 1000 ns. An
//!   operation then seems to begin before the one ahead of it has ended, and slices that overlap are dropped. So times
//!   are rounded up to a double that survives this ([`micros`]).
//! - `displayTimeUnit` is left out: some versions take it for the unit of all times.
//! - A thread's number is looked up without its process, so each is used once, and none is a process's, which would make
//!   it the main thread.
//! - An arrow's ends bind to the slice that is open on their thread when they are read. At the very end of a slice the
//!   next one may be open already; hence the last nanosecond inside. Events are in order of time, slices before ends.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use highwater::device::{Executed, ExecutedKind, StreamId};
use serde::Serialize;

use super::session::Track;

/// The file.
#[derive(Serialize)]
struct Trace<'a> {
    #[serde(rename = "traceEvents")]
    events: Vec<Event<'a>>,
}

/// One event, with the names of the format.
#[derive(Serialize)]
struct Event<'a> {
    ph: Phase,
    pid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u64>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// Start, µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    /// Duration, µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// `e`: an arrow's end belongs to the slice around it, not to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

/// Kinds of events; in the order in which those of one time are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum Phase {
    /// Metadata.
    #[serde(rename = "M")]
    Name,
    #[serde(rename = "X")]
    Complete,
    #[serde(rename = "s")]
    FlowStart,
    #[serde(rename = "f")]
    FlowEnd,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Name {
        name: Cow<'a, str>,
    },
    Operation {
        tag: u64,
        /// Bytes of all operands.
        bytes: u64,
        /// When the host had submitted it, µs.
        submitted_us: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        communicator: Option<&'a str>,
        /// Number of the collective on its communicator.
        #[serde(skip_serializing_if = "Option::is_none")]
        sequence: Option<u64>,
    },
}

/// Writes `timeline` to a new file at `path`.
///
/// # Errors
/// When the file is there already or cannot be written.
pub(crate) fn save(timeline: &[Track], path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    serde_json::to_writer(&mut file, &Trace { events: events(timeline) })?;
    file.flush()
}

/// An operation with its place in the file.
#[derive(Clone, Copy)]
struct Shown<'a> {
    track: usize,
    /// The process of its rank and track. 0 is the idle process of some readers.
    pid: u64,
    executed: &'a Executed,
}

/// The tracks of one rank stand together.
fn shown(timeline: &[Track]) -> Vec<Shown<'_>> {
    let pid = |track: usize, device: u32| u64::from(device) * timeline.len() as u64 + track as u64 + 1;
    let mut all = Vec::new();
    for (track, Track { operations, .. }) in timeline.iter().enumerate() {
        all.extend(operations.iter().map(|executed| Shown { track, pid: pid(track, executed.device), executed }));
    }
    all
}

/// The names, then all else in order of time.
fn events(timeline: &[Track]) -> Vec<Event<'_>> {
    let all = shown(timeline);
    let threads = Threads::new(&all);
    let by_id: BTreeMap<(usize, u64), &Shown<'_>> =
        all.iter().map(|shown| ((shown.track, shown.executed.id), shown)).collect();
    let mut timed = Vec::new();
    let mut arrows = 0;
    for shown in &all {
        let executed = shown.executed;
        let duration_ns = executed.end_ns - executed.start_ns;
        timed.push((executed.start_ns, duration_ns, slice(shown, &threads)));
        // What ran before the part that is kept has no slice to start from.
        for from in executed.waited.iter().filter_map(|&id| by_id.get(&(shown.track, id))) {
            let at_ns = (from.executed.end_ns.max(1) - 1).max(from.executed.start_ns);
            timed.push((at_ns, 0, arrow_end(Phase::FlowStart, arrows, at_ns, from, &threads)));
            let start_ns = executed.start_ns;
            timed.push((start_ns, 0, arrow_end(Phase::FlowEnd, arrows, start_ns, shown, &threads)));
            arrows += 1;
        }
    }
    // The longest first among slices of one start, as the format nests them.
    timed.sort_by_key(|(at_ns, duration_ns, event)| (*at_ns, event.ph, std::cmp::Reverse(*duration_ns)));
    let mut events = threads.names(timeline, &all);
    events.extend(timed.into_iter().map(|(_, _, event)| event));
    events
}

fn slice<'a>(shown: &Shown<'a>, threads: &Threads) -> Event<'a> {
    let executed = shown.executed;
    let (cat, communicator, sequence) = match &executed.kind {
        ExecutedKind::Kernel => ("kernel", None, None),
        ExecutedKind::CopyToDevice => ("copy_to_device", None, None),
        ExecutedKind::CopyToHost => ("copy_to_host", None, None),
        ExecutedKind::Collective { communicator, sequence } => ("collective", Some(&**communicator), Some(*sequence)),
    };
    Event {
        ph: Phase::Complete,
        pid: shown.pid,
        tid: Some(threads.of(shown)),
        name: &executed.name,
        cat: Some(cat),
        id: None,
        ts: Some(micros(executed.start_ns)),
        dur: Some(micros(executed.end_ns - executed.start_ns)),
        bp: None,
        args: Some(Args::Operation {
            tag: executed.tag,
            bytes: executed.operands.iter().map(|operand| operand.range.bytes).sum(),
            submitted_us: micros(executed.submitted_ns),
            communicator,
            sequence,
        }),
    }
}

fn arrow_end<'a>(ph: Phase, id: u64, at_ns: u64, on: &Shown<'_>, threads: &Threads) -> Event<'a> {
    Event {
        ph,
        pid: on.pid,
        tid: Some(threads.of(on)),
        name: "wait",
        cat: Some("wait"),
        id: Some(id),
        ts: Some(micros(at_ns)),
        dur: None,
        bp: (ph == Phase::FlowEnd).then_some("e"),
        args: None,
    }
}

/// The threads of streams, by their process.
struct Threads(BTreeMap<(u64, StreamId), u64>);

impl Threads {
    fn new(all: &[Shown<'_>]) -> Self {
        let first = all.iter().map(|shown| shown.pid).max().unwrap_or(0) + 1;
        let mut threads: BTreeMap<_, u64> = all.iter().map(|shown| (stream(shown), 0)).collect();
        threads.values_mut().zip(first..).for_each(|(thread, number)| *thread = number);
        Threads(threads)
    }

    fn of(&self, shown: &Shown<'_>) -> u64 {
        self.0[&stream(shown)]
    }

    /// The events that name processes and threads.
    fn names<'a>(&self, timeline: &'a [Track], all: &[Shown<'a>]) -> Vec<Event<'a>> {
        let mut names = BTreeMap::new();
        for shown in all {
            let (pid, rank, label) = (shown.pid, shown.executed.device, timeline[shown.track].label);
            let process = || if label.is_empty() { format!("rank {rank}") } else { format!("rank {rank}, {label}") };
            names.entry((pid, None)).or_insert_with(|| Cow::from(process()));
            names.entry((pid, Some(self.of(shown)))).or_insert(Cow::from(&*shown.executed.stream_name));
        }
        let name_event = |((pid, tid), name): ((u64, Option<u64>), Cow<'a, str>)| Event {
            ph: Phase::Name,
            pid,
            tid,
            name: if tid.is_some() { "thread_name" } else { "process_name" },
            cat: None,
            id: None,
            ts: None,
            dur: None,
            bp: None,
            args: Some(Args::Name { name }),
        };
        names.into_iter().map(name_event).collect()
    }
}

fn stream(shown: &Shown<'_>) -> (u64, StreamId) {
    (shown.pid, shown.executed.stream)
}

/// Nanoseconds as µs, such that times 1000 and cut off they are the same again.
fn micros(ns: u64) -> f64 {
    let exact = ns as f64 / 1000.0;
    if ((exact * 1000.0) as u64) < ns { exact.next_up() } else { exact }
}

#[cfg(test)]
mod tests {
    use highwater::device::{Access, Address, ByteRange, Operand};
    use serde_json::Value;

    use super::*;
    use crate::scratch::Scratch;

    /// An operation on a stream, `[start, end)` in ns, that waited for others.
    fn ran(id: u64, device: u32, stream: u64, times_ns: (u64, u64), waited: &[u64]) -> Executed {
        Executed {
            id,
            device,
            stream: StreamId(stream),
            stream_name: format!("stream \"{stream}\"").into(),
            name: format!("operation {id}").into(),
            tag: 1 << 32 | id,
            submitted_ns: 3,
            start_ns: times_ns.0,
            end_ns: times_ns.1,
            kind: ExecutedKind::Kernel,
            operands: Vec::new(),
            waited: waited.to_vec(),
        }
    }

    fn written(timeline: &[Executed]) -> Vec<Value> {
        written_tracks(&[Track { label: "", operations: timeline.to_vec() }])
    }

    fn written_tracks(timeline: &[Track]) -> Vec<Value> {
        let scratch = Scratch::new();
        let path = scratch.path().join("timeline.json");
        save(timeline, &path).unwrap();
        let mut trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(trace.as_object().unwrap().len(), 1, "nothing beside the events");
        match trace["traceEvents"].take() {
            Value::Array(events) => events,
            other => panic!("{other} is no list"),
        }
    }

    fn with_phase<'a>(events: &'a [Value], phase: &str) -> Vec<&'a Value> {
        events.iter().filter(|event| event["ph"] == phase).collect()
    }

    /// As Perfetto does it.
    fn ns(value: &Value) -> u64 {
        (value.as_f64().unwrap() * 1000.0) as u64
    }

    /// The operation whose slice is open on the event's thread when a reader comes to it, as Perfetto keeps them: a
    /// slice ends when one that begins at or after its end is read.
    fn bound<'a>(events: &'a [Value], event: &Value) -> &'a str {
        let thread = |e: &Value| (e["pid"].clone(), e["tid"].clone());
        let before = events.iter().take_while(|&other| !std::ptr::eq(other, event));
        let open = before.filter(|&other| other["ph"] == "X" && thread(other) == thread(event)).last();
        let open = open.expect("a slice is open");
        assert!(ns(&open["ts"]) <= ns(&event["ts"]));
        open["name"].as_str().unwrap()
    }

    #[test]
    fn an_operation_is_a_slice_with_its_times_and_facts() {
        let range = |bytes| ByteRange { address: Address(4096), bytes };
        let operation = Executed {
            kind: ExecutedKind::Collective { communicator: "sharding".into(), sequence: 5 },
            operands: vec![
                Operand { range: range(100), access: Access::Read },
                Operand { range: range(20), access: Access::Write },
            ],
            ..ran(7, 2, 1, (1001, 2503), &[])
        };
        let events = written(&[operation]);
        let [slice] = with_phase(&events, "X")[..] else { panic!("one slice") };
        assert_eq!((ns(&slice["ts"]), ns(&slice["dur"])), (1001, 1502));
        assert_eq!((&slice["name"], &slice["cat"]), (&"operation 7".into(), &"collective".into()));
        let args = &slice["args"];
        assert_eq!((args["tag"].as_u64(), args["bytes"].as_u64()), (Some(1 << 32 | 7), Some(120)));
        assert_eq!((ns(&args["submitted_us"]), args["communicator"].as_str()), (3, Some("sharding")));
        assert_eq!(args["sequence"], 5);
    }

    #[test]
    fn processes_and_threads_have_names_and_numbers_of_their_own() {
        let events = written(&[
            ran(0, 0, 0, (0, 1), &[]),
            ran(1, 0, 1, (0, 1), &[]),
            ran(2, 1, 0, (0, 1), &[]),
            ran(3, 1, 0, (1, 2), &[]),
        ]);
        let named = |kind: &str| -> Vec<(u64, Option<u64>, String)> {
            let names = with_phase(&events, "M").into_iter().filter(|event| event["name"] == kind);
            let parts = |e: &Value| {
                (e["pid"].as_u64().unwrap(), e["tid"].as_u64(), e["args"]["name"].as_str().unwrap().to_owned())
            };
            names.map(parts).collect()
        };
        assert_eq!(named("process_name"), [(1, None, "rank 0".into()), (2, None, "rank 1".into())]);
        let threads = named("thread_name");
        let (zero, one) = ("stream \"0\"".to_owned(), "stream \"1\"".to_owned());
        assert_eq!(threads, [(1, Some(3), zero.clone()), (1, Some(4), one), (2, Some(5), zero)]);
        let slices: Vec<_> = with_phase(&events, "X").iter().map(|e| (e["pid"].as_u64(), e["tid"].as_u64())).collect();
        assert_eq!(slices, [(Some(1), Some(3)), (Some(1), Some(4)), (Some(2), Some(5)), (Some(2), Some(5))]);
    }

    #[test]
    fn every_arrow_has_both_ends_on_the_right_slices() {
        // 3 waits for 0 and 1; 0 is followed at once by 2 on its own stream; 9 was not kept.
        let events = written(&[
            ran(0, 0, 0, (0, 1000), &[]),
            ran(1, 1, 0, (200, 900), &[9]),
            ran(2, 0, 0, (1000, 3000), &[]),
            ran(3, 0, 1, (1000, 1500), &[0, 1]),
            ran(4, 0, 1, (1500, 1500), &[]),
            ran(5, 1, 0, (1500, 1501), &[4]),
        ]);
        let (starts, ends) = (with_phase(&events, "s"), with_phase(&events, "f"));
        let arrows: Vec<_> = starts
            .iter()
            .map(|start| {
                let found: Vec<_> = ends.iter().filter(|end| end["id"] == start["id"]).collect();
                let [end] = found[..] else { panic!("arrow {} has {} ends", start["id"], found.len()) };
                assert_eq!((&start["cat"], &start["name"]), (&end["cat"], &end["name"]));
                assert_eq!(end["bp"], "e");
                let at = |event: &Value| events.iter().position(|other| other == event).unwrap();
                assert!(at(start) < at(end), "an end is known only after its start");
                let bound = |event: &&Value| bound(&events, event).to_owned();
                (bound(start), bound(end), ns(&start["ts"]), ns(&end["ts"]))
            })
            .collect();
        let arrow =
            |from: &str, to: &str, at, until| (format!("operation {from}"), format!("operation {to}"), at, until);
        assert_eq!(arrows, [arrow("1", "3", 899, 1000), arrow("0", "3", 999, 1000), arrow("4", "5", 1500, 1500)]);
        assert_eq!(ends.len(), starts.len());
    }

    #[test]
    fn tracks_stand_beside_each_other_and_do_not_mix() {
        let operations = || vec![ran(0, 1, 0, (0, 10), &[]), ran(1, 1, 1, (20, 30), &[0])];
        let events = written_tracks(&[
            Track { label: "measured", operations: operations() },
            Track { label: "predicted", operations: vec![ran(1, 1, 1, (5, 6), &[0])] },
        ]);
        let names: Vec<_> = with_phase(&events, "M").into_iter().filter(|e| e["name"] == "process_name").collect();
        let names: Vec<_> = names.iter().map(|e| (e["pid"].as_u64(), e["args"]["name"].as_str())).collect();
        assert_eq!(names, [(Some(3), Some("rank 1, measured")), (Some(4), Some("rank 1, predicted"))]);
        assert_eq!(with_phase(&events, "X").len(), 3);
        assert_eq!(with_phase(&events, "s").len(), 1, "no arrow from one track to another");
    }

    #[test]
    fn slices_and_arrows_are_in_order_of_time() {
        let events = written(&[ran(1, 0, 0, (50, 60), &[]), ran(0, 0, 1, (10, 20), &[]), ran(2, 0, 1, (60, 70), &[1])]);
        let times: Vec<_> = events.iter().filter(|e| e["ph"] != "M").map(|e| ns(&e["ts"])).collect();
        assert!(times.is_sorted() && times.len() == 5, "{times:?}");
    }

    #[test]
    fn times_survive_being_cut_off_to_nanoseconds() {
        let survives = |ns: u64| {
            let text = serde_json::to_string(&micros(ns)).unwrap();
            let read: f64 = text.parse().unwrap();
            assert_eq!((read * 1000.0) as u64, ns, "{text}");
            assert!((read - ns as f64 / 1000.0).abs() < 1e-3, "{text}");
        };
        (0..200_000).for_each(survives);
        // Up to eleven days.
        (0..200_000).for_each(|step| survives(step * 4_999_999_937 + step % 1000));
        assert!((0..10_000).any(|ns| (ns as f64 / 1000.0 * 1000.0) as u64 != ns), "and not by themselves");
    }

    #[test]
    fn a_timeline_of_nothing_is_a_trace_of_nothing() {
        assert!(written(&[]).is_empty());
    }
}
