//! The verdict for people: the cause first, then what it rests on, then where the bytes are.

use std::fmt::Write;

use highwater::history::why::{Cause, Finding, Growth, Moment, OddOne, SiteBytes, Timeline, Verdict, size};

use super::{Answer, Ranks};
use crate::snapshot::text::duration;

/// How to tell it.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    /// With colours.
    pub(crate) color: bool,
    /// Growth alone.
    pub(crate) growth: bool,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn cause(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub(crate) fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }
}

/// The text about one file.
pub(super) fn answer(answer: &Answer, style: Style) -> String {
    let mut text = String::new();
    for verdict in &answer.verdicts {
        if style.growth {
            growth_alone(&mut text, &answer.place, verdict, style);
        } else if verdict.device == answer.verdicts[0].device {
            whole(&mut text, &answer.place, verdict, style);
        } else {
            let _ = writeln!(text, "{}", line(&format!("device {}", verdict.device), verdict, style));
        }
    }
    text
}

/// The text about the ranks of a folder: a line each, then the odd one, or the first that failed.
pub(super) fn ranks(Ranks { answers, left_out }: &Ranks, odd: Option<&OddOne>, style: Style) -> String {
    let mut text = String::new();
    for answer in answers {
        let _ = writeln!(text, "{}", line(&answer.place, &answer.verdicts[0], style));
    }
    for (place, why) in left_out {
        let _ = writeln!(text, "{place}: {} {why}", style.strong("left out:"));
    }
    let told = match odd {
        Some(odd) => {
            let place = &answers[odd.index].place;
            let _ = writeln!(text, "\n{} {place}: {}", style.strong("The odd one out:"), odd.why);
            odd.index
        }
        None => {
            let _ = writeln!(text, "\nNo rank is unlike the others.");
            answers.iter().position(|answer| answer.verdicts[0].moment == Moment::OutOfMemory).unwrap_or(0)
        }
    };
    text.push('\n');
    text + &self::answer(&answers[told], style)
}

fn line(place: &str, verdict: &Verdict, style: Style) -> String {
    let explained = verdict.findings.first().map_or(0, |finding| finding.explained_bytes);
    let (cause, title) = (verdict.cause().id(), verdict.findings.first().map_or("", |finding| finding.title));
    let (live, reserved) = (size(verdict.ledger.live_bytes), size(verdict.ledger.reserved_bytes()));
    let moment = match verdict.moment {
        Moment::OutOfMemory => "out of memory",
        Moment::Stall => "the host waited",
        Moment::Peak => "peak",
        _ => "end",
    };
    format!(
        "{place}: {} {title} ({}); {moment}, {live} live of {reserved} reserved",
        style.cause(&cause),
        size(explained)
    )
}

fn whole(text: &mut String, place: &str, verdict: &Verdict, style: Style) {
    head(text, place, verdict, style);
    for (index, finding) in verdict.findings.iter().enumerate() {
        // Behind other causes it is a list of what could be known better.
        if finding.cause == Cause::X && index > 0 {
            let _ = writeln!(text, "\n{}", style.strong("What the evidence lacks"));
            for line in &finding.evidence {
                let _ = writeln!(text, "    {line}");
            }
        } else {
            tell(text, finding, style);
        }
    }
    if !verdict.together.is_empty() {
        let causes: Vec<_> = verdict.together.iter().map(|cause| cause.id()).collect();
        let _ = writeln!(text, "\nNone of these suffices alone; {} do together.", causes.join(" and "));
    }
    if let Some(limit) = verdict.limit_bytes {
        let _ = writeln!(text, "\n{} {}", style.strong("Beside it:"), limit_words(verdict, limit));
    }
    ledger(text, verdict, style);
    counterfactuals(text, verdict, style);
    sites(text, "The most live memory", &verdict.top_stacks, style);
    pending(text, verdict, style);
    if let Some(growth) = verdict.growth.as_ref().filter(|growth| growth.gained_bytes > 0) {
        tell_growth(text, growth, style);
    }
    if let Some(timeline) = &verdict.timeline {
        tell_timeline(text, timeline, style);
    }
    for warning in &verdict.warnings {
        let _ = writeln!(text, "{}", style.faint(&format!("note: {warning}")));
    }
}

