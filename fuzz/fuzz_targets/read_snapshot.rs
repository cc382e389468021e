//! No file makes the reader panic or take more than its share, and what it gives is consistent: salvaging gives at
//! least what reading gives, and every number in the result is in its table.

#![no_main]

use highwater_history::{
    StackId,
    read::{Loaded, LoadedDevice, Options, read},
};
use libfuzzer_sys::fuzz_target;

/// Every number can be looked up, and nothing is larger than the file says.
fn walk(loaded: &Loaded, pickle_bytes: usize) {
    let symbols = &loaded.symbols;
    let stack = |stack: StackId| {
        for frame in symbols.stack(stack) {
            let parts = symbols.frame(frame);
            assert!(parts.name.index().max(parts.filename.index()) < symbols.texts());
            for (key, value) in symbols.frame_extras(frame) {
                assert!(key.index().max(value.index()) < symbols.texts());
            }
        }
    };
    let device = |device: &LoadedDevice| {
        assert!(device.trace.len() <= pickle_bytes);
        for row in 0..device.trace.len() {
            let event = device.trace.event(row);
            assert!(event.action.text().index() < symbols.texts());
            stack(event.stack);
            device.trace.forward_stack(row).into_iter().for_each(stack);
            let texts =
                [device.trace.compile_context(row), device.trace.user_metadata(row), device.trace.category(row)];
            assert!(texts.into_iter().flatten().all(|text| text.index() < symbols.texts()));
        }
        for segment in &device.segments {
            stack(segment.stack);
            segment.blocks.iter().for_each(|block| stack(block.stack));
        }
    };
    loaded.devices.iter().chain(&loaded.host).for_each(device);
    loaded.annotations.iter().for_each(|annotation| assert!(annotation.name.index() < symbols.texts()));
}

fuzz_target!(|file: &[u8]| {
    let mut options = Options::default();
    options.max_unpacked_bytes = 1 << 20;
    let strict = read(file, &options);
    if let Ok(loaded) = &strict {
        assert!(loaded.damage.is_none());
        // A compressed file may stand for more bytes than it has.
        walk(loaded, if loaded.compression.is_some() { 1 << 20 } else { file.len() });
    }
    match (strict, read(file, &options.salvaging())) {
        (Ok(strict), Ok(salvaged)) => assert_eq!(strict.events(), salvaged.events()),
        (Ok(_), Err(error)) => panic!("only salvaging fails: {error}"),
        (Err(_), Ok(salvaged)) => {
            assert!(salvaged.damage.is_some());
            walk(&salvaged, 1 << 20);
        }
        (Err(_), Err(_)) => {}
    }
});
