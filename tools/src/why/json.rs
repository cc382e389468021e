//! The verdict for machines.

use highwater::history::why::{
    Counterfactual, Finding, Growth, Ledger, Moment, OddOne, PendingStream, SiteBytes, Timeline, Verdict,
};
use serde_json::{Value, json};

use super::{Answer, Ranks};

/// One object: the first verdict, with those of other devices under `devices`.
pub(super) fn answer(answer: &Answer) -> String {
    object(answer).to_string()
}

/// One object for a folder.
pub(super) fn ranks(Ranks { answers, left_out }: &Ranks, odd: Option<&OddOne>) -> String {
    let odd = odd
        .map(|odd| json!({ "file": answers[odd.index].place, "index": odd.index, "bytes": odd.bytes, "why": odd.why }));
    let left_out = left_out.iter().map(|(place, why)| json!({ "file": place, "why": why }));
    json!({
        "ranks": answers.iter().map(object).collect::<Vec<_>>(),
        "odd_one_out": odd,
        "left_out": left_out.collect::<Vec<_>>(),
    })
    .to_string()
}

fn object(answer: &Answer) -> Value {
    let mut first = verdict(&answer.verdicts[0]);
    first["file"] = answer.place.clone().into();
    first["devices"] = answer.verdicts[1..].iter().map(verdict).collect();
    first
}

/// All that is known of one device.
pub(crate) fn verdict(verdict: &Verdict) -> Value {
    let first = verdict.findings.first();
    json!({
        "cause": verdict.cause().id(),
        "title": verdict.findings.first().map_or("", |finding| finding.title),
        "sufficient": first.is_some_and(|finding| finding.sufficient),
        "confidence": first.map_or(0.0, |finding| finding.confidence),
        "explained_bytes": first.map_or(0, |finding| finding.explained_bytes),
        "device": verdict.device,
        "device_name": verdict.device_name,
        "moment": moment(verdict.moment),
        "event": verdict.event,
        "out_of_memory_events": verdict.out_of_memory_events,
        "caught": verdict.caught,
        "stalls": verdict.stalls,
        "stalled_us": verdict.stalled_us,
        "request_bytes": verdict.request_bytes,
        "request_site": verdict.request_site.as_ref().map(site),
        "deficit_bytes": verdict.deficit_bytes,
        "limit_bytes": verdict.limit_bytes,
        "ledger": ledger(&verdict.ledger),
        "counterfactuals": verdict.counterfactuals.iter().map(counterfactual).collect::<Vec<_>>(),
        "findings": verdict.findings.iter().map(finding).collect::<Vec<_>>(),
        "together": verdict.together.iter().map(|cause| cause.id()).collect::<Vec<_>>(),
        "top_stacks": verdict.top_stacks.iter().map(site).collect::<Vec<_>>(),
        "pending_by_stream": verdict.pending_by_stream.iter().map(pending).collect::<Vec<_>>(),
        "growth": verdict.growth.as_ref().map(growth),
        "timeline": verdict.timeline.as_ref().map(timeline),
        "advice": first.map_or(json!([]), advice),
        "warnings": verdict.warnings,
    })
}

fn moment(moment: Moment) -> &'static str {
    match moment {
        Moment::OutOfMemory => "out_of_memory",
        Moment::Stall => "stall",
        Moment::Peak => "peak",
        _ => "end",
    }
}

pub(crate) fn finding(finding: &Finding) -> Value {
    json!({
        "cause": finding.cause.id(),
        "title": finding.title,
        "explained_bytes": finding.explained_bytes,
        "sufficient": finding.sufficient,
        "confidence": finding.confidence,
        "evidence": finding.evidence,
        "refuted_by": finding.refuted_by,
        "advice": advice(finding),
    })
}

fn advice(finding: &Finding) -> Value {
    finding.advice.iter().map(|advice| json!({ "bytes": advice.bytes, "text": advice.text })).collect()
}

fn ledger(ledger: &Ledger) -> Value {
    json!({
        "capacity_bytes": ledger.capacity_bytes,
        "reserved_bytes": ledger.reserved_bytes(),
        "live_bytes": ledger.live_bytes,
        "rounding_bytes": ledger.rounding_bytes,
        "pending_bytes": ledger.pending_bytes,
        "cached_bytes": ledger.cached_bytes,
        "other_streams_bytes": ledger.other_streams_bytes,
        "other_sizes_bytes": ledger.other_sizes_bytes,
        "private_bytes": ledger.private_bytes,
        "unallocated_bytes": ledger.unallocated_bytes,
        "other_bytes": ledger.other_bytes,
        "free_bytes": ledger.free_bytes,
        "total_bytes": ledger.total_bytes(),
        "uncertain_bytes": ledger.uncertain_bytes,
        "largest_run_bytes": ledger.largest_run_bytes,
    })
}

fn counterfactual(one: &Counterfactual) -> Value {
    json!({ "if": one.what, "gained_bytes": one.gained_bytes, "fits": one.fits })
}

pub(crate) fn site(site: &SiteBytes) -> Value {
    json!({ "site": site.site, "bytes": site.bytes, "blocks": site.blocks, "phase": site.phase, "stack": site.stack })
}

fn pending(stream: &PendingStream) -> Value {
    json!({
        "stream": stream.stream,
        "waited_for": stream.waited_for,
        "bytes": stream.bytes,
        "blocks": stream.blocks,
        "fence": stream.fence,
    })
}

pub(crate) fn growth(growth: &Growth) -> Value {
    json!({
        "iteration": growth.iteration,
        "iterations": growth.iterations,
        "bytes_per_iteration": growth.bytes_per_iteration,
        "fit": growth.fit,
        "gained_bytes": growth.gained_bytes,
        "sites": growth.sites.iter().map(site).collect::<Vec<_>>(),
        "freed_again": growth.freed_again,
        "iterations_left": growth.iterations_left,
        "time_left_us": growth.time_left_us,
    })
}

fn timeline(timeline: &Timeline) -> Value {
    json!({
        "last_enough": timeline.last_enough,
        "events_since": timeline.events_since,
        "since_us": timeline.since_us,
        "gained_bytes": timeline.gained_bytes,
        "sites": timeline.sites.iter().map(site).collect::<Vec<_>>(),
    })
}
