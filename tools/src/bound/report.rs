//! What is told of a bound: one object for machines, or a few lines for people.

use std::collections::BTreeMap;

use highwater::history::StackId;
use serde::Serialize;

use super::lower::{Bound, Frontier, Moment};
use super::recorded::Held;
use crate::replay::load::Recorded;
use crate::replay::report::ratio_of;
use crate::replay::script::{BlockNo, Script, What};

/// Stacks that are told, those with the most bytes.
const STACKS: usize = 5;

/// What allocators hold, or would, bytes.
pub(crate) struct Found {
    pub(crate) best_bytes: u64,
    pub(crate) ours_bytes: u64,
    pub(crate) held: Held,
    pub(crate) expandable_bytes: u64,
}

/// How little memory a program could do with. Sizes are bytes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// The file.
    trace: String,
    /// Events of the trace.
    events: usize,
    /// Most bytes live at once, as asked for.
    peak_live_bytes: u64,
    /// No placement holds less.
    bound_bytes: u64,
    /// Why.
    certificate: Certificate,
    /// The same for programs that are at most so much slower.
    frontier: Vec<Point>,
    /// The best placement found offline, without moves.
    best_bytes: u64,
    /// This project's allocator in a replay.
    ours_bytes: u64,
    /// This project's allocator as it was recorded; null where the trace is another's.
    ours_recorded_bytes: Option<u64>,
    /// PyTorch, as recorded.
    pytorch: Peer,
    /// PyTorch with expandable segments, as recorded or simulated.
    expandable: Peer,
}

/// What another allocator holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Peer {
    /// At its peak; null where the trace does not tell and nothing simulates it.
    bytes: Option<u64>,
    /// Whether that was simulated.
    simulated: bool,
}

/// The blocks that must lie apart, and when.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Certificate {
    /// The event after which the program holds them all.
    event: Option<usize>,
    /// The time of the device at which they are all in use, microseconds, where that is the reason.
    device_us: Option<f64>,
    /// How late operations may start for that, microseconds.
    slack_us: Option<f64>,
    /// The events that ask for the blocks, each with its bytes.
    blocks: Vec<(usize, u64)>,
    /// The same by place in the program, the most bytes first.
    by_stack: Vec<Site>,
}

/// Blocks of one place in the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Site {
    place: String,
    blocks: usize,
    bytes: u64,
}

/// One point of the frontier.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Point {
    critical_path_ratio: f64,
    bound_bytes: u64,
    utilization_at_most: f64,
    certificate: Certificate,
}

impl Report {
    pub(crate) fn new(trace: String, recorded: &Recorded, bound: &Bound, frontier: &Frontier, found: Found) -> Self {
        let script = &recorded.script;
        let peak_live_bytes = script.peak_live_bytes();
        let rows = rows(script);
        let certify = |bound: &Bound| Certificate::new(recorded, &rows, bound);
        let frontier = frontier.points().map(|(ratio, bound)| Point {
            critical_path_ratio: ratio,
            bound_bytes: bound.bytes,
            utilization_at_most: ratio_of(peak_live_bytes, bound.bytes),
            certificate: certify(bound),
        });
        let Found { best_bytes, ours_bytes, held: Held { peak_bytes, expandable }, expandable_bytes } = found;
        let held = Peer { bytes: Some(peak_bytes).filter(|&bytes| bytes > 0), simulated: false };
        let (not_told, simulated) =
            (Peer { bytes: None, simulated: false }, Peer { bytes: Some(expandable_bytes), simulated: true });
        let own = recorded.loaded.recorder.is_some();
        let (pytorch, expandable) = match (own, expandable) {
            (true, _) => (not_told, simulated),
            (false, true) => (not_told, held),
            (false, false) => (held, simulated),
        };
        Report {
            trace,
            events: script.events,
            peak_live_bytes,
            bound_bytes: bound.bytes,
            certificate: certify(bound),
            frontier: frontier.collect(),
            best_bytes,
            ours_bytes,
            ours_recorded_bytes: held.bytes.filter(|_| own),
            pytorch,
            expandable,
        }
    }

