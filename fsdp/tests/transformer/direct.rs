//! A transformer whose parameters and gradients are buffers of the test.

use std::sync::Arc;
use std::time::Duration;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::{Allocator, Buffer, Settings, Stream};
use highwater_fsdp::run::Model;
use highwater_fsdp::transformer::{Config, LossReading, MicroBatch, Transformer};

/// Virtual time, so never long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3600);

/// A shape to start from.
pub(crate) const SMALL: Config = Config {
    layers: 2,
    width: 6,
    heads: 3,
    sequence: 5,
    micro_batch: 2,
    rounds: 1,
    global_tokens: 10,
    seed: 7,
    attention: true,
};

/// A small generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Uniform in −1 to 1.
    pub(crate) fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The bytes of all micro-batches of a step: by round, by sequence.
pub(crate) type Texts = Vec<Vec<Vec<u8>>>;

/// Random bytes for one step.
pub(crate) fn texts(config: &Config, random: &mut Random) -> Texts {
    let micro_batch = |random: &mut Random| {
        (0..config.micro_batch).map(|_| random.bytes(config.sequence + 1)).collect::<Vec<Vec<u8>>>()
    };
    (0..config.rounds).map(|_| micro_batch(random)).collect()
}

pub(crate) fn micro_batches(texts: &Texts) -> Vec<MicroBatch<'_>> {
    texts.iter().map(|texts| MicroBatch { sequences: texts.iter().map(Vec::as_slice).collect() }).collect()
}

pub(crate) struct Direct {
    pub(crate) config: Config,
    pub(crate) device: Arc<SimDevice>,
    pub(crate) allocator: Allocator,
    pub(crate) stream: Stream,
    pub(crate) model: Transformer,
    /// What the device's parameters are, by unit.
    pub(crate) parameters: Vec<Vec<f32>>,
    pub(crate) device_parameters: Vec<Buffer<f32>>,
    pub(crate) gradients: Vec<Buffer<f32>>,
}

impl Direct {
    /// With the model's initial parameters.
    pub(crate) fn new(config: Config, simulated: SimConfig) -> Self {
        let device = SimDevice::new(simulated);
        let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
        let stream = allocator.default_stream();
        let model = Transformer::new(&allocator, config).unwrap();
        let initial = |(unit, elements): (usize, usize)| {
            let mut parameters = vec![f32::NAN; elements];
            model.initialize(unit, &mut parameters);
            parameters
        };
        let sizes: Vec<usize> = model.units().iter().map(|unit| unit.elements).collect();
        let parameters: Vec<Vec<f32>> = sizes.iter().copied().enumerate().map(initial).collect();
        let buffers = || sizes.iter().map(|&elements| stream.alloc(elements).unwrap()).collect::<Vec<_>>();
        let (device_parameters, gradients) = (buffers(), buffers());
        let direct = Direct { config, device, allocator, stream, model, parameters, device_parameters, gradients };
        (0..sizes.len()).for_each(|unit| direct.upload(unit, &direct.parameters[unit]));
        direct
    }

    /// Far from the start: no gain is 1 and no bias is 0, and attention attends.
    pub(crate) fn disturbed(config: Config, simulated: SimConfig, size: f32) -> Self {
        let mut direct = Self::new(config, simulated);
        for unit in 0..direct.units() {
            // The same for a unit's first elements, whatever their number.
            let random = &mut Random(1000 + unit as u64);
            direct.parameters[unit].iter_mut().for_each(|parameter| *parameter += size * random.number());
            direct.upload(unit, &direct.parameters[unit]);
        }
        direct
    }

    pub(crate) fn units(&self) -> usize {
        self.parameters.len()
    }

    pub(crate) fn upload(&self, unit: usize, parameters: &[f32]) {
        let staging = self.allocator.pinned(parameters.len());
        staging.write(|elements: &mut [f32]| elements.copy_from_slice(parameters)).unwrap();
        self.stream.copy_to_device(&staging, &self.device_parameters[unit]).unwrap();
        staging.wait(TIMEOUT).unwrap();
    }

    pub(crate) fn load(&mut self, texts: &Texts) {
        self.model.load(&self.stream, &micro_batches(texts)).unwrap();
    }

    pub(crate) fn forward(&mut self, round: u32) {
        for unit in 0..self.units() {
            self.model.forward(unit, round, &self.stream, self.device_parameters[unit].view()).unwrap();
        }
    }

    pub(crate) fn backward(&mut self, round: u32) {
        for unit in (0..self.units()).rev() {
            let (parameters, gradients) = (self.device_parameters[unit].view(), self.gradients[unit].view());
            self.model.backward(unit, round, &self.stream, parameters, gradients).unwrap();
        }
    }

    pub(crate) fn read_losses(&mut self) -> LossReading {
        self.model.read_losses(&self.stream).unwrap()
    }

    /// Forward of one round; its loss.
    pub(crate) fn loss(&mut self, round: u32) -> f64 {
        self.forward(round);
        f64::from(self.read_losses().wait(TIMEOUT).unwrap()[round as usize])
    }

    /// Forward of all rounds; the sum of their losses.
    pub(crate) fn total_loss(&mut self, texts: &Texts) -> f64 {
        self.load(texts);
        (0..self.config.rounds).for_each(|round| self.forward(round));
        self.read_losses().wait(TIMEOUT).unwrap().into_iter().map(f64::from).sum()
    }

    pub(crate) fn read_gradients(&self) -> Vec<Vec<f32>> {
        let read = |gradients: &Buffer<f32>| {
            let staging = self.allocator.pinned(gradients.len());
            self.stream.copy_to_host(gradients, &staging).unwrap();
            staging.wait(TIMEOUT).unwrap();
            staging.read(<[f32]>::to_vec).unwrap()
        };
        self.gradients.iter().map(read).collect()
    }
}
