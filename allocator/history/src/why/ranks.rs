//! Several ranks: which one is unlike the others.

use super::verdict::{Cause, Moment, Verdict, size};

/// The rank that differs from the others the most.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OddOne {
    /// Its place in the list.
    pub index: usize,
    /// How much it has more or less than the rank in the middle, bytes.
    pub bytes: i64,
    /// In what it differs.
    pub why: String,
}

/// The odd one out of at least two ranks: by the memory that it holds, else because it alone failed, or of another
/// cause. `None` if they are alike: less than a part in twenty apart.
#[must_use]
pub fn odd_one_out(ranks: &[&Verdict]) -> Option<OddOne> {
    if ranks.len() < 2 {
        return None;
    }
    let held: Vec<u64> = ranks.iter().map(|rank| rank.ledger.live_bytes + rank.ledger.pending_bytes).collect();
    let middle = median(&held);
    // Of two the larger one is odd.
    let away = |&index: &usize| (held[index].abs_diff(middle), held[index]);
    let most = (0..held.len()).max_by_key(away)?;
    let bytes = signed(held[most]) - signed(middle);
    if bytes.unsigned_abs() > middle / 20 && bytes != 0 {
        let more = if bytes > 0 { "more" } else { "less" };
        let why =
            format!("it holds {} {more} than the rank in the middle{}", size(bytes.unsigned_abs()), site(ranks, most));
        return Some(OddOne { index: most, bytes, why });
    }
    let alone = |is: &dyn Fn(&Verdict) -> bool| {
        let mut those = (0..ranks.len()).filter(|&index| is(ranks[index]));
        those.next().filter(|_| those.next().is_none())
    };
    if let Some(index) = alone(&|rank| rank.moment == Moment::OutOfMemory) {
        return Some(OddOne { index, bytes, why: "it alone ran out of memory".to_owned() });
    }
    let causes: Vec<Cause> = ranks.iter().map(|rank| rank.cause()).collect();
    let index = (0..ranks.len()).find(|&index| {
        ranks.len() > 2
            && (0..ranks.len()).all(|other| (causes[other] == causes[index]) == (other == index))
            && causes
                .iter()
                .filter(|&&cause| cause != causes[index])
                .all(|&cause| cause == causes[(index + 1) % ranks.len()])
    })?;
    Some(OddOne { index, bytes, why: format!("its cause is {}, that of the others is not", causes[index]) })
}

/// The line whose memory differs the most from that of the others.
fn site(ranks: &[&Verdict], odd: usize) -> String {
    let bytes_at = |rank: &Verdict, site: &str| -> u64 {
        rank.top_stacks.iter().filter(|top| top.site == site).map(|top| top.bytes).sum()
    };
    let difference = |site: &str| {
        let all: Vec<u64> = ranks.iter().map(|rank| bytes_at(rank, site)).collect();
        all[odd].abs_diff(median(&all))
    };
    let sites = ranks.iter().flat_map(|rank| &rank.top_stacks).map(|top| top.site.as_str());
    let most = sites.map(|site| (difference(site), site)).max();
    most.filter(|&(bytes, _)| bytes > 0)
        .map_or(String::new(), |(bytes, site)| format!(", {} of it at {site}", size(bytes)))
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) / 2]
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
