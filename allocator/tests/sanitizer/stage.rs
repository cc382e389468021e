//! The stage: an allocator with the sanitizer on a simulated device whose calls take no time.

use std::sync::Arc;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Access, Address, Body, ByteRange, Cost, CostModel, Device, Operand, Operation};
use highwater::sanitizer::{OnRace, Race, RaceKind, Sanitizer};
use highwater::{Allocator, Buffer, Settings, Stream};

/// Bytes of a buffer of the tests.
pub(crate) const BYTES: usize = 4096;
/// How long operations last, ns.
pub(crate) fn work() -> Cost {
    Cost::exact(100)
}

pub(crate) struct Stage {
    pub(crate) device: Arc<SimDevice>,
    pub(crate) allocator: Allocator,
    pub(crate) s1: Stream,
    pub(crate) s2: Stream,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with(OnRace::Collect)
    }

    pub(crate) fn with(on_race: OnRace) -> Self {
        let config = SimConfig { cost: CostModel::free(), workers: 0, memory_bytes: 64 << 20, ..SimConfig::default() };
        let device = SimDevice::new(config);
        let settings = Settings::builder().sanitizer(on_race).build().unwrap();
        let allocator = Allocator::with_settings(device.clone(), settings).unwrap();
        let [s1, s2] = ["s1", "s2"].map(|name| allocator.create_stream(name).unwrap());
        Stage { device, allocator, s1, s2 }
    }

    pub(crate) fn sanitizer(&self) -> &Sanitizer {
        self.allocator.sanitizer().expect("the settings ask for it")
    }

    #[track_caller]
    pub(crate) fn bytes(&self, stream: &Stream) -> Buffer<u8> {
        stream.alloc(BYTES).unwrap()
    }

    #[track_caller]
    pub(crate) fn none(&self) {
        let races = self.sanitizer().take_races();
        assert!(races.is_empty(), "{}", races[0]);
    }

    /// The one race that was found, of this kind and between these operations.
    #[track_caller]
    pub(crate) fn one(&self, kind: RaceKind, first: &str, second: &str) -> Race {
        let races = self.sanitizer().take_races();
        let texts: Vec<_> = races.iter().map(ToString::to_string).collect();
        assert_eq!(races.len(), 1, "{texts:#?}");
        let race = races.into_iter().next().expect("there is one");
        let found = (race.kind, &*race.first.operation, &*race.second.operation);
        assert_eq!(found, (kind, first, second), "{race}");
        race
    }

    /// A kernel that got a raw pointer: nobody sees it.
    pub(crate) fn unseen(&self, stream: &Stream, address: Address, access: Access) -> ByteRange {
        let range = ByteRange::new(address, BYTES as u64);
        let operands = vec![Operand { range, access }];
        let operation = Operation { name: "raw".into(), tag: 0, cost: work(), operands, body: Body::Nothing };
        self.device.launch(stream.id(), operation).unwrap();
        range
    }

    /// The same, declared.
    #[track_caller]
    pub(crate) fn raw(&self, stream: &Stream, address: Address, access: Access) {
        let range = self.unseen(stream, address, access);
        self.sanitizer().access(stream.id(), "raw kernel", range, access);
    }
}

/// The address of a buffer, read from its text, so that it does not count as given away.
pub(crate) fn address(buffer: &Buffer<u8>) -> Address {
    let text = format!("{buffer:?}");
    let digits = text.split("at 0x").nth(1).and_then(|rest| rest.split(' ').next());
    Address(u64::from_str_radix(digits.expect("the text names the address"), 16).unwrap())
}
