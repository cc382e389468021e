//! What spare handles and old mappings do for a window, and what they do not.

use super::*;

/// Any window: new handles of one granule, and what is given.
fn supply(spares: &[Spare]) -> Supply<'_> {
    Supply { spares, create: Some(GRANULE), blind: false }
}

fn window(space: &Space, granules: u64, supply: Supply<'_>, state: GhostState) -> Option<Window> {
    Search::new(space, granules * GRANULE, supply, move |_| state).run()
}

/// A spare handle of another heap, somewhere else.
fn elsewhere(granules: u64) -> Spare {
    let (page, address) = (PageId(7), 1000 * GRANULE);
    let (stream, since) = (StreamIndex(1), Position(0));
    Spare { page, bytes: granules * GRANULE, stream, address, since, proven: true }
}

fn old(granule: u64, page: PageId) -> Ghost {
    Ghost { address: granule * GRANULE, bytes: GRANULE, page }
}

/// Two blocks, at the first and the last granule, and between them nothing but what is said.
fn gap(granules: u64, ghosts: &[Ghost]) -> Space {
    let mut space = grown(granules + 2, &vec![1; granules as usize + 2]);
    for granule in 2..granules + 2 {
        free(&mut space, granule);
        space.unmap(granule * GRANULE);
    }
    ghosts.iter().for_each(|&ghost| space.add_ghost(ghost));
    space.check().unwrap();
    space
}

#[test]
fn a_spare_handle_fills_no_second_place_of_its_own_window() {
    let mut space = space_of(16);
    for granules in [2, 1, 1, 2] {
        let large = Supply { create: Some(2 * GRANULE), ..supply(&[]) };
        let window = window(&space, granules, large, GhostState::Used).unwrap();
        settle(&mut space, &window);
    }
    // Behind the spare handle there is a hole; further up half a handle, and all the room that there is.
    free(&mut space, 5);
    space.place(GRANULE, GRANULE).unwrap();
    free(&mut space, 1);
    free(&mut space, 3);
    space.unmap(3 * GRANULE);
    let found = spares(&mut space);
    let window = search(&space, 3, &found, true).unwrap();
    assert_eq!((window.address, window.created()), (6 * GRANULE, 0));
    assert_eq!(window.pieces, [Piece::Move { spare: found[0], to: 7 * GRANULE }]);
}

#[test]
fn a_spare_handle_that_reaches_into_a_window_stays_there() {
    let mut space = space_of(12);
    for granules in [3, 2, 2, 1] {
        let large = Supply { create: Some(4 * GRANULE), ..supply(&[]) };
        let window = window(&space, granules, large, GhostState::Used).unwrap();
        settle(&mut space, &window);
    }
    // Three granules free, of which a block keeps the first's handle, two unmapped, a spare handle of two, and a block.
    for granule in [1, 4, 6] {
        free(&mut space, granule);
    }
    space.unmap(4 * GRANULE);
    let found: Vec<Spare> = spares(&mut space).into_iter().filter(|spare| spare.address == 6 * GRANULE).collect();
    assert_eq!(search(&space, 6, &found, false), None, "half of it is needed where it is");
    let window = search(&space, 6, &found, true).unwrap();
    assert!(window.pieces.iter().all(|piece| piece.spare().is_none()), "{window:?}");
}

#[test]
fn an_open_stream_chooses_by_what_every_rank_knows() {
    let mut space = grown(16, &[1; 8]);
    // Two holes around a free granule, and, higher up, a free granule and one hole.
    for granule in [1, 2, 3, 5, 6, 7] {
        free(&mut space, granule);
    }
    for granule in [1, 3, 6, 7] {
        space.unmap(granule * GRANULE);
    }
    let address = |create| {
        let supply = Supply { spares: &[], create: Some(create * GRANULE), blind: true };
        Search::new(&space, 3 * GRANULE, supply, |_| GhostState::Used).run().unwrap().address
    };
    assert_eq!([1, 2, 6].map(address), [GRANULE; 3], "how large handles may be depends on time and on other heaps");
}

