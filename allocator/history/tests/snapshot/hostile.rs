//! No bytes make the viewer's check panic.

use highwater_history::viewer;
use proptest::prelude::*;

use crate::world::{small, written};

#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Copy(usize, usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<usize>(), opcodes(1..6)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (any::<usize>(), 1usize..40).prop_map(|(at, length)| Change::Remove(at, length)),
        (any::<usize>(), any::<usize>(), 1usize..80).prop_map(|(from, to, length)| Change::Copy(from, to, length)),
    ]
}

/// Opcodes that the viewer knows, with any arguments.
fn opcodes(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    let plain = b"(N\x88\x89])lt\x85\x86\x87ae}dsu\x94".to_vec();
    let opcode = prop_oneof![
        6 => prop::sample::select(plain).prop_map(|opcode| vec![opcode]),
        1 => (0u8..12).prop_map(|id| vec![b'h', id]),
        1 => (0u8..12).prop_map(|id| vec![b'q', id]),
        1 => any::<u8>().prop_map(|number| vec![b'K', number]),
        1 => any::<u64>().prop_map(|number| [&[0x8a, 8][..], &number.to_le_bytes()].concat()),
        1 => any::<u32>().prop_map(|id| [&b"r"[..], &id.to_le_bytes()].concat()),
        2 => prop::sample::select(vec!["segments", "device_traces", "blocks", "frames", "addr", "size", "action", "alloc"])
            .prop_map(|text| [&[0x8c, text.len() as u8][..], text.as_bytes()].concat()),
    ];
    prop::collection::vec(opcode, count).prop_map(|parts| parts.concat())
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    let at = |position: usize| position % bytes.len().max(1);
    match *change {
        Change::Set(position, byte) => {
            let position = at(position);
            if let Some(old) = bytes.get_mut(position) {
                *old = byte;
            }
        }
        Change::Insert(position, ref new) => {
            let position = at(position);
            bytes.splice(position..position, new.iter().copied());
        }
        Change::Remove(position, length) => {
            let position = at(position);
            let end = (position + length).min(bytes.len());
            bytes.drain(position..end);
        }
        Change::Copy(from, to, length) => {
            let (from, to) = (at(from), at(to));
            let copy = bytes[from..(from + length).min(bytes.len())].to_vec();
            bytes.splice(to..to, copy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn a_changed_file_does_no_harm(changes in prop::collection::vec(change(), 1..5)) {
        let mut bytes = written(&small().snapshot());
        changes.iter().for_each(|change| apply(&mut bytes, change));
        let _ = viewer::check(&bytes);
    }

    #[test]
    fn opcodes_in_any_order_do_no_harm(mut bytes in opcodes(0..60)) {
        bytes.push(b'.');
        let _ = viewer::check(&bytes);
    }
}

#[test]
fn every_beginning_of_a_file_is_refused() {
    let bytes = written(&small().snapshot());
    for length in 0..bytes.len() {
        assert!(viewer::check(&bytes[..length]).is_err(), "{length} bytes");
    }
}
