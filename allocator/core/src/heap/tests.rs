//! Heaps by themselves: what is placed where, what waits, and how old what is free is.

use super::*;
use crate::PageId;

const GRANULE: u64 = 2 << 20;
const T: StreamIndex = StreamIndex(1);

fn grown(requested: u64) -> Heap {
    let mut heap = Heap::new(GRANULE);
    heap.add_range(requested, GRANULE, 64 * GRANULE);
    grow(&mut heap, requested);
    heap
}

fn grow(heap: &mut Heap, requested: u64) {
    let supply = Supply { spares: &[], create: Some(32 * GRANULE), blind: false };
    let window = heap.window(requested, supply, |_| GhostState::Gone).unwrap();
    heap.hold(&window);
    for piece in &window.pieces {
        let (address, bytes) = piece.place();
        heap.arrive(&window, Mapping { address, bytes, page: PageId(address) }, Position(0));
    }
    heap.let_go(&window);
    heap.check().unwrap();
}

fn freed(block: BlockId, waits: &[u64]) -> Freed {
    let waits = waits.iter().map(|&position| Wait { stream: T, position: Position(position) }).collect();
    Freed { block, since: Position(1), waits }
}

#[test]
fn memory_used_elsewhere_is_not_given_out_before_its_waits_are_over() {
    let mut heap = grown(2 * GRANULE);
    let placed = heap.place(2 * GRANULE).unwrap();
    heap.free(freed(placed.block, &[5, 8]));
    assert_eq!(heap.place(2 * GRANULE), None);
    assert_eq!(heap.awaited(), [Wait { stream: T, position: Position(8) }]);
    let upto = |seen| move |wait: Wait| if wait.position.0 <= seen { Satisfied::Complete } else { Satisfied::No };
    assert!(heap.retire(Position(9), upto(7)).is_empty());
    assert_eq!(heap.retire(Position(9), upto(8)).len(), 1);
    heap.check().unwrap();
    assert_eq!(heap.place(2 * GRANULE).unwrap().since, Position(1));
}

#[test]
fn memory_free_by_order_alone_is_used_only_from_now_on() {
    let mut heap = grown(2 * GRANULE);
    let placed = heap.place(2 * GRANULE).unwrap();
    heap.free(freed(placed.block, &[5]));
    heap.retire(Position(9), |_| Satisfied::Ordered);
    assert_eq!(heap.wholly_free()[0].1, Position(9));
    assert_eq!(heap.place(2 * GRANULE).unwrap().since, Position(9));
}

#[test]
fn a_handle_with_a_live_block_is_occupied_and_a_pending_one_names_what_it_waits_for() {
    let mut heap = Heap::new(GRANULE);
    heap.add_range(2 * GRANULE, GRANULE, 64 * GRANULE);
    let blocks: Vec<BlockId> = (0..3)
        .map(|_| {
            grow(&mut heap, 2 * GRANULE);
            heap.place(2 * GRANULE).unwrap().block
        })
        .collect();
    heap.free(freed(blocks[0], &[5]));
    heap.free(freed(blocks[2], &[]));
    let found = heap.unoccupied();
    let waits = |index: usize| (found[index].mapping.address / GRANULE, found[index].waits.clone());
    assert_eq!(found.len(), 2);
    assert_eq!(waits(0), (1, vec![Wait { stream: T, position: Position(5) }]));
    assert_eq!(waits(1), (5, vec![]));
    assert!(found.iter().all(|handle| handle.since == Position(1)));
}

fn ages(heap: &mut Heap) -> Vec<u64> {
    heap.wholly_free().into_iter().map(|(_, since)| since.0).collect()
}

fn freed_at(block: BlockId, since: u64) -> Freed {
    Freed { block, since: Position(since), waits: Vec::new() }
}

