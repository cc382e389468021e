//! What a page is told of a device: small things as JSON, the rest as columns.
//!
//! Texts of the file are values of JSON and nothing else.

use std::collections::BTreeMap;

use highwater::history::read::{EventAction, Loaded, LoadedDevice};
use highwater::history::timeline::{Holder, Lane, Levels, Shown, Timeline};
use highwater::history::why::{self, Verdict};
use highwater::history::{SegmentKind, Stage};
use serde_json::{Value, json};

use super::columns::Columns;

/// Most stacks that are listed; all others are one.
const MOST_STACKS: usize = 20_000;
/// Most frames of a stack.
const MOST_FRAMES: usize = 64;
/// Most marks of a kind; the last ones are kept.
const MOST_MARKS: usize = 2000;
/// Most characters of a text.
const MOST_CHARACTERS: usize = 400;
/// Between regions that do not touch, so that what is in them does not either, bytes.
const BETWEEN_REGIONS_BYTES: u64 = 2 << 20;

/// A device as the page takes it.
pub(super) struct Device {
    pub(super) facts: Value,
    pub(super) columns: String,
}

impl Device {
    pub(super) fn of(loaded: &Loaded, verdict: &Verdict) -> Self {
        let device = &loaded.devices[verdict.device];
        let timeline = Timeline::of(loaded, verdict.device);
        let levels = Levels::of(&timeline);
        let mut columns = Columns::default();
        let stacks = Stacks::listed(&timeline);
        let (texts, frames) = stacks.add(loaded, &mut columns);
        let regions = Regions::of(&timeline);
        add_blocks(&timeline, &stacks, &regions, &mut columns);
        add_mapped(&timeline, &regions, &mut columns);
        add_levels(&levels, &mut columns);
        let timed = device.trace.is_timed();
        if timed {
            columns.differences("time", device.trace.times_us().iter().map(|&time| time as i64));
        }
        let lanes = timeline.lanes().iter().zip(levels.places());
        let facts = json!({
            "index": verdict.device,
            "name": verdict.device_name,
            "events": timeline.events(),
            "timed": timed,
            "faults": timeline.faults(),
            "peak": levels.peak(),
            "moment": verdict.event.unwrap_or(0),
            "capacity": verdict.ledger.capacity_bytes,
            "limit": verdict.limit_bytes,
            "lanes": lanes.map(|(lane, place)| lane_facts(device, lane, *place)).collect::<Vec<_>>(),
            "unlisted": stacks.unlisted,
            "texts": texts,
            "frames": frames,
            "regions": regions.facts(),
            "marks": marks(loaded, verdict.device),
            "series": levels.series().iter().map(|series| {
                let (kind, stack) = match series.shown {
                    Shown::Holder(holder) => ("stack", Some(stacks.place(holder))),
                    Shown::Others => ("others", None),
                    Shown::Rounding => ("rounding", None),
                    Shown::Pending => ("pending", None),
                    Shown::Cached => ("cached", None),
                };
                json!([series.place, kind, stack])
            }).collect::<Vec<_>>(),
            "bucket": levels.bucket_moments(),
            "coarser": levels.coarser().len(),
            "columns": columns.index(),
            "verdict": crate::why::json::verdict(verdict),
            "ledger": verdict.ledger.entries(),
        });
        Self { facts, columns: columns.text() }
    }
}

fn lane_facts(device: &LoadedDevice, lane: &Lane, place: usize) -> Value {
    let pool = match lane.pool {
        (0, 0) => "common pool".to_owned(),
        (first, second) => format!("pool {first}.{second}"),
    };
    json!({ "stream": cut(&why::stream_name(device, lane.stream)), "pool": pool, "place": place })
}

/// A text that is not too long.
fn cut(text: &str) -> &str {
    text.char_indices().nth(MOST_CHARACTERS).map_or(text, |(end, _)| &text[..end])
}

/// The stacks that are listed, by what they ever hold; where none was recorded, the sizes.
struct Stacks {
    listed: Vec<Holder>,
    places: BTreeMap<Holder, usize>,
    /// How many more there are; they share the place behind the listed ones.
    unlisted: usize,
}