    /// For machines, with the end of the line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text are JSON") + "\n"
    }

    /// For people, with the end of the last line.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}: {} events\n", self.trace, self.events);
        let mut line = |name: &str, bytes: Option<u64>, note: &str| {
            let told = match bytes {
                None => "not told by the trace".to_owned(),
                Some(bytes) => {
                    let utilization = ratio_of(self.peak_live_bytes, bytes);
                    format!("{:>9.3} GB  utilization {utilization:.4}{note}", bytes as f64 / 1e9)
                }
            };
            text.push_str(&format!("  {name:<28} {told}\n"));
        };
        line("peak live, as asked for", Some(self.peak_live_bytes), "");
        line("no placement holds less than", Some(self.bound_bytes), "");
        for point in &self.frontier {
            let name = format!("  at {:.2} times the time", point.critical_path_ratio);
            line(&name, Some(point.bound_bytes), "");
        }
        line("best found without moves", Some(self.best_bytes), "");
        line("ours, replayed", Some(self.ours_bytes), "");
        if self.ours_recorded_bytes.is_some() {
            line("ours, recorded", self.ours_recorded_bytes, "");
        }
        let note = |peer: &Peer| if peer.simulated { ", simulated" } else { ", recorded" };
        line("PyTorch", self.pytorch.bytes, note(&self.pytorch));
        line("PyTorch, expandable", self.expandable.bytes, note(&self.expandable));
        let Certificate { event, blocks, by_stack, .. } = &self.certificate;
        let event = event.unwrap_or_default();
        text.push_str(&format!(
            "  proof: after event {event} the program holds {} blocks, asked for at\n",
            blocks.len()
        ));
        for Site { place, blocks, bytes } in by_stack {
            text.push_str(&format!("    {:>9.3} GB in {blocks} blocks  {place}\n", *bytes as f64 / 1e9));
        }
        text
    }
}

impl Certificate {
    fn new(recorded: &Recorded, rows: &[usize], bound: &Bound) -> Self {
        let Recorded { script, .. } = recorded;
        let (event, device_us, slack_us) = match bound.moment {
            Moment::Step(step) => (script.steps.get(step).map(|step| step.row), None, None),
            Moment::Device { at_ns, slack_ns } => (None, Some(at_ns as f64 / 1e3), Some(slack_ns as f64 / 1e3)),
        };
        let blocks = bound.blocks.iter().map(|&block| (rows[block], script.blocks[block].bytes)).collect();
        Certificate { event, device_us, slack_us, blocks, by_stack: by_stack(recorded, &bound.blocks) }
    }
}

/// The event that asks for each block.
fn rows(script: &Script) -> Vec<usize> {
    let mut rows = vec![0; script.blocks.len()];
    for step in &script.steps {
        if let What::Alloc(block) = step.what {
            rows[block] = step.row;
        }
    }
    rows
}

fn by_stack(recorded: &Recorded, blocks: &[BlockNo]) -> Vec<Site> {
    let mut sums: BTreeMap<StackId, (usize, u64)> = BTreeMap::new();
    for &block in blocks {
        let block = &recorded.script.blocks[block];
        let sum = sums.entry(block.stack).or_default();
        *sum = (sum.0 + 1, sum.1 + block.bytes);
    }
    let mut sites: Vec<_> = sums.into_iter().collect();
    sites.sort_by_key(|&(stack, (_, bytes))| (std::cmp::Reverse(bytes), stack));
    sites.truncate(STACKS);
    let site = |(stack, (blocks, bytes))| Site { place: place(recorded, stack), blocks, bytes };
    sites.into_iter().map(site).collect()
}

/// The innermost place of a stack that names a line of a program.
fn place(recorded: &Recorded, stack: StackId) -> String {
    let symbols = &recorded.loaded.symbols;
    let frames: Vec<_> = symbols.stack(stack).map(|frame| symbols.frame(frame)).collect();
    let told = frames.iter().find(|frame| frame.line > 0).or(frames.first());
    told.map_or("places that were not recorded".to_owned(), |frame| {
        format!("{}:{} {}", symbols.text(frame.filename), frame.line, symbols.text(frame.name))
    })
}