#[test]
fn each_handle_is_as_old_as_its_own_last_use() {
    // Of three handles of two granules each, a block has the first and half of the second, another one the rest.
    let two_blocks = || {
        let mut heap = grown(2 * GRANULE);
        let first = heap.place(2 * GRANULE).unwrap().block;
        grow(&mut heap, 2 * GRANULE);
        let second = heap.place(2 * GRANULE).unwrap().block;
        grow(&mut heap, 2 * GRANULE);
        heap.free(freed_at(first, 1));
        heap.free(freed_at(second, 1));
        assert_eq!(ages(&mut heap), [1, 1, 0]);
        let blocks = [heap.place(3 * GRANULE).unwrap().block, heap.place(3 * GRANULE).unwrap().block];
        (heap, blocks)
    };
    let (mut heap, [low, high]) = two_blocks();
    heap.free(freed_at(low, 5));
    assert_eq!(ages(&mut heap), [5]);
    heap.free(freed_at(high, 9));
    assert_eq!(ages(&mut heap), [5, 9, 9]);
    let (mut heap, [low, high]) = two_blocks();
    heap.free(freed_at(high, 5));
    heap.free(Freed { since: Position(9), ..freed(low, &[7]) });
    assert_eq!(ages(&mut heap), [5]);
    let waiting = heap.unoccupied();
    assert_eq!(waiting.iter().map(|handle| handle.since.0).collect::<Vec<_>>(), [9, 9, 5]);
    heap.retire(Position(20), |_| Satisfied::Complete);
    assert_eq!(ages(&mut heap), [9, 9, 5]);
    let (second, _) = heap.wholly_free()[1];
    assert_eq!(heap.take(second), Some(Position(9)));
    heap.check().unwrap();
}

#[test]
fn a_use_that_is_long_forgotten_still_counts() {
    let mut heap = Heap::new(GRANULE);
    heap.add_range(2 * GRANULE, GRANULE, 64 * GRANULE);
    let mut place = |granules| {
        grow(&mut heap, granules * GRANULE);
        heap.place(granules * GRANULE).unwrap().block
    };
    let [mut two, mut three, old] = [2, 3, 1].map(&mut place);
    heap.free(freed_at(old, 3));
    // Neither size is given whole to the next request of it.
    for at in 4..1000 {
        heap.free(freed_at(two, at));
        heap.free(freed_at(three, at));
        two = heap.place(2 * GRANULE).unwrap().block;
        three = heap.place(3 * GRANULE).unwrap().block;
    }
    let (_, since) = heap.wholly_free()[0];
    assert!((Position(3)..Position(1000)).contains(&since), "{since:?}");
}

#[test]
fn the_oldest_sufficient_frees_are_waited_for() {
    let mut heap = grown(8 * GRANULE);
    let blocks: Vec<BlockId> = (0..4).map(|_| heap.place(2 * GRANULE).unwrap().block).collect();
    for (position, &index) in [1, 2, 0, 3].iter().enumerate() {
        heap.free(freed(blocks[index], &[10 * (position as u64 + 1)]));
    }
    let wait = |position| vec![Wait { stream: T, position: Position(position) }];
    assert_eq!(heap.sufficient_waits(2 * GRANULE), Some(wait(10)));
    assert_eq!(heap.sufficient_waits(4 * GRANULE), Some(wait(20)));
    assert_eq!(heap.sufficient_waits(8 * GRANULE), Some(wait(40)));
    assert_eq!(heap.sufficient_waits(9 * GRANULE), None);
}

#[test]
fn zero_bytes_and_the_largest_number_are_no_trouble() {
    let mut heap = grown(512);
    let placed = heap.place(0).unwrap();
    assert_eq!(placed.bytes, 512);
    assert_eq!(heap.place(u64::MAX), None);
    let supply = Supply { spares: &[], create: Some(GRANULE), blind: false };
    assert_eq!(heap.window(u64::MAX, supply, |_| GhostState::Gone), None);
    assert_eq!(heap.books().rounding, 512);
    heap.check().unwrap();
}