fn head(text: &mut String, place: &str, verdict: &Verdict, style: Style) {
    let device = match &verdict.device_name {
        Some(name) if !name.is_empty() => format!("device {} ({name})", verdict.device),
        _ => format!("device {}", verdict.device),
    };
    let event = verdict.event.map_or(String::new(), |event| format!(" at event {event}"));
    let what = match verdict.moment {
        Moment::OutOfMemory => format!("out of memory{event}"),
        Moment::Stall => {
            format!("no request failed; the host waited for memory {} times, told is the wait{event}", verdict.stalls)
        }
        Moment::Peak => format!("no request failed; told is the peak{event}"),
        _ => format!("the end{event}"),
    };
    let _ = writeln!(text, "{}", style.strong(&format!("{place}: {device}, {what}")));
    if let (Some(request), Some(deficit)) = (verdict.request_bytes, verdict.deficit_bytes) {
        let place = verdict.request_site.as_ref().filter(|site| !site.stack.is_empty());
        let place = place.map_or(String::new(), |site| format!(" at {}", site.site));
        let _ = writeln!(text, "{} were asked for{place}; {} were missing", size(request), size(deficit));
    }
    if verdict.out_of_memory_events > 1 || verdict.caught > 0 {
        let (all, caught) = (verdict.out_of_memory_events, verdict.caught);
        let _ = writeln!(text, "requests failed {all} times, of which {caught} were tried again and succeeded");
    }
}

fn limit_words(verdict: &Verdict, limit: u64) -> String {
    if verdict.moment == Moment::Stall {
        let often = verdict.stalls;
        return format!(
            "the allocator stopped at {} each of the {often} times: the device was full there, or a limit is set (H1)",
            size(limit)
        );
    }
    let free =
        verdict.ledger.free_bytes.map_or(String::new(), |free| format!("; {} were free on the device", size(free)));
    format!("a limit on what may be reserved, at about {}{free} (H1)", size(limit))
}

fn explains(finding: &Finding) -> String {
    let enough = if finding.sufficient { "sufficient, " } else { "" };
    format!("  ({enough}explains {}, confidence {:.0} %)", size(finding.explained_bytes), 100.0 * finding.confidence)
}

fn tell(text: &mut String, finding: &Finding, style: Style) {
    let sure = if finding.cause == Cause::X { String::new() } else { explains(finding) };
    let cause = style.cause(&finding.cause.id());
    let _ = writeln!(text, "\n{cause}  {}{sure}", style.strong(finding.title));
    for line in &finding.evidence {
        let _ = writeln!(text, "    {line}");
    }
    let _ = writeln!(text, "{}", style.faint(&format!("    not it if: {}", finding.refuted_by)));
    for advice in &finding.advice {
        let _ = writeln!(text, "    -> {}: {}", size(advice.bytes), advice.text);
    }
}

fn ledger(text: &mut String, verdict: &Verdict, style: Style) {
    let _ = writeln!(text, "\n{}", style.strong("Where the bytes are"));
    for (name, bytes) in verdict.ledger.entries() {
        let _ = writeln!(text, "    {:>12}  {name}", size(bytes));
    }
    let whole = if verdict.ledger.capacity_bytes.is_some() { "the device" } else { "in all that is known" };
    let _ = writeln!(text, "    {:>12}  {whole}", size(verdict.ledger.total_bytes()));
}

fn counterfactuals(text: &mut String, verdict: &Verdict, style: Style) {
    let told: Vec<_> = verdict.counterfactuals.iter().filter(|one| one.fits.is_some()).collect();
    if told.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{}", style.strong("Would it have fitted if"));
    for one in told {
        let fits = if one.fits == Some(true) { "yes" } else { "no" };
        let _ = writeln!(text, "    {fits:<4}{:>12}  {}", size(one.gained_bytes), one.what);
    }
}

