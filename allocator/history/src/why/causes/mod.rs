//! The causes, a file for each family. Each is a function from the evidence to a finding, or to none.

pub(super) mod advice;
mod demand;
mod fragmentation;
mod growth;
mod limits;
mod missing;
mod outside;
mod pools;
mod streams;
mod waste;

use std::cmp::Reverse;

use super::evidence::Evidence;
use super::verdict::{Advice, Cause, Finding};

type Judge = fn(&Evidence) -> Option<Finding>;

/// The causes in the order in which sufficient ones are told: what is certain first, then what is particular, and what
/// is always somehow true last.
const JUDGES: &[(Cause, Judge)] = &[
    (Cause::C3, streams::spurious),
    (Cause::D3, pools::not_returned),
    (Cause::B3, fragmentation::kept_by_a_setting),
    (Cause::C2, streams::behind_one),
    (Cause::C1, streams::held),
    (Cause::F2, growth::collected_late),
    (Cause::F1, growth::leak),
    (Cause::F3, growth::step),
    (Cause::A3, demand::first_state),
    (Cause::B3, fragmentation::shared_segments),
    (Cause::B1, fragmentation::pieces),
    (Cause::B2, fragmentation::inside_pages),
    (Cause::A2, demand::oversized),
    (Cause::D1, pools::other_stream),
    (Cause::D2, pools::private),
    (Cause::E1, outside::other_process),
    (Cause::E2, outside::own_process),
    (Cause::E3, outside::nothing_left),
    (Cause::G2, waste::ragged),
    (Cause::G1, waste::rounding),
    (Cause::H1, limits::limit),
    (Cause::H2, limits::refused),
    (Cause::A1, demand::demand),
];

/// The findings, the one to look at first in front.
pub(super) fn all(evidence: &Evidence) -> Vec<Finding> {
    let found = |&(cause, judge): &(Cause, Judge)| {
        let finding = judge(evidence)?;
        debug_assert_eq!(finding.cause, cause);
        Some(finding)
    };
    let mut findings: Vec<Finding> = JUDGES.iter().filter_map(found).collect();
    if evidence.deficit.is_some() {
        // Sorting is stable: sufficient ones stay in the order of the table.
        findings.sort_by_key(|finding| (!finding.sufficient, if finding.sufficient { 0 } else { rest(finding) }));
    } else {
        findings.sort_by_key(|finding| (!finding.sufficient, Reverse(finding.explained_bytes)));
    }
    larger_part_first(&mut findings);
    missing::add(evidence, &mut findings);
    findings
}

/// Memory outside of the allocator may be others' and this process's own at once: if either is enough, the larger part is
/// told first.
fn larger_part_first(findings: &mut [Finding]) {
    let place = |cause: Cause| findings.iter().position(|finding| finding.cause == cause && finding.sufficient);
    if let (Some(others), Some(own)) = (place(Cause::E1), place(Cause::E2))
        && findings[own].explained_bytes > findings[others].explained_bytes
    {
        findings.swap(others, own);
    }
}

fn rest(finding: &Finding) -> i64 {
    -i64::try_from(finding.explained_bytes).unwrap_or(i64::MAX)
}

/// If no cause suffices alone: the fewest that do together, by their bytes.
pub(super) fn together(evidence: &Evidence, findings: &[Finding]) -> Vec<Cause> {
    let Some(deficit) = evidence.deficit.filter(|_| findings.iter().all(|finding| !finding.sufficient)) else {
        return Vec::new();
    };
    let mut parts: Vec<_> = findings.iter().filter(|finding| finding.explained_bytes > 0).collect();
    parts.sort_by_key(|finding| Reverse(finding.explained_bytes));
    let mut sum = 0_u64;
    let mut causes = Vec::new();
    for finding in parts {
        causes.push(finding.cause);
        sum = sum.saturating_add(finding.explained_bytes);
        if sum >= deficit && causes.len() > 1 {
            return causes;
        }
    }
    Vec::new()
}

impl Finding {
    fn says(mut self, line: String) -> Self {
        self.evidence.push(line);
        self
    }

    fn says_if(self, line: Option<String>) -> Self {
        match line {
            Some(line) => self.says(line),
            None => self,
        }
    }

    /// Advice; bytes of 0 are no advice.
    fn advises(mut self, bytes: u64, text: impl Into<String>) -> Self {
        if bytes > 0 {
            self.advice.push(Advice { bytes, text: text.into() });
        }
        self
    }

    /// Makes it certain or less so.
    fn with_confidence(mut self, confidence: f64) -> Self {
        self.confidence = confidence;
        self
    }
}
