//! The page of `highwater view` in a real browser: what it shows is what the timeline says, also where people click.

mod devtools;
mod speed;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater::history::read;
use highwater::history::timeline::{Holder, Sums, Timeline};
use highwater::history::why::{self, size};
use highwater::history::{Frame, MappedRange, Segment, Snapshot, StackId, TraceAction, TraceEvent};

use crate::scratch::Scratch;
use crate::support::highwater;
use devtools::Browser;

/// A snapshot, its page, and what the page has to show.
struct Page {
    scratch: Scratch,
    loaded: read::Loaded,
    timeline: Timeline,
}

impl Page {
    fn of(file: &[u8]) -> Self {
        let scratch = Scratch::new();
        std::fs::write(scratch.path().join("snapshot.pickle"), file).unwrap();
        let ended = highwater(scratch.path(), "view snapshot.pickle");
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
        let loaded = read::read(file, &read::Options::default()).unwrap();
        let timeline = Timeline::of(&loaded, 0);
        Self { scratch, loaded, timeline }
    }

    fn of_data(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../allocator/history/tests/data");
        Self::of(&std::fs::read(folder.join(format!("{name}.pickle.xz"))).unwrap())
    }

    fn path(&self) -> PathBuf {
        self.scratch.path().join("snapshot.html")
    }

    fn sums(&self, moment: u32) -> Sums {
        self.timeline.sums(|_| true)[moment as usize]
    }

    fn site(&self, holder: Holder) -> String {
        match why::site(&self.loaded, holder.stack) {
            Some((_, site)) => site,
            None => format!("blocks of {}, no stack recorded", size(holder.bytes)),
        }
    }

    /// The stack that the page numbers so.
    fn holder(&self, number: usize) -> Holder {
        self.timeline.most_held()[number].0
    }
}

/// A number with commas.
fn number(text: &str) -> u64 {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{text} has no number"))
}

fn moment(browser: &mut Browser) -> u32 {
    let name = browser.text("#moment-name");
    number(name.split(" of ").next().unwrap()) as u32
}

/// The figures of the tiles.
fn tiles(browser: &mut Browser) -> Sums {
    let mut tile = |name: &str| {
        let title = browser.evaluate(&format!("document.querySelector('[data-sum={name}]').title"));
        number(title.as_str().unwrap())
    };
    let [live_bytes, rounding_bytes, pending_bytes, cached_bytes] =
        ["held", "rounding", "pending", "cached"].map(&mut tile);
    let sums = Sums { live_bytes, rounding_bytes, pending_bytes, cached_bytes };
    assert_eq!(tile("reserved"), sums.reserved_bytes());
    sums
}

/// The list of stacks: line, bytes, blocks.
fn list(browser: &mut Browser) -> Vec<(String, String, u64)> {
    let rows = "[...document.querySelectorAll('#stacks tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))";
    let rows: Vec<Vec<String>> = serde_json::from_value(browser.evaluate(rows)).unwrap();
    rows.into_iter().map(|row| (row[1].clone(), row[2].clone(), number(&row[3]))).collect()
}

/// All that is shown of the chosen moment is what the timeline says.
fn shows_its_moment(browser: &mut Browser, page: &Page) {
    let at = moment(browser);
    assert_eq!(tiles(browser), page.sums(at), "moment {at}");
    let held = page.timeline.held(at, |_| true);
    let shown = list(browser);
    assert_eq!(shown.len(), held.len().min(12));
    for (row, held) in shown.iter().zip(&held) {
        assert_eq!((row.1.clone(), row.2), (size(held.bytes), held.blocks), "moment {at}");
    }
    let map = page.timeline.map(at);
    let blocks: usize = map.iter().map(|segment| segment.blocks.len()).sum();
    let sum = browser.text("#map-sum").replace(',', "");
    assert!(sum.starts_with(&format!("{} segments {blocks} blocks; ", map.len())), "moment {at}: {sum}");
}

/// The stack that is chosen: its number, its bytes and its blocks, as told.
fn chosen(browser: &mut Browser) -> (usize, u64, u64) {
    let data = browser
        .evaluate("(({ stack, bytes, blocks }) => [stack, bytes, blocks])(document.getElementById('detail').dataset)");
    let data: [String; 3] = serde_json::from_value(data).expect("a stack is chosen");
    (data[0].parse().unwrap(), data[1].parse().unwrap(), data[2].parse().unwrap())
}