fn sites(text: &mut String, title: &str, sites: &[SiteBytes], style: Style) {
    if sites.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{}", style.strong(title));
    for site in sites {
        let phase = site.phase.map_or(String::new(), |phase| format!("  [{phase}]"));
        let _ = writeln!(text, "    {:>12} {:>7} blocks  {}{phase}", size(site.bytes), site.blocks, site.site);
    }
    for line in sites[0].stack.iter().take(6) {
        let _ = writeln!(text, "{}", style.faint(&format!("        first: {line}")));
    }
}

fn pending(text: &mut String, verdict: &Verdict, style: Style) {
    if verdict.pending_by_stream.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{}", style.strong("Freed, and waiting"));
    for stream in &verdict.pending_by_stream {
        let which = if stream.waited_for { "waits for" } else { "belongs to" };
        let fence = stream.fence.as_ref().map_or(String::new(), |fence| format!(", {fence}"));
        let (bytes, blocks, name) = (size(stream.bytes), stream.blocks, &stream.stream);
        let _ = writeln!(text, "    {bytes:>12} {blocks:>7} blocks  {which} {name}{fence}");
    }
}

fn tell_growth(text: &mut String, growth: &Growth, style: Style) {
    let _ = writeln!(
        text,
        "\n{} {} an iteration over {} iterations ({}), {} in all",
        style.strong("Growth:"),
        size(growth.bytes_per_iteration.unsigned_abs()),
        growth.iterations,
        growth.iteration,
        size(growth.gained_bytes)
    );
    if let Some(left) = growth.iterations_left {
        let time = growth.time_left_us.map_or(String::new(), |us| format!(", about {}", duration(us)));
        let _ = writeln!(text, "    memory ends in {left} iterations{time}, if it goes on so");
    }
    for site in &growth.sites {
        let _ = writeln!(text, "    {:>12} {:>7} blocks  {}", size(site.bytes), site.blocks, site.site);
    }
}

fn tell_timeline(text: &mut String, timeline: &Timeline, style: Style) {
    let title = style.strong("The way there:");
    let since = timeline.since_us.map_or(String::new(), |us| format!(", {:.1} ms", us as f64 / 1e3));
    let _ = match timeline.last_enough {
        Some(_) if timeline.events_since == 0 => {
            writeln!(text, "\n{title} there was room enough to the end, but not where it was needed")
        }
        Some(row) => writeln!(
            text,
            "\n{title} there was last room enough at event {row}, {} events{since} before; {} came since",
            timeline.events_since,
            size(timeline.gained_bytes)
        ),
        None => writeln!(text, "\n{title} there never was room enough in this trace"),
    };
    for site in timeline.sites.iter().filter(|_| timeline.events_since > 0) {
        let _ = writeln!(text, "    {:>12} {:>7} blocks  {}", size(site.bytes), site.blocks, site.site);
    }
}

/// Growth, and what is said of it.
pub(crate) fn growth_alone(text: &mut String, place: &str, verdict: &Verdict, style: Style) {
    let _ = writeln!(text, "{}", style.strong(&format!("{place}: device {}", verdict.device)));
    match &verdict.growth {
        Some(growth) if growth.gained_bytes > 0 => {
            tell_growth(text, growth, style);
        }
        Some(growth) => {
            let _ = writeln!(text, "Nothing grows over {} iterations ({}).", growth.iterations, growth.iteration);
        }
        None => {
            let _ =
                writeln!(text, "No iterations were found: mark them (record_function, spans), or record more events.");
        }
    }
    let grows = |finding: &&Finding| match finding.cause {
        Cause::F1 | Cause::F2 | Cause::F3 => verdict.growth.as_ref().is_some_and(|growth| growth.gained_bytes > 0),
        // Memory of others, which the recorder has seen grow.
        cause => cause == Cause::E2,
    };
    verdict.findings.iter().filter(grows).for_each(|finding| tell(text, finding, style));
}
