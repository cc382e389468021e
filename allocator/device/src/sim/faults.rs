//! What goes wrong: failures on request, and sticky faults.

use super::engine::{HostStatus, State, Wake};
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