fn shows_the_chosen_stack(browser: &mut Browser, page: &Page) {
    let (stack, bytes, blocks) = chosen(browser);
    let holder = page.holder(stack);
    let at = moment(browser);
    let held = page.timeline.held(at, |_| true).into_iter().find(|held| held.holder == holder);
    let held = held.expect("what was clicked holds something");
    assert_eq!((bytes, blocks), (held.bytes, held.blocks));
    let told = browser.text("#detail");
    assert!(told.contains(&page.site(holder)) && told.contains(&size(bytes)), "{told}");
    for frame in page.loaded.symbols.stack(holder.stack) {
        let name = page.loaded.symbols.text(page.loaded.symbols.frame(frame).name);
        assert!(told.contains(name), "{name} is missing: {told}");
    }
}

#[test]
fn what_is_clicked_is_told_with_its_bytes() {
    let Some(mut browser) = Browser::start() else { return };
    let page = Page::of_data("oom_leak");
    browser.open(&page.path());
    assert_eq!(moment(&mut browser), 4519, "it opens at the verdict");
    shows_its_moment(&mut browser, &page);
    assert!(browser.text("#verdict").contains("a leak: live memory grows with each iteration"));
    let [left, top, width, height] = browser.place("#chart");
    // Low in the chart is the band of the leak, high up what is cached.
    let mut moments = Vec::new();
    for part in [0.3, 0.5, 0.77] {
        browser.click(left + part * width, top + height - 40.0);
        shows_its_moment(&mut browser, &page);
        shows_the_chosen_stack(&mut browser, &page);
        moments.push(moment(&mut browser));
    }
    assert!(moments.is_sorted() && moments[0] > 500, "{moments:?}");
    let told = browser.text("#detail");
    assert!(
        told.contains("/home/user/projects/a/train_m.py:124 in oom_leak") && told.contains("stream 0, common pool"),
        "{told}"
    );
    browser.click(left + 0.94 * width, top + 60.0);
    let cached = page.sums(moment(&mut browser)).cached_bytes;
    let told = browser.text("#detail");
    assert!(told.starts_with("Cached") && told.contains(&size(cached)), "{told}");
    shows_its_moment(&mut browser, &page);

    // A line of the list, and a block of the map.
    browser.click_on("#to-verdict");
    browser.click_on("#stacks tbody tr:nth-child(2)");
    shows_the_chosen_stack(&mut browser, &page);
    assert_eq!(page.timeline.held(4519, |_| true)[1].holder, page.holder(chosen(&mut browser).0));
    let [left, top, ..] = browser.place("#map-canvas");
    browser.click(left + 4.0, top + 26.0);
    let block = page.timeline.map(4519)[0].blocks[0];
    let told = browser.text("#detail");
    let expected = format!("{:#x}", block.address);
    assert!(told.starts_with("Block of") && told.contains(&expected), "{expected}: {told}");
    browser.was_quiet();
}

#[test]
fn keys_buttons_and_drags_move_in_time() {
    let Some(mut browser) = Browser::start() else { return };
    let page = Page::of_data("oom_cross_stream");
    browser.open(&page.path());
    let start = moment(&mut browser);
    for (key, expected) in [
        ("ArrowLeft", start - 1),
        ("ArrowRight", start),
        ("ArrowRight", start + 1),
        ("e", page.timeline.events()),
        ("ArrowRight", page.timeline.events()),
        ("v", start),
    ] {
        browser.press(key);
        assert_eq!(moment(&mut browser), expected, "{key}");
        shows_its_moment(&mut browser, &page);
    }
    // Each column of the chart, also zoomed in and by time.
    let [left, top, width, height] = browser.place("#chart");
    for act in ["", "wheel", "drag", "t", "wheel"] {
        match act {
            "wheel" => (0..3).for_each(|_| browser.wheel(left + 0.4 * width, top + 100.0, -300.0)),
            "drag" => browser.drag((left + 0.6 * width, top + 90.0), (left + 0.2 * width, top + 90.0)),
            "" => {}
            key => browser.press(key),
        }
        let mut moments = Vec::new();
        for part in [0.2, 0.45, 0.7, 0.93] {
            browser.click(left + part * width, top + height - 60.0);
            shows_its_moment(&mut browser, &page);
            moments.push(moment(&mut browser));
        }
        assert!(moments.is_sorted() && moments[0] < moments[3], "after {act}: {moments:?}");
    }
    browser.was_quiet();
}