impl Stacks {
    fn listed(timeline: &Timeline) -> Self {
        let mut listed: Vec<Holder> = timeline.most_held().into_iter().map(|(holder, _)| holder).collect();
        // Of stacks that hold nothing there may be memory that waits.
        let mut known: std::collections::BTreeSet<Holder> = listed.iter().copied().collect();
        listed.extend(timeline.sources().iter().map(|source| source.holder).filter(|&holder| known.insert(holder)));
        let unlisted = listed.len().saturating_sub(MOST_STACKS);
        listed.truncate(MOST_STACKS);
        let places = listed.iter().copied().zip(0..).collect();
        Self { listed, places, unlisted }
    }

    fn place(&self, holder: Holder) -> usize {
        self.places.get(&holder).copied().unwrap_or(self.listed.len())
    }

    /// Adds the frames of each; gives the texts, and the frames as places of name and file, and the line.
    fn add(&self, loaded: &Loaded, columns: &mut Columns) -> (Vec<String>, Vec<[u64; 3]>) {
        let (mut texts, mut text_places) = (Vec::new(), BTreeMap::new());
        let (mut frames, mut frame_places) = (Vec::new(), BTreeMap::new());
        let (mut lengths, mut of_stacks, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for &Holder { stack, .. } in &self.listed {
            let before = of_stacks.len();
            for frame in loaded.symbols.stack(stack).take(MOST_FRAMES) {
                let place = *frame_places.entry(frame).or_insert_with(|| {
                    let parts = loaded.symbols.frame(frame);
                    let mut text = |id| {
                        *text_places.entry(id).or_insert_with(|| {
                            texts.push(cut(loaded.symbols.text(id)).to_owned());
                            texts.len() as u64 - 1
                        })
                    };
                    frames.push([text(parts.name), text(parts.filename), parts.line.into()]);
                    frames.len() as u64 - 1
                });
                of_stacks.push(place);
            }
            lengths.push((of_stacks.len() - before) as u64);
            own.push(
                why::site(loaded, stack).filter(|(place, _)| *place < MOST_FRAMES).map_or(0, |(place, _)| place as u64),
            );
        }
        columns.plain("stackLength", lengths);
        columns.plain("stackFrame", of_stacks);
        columns.plain("stackOwn", own);
        columns.plain("stackBytes", self.listed.iter().map(|holder| holder.bytes));
        (texts, frames)
    }
}

/// Addresses that were ever mapped, put one behind the other: numbers that a page can count with.
struct Regions(Vec<Region>);

struct Region {
    address: u64,
    bytes: u64,
    position: u64,
}

impl Regions {
    fn of(timeline: &Timeline) -> Self {
        let mut ranges: Vec<(u64, u64)> = timeline.mapped().iter().map(|range| (range.address, range.bytes)).collect();
        ranges.sort_unstable();
        let mut regions: Vec<Region> = Vec::new();
        for (address, bytes) in ranges {
            match regions.last_mut().filter(|last| address <= last.address + last.bytes) {
                Some(last) => last.bytes = last.bytes.max(address + bytes - last.address),
                None => {
                    let position = regions.last().map_or(0, |last| {
                        last.position.saturating_add(last.bytes).saturating_add(BETWEEN_REGIONS_BYTES)
                    });
                    regions.push(Region { address, bytes, position });
                }
            }
        }
        Self(regions)
    }

    fn position(&self, address: u64) -> i64 {
        let after = self.0.partition_point(|region| region.address <= address);
        let region = &self.0[after.checked_sub(1).expect("blocks lie in mapped memory")];
        region.position.saturating_add(address - region.address) as i64
    }

