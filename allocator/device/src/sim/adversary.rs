//! Who goes next when time decides nothing.
//!
//! A uniform choice at each step rarely leaves one stream far behind. So choices come in stretches: for a while the
//! host is far ahead, or the device is always done at once; for a while one stream is preferred and another starves.
//! Stretches end, so nothing starves for ever.

use std::collections::BTreeSet;

use super::queue::{Event, EventKind};
use super::random::{Random, mix};

/// Chances, of 256, that the devices move before a host does, by stretch.
const DEVICE_SHARES: [u64; 6] = [2, 2, 64, 128, 224, 256];
/// Chances, of 256, that the favoured step is taken, by stretch; else all are alike.
const FAVOUR_SHARES: [u64; 5] = [256, 256, 240, 192, 96];
/// Longest stretch, in choices.
const LONGEST_STRETCH: u64 = 160;

/// Makes the choices.
#[derive(Debug)]
pub(super) struct Adversary {
    random: Random,
    device_share: u64,
    device_share_left: u64,
    favour: u64,
    favour_share: u64,
    favour_left: u64,
}

impl Adversary {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(mix(seed ^ 0x5eed));
        Adversary { random, device_share: 0, device_share_left: 0, favour: 0, favour_share: 0, favour_left: 0 }
    }

    /// Whether a device goes on before the next host call.
    pub(super) fn device_first(&mut self) -> bool {
        if self.device_share_left == 0 {
            self.device_share = self.random.pick(&DEVICE_SHARES);
            self.device_share_left = 1 + self.random.below(LONGEST_STRETCH);
        }
        self.device_share_left -= 1;
        self.random.below(256) < self.device_share
    }

    /// One of the enabled events; there is at least one.
    pub(super) fn pick_event(&mut self, events: &BTreeSet<Event>) -> Event {
        let keys = events.iter().map(|event| 2 * event.stream as u64 + u64::from(event.kind == EventKind::Start));
        let index = self.pick(keys);
        *events.iter().nth(index).expect("the index is below the number of events")
    }

    /// One of the hosts; there is at least one.
    pub(super) fn pick_host(&mut self, hosts: &[usize]) -> usize {
        hosts[self.pick(hosts.iter().map(|&host| !(host as u64)))]
    }

    /// Index of one of the keys: mostly the one that is favoured in this stretch.
    fn pick(&mut self, keys: impl ExactSizeIterator<Item = u64>) -> usize {
        if self.favour_left == 0 {
            self.favour = self.random.next();
            self.favour_share = self.random.pick(&FAVOUR_SHARES);
            self.favour_left = 1 + self.random.below(LONGEST_STRETCH);
        }
        self.favour_left -= 1;
        let choices = keys.len();
        if choices == 1 {
            return 0;
        }
        if self.random.below(256) >= self.favour_share {
            return self.random.below(choices as u64) as usize;
        }
        let favour = self.favour;
        let (index, _) = keys.enumerate().max_by_key(|&(_, key)| mix(favour ^ mix(key))).expect("there is a choice");
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_gets_its_turn_and_some_stretch_starves_one() {
        let mut adversary = Adversary::new(1);
        let turns: Vec<usize> = (0..4000).map(|_| adversary.pick_host(&[0, 1, 2])).collect();
        for host in 0..3 {
            assert!(turns.contains(&host));
        }
        let rare = turns.chunks(40).any(|stretch| stretch.iter().all(|&host| host != 0));
        let frequent = turns.chunks(40).any(|stretch| stretch.iter().filter(|&&host| host == 0).count() >= 30);
        assert!(rare && frequent);
    }

    #[test]
    fn the_host_is_sometimes_far_ahead_and_sometimes_never() {
        let mut adversary = Adversary::new(2);
        let turns: Vec<bool> = (0..4000).map(|_| adversary.device_first()).collect();
        assert!(turns.chunks(25).any(|stretch| stretch.iter().all(|&device| device)));
        assert!(turns.chunks(25).any(|stretch| stretch.iter().all(|&device| !device)));
    }
}