#[test]
fn filters_leave_one_stream() {
    let Some(mut browser) = Browser::start() else { return };
    let page = Page::of_data("prefetch_record_stream");
    browser.open(&page.path());
    shows_its_moment(&mut browser, &page);
    let at = moment(&mut browser) as usize;
    for (lane, name) in [(1, "stream 0"), (0, "stream 0x4579d770")] {
        browser.click_on(&format!("[data-filter='{name}']"));
        let shown = tiles(&mut browser);
        assert_eq!(shown, page.timeline.sums(|of| of == lane)[at], "without {name}");
        assert_ne!(shown, page.sums(at as u32));
        browser.click_on(&format!("[data-filter='{name}']"));
    }
    shows_its_moment(&mut browser, &page);
    browser.was_quiet();
}

#[test]
fn light_and_dark_follow_the_user_and_the_button() {
    let Some(mut browser) = Browser::start() else { return };
    let page = Page::of_data("oom_cross_stream");
    let ground = |browser: &mut Browser| browser.evaluate("getComputedStyle(document.body).backgroundColor");
    // The colour of the middle of the chart, where memory waits or the ground is seen.
    let paint = |browser: &mut Browser| {
        browser.evaluate(
            // Of a copy: to read a canvas again and again is warned of.
            "(() => { const c = document.createElement('canvas'); const from = document.getElementById('bands'); \
             c.width = 1; c.height = 1; const to = c.getContext('2d'); to.drawImage(from, 20 - from.width, -20); \
             return [...to.getImageData(0, 0, 1, 1).data]; })()",
        )
    };
    browser.prefer("dark");
    browser.open(&page.path());
    let dark = (ground(&mut browser), paint(&mut browser));
    assert_eq!(dark.0, "rgb(13, 13, 13)");
    browser.click_on("#theme");
    let light = (ground(&mut browser), paint(&mut browser));
    assert_eq!(light.0, "rgb(246, 246, 243)");
    assert_ne!(light.1, dark.1, "the chart too");
    browser.click_on("#theme");
    assert_eq!((ground(&mut browser), paint(&mut browser)), dark);
    browser.prefer("light");
    browser.frame();
    assert_eq!((ground(&mut browser), paint(&mut browser)), light, "a change of mind is followed");
    // A phone: nothing is wider than it.
    browser.resize(390, 800);
    browser.frame();
    let fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    assert_eq!(browser.evaluate(fits), true);
    let [left, top, width, height] = browser.place("#chart");
    browser.click(left + 0.8 * width, top + height - 60.0);
    shows_its_moment(&mut browser, &page);
    browser.was_quiet();
}

/// A snapshot of one segment, in which blocks of one size each come and go.
fn snapshot(events: u32, name: impl Fn(u32) -> String) -> Vec<u8> {
    const SEGMENT: u64 = 0x7f00_0000_0000;
    let mut snapshot = Snapshot::new();
    let stacks: Vec<StackId> = (0..7)
        .map(|stack| {
            let frame =
                Frame { filename: Arc::from("/home/a/train.py"), line: stack + 1, name: Arc::from(name(stack)) };
            snapshot.stacks.intern(&[frame])
        })
        .collect();
    let event = |action, slot: u64, bytes, time_us, stack| TraceEvent {
        action,
        address: SEGMENT + slot * (1 << 20),
        bytes,
        stream: 0,
        time_us,
        stack,
        span: 0,
    };
    let mut trace = vec![event(TraceAction::SegmentMap, 0, 256 << 20, 1, StackId::EMPTY)];
    // Slots are used in turn; each block is given back before its slot's next one, and some wait.
    let mut held: Vec<Option<(u64, StackId)>> = vec![None; 256];
    for round in 0_u64.. {
        if trace.len() + 3 > events as usize {
            break;
        }
        let slot = (round * 97 % 256) as usize;
        let time = 2 + round * 3;
        if let Some((bytes, stack)) = held[slot].take() {
            trace.push(event(TraceAction::FreeRequested, slot as u64, bytes, time, stack));
            trace.push(event(TraceAction::FreeCompleted, slot as u64, bytes, time + 1, stack));
        }
        // So many slots are in use that the sum goes up and down.
        if round * 97 / 256 % 7 < 4 + round / 5000 % 3 {
            let bytes = 1000 + round * 7919 % 900_000;
            let stack = stacks[(round % 7) as usize];
            trace.push(event(TraceAction::Alloc { rounded_bytes: None }, slot as u64, bytes, time + 2, stack));
            held[slot] = Some((bytes, stack));
        }
    }
    let range = MappedRange { address: SEGMENT, bytes: 256 << 20, stream: 0, stack: StackId::EMPTY };
    let blocks = (0..).zip(held).filter_map(|(slot, held)| {
        let (requested_bytes, stack) = held?;
        let (address, bytes) = (SEGMENT + slot * (1 << 20), requested_bytes.next_multiple_of(512));
        let state = highwater::history::BlockState::Allocated;
        Some(highwater::history::Block { address, bytes, requested_bytes, state, stack })
    });
    let device = snapshot.device_mut(0);
    device.segments = Segment::runs(vec![range], blocks.collect()).unwrap();
    device.trace = trace;
    snapshot.check().unwrap();
    let mut file = Vec::new();
    snapshot.write_to(&mut file).unwrap();
    file
}

