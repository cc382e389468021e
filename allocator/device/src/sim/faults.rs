//! What goes wrong: failures on request, sticky faults, and the account of a deadlock.

use std::fmt::Write as _;

use super::engine::{HostStatus, State, Wake};
use super::queue::{Entry, Stream, Work};
use crate::{DeviceCall, DeviceError, DeviceResult};

/// Failures that were asked for. Each happens once.
#[derive(Default)]
pub(super) struct Injections {
    calls: Vec<Injection>,
    fences: Vec<Injection>,
}

struct Injection {
    call: DeviceCall,
    left: u64,
    nth: u64,
}

impl Injections {
    /// The `nth` call from now fails.
    pub(super) fn fail_call(&mut self, call: DeviceCall, nth: u64) {
        self.calls.push(Injection { call, left: nth, nth });
    }

    /// The fence of the `nth` successful record from now fails.
    pub(super) fn fail_fence(&mut self, nth: u64) {
        self.fences.push(Injection { call: DeviceCall::Record, left: nth, nth });
    }

    /// Counts a call; the number of the failure, when it is due.
    pub(super) fn call_is_due(&mut self, call: DeviceCall) -> Option<u64> {
        due(&mut self.calls, call)
    }

    /// Counts a record that succeeded; the number of the failure of its fence, when it is due.
    pub(super) fn fence_is_due(&mut self) -> Option<u64> {
        due(&mut self.fences, DeviceCall::Record)
    }
}

fn due(injections: &mut Vec<Injection>, call: DeviceCall) -> Option<u64> {
    let mut found = None;
    injections.retain_mut(|injection| {
        if injection.call == call {
            injection.left -= 1;
        }
        if injection.left == 0 {
            found = Some(injection.nth);
        }
        injection.left > 0
    });
    found
}

impl State {
    /// Answers for a device that has a fault.
    pub(super) fn check_fault(&self, device: usize) -> DeviceResult<()> {
        match &self.devices[device].fault {
            Some(fault) => Err(DeviceError::Poisoned { fault: Box::new(fault.clone()) }),
            None => Ok(()),
        }
    }

    /// Breaks a device for good: its work is dropped, its hosts wake up. The first fault stays.
    pub(super) fn poison(&mut self, device: usize, fault: &DeviceError) {
        if self.devices[device].fault.is_some() {
            return;
        }
        self.devices[device].fault = Some(fault.clone());
        self.devices[device].running.clear();
        for &index in &self.devices[device].streams {
            let stream = &mut self.streams[index];
            stream.queue.clear();
            stream.running = None;
            stream.fences.clear();
            if let Some(event) = stream.event.take() {
                self.events.remove(&event);
            }
        }
        for group in self.groups.iter_mut().filter(|group| group.handle.rank_of(device).is_some()) {
            group.broken = true;
            if let Some(event) = group.event.take() {
                self.events.remove(&event);
            }
        }
        for host in &mut self.hosts {
            if matches!(&host.status, HostStatus::Blocked(blocked) if blocked.device == device) {
                host.clock_ns = host.clock_ns.max(self.now_ns);
                host.status = HostStatus::Runnable(Some(Wake::Fault(fault.clone())));
            }
        }
    }

    /// Breaks the devices of all blocked hosts among `hosts`: nothing can ever wake them.
    pub(super) fn declare_deadlock(&mut self, hosts: std::ops::Range<usize>) {
        let fault = DeviceError::Deadlock { cycle: self.describe_stuck() };
        for host in hosts {
            if let HostStatus::Blocked(blocked) = &self.hosts[host].status {
                let device = blocked.device;
                self.poison(device, &fault);
            }
        }
    }

    /// Who waits for what: every blocked host and every stream that has not finished.
    pub(super) fn describe_stuck(&self) -> String {
        let mut lines = Vec::new();
        for (rank, device) in self.devices.iter().enumerate() {
            if let HostStatus::Blocked(blocked) = &self.hosts[rank].status {
                let stream = &self.streams[blocked.stream];
                lines.push(format!(
                    "rank {rank}: the host waits for a fence on stream {:?} of rank {}",
                    stream.name, stream.device
                ));
            }
            let stuck = device.streams.iter().map(|&index| &self.streams[index]);
            for stream in stuck.filter(|stream| stream.running.is_some() || !stream.queue.is_empty()) {
                lines.push(format!("rank {rank}: stream {:?} {}", stream.name, self.describe_stream(stream)));
            }
        }
        lines.join("; ")
    }

    fn describe_stream(&self, stream: &Stream) -> String {
        if let Some(running) = &stream.running {
            // Whatever runs alone ends by itself.
            let name = &running.operation.name;
            return format!("runs {name:?}, a collective that a faulty rank has left");
        }
        match stream.queue.front() {
            Some(Entry::Wait(wait)) => {
                let other = &self.streams[wait.stream];
                format!("waits for a fence on stream {:?} of rank {}", other.name, other.device)
            }
            Some(Entry::Operation(operation)) => match &operation.work {
                Work::Collective(part) => {
                    let group = &self.groups[part.communicator];
                    let mut text = format!(
                        "waits in {:?}, collective {} of communicator {:?}",
                        operation.name, part.sequence, group.handle.name
                    );
                    self.describe_missing(part.communicator, part.sequence, &mut text);
                    text
                }
                _ => format!("is about to start {:?}", operation.name),
            },
            None => "is idle".to_owned(),
        }
    }

    /// Which ranks a collective lacks, and why.
    fn describe_missing(&self, communicator: usize, sequence: u64, text: &mut String) {
        let group = &self.groups[communicator];
        if sequence > group.done {
            let _ = write!(text, ", after collective {} of it", group.done);
        }
        let round = group.rounds.get(&sequence).into_iter().flatten();
        for (part, &rank) in round.zip(group.handle.ranks.iter()) {
            if let Some(fault) = &self.devices[rank as usize].fault {
                let _ = write!(text, ", for rank {rank}, which has a fault ({fault})");
                continue;
            }
            match part {
                None => {
                    let _ = write!(text, ", for rank {rank}, which has not issued it");
                }
                Some(part) if !part.at_head => {
                    let stream = &self.streams[part.stream];
                    let _ = write!(text, ", for rank {rank}, where it is queued on stream {:?}", stream.name);
                }
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_injection_is_due_once() {
        let mut injections = Injections::default();
        injections.fail_call(DeviceCall::Map, 2);
        assert_eq!(injections.call_is_due(DeviceCall::Map), None);
        assert_eq!(injections.call_is_due(DeviceCall::Unmap), None);
        assert_eq!(injections.call_is_due(DeviceCall::Map), Some(2));
        assert_eq!(injections.call_is_due(DeviceCall::Map), None);
    }
}
