//! What would have helped: each of these things alone, in bytes, and whether the request would have fitted.

use super::evidence::Evidence;
use super::verdict::Counterfactual;

/// What a process takes on a device before it allocates anything: the context of the driver, about.
pub(super) const CONTEXT_BYTES: u64 = 512 << 20;

/// All of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counterfactuals {
    pub(super) pending: Counterfactual,
    pub(super) contiguous: Counterfactual,
    pub(super) pages: Counterfactual,
    pub(super) other_streams: Counterfactual,
    pub(super) private: Counterfactual,
    pub(super) outside: Counterfactual,
    pub(super) rounding: Counterfactual,
    pub(super) earlier: Counterfactual,
    pub(super) limit: Counterfactual,
    pub(super) returned: Counterfactual,
}

impl Default for Counterfactuals {
    fn default() -> Self {
        let named = |what| Counterfactual { what, gained_bytes: 0, fits: None };
        Self {
            pending: named("all pending frees had completed"),
            contiguous: named("the free memory of its segments were one piece"),
            pages: named("free pages could be mapped where they are needed"),
            other_streams: named("free memory of other streams could be used"),
            private: named("private pools had been released"),
            outside: named("nothing but this allocator used the device"),
            rounding: named("requests were not rounded"),
            earlier: named("live memory were what it was before it grew"),
            limit: named("there were no limit"),
            returned: named("empty segments had been returned"),
        }
    }
}

impl Counterfactuals {
    pub(super) fn of(evidence: &Evidence) -> Self {
        let mut all = Self::default();
        let Evidence { space, completed, ledger, rules, .. } = evidence;
        let request = evidence.incident.request;
        let (usable, deficit) = (evidence.usable, evidence.deficit.unwrap_or(0));
        let set = |one: &mut Counterfactual, gained: u64, fits: &dyn Fn(&crate::state::space::Request) -> bool| {
            one.gained_bytes = gained;
            one.fits = request.as_ref().map(|request| gained > 0 && fits(request));
        };
        let own = space.sum(|run| evidence.own(run));
        let others = |run: &crate::state::space::Run| match request {
            Some(request) => {
                let (domain, segment) = (request.domain, run.segment);
                segment.pool == domain.pool && segment.kind == domain.kind && segment.stream != domain.stream
            }
            None => false,
        };
        let pool = request.map_or((0, 0), |request| request.domain.pool);
        let private = evidence.memory.segments.values().filter(|segment| ![(0, 0), pool].contains(&segment.pool));
        let private: u64 = private.map(|segment| segment.bytes).sum();
        let rise = evidence.rise.map_or(0, |rise| rise.bytes());
        let outside = ledger.other_bytes.unwrap_or(0).saturating_sub(CONTEXT_BYTES).max(rise);
        let free = ledger.free_bytes.unwrap_or(0);

        set(&mut all.pending, ledger.pending_bytes, &|request| {
            // Only if that makes the difference.
            completed.fits(rules, request, usable) && !space.fits(rules, request, usable)
        });
        set(&mut all.contiguous, own, &|request| own >= request.block);
        let pages = space.page_bytes(rules.page_bytes);
        set(&mut all.pages, pages, &|request| {
            pages.saturating_add(usable) >= request.block.next_multiple_of(rules.page_bytes)
        });
        set(&mut all.other_streams, space.sum(others), &|request| space.largest(others) >= request.block);
        set(&mut all.private, private, &|request| {
            let run = space.largest(|run| ![(0, 0), pool].contains(&run.segment.pool));
            run >= request.block || private.saturating_add(usable) >= request.driver
        });
        set(&mut all.outside, outside, &|request| free.saturating_add(outside) >= request.driver);
        set(&mut all.rounding, ledger.rounding_bytes, &|_| ledger.rounding_bytes >= deficit);
        let gained = evidence.trend.as_ref().map_or(0, |trend| trend.gained());
        set(&mut all.earlier, gained, &|_| gained >= deficit);
        set(&mut all.limit, if evidence.refused { free } else { 0 }, &|request| free >= request.driver);
        let returned = space.returnable();
        set(&mut all.returned, returned, &|request| returned.saturating_add(usable) >= request.driver);
        all
    }

    /// All of them that are about some bytes.
    pub(super) fn list(&self) -> Vec<Counterfactual> {
        let all = [
            self.pending,
            self.contiguous,
            self.pages,
            self.other_streams,
            self.private,
            self.outside,
            self.rounding,
            self.earlier,
            self.limit,
            self.returned,
        ];
        all.into_iter().filter(|one| one.gained_bytes > 0).collect()
    }
}