#[test]
fn a_handle_that_comes_back_does_so_once_and_does_not_move_too() {
    let spare = elsewhere(1);
    let space = gap(3, &[old(2, spare.page), old(3, spare.page)]);
    let found = window(&space, 3, supply(&[spare]), GhostState::Over).unwrap();
    assert_eq!(found.removed, [old(3, spare.page)]);
    let back = Piece::Return { spare, to: 2 * GRANULE };
    let new = |granule| Piece::Create { to: granule * GRANULE, bytes: GRANULE };
    assert_eq!(found.pieces, [back, new(3), new(4)]);
    assert_eq!(window(&space, 3, supply(&[spare]), GhostState::Used), None, "the other mapping is in the way");
}

#[test]
fn a_window_that_is_let_go_brings_old_mappings_back() {
    let spare = elsewhere(1);
    let mut space = gap(2, &[old(2, spare.page), old(3, PageId(8))]);
    let found = window(&space, 2, supply(&[spare]), GhostState::Over).unwrap();
    assert_eq!((found.removed.len(), found.pieces[0]), (1, Piece::Return { spare, to: 2 * GRANULE }));
    space.hold(&found);
    space.check().unwrap();
    space.let_go(&found);
    space.check().unwrap();
    assert_eq!(window(&space, 2, supply(&[spare]), GhostState::Over), Some(found));
}

#[test]
fn a_heap_forgets_old_mappings_that_are_gone_where_it_maps() {
    let mut space = gap(2, &[old(2, PageId(8)), old(3, PageId(9))]);
    let found = window(&space, 2, supply(&[]), GhostState::Gone).unwrap();
    assert!(found.removed.is_empty());
    settle(&mut space, &found);
    assert_eq!(space.ghosts_in(0, u64::MAX).count(), 0);
}

#[test]
fn a_handle_is_taken_only_when_all_of_it_is_free_and_goes_back_only_where_it_was() {
    let mut space = space_of(4);
    let large = Supply { create: Some(2 * GRANULE), ..supply(&[]) };
    let found = window(&space, 2, large, GhostState::Used).unwrap();
    settle(&mut space, &found);
    free(&mut space, 1);
    space.place(GRANULE, GRANULE).unwrap();
    space.place(GRANULE, GRANULE).unwrap();
    let whole = Mapping { address: GRANULE, bytes: 2 * GRANULE, page: PageId(GRANULE) };
    // The first half alone, then both.
    free(&mut space, 1);
    assert_eq!(space.take(whole), None);
    free(&mut space, 2);
    let since = space.take(whole).unwrap();
    assert_eq!(since, Position(2));
    space.add_ghost(Ghost { address: GRANULE, bytes: 2 * GRANULE, page: PageId(9) });
    assert!(!space.put_back(whole, since), "there is another mapping now");
}

#[test]
fn an_open_stream_takes_no_handle_that_is_larger_than_its_need() {
    let spare = elsewhere(2);
    let space = gap(3, &[]);
    let piece = |blind| window(&space, 1, Supply { blind, ..supply(&[spare]) }, GhostState::Used).unwrap().pieces[0];
    // A granule is as good as a part of two, where nobody else looks.
    assert_eq!(piece(true), Piece::Create { to: 2 * GRANULE, bytes: GRANULE });
    assert_eq!(piece(false), Piece::Move { spare, to: 2 * GRANULE });
}

#[test]
fn an_open_stream_chooses_its_window_as_if_nothing_were_free_elsewhere() {
    // Up to the fourth granule, a free one before two old mappings; behind it room for all.
    let mut space = grown(16, &[1, 1, 1, 1]);
    for granule in 1..=3 {
        free(&mut space, granule);
    }
    for granule in [2, 3] {
        space.unmap(granule * GRANULE);
        space.add_ghost(old(granule, PageId(granule)));
    }
    let blind = |spares| Supply { blind: true, ..supply(spares) };
    let alone = window(&space, 3, blind(&[]), GhostState::Over).unwrap();
    let beside = window(&space, 3, blind(&[elsewhere(3)]), GhostState::Over).unwrap();
    assert_eq!((alone.address, beside.address), (GRANULE, GRANULE));
}