/// Where a column spans many events, its figures come from the levels: they are those of the moment that it names.
#[test]
fn the_levels_are_exact_at_the_moments_that_they_name() {
    let Some(mut browser) = Browser::start() else { return };
    let page = Page::of(&snapshot(230_000, |stack| format!("layer_{stack}")));
    browser.open(&page.path());
    let used: Vec<u64> = page.timeline.sums(|_| true).iter().map(Sums::used_bytes).collect();
    let [left, top, width, height] = browser.place("#chart");
    let columns = (width - 76.0).round();
    for column in (7..columns as usize).step_by(61) {
        let x = left + 66.0 + column as f64 + 0.5;
        browser.hover(x, top + height - 30.0);
        let told = browser.text("#tip");
        browser.click(x, top + height - 30.0);
        let at = moment(&mut browser);
        shows_its_moment(&mut browser, &page);
        shows_the_chosen_stack(&mut browser, &page);
        let (stack, bytes, _) = chosen(&mut browser);
        assert!(told.contains(&size(bytes)) && told.contains(&page.site(page.holder(stack))), "{told}");
        assert!(
            told.ends_with(&format!("moment {}", browser.text("#moment-name").split(" of ").next().unwrap())),
            "{told}"
        );
        // The fullest moment of the buckets that begin in the column, which has more than one of them now and then.
        let span = used.len() as f64 / columns;
        assert!((130.0..256.0).contains(&span), "{span}");
        let bucket = |column: usize| (column as f64 * span / 128.0).ceil() as usize * 128;
        let most = used[bucket(column)..bucket(column + 1).min(used.len())].iter().max().unwrap();
        assert_eq!(used[at as usize], *most, "column {column}: moment {at}");
    }
    browser.was_quiet();
}

/// A file may name its functions as it likes.
#[test]
fn names_of_a_file_are_texts_and_nothing_else() {
    let Some(mut browser) = Browser::start() else { return };
    let names = [
        "</script><img src=x onerror='window.hurt = 1'>",
        "<!--<script>window.hurt = 2</script>",
        "<b id=bold>bold</b> & &lt;entities&gt; \u{2028} \"quotes\" '",
        "{{script}} ]]> </style> \\u003c",
    ];
    let page = Page::of(&snapshot(2000, |stack| names[stack as usize % 4].to_owned()));
    browser.open(&page.path());
    browser.press("p");
    let rows = list(&mut browser);
    for name in names {
        assert!(rows.iter().any(|row| row.0.ends_with(&format!("in {name}"))), "{name} is shown as it is: {rows:?}");
    }
    browser.click_on("#stacks tbody tr");
    shows_the_chosen_stack(&mut browser, &page);
    assert_eq!(
        browser.evaluate("[typeof window.hurt, document.images.length, document.getElementById('bold')]"),
        serde_json::json!(["undefined", 0, null])
    );
    browser.was_quiet();
    // The page may not even if it wanted to.
    let fetched = browser.evaluate("fetch('https://example.com/').then(() => 'fetched', () => 'refused')");
    assert_eq!(fetched, "refused");
    let run = "new Promise((done) => { const s = document.createElement('script'); s.textContent = 'window.hurt = 3'; \
               document.body.append(s); setTimeout(() => done(typeof window.hurt), 0); })";
    assert_eq!(browser.evaluate(run), "undefined", "only the page's own script runs");
    let sent = browser
        .events
        .iter()
        .filter(|event| event["params"]["request"]["url"].as_str().is_some_and(|url| url.starts_with("http")));
    assert_eq!(sent.count(), 0);
}
