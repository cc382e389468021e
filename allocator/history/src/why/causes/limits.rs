//! H: refused, although the device had memory.

use super::advice;
use crate::why::evidence::Evidence;
use crate::why::verdict::{Cause, Finding, Moment, size};

const REFUSED_ADVICE: &str = "\
    the snapshot cannot say why the driver refused: allocate as much with nothing else running; look at the \
    partition of the device and the limits of the system";

/// H1: a limit that the program, or its surroundings, have set.
pub(super) fn limit(e: &Evidence) -> Option<Finding> {
    let limit = e.limit?;
    let free = e.ledger.free_bytes.unwrap_or(0);
    if e.incident.moment == Moment::Stall {
        return None;
    }
    let fits = e.refused && e.deficit != Some(0);
    let finding = e.found(Cause::H1, free, fits, "memory beyond the limit was reserved before, or nobody has set one");
    let told = e.message.is_some_and(|message| message.allowed_bytes.is_some());
    let noted = e.device().notes.as_ref().is_some_and(|notes| notes.limit_bytes.is_some());
    let about = if told || noted { "" } else { "about " };
    Some(
        finding
            .says(format!("{} were free on the device when the request was refused", size(free)))
            .says(format!("{} were reserved: a limit stands at {about}{}", size(e.reserved()), size(limit)))
            .advises(free, advice::LIMIT),
    )
}

/// H2: no limit explains it.
pub(super) fn refused(e: &Evidence) -> Option<Finding> {
    if !e.refused || e.deficit == Some(0) {
        return None;
    }
    let free = e.ledger.free_bytes.unwrap_or(0);
    let most = e.curves.reserved[..=e.incident.row].iter().copied().max().unwrap_or(0);
    let finding = e.found(Cause::H2, free, e.limit.is_none(), "a limit is set (H1)");
    let finding = finding.says(format!("{} were free on the device when the request was refused", size(free)));
    Some(if e.limit.is_none() {
        finding
            .says(format!("{} had been reserved before, more than now with the request: there is no limit", size(most)))
            .advises(free, REFUSED_ADVICE)
    } else {
        let confidence = finding.confidence / 2.0;
        finding.with_confidence(confidence)
    })
}
