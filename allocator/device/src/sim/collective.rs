//! Collectives: operations of several ranks that start together, end together and exchange bytes.
//!
//! A communicator numbers the collectives of each rank in order of issue; parts with the same number belong together
//! and must agree. Number n starts when n − 1 has ended and all its parts are at the heads of their streams: so the
//! collectives of one communicator never overlap on a device, on whatever streams they are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::queue::Event;
use crate::{ByteRange, Cost, Operand, OperandBytes};

/// The arithmetic of a collective on one rank: what each rank sends to this one, in rank order, and what is received.
pub type CollectiveBody = Box<dyn FnOnce(&[&OperandBytes], &mut OperandBytes) + Send>;

/// A group of ranks that issue collectives together. Clones are the same communicator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Communicator {
    pub(super) index: usize,
    pub(super) name: Arc<str>,
    pub(super) ranks: Arc<[u32]>,
}

impl Communicator {
    /// The name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ordinals of the devices, in rank order.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The rank of a device in this communicator.
    pub(super) fn rank_of(&self, device: usize) -> Option<usize> {
        self.ranks.iter().position(|&rank| rank as usize == device)
    }
}

/// One rank's part of a collective.
pub struct Collective {
    /// Who takes part.
    pub communicator: Communicator,
    /// Name for people; it must be equal on all ranks.
    pub name: Cow<'static, str>,
    /// The caller's mark; it may differ between ranks.
    pub tag: u64,
    /// What decides the duration; it must be equal on all ranks.
    pub cost: Cost,
    /// What goes to each rank, in rank order. An all-gather sends the same shard to all; a reduce-scatter sends piece r
    /// to rank r. What the ranks send to one rank must be of equal size, but for those that send it nothing.
    pub sends: Vec<ByteRange>,
    /// Where the result goes. It may share bytes with `sends`.
    pub receive: Operand,
    /// What is computed from the bytes received.
    pub body: CollectiveBody,
}

impl fmt::Debug for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collective")
            .field("communicator", &self.communicator)
            .field("name", &self.name)
            .field("tag", &self.tag)
            .field("cost", &self.cost)
            .field("sends", &self.sends)
            .field("receive", &self.receive)
            .finish_non_exhaustive()
    }
}

/// A communicator's parts and progress.
pub(super) struct Group {
    pub(super) handle: Communicator,
    /// How many collectives each rank has issued.
    pub(super) issued: Vec<u64>,
    /// How many have ended; also the number of the one that is next or running.
    pub(super) done: u64,
    /// The start or end of number `done`, when enabled.
    pub(super) event: Option<Event>,
    /// A rank had a fault while the communicator existed: nothing starts or ends any more.
    pub(super) broken: bool,
    /// Parts of the collectives that have not ended, by number and rank.
    pub(super) rounds: BTreeMap<u64, Vec<Option<Arrived>>>,
}

/// A part that was submitted.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Arrived {
    pub(super) stream: usize,
    pub(super) at_head: bool,
    pub(super) terms: Terms,
}

/// What must agree between ranks.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Terms {
    pub(super) name: Cow<'static, str>,
    pub(super) cost: Cost,
    /// Bytes that go to each rank.
    pub(super) sizes: Vec<u64>,
}

impl Group {
    pub(super) fn new(handle: Communicator) -> Self {
        let issued = vec![0; handle.ranks.len()];
        Group { handle, issued, done: 0, event: None, broken: false, rounds: BTreeMap::new() }
    }

    /// Compares the next part of `rank` with those that other ranks have submitted.
    ///
    /// # Errors
    /// The two sides that differ.
    pub(super) fn check(&self, rank: usize, terms: &Terms) -> Result<(), String> {
        let Some(round) = self.rounds.get(&self.issued[rank]) else { return Ok(()) };
        for (other, arrived) in round.iter().enumerate() {
            let Some(arrived) = arrived else { continue };
            if let Some((here, there)) = terms.difference(&arrived.terms) {
                let (mine, theirs) = (self.handle.ranks[rank], self.handle.ranks[other]);
                return Err(format!("rank {theirs} has {there}, rank {mine} has {here}"));
            }
        }
        Ok(())
    }

    /// Adds the next part of `rank`; returns its number.
    pub(super) fn arrive(&mut self, rank: usize, stream: usize, terms: Terms) -> u64 {
        let sequence = self.issued[rank];
        self.issued[rank] += 1;
        let ranks = self.issued.len();
        let round = self.rounds.entry(sequence).or_insert_with(|| vec![None; ranks]);
        round[rank] = Some(Arrived { stream, at_head: false, terms });
        sequence
    }

    /// The streams of the next collective, in rank order, when all its parts are at their heads.
    pub(super) fn ready(&self) -> Option<Vec<usize>> {
        let round = self.rounds.get(&self.done)?;
        round.iter().map(|part| part.as_ref().filter(|part| part.at_head).map(|part| part.stream)).collect()
    }
}

impl Terms {
    /// The first thing in which two parts differ, on both sides.
    fn difference(&self, other: &Terms) -> Option<(String, String)> {
        if self.name != other.name {
            return Some((format!("operation {:?}", self.name), format!("operation {:?}", other.name)));
        }
        if self.cost != other.cost {
            return Some((
                format!("{:?} of {:?}", self.cost, self.name),
                format!("{:?} of {:?}", other.cost, other.name),
            ));
        }
        let sizes = self.sizes.iter().zip(&other.sizes).enumerate();
        let (rank, (mine, theirs)) = sizes.into_iter().find(|(_, (a, b))| a != b && **a != 0 && **b != 0)?;
        let show = |bytes: &u64| format!("{bytes} bytes for member {rank} in {:?}", self.name);
        Some((show(mine), show(theirs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(name: &'static str, link_bytes: u64, sizes: &[u64]) -> Terms {
        Terms { name: name.into(), cost: Cost::transfer(link_bytes), sizes: sizes.to_vec() }
    }

    #[test]
    fn parts_differ_by_name_cost_and_size() {
        let first = terms("gather", 8, &[4, 4]);
        assert_eq!(first.difference(&first.clone()), None);
        assert_eq!(first.difference(&terms("gather", 8, &[4, 0])), None, "a rank may send nothing");
        for (other, word) in [
            (terms("scatter", 8, &[4, 4]), "scatter"),
            (terms("gather", 9, &[4, 4]), "link_bytes: 9"),
            (terms("gather", 8, &[4, 5]), "5 bytes for member 1"),
        ] {
            assert!(first.difference(&other).unwrap().1.contains(word));
        }
    }
}
