//! How long the page takes to draw itself, with a million events.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;

use super::devtools::Browser;
use super::{Page, snapshot};

/// What people do, as the page's script sees it.
const ACTS: [(&str, &str); 5] = [
    ("zoom", "wheel(step % 20 < 10 ? -240 : 240)"),
    ("pan", "key(step % 20 < 10 ? 'd' : 'a')"),
    ("step in time", "key('ArrowRight')"),
    ("jump in time", "key(step % 2 ? 'p' : 'v')"),
    // The last one: it stays by time.
    ("zoom by time", "step === 0 ? key('t') : wheel(step % 20 < 10 ? -240 : 240)"),
];

/// How long one drawing may take at the median, ms: several times what it does, because machines may be busy.
const MOST_MS: f64 = 60.0;

/// Times of drawings, ms, shortest first: what the page's own script takes between the begin and the end of a frame.
fn times(browser: &mut Browser, act: &str, count: u32) -> Vec<f64> {
    let script = format!(
        "new Promise((done) => {{
           const room = document.getElementById('chart');
           const box = room.getBoundingClientRect();
           const [clientX, clientY] = [box.left + 0.6 * box.width, box.top + 60];
           const wheel = (deltaY) => room.dispatchEvent(new WheelEvent('wheel', {{ deltaY, clientX, clientY, cancelable: true }}));
           const key = (key) => document.dispatchEvent(new KeyboardEvent('keydown', {{ key, cancelable: true }}));
           const times = [];
           const next = (step) => {{
             if (step === {count}) return done(times);
             let start = 0;
             requestAnimationFrame(() => (start = performance.now()));
             {act};
             requestAnimationFrame(() => {{ times.push(performance.now() - start); setTimeout(next, 0, step + 1); }});
           }};
           next(0);
         }})"
    );
    let mut times: Vec<f64> = serde_json::from_value(browser.evaluate(&script)).unwrap();
    times.sort_by(f64::total_cmp);
    times
}

/// Of a page that is named by `HIGHWATER_PAGE`, else of one that is made here. The figures are printed.
#[test]
fn a_million_events_stay_smooth() {
    let Some(mut browser) = Browser::start() else { return };
    let given = std::env::var_os("HIGHWATER_PAGE").map(PathBuf::from);
    let made = given.is_none().then(|| Page::of(&snapshot(1_000_000, |stack| format!("layer_{stack}"))));
    let path = given.or(made.as_ref().map(Page::path)).expect("it is one of both");
    let start = Instant::now();
    browser.open(&path.canonicalize().expect("the page is there"));
    println!("open {:.2} s", start.elapsed().as_secs_f64());
    for (name, act) in ACTS {
        let times = times(&mut browser, act, 60);
        let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{name}: {median:.1} ms at the median, {slowest:.1} ms at most");
        assert!(median < MOST_MS, "{name}: {median} ms");
    }
    assert_eq!(browser.evaluate("document.documentElement.dataset.drawn"), json!("yes"));
    browser.was_quiet();
}
