//! Shrinking: the smallest program that still breaks the same rule.
//!
//! Stretches of steps are left out, the longest first, then single ones; then the steps that are left become simpler.
//! Whatever is left out, the rest is a program.

use super::program::{Action, Program};
use super::verdict::{Failure, Rule};

/// The smallest program found, by what `fails` says of smaller ones, within `runs` of it.
pub fn shrink(program: &Program, rule: Rule, mut runs: usize, fails: impl Fn(&Program) -> Option<Failure>) -> Program {
    let mut best = program.clone();
    let mut try_it = |smaller: Program, best: &mut Program| {
        if runs == 0 || smaller == *best {
            return false;
        }
        runs -= 1;
        let still = fails(&smaller).is_some_and(|failure| failure.rule == rule);
        if still {
            *best = smaller;
        }
        still
    };
    loop {
        let before = best.clone();
        leave_out(&mut best, &mut try_it);
        simplify(&mut best, &mut try_it);
        if best == before {
            return best;
        }
    }
}

fn leave_out(best: &mut Program, try_it: &mut impl FnMut(Program, &mut Program) -> bool) {
    let mut length = best.steps.len().div_ceil(2);
    while length > 0 {
        // From the end: what comes later depends on what came before.
        let mut end = best.steps.len();
        while end > 0 {
            let start = end.saturating_sub(length);
            let mut smaller = best.clone();
            smaller.steps.drain(start..end);
            try_it(smaller, best);
            end = start.min(best.steps.len());
        }
        length = if length == 1 { 0 } else { length.div_ceil(2) };
    }
}

fn simplify(best: &mut Program, try_it: &mut impl FnMut(Program, &mut Program) -> bool) {
    let worlds: [fn(&mut Program); 10] = [
        |program| program.config.allocators = 1,
        |program| program.config.ranks = 1,
        |program| program.config.limit_percent = None,
        |program| program.config.host_wait_ns = None,
        |program| program.config.history_kib = 0,
        |program| program.config.fail_at_end = None,
        |program| program.config.abrupt_end = false,
        |program| program.config.default_stream = false,
        |program| program.config.lending = false,
        |program| program.config.page_percent = 0,
    ];
    for change in worlds {
        let mut smaller = best.clone();
        change(&mut smaller);
        try_it(smaller, best);
    }
    while best.config.streams > 1 {
        let mut smaller = best.clone();
        smaller.config.streams -= 1;
        if !try_it(smaller, best) {
            break;
        }
    }
    for index in 0..best.steps.len() {
        for simpler in simpler_than(&best.steps[index].action) {
            let mut smaller = best.clone();
            smaller.steps[index].action = simpler;
            try_it(smaller, best);
        }
    }
}

/// Steps that do less than this one: smaller numbers, whole pieces.
fn simpler_than(action: &Action) -> Vec<Action> {
    let half = |number: u8| if number < 8 { number.saturating_sub(1) } else { number % 8 };
    let mut found = Vec::new();
    let mut offer = |simpler: Action| {
        if simpler != *action {
            found.push(simpler);
        }
    };
    match *action {
        Action::Alloc { owner, bytes, writer, raw } => {
            offer(Action::Alloc { owner, bytes, writer, raw: false });
            offer(Action::Alloc { owner, bytes, writer: None, raw });
            offer(Action::Alloc { owner, bytes: bytes.min(512), writer, raw });
            offer(Action::Alloc { owner: half(owner), bytes, writer, raw });
            offer(Action::Alloc { owner, bytes, writer: writer.map(half), raw });
        }
        Action::Read { piece, stream, part } => {
            offer(Action::Read { piece, stream, part: 0 });
            offer(Action::Read { piece: half(piece), stream, part });
            offer(Action::Read { piece, stream: half(stream), part });
        }
        Action::Write { piece, stream, part, update } => {
            offer(Action::Write { piece, stream, part, update: false });
            offer(Action::Write { piece, stream, part: 0, update });
            offer(Action::Write { piece: half(piece), stream, part, update });
            offer(Action::Write { piece, stream: half(stream), part, update });
        }
        Action::Raw { piece, stream, part, write, how } => {
            offer(Action::Read { piece, stream, part });
            offer(Action::Raw { piece, stream, part, write: false, how });
            offer(Action::Raw { piece, stream, part: 0, write, how });
            offer(Action::Raw { piece: half(piece), stream, part, write, how });
            offer(Action::Raw { piece, stream: half(stream), part, write, how });
        }
        Action::Renew { piece, writer } => {
            offer(Action::Free { piece });
            offer(Action::Renew { piece: half(piece), writer });
            offer(Action::Renew { piece, writer: half(writer) });
        }
        Action::FreeElsewhere { piece } | Action::FreeBetween { piece, .. } => offer(Action::Free { piece }),
        Action::Free { piece } => offer(Action::Free { piece: half(piece) }),
        Action::Pass { times } => offer(Action::Pass { times: 1.max(times / 2) }),
        _ => {}
    }
    found
}