    /// For each the address, and the position at which it begins.
    fn facts(&self) -> Vec<Value> {
        self.0.iter().map(|region| json!([format!("{:#x}", region.address), region.position])).collect()
    }
}

fn add_blocks(timeline: &Timeline, stacks: &Stacks, regions: &Regions, columns: &mut Columns) {
    let blocks = || timeline.blocks().iter();
    columns.differences("first", blocks().map(|block| block.first.into()));
    columns.plain("held", blocks().map(|block| (block.freed - block.first).into()));
    columns.plain("waited", blocks().map(|block| (block.gone - block.freed).into()));
    columns.plain("source", blocks().map(|block| block.source as u64));
    columns.differences("position", blocks().map(|block| regions.position(block.address)));
    columns.plain("requested", blocks().map(|block| block.requested_bytes));
    columns.plain("rounding", blocks().map(|block| block.bytes - block.requested_bytes));
    columns.plain("sourceStack", timeline.sources().iter().map(|source| stacks.place(source.holder) as u64));
    columns.plain("sourceLane", timeline.sources().iter().map(|source| source.lane as u64));
}

fn add_mapped(timeline: &Timeline, regions: &Regions, columns: &mut Columns) {
    let mapped = || timeline.mapped().iter();
    columns.differences("mappedFirst", mapped().map(|range| range.first.into()));
    columns.plain("mappedLength", mapped().map(|range| (range.gone - range.first).into()));
    columns.differences("mappedPosition", mapped().map(|range| regions.position(range.address)));
    columns.plain("mappedBytes", mapped().map(|range| range.bytes));
    columns.plain("mappedLane", mapped().map(|range| range.lane as u64));
    let small = |kind| u64::from(kind == SegmentKind::Small);
    columns.plain("mappedKind", mapped().map(|range| small(range.kind) + 2 * u64::from(range.expandable)));
}

fn add_levels(levels: &Levels, columns: &mut Columns) {
    let points = levels.points();
    columns.differences("pointMoment", points.iter().map(|point| point.moment.into()));
    columns.plain("pointLow", points.iter().map(|point| point.low_bytes));
    let series = 0..levels.series().len();
    let values = series.flat_map(|series| (0..points.len()).map(move |point| levels.values(point)[series]));
    columns.differences("pointValue", values);
    for (index, level) in levels.coarser().iter().enumerate() {
        columns.differences(&format!("levelPoint{index}"), level.iter().map(|&(point, _)| point.into()));
        columns.plain(&format!("levelLow{index}"), level.iter().map(|&(_, low)| low));
    }
}

/// What happened beside blocks and segments: the event, what, and a text.
fn marks(loaded: &Loaded, device: usize) -> Vec<Value> {
    let trace = &loaded.devices[device].trace;
    let (mut failures, mut snapshots) = (Vec::new(), Vec::new());
    for row in 0..trace.len() {
        match trace.action(row) {
            EventAction::OutOfMemory => {
                let free =
                    trace.device_free_bytes(row).map_or(String::new(), |free| format!(", {} free", why::size(free)));
                failures.push(json!([row, "oom", format!("{} refused{free}", why::size(trace.bytes()[row]))]));
            }
            EventAction::Snapshot => snapshots.push(json!([row, "snapshot", "a snapshot was taken"])),
            _ => {}
        }
    }
    let times = trace.times_us();
    let own = loaded.annotations.iter().filter(|mark| mark.device == device as u64 && mark.stage == Stage::Start);
    let scope = own.filter(|_| trace.is_timed()).map(|mark| {
        let row = times.partition_point(|&time| time < mark.time_us);
        json!([row, "scope", cut(loaded.symbols.text(mark.name))])
    });
    let scopes: Vec<Value> = scope.collect();
    let last = |marks: Vec<Value>| marks.into_iter().rev().take(MOST_MARKS).rev();
    last(failures).chain(last(snapshots)).chain(last(scopes)).collect()
}

#[cfg(test)]
mod tests {
    use highwater::history::read;
    use highwater::history::{MappedRange, Segment, Snapshot, StackId};

    use super::*;

    #[test]
    fn ranges_that_touch_are_one_region_and_others_stay_apart() {
        const MIB: u64 = 1 << 20;
        let mut snapshot = Snapshot::new();
        let range = |address, stream| MappedRange { address, bytes: 4 * MIB, stream, stack: StackId::EMPTY };
        let mapped = vec![range(16 * MIB, 1), range(20 * MIB, 2), range(64 * MIB, 1)];
        snapshot.device_mut(0).segments = Segment::runs(mapped, vec![]).unwrap();
        let mut file = Vec::new();
        snapshot.write_to(&mut file).unwrap();
        let loaded = read::read(&file, &read::Options::default()).unwrap();
        let regions = Regions::of(&Timeline::of(&loaded, 0));
        assert_eq!(regions.facts(), [json!(["0x1000000", 0]), json!(["0x4000000", 10 * MIB])]);
        assert_eq!([16, 21, 24, 65].map(|mib| regions.position(mib * MIB) / MIB as i64), [0, 5, 8, 11]);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(500)), "é".repeat(400));
    }
}
