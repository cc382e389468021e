//! Who has memory of the device: this process and others, as a message tells it or as the recorder noted it.

use std::collections::BTreeSet;

use super::incident::Incident;
use super::message::{Message, Process};
use crate::read::LoadedDevice;
use crate::{Noted, ProcessMemory};

/// The processes on the device at the moment.
#[derive(Clone, Default, Debug)]
pub(super) struct Sharing {
    /// Other processes, the largest first.
    pub(super) others: Vec<Process>,
    /// What this one has, with what is not the allocator's, if that is known.
    pub(super) own_bytes: Option<u64>,
    /// Whether the recorder noted it at the moment, so that nothing is guessed.
    pub(super) measured: bool,
}

impl Sharing {
    /// What the text of the error says counts, else what the recorder noted nearest to the moment.
    pub(super) fn of(device: &LoadedDevice, incident: &Incident, message: Option<&Message>) -> Self {
        let told = message.filter(|message| !message.processes.is_empty() || message.own_process_bytes.is_some());
        let mut sharing = match told {
            Some(message) => {
                let (others, own_bytes) = (message.processes.clone(), message.own_process_bytes);
                Self { others, own_bytes, measured: false }
            }
            None => Self::noted(device, incident),
        };
        sharing.others.sort_by_key(|process| std::cmp::Reverse(process.bytes));
        sharing
    }

    fn noted(device: &LoadedDevice, incident: &Incident) -> Self {
        let Some(notes) = &device.notes else { return Self::default() };
        let until = device.trace.times_us().get(incident.row).copied().unwrap_or(u64::MAX);
        let Some((time_us, list)) = nearest(&notes.processes, until) else { return Self::default() };
        let sample = notes.device_memory.iter().rfind(|sample| sample.time_us <= time_us);
        let Some(own) = own_of(&list, sample.map_or(0, |sample| sample.fact.held_bytes)) else {
            return Self::default();
        };
        let other = |process: &ProcessMemory| Process { pid: process.pid.into(), bytes: process.bytes };
        let others = list.iter().enumerate().filter(|&(index, _)| index != own).map(|(_, process)| other(process));
        Self { others: others.collect(), own_bytes: Some(list[own].bytes), measured: true }
    }

    pub(super) fn others_bytes(&self) -> u64 {
        self.others.iter().fold(0, |sum, process| sum.saturating_add(process.bytes))
    }
}

/// The last list up to a time, else the first one behind it, and its time. The notes of a list have one time, and two lists
/// may share it: the first counts.
fn nearest(notes: &[Noted<ProcessMemory>], until: u64) -> Option<(u64, Vec<ProcessMemory>)> {
    let up_to = notes.partition_point(|note| note.time_us <= until);
    let time_us = notes[..up_to].last().or(notes.first())?.time_us;
    let mut known = BTreeSet::new();
    let of_then = notes.iter().filter(|note| note.time_us == time_us && known.insert(note.fact.pid));
    Some((time_us, of_then.map(|note| note.fact).collect()))
}

/// Which of them is this process. In a container the driver's numbers may be others than its own; but it is listed, and has
/// at least what the allocator holds: if only one has that much, it is this one.
fn own_of(list: &[ProcessMemory], held: u64) -> Option<usize> {
    let known = list.iter().position(|process| process.is_own);
    known.or_else(|| {
        let mut could = (0..list.len()).filter(|&index| list[index].bytes >= held);
        could.next().filter(|_| could.next().is_none())
    })
}
