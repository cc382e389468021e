//! F: live memory that went up and stayed.

use crate::read::EventAction;

use crate::state::sites;
use crate::why::evidence::Evidence;
use crate::why::growth::{Shape, Trend};
use crate::why::verdict::{Cause, Finding, Growth, size};

/// The growth, if it has the form that is wanted and matters; and whether the request would have fitted without it.
fn grown<'a>(e: &'a Evidence<'_>, wanted: impl Fn(Shape) -> bool) -> Option<(&'a Trend, Growth, bool)> {
    let trend = e.trend.as_ref().filter(|trend| wanted(trend.shape))?;
    let growth = trend.told(e.loaded, e.index, &e.memory, e.incident.row, e.headroom());
    let fits = e.counterfactuals.earlier.fits == Some(true) && e.deficit != Some(0);
    e.matters(growth.gained_bytes).then_some((trend, growth, fits))
}

fn keepers(finding: Finding, growth: &Growth) -> Finding {
    growth.sites.iter().take(3).fold(finding, |finding, site| {
        finding.says(format!("{} keeps {} in {} blocks", site.site, size(site.bytes), site.blocks))
    })
}

/// A model has fewer layers.
const FEW: u64 = 100;

/// F1: something is kept with each iteration.
pub(super) fn leak(e: &Evidence) -> Option<Finding> {
    let Some((trend, growth, fits)) = grown(e, |shape| shape == Shape::Line) else {
        return within_a_pass(e);
    };
    let mut finding = e.found(Cause::F1, growth.gained_bytes, fits, "the growth ends (a cache that fills up)");
    // So few that nobody marked may be the layers of one pass.
    if !trend.iterations.marked && growth.iterations < FEW {
        finding.confidence *= 0.8;
    }
    if let Some(first) = growth.sites.first() {
        let each = first.blocks as f64 / growth.iterations.max(1) as f64;
        finding = finding.says(format!(
            "{} keeps {} in {} blocks, {each:.1} an iteration; {} of such blocks were freed again",
            first.site,
            size(first.bytes),
            first.blocks,
            if growth.freed_again == 0 { "none".to_owned() } else { growth.freed_again.to_string() }
        ));
    }
    for site in growth.sites.iter().skip(1).take(2) {
        finding = finding.says(format!("{} keeps {} in {} blocks", site.site, size(site.bytes), site.blocks));
    }
    finding = finding.says(format!(
        "live memory rises by {} an iteration over {} iterations ({}; the line fits {:.0} %)",
        size(growth.bytes_per_iteration.unsigned_abs()),
        growth.iterations,
        trend.iterations.by,
        100.0 * growth.fit
    ));
    let advice = match growth.sites.first() {
        Some(site) => {
            format!("let go of what is kept at {}: a loss with its graph, a list, a hook, a cache", site.site)
        }
        None => "record stacks (context=\"all\") to see the line that keeps it".to_owned(),
    };
    Some(finding.advises(growth.gained_bytes, advice))
}

/// F1 inside of one pass: buffers of communication, which nobody needs for long, pile up.
fn within_a_pass(e: &Evidence) -> Option<Finding> {
    let deficit = e.deficit.filter(|&deficit| deficit > 0)?;
    let (key, bytes, blocks) =
        sites::by_stack(&e.memory, |held| !held.pending).into_iter().find(|&(key, bytes, blocks)| {
            blocks >= 6 && bytes >= deficit && sites::site(e.loaded, key, bytes, blocks).phase == Some("communication")
        })?;
    let site = sites::site(e.loaded, key, bytes, blocks);
    let trace = &e.device().trace;
    let made = |row: &usize| trace.action(*row) == EventAction::Alloc && trace.stacks()[*row] == key.0;
    let made = (0..e.incident.row.min(trace.len())).filter(made).count() as u64;
    if made > blocks + blocks / 8 {
        return None;
    }
    let finding = e.found(Cause::F1, bytes, true, "they are freed at the end of each layer");
    Some(
        finding
            .says(format!(
                "{} keeps {} in {blocks} blocks, {} each; none was freed",
                site.site,
                size(bytes),
                size(bytes / blocks)
            ))
            .says("buffers of communication are needed for one layer at a time".into())
            .advises(bytes - bytes / blocks, format!("free the buffers of {} when the layer is done", site.site)),
    )
}

/// F2: saw-teeth. Objects that refer to each other live until the collector of the language runs.
pub(super) fn collected_late(e: &Evidence) -> Option<Finding> {
    let (trend, growth, fits) = grown(e, |shape| matches!(shape, Shape::Teeth { .. }))?;
    let Shape::Teeth { last, drops } = trend.shape else { return None };
    let before = trend.floors[last - 1].saturating_sub(trend.floors[last]);
    let finding = e.found(Cause::F2, growth.gained_bytes, fits, "the drops are the program's own (an evaluation ends)");
    let finding = finding.says(format!(
        "live memory fell {drops} times at once, by {} the last time, and has risen by {} since",
        size(before),
        size(growth.gained_bytes)
    ));
    Some(
        keepers(finding, &growth)
            .advises(growth.gained_bytes, "break the reference cycle, or call gc.collect at a fixed step"),
    )
}

/// F3: a new level.
pub(super) fn step(e: &Evidence) -> Option<Finding> {
    let (trend, growth, fits) = grown(e, |shape| matches!(shape, Shape::Step(_)))?;
    let Shape::Step(at) = trend.shape else { return None };
    let start = trend.iterations.starts[at];
    let time = e.device().trace.times_us()[start];
    let near = e.loaded.annotations.iter().filter(|mark| mark.time_us <= time).max_by_key(|mark| mark.time_us);
    let finding = e.found(Cause::F3, growth.gained_bytes, fits, "it was as high before");
    let finding = finding
        .says(format!(
            "live memory rose by {} with iteration {at} of {} (event {start}), and stayed",
            size(growth.gained_bytes),
            growth.iterations
        ))
        .says_if(near.map(|mark| format!("the last mark before it is {}", e.loaded.symbols.text(mark.name))));
    Some(keepers(finding, &growth).advises(
        growth.gained_bytes,
        "look at what the program does differently from there on: evaluation, checkpoint, longer input, recompilation",
    ))
}
