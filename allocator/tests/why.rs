//! What the recorder writes is enough to tell why memory ran out, with certainty: each cause with a snapshot of this
//! allocator. And the error says the same.

use std::time::Duration;

use highwater::device::{Device, PageHandle};
use highwater::history::read::{self, Loaded};
use highwater::history::why::{Cause, Finding, Look, Message, Moment, Options, Verdict, explain};
use highwater::{AllocError, Settings, SettingsBuilder};

use crate::world::{GRANULE, MEMORY, World, granules, still};

fn loaded(world: &World) -> Loaded {
    let mut file = Vec::new();
    world.allocator.snapshot().write_to(&mut file).unwrap();
    read::read(&file, &read::Options::default()).unwrap()
}

fn verdict(world: &World, look: Look) -> Verdict {
    let mut options = Options::default();
    options.look = look;
    explain(&loaded(world), &options).remove(0)
}

/// The cause that comes first, which has to be certain; with its evidence as one text.
#[track_caller]
fn certain(verdict: &Verdict, cause: Cause) -> (Finding, String) {
    let first = verdict.findings[0].clone();
    assert_eq!((first.cause, first.sufficient, first.confidence), (cause, true, 1.0), "{:#?}", verdict.findings);
    assert!(verdict.warnings.is_empty(), "{:?}", verdict.warnings);
    let text = first.evidence.join("\n");
    (first, text)
}

/// Requests fail at once where the host would have to wait.
fn hasty(settings: SettingsBuilder) -> SettingsBuilder {
    settings.host_wait_timeout(Duration::from_nanos(1))
}

/// Memory that others take: pages of the device, past the allocator.
fn take(world: &World, granules: u64) -> Vec<PageHandle> {
    (0..granules).map(|_| world.device.create(GRANULE).unwrap()).collect()
}

#[test]
fn c1_names_the_stream_the_position_and_that_it_is_open() {
    let world = World::with(hasty(still()));
    let [s, t] = world.streams();
    t.mark_open();
    let kept = world.bytes(&s, granules(6));
    let gathered = world.bytes(&s, granules(8));
    world.busy(&t, &gathered, 1_000_000);
    drop(gathered);
    let report = world.no_room(&s, granules(8));
    let verdict = verdict(&world, Look::Failure);
    assert_eq!(verdict.moment, Moment::OutOfMemory);
    let (first, text) = certain(&verdict, Cause::C1);
    assert_eq!(first.explained_bytes, 8 * GRANULE);
    assert!(text.contains("512.00 KiB of it waits for stream 2 (t), up to position "), "{text}");
    assert!(text.contains("it is open: what it does may depend on other ranks"), "{text}");
    assert!(verdict.pending_by_stream[0].waited_for && verdict.pending_by_stream[0].fence.is_some());
    let cause = report.cause.expect("it is told");
    assert_eq!((&*cause.id, cause.bytes, cause.sufficient), ("C1", first.explained_bytes, true));
    assert_eq!((cause.title, &cause.evidence), (first.title, &first.evidence[0]), "in the same words");
    drop((kept, s, t));
    world.pass(2_000_000);
    world.end();
}

#[test]
fn what_waited_at_a_failure_is_known_when_it_is_over() {
    let world = World::with(hasty(still()));
    let [s, t] = world.streams();
    t.mark_open();
    let kept = world.bytes(&s, granules(6));
    let gathered = world.bytes(&s, granules(8));
    world.busy(&t, &gathered, 1000);
    drop(gathered);
    world.no_room(&s, granules(8));
    world.pass(2_000_000);
    let met = world.bytes(&s, granules(8));
    let (_, text) = certain(&verdict(&world, Look::Failure), Cause::C1);
    assert!(text.contains("it is open: what it does may depend on other ranks"), "{text}");
    drop((kept, met, s, t));
    world.end();
}

#[test]
fn c1_holds_when_the_history_of_the_uses_is_lost() {
    let world = World::with(hasty(still()).history_kib(1));
    let [s, t] = world.streams();
    t.mark_open();
    let gathered = world.bytes(&s, granules(8));
    world.busy(&t, &gathered, 1_000_000);
    for _ in 0..40 {
        drop(world.bytes(&s, 100));
    }
    drop(gathered);
    world.no_room(&s, granules(12));
    let (_, text) = certain(&verdict(&world, Look::Failure), Cause::C1);
    assert!(text.contains("waits for stream 2 (t)"), "{text}");
    drop((s, t));
    world.pass(2_000_000);
    world.end();
}

#[test]
fn c2_names_the_open_stream_that_holds_up_work_of_others() {
    let world = World::with(hasty(still()));
    let [s, t, u] = world.streams();
    t.mark_open();
    world.idle(&t, 1_000_000);
    u.wait(&t.record().unwrap()).unwrap();
    let kept = world.bytes(&s, granules(6));
    let copied = world.bytes(&s, granules(8));
    world.busy(&u, &copied, 10);
    drop(copied);
    world.no_room(&s, granules(8));
    let (_, text) = certain(&verdict(&world, Look::Failure), Cause::C2);
    assert!(text.contains("comes after work of open stream 2 (t) that is not complete"), "{text}");
    drop((kept, s, t, u));
    world.pass(2_000_000);
    world.end();
}

#[test]
fn a_host_wait_names_the_stream_too() {
    let world = World::with(still());
    let [s, t] = world.streams();
    t.mark_open();
    let kept = world.bytes(&s, granules(6));
    let gathered = world.bytes(&s, granules(8));
    world.busy(&t, &gathered, 1000);
    drop(gathered);
    let met = world.bytes(&s, granules(8));
    let verdict = verdict(&world, Look::Failure);
    assert_eq!((verdict.moment, verdict.stalls), (Moment::Stall, 1));
    let (_, text) = certain(&verdict, Cause::C1);
    assert!(text.contains("waits for stream 2 (t)"), "{text}");
    assert_eq!(verdict.ledger.other_bytes, Some(0), "measured then, not at the end");
    drop((kept, met, s, t));
    world.end();
}

#[test]
fn d1_is_the_setting_or_the_open_stream_that_keeps_the_memory() {
    let story = |settings: SettingsBuilder, open: bool| {
        let world = World::with(hasty(settings));
        let [s, t] = world.streams();
        let kept = world.bytes(&s, granules(8));
        let cached = world.bytes(&t, granules(7));
        if open {
            t.mark_open();
        }
        world.fill(&t, &cached, 1, 1_000_000);
        drop(cached);
        world.no_room(&s, granules(5));
        let (_, text) = certain(&verdict(&world, Look::Failure), Cause::D1);
        assert!(text.contains("stream 2 (t) has 448.00 KiB free"), "{text}");
        drop((kept, s, t));
        world.pass(2_000_000);
        world.end();
        text
    };
    let (off, on) = (still, || Settings::builder().page_time(1.0));
    assert!(story(off(), false).contains("lending is off"), "a wait would have been enough");
    for settings in [off(), on()] {
        assert!(story(settings, true).contains("stream 2 (t) is open: its work may wait for other ranks"));
    }
}

#[test]
fn e1_names_the_processes_that_have_the_memory() {
    let story = |other: u64, own: u64| {
        let world = World::with(still());
        let [s] = world.streams();
        let kept = world.bytes(&s, granules(6));
        world.device.occupy(4711, other * GRANULE);
        let taken = take(&world, own);
        let report = world.no_room(&s, granules(4));
        let verdict = verdict(&world, Look::Failure);
        taken.into_iter().for_each(|page| world.device.release(page).unwrap());
        world.device.occupy(4711, 0);
        drop((kept, s));
        world.end();
        (verdict, report)
    };
    let (told, report) = story(8, 0);
    let (first, text) = certain(&told, Cause::E1);
    assert_eq!(first.explained_bytes, 8 * GRANULE);
    assert!(text.starts_with("process 4711 has 512.00 KiB"), "{text}");
    assert!(told.finding(Cause::E2).is_none(), "this process took nothing past the allocator");
    let error = report.to_string();
    assert!(
        error.contains("cause E1, another process on the device") && error.contains("process 4711 has 512.00 KiB"),
        "{error}"
    );

    let (told, _) = story(1, 8);
    certain(&told, Cause::E2);
    assert!(told.finding(Cause::E1).is_none_or(|finding| !finding.sufficient), "without it as much would be missing");
}

#[test]
fn e2_is_what_this_process_took_since_recording_began() {
    let world = World::with(still());
    let [s] = world.streams();
    let kept = world.bytes(&s, granules(6));
    world.pass(1_000_000);
    let taken = take(&world, 8);
    world.no_room(&s, granules(4));
    let verdict = verdict(&world, Look::Failure);
    let (first, text) = certain(&verdict, Cause::E2);
    assert_eq!((first.explained_bytes, verdict.ledger.other_bytes), (8 * GRANULE, Some(8 * GRANULE)));
    assert!(text.contains("it was 0 B when recording began, and has grown by 512.00 KiB in 1.0 ms"), "{text}");
    taken.into_iter().for_each(|page| world.device.release(page).unwrap());
    drop((kept, s));
    world.end();
}

#[test]
fn e2_grows_before_memory_ends() {
    let world = World::with(still());
    let [s] = world.streams();
    let kept = world.bytes(&s, granules(4));
    world.pass(1_000_000);
    let taken = take(&world, 4);
    let verdict = verdict(&world, Look::Growth);
    let finding = verdict.finding(Cause::E2).expect("4 of 16 granules went to others");
    // 8 granules are left, and 4 went in a millisecond.
    assert!(finding.evidence.join("\n").contains("512.00 KiB are left: at this rate for 2.0 ms"), "{finding:?}");
    taken.into_iter().for_each(|page| world.device.release(page).unwrap());
    drop((kept, s));
    world.end();
}

#[test]
fn e3_is_measured_where_what_failed_was_somebody_else() {
    let story = |cached: u64| {
        let world = World::with(still());
        let [s] = world.streams();
        let kept = world.bytes(&s, granules(4));
        drop(world.bytes(&s, granules(cached)));
        let verdict = verdict(&world, Look::Failure);
        drop((kept, s));
        world.end();
        verdict
    };
    let (first, text) = certain(&story(12), Cause::E3);
    assert_eq!(first.explained_bytes, 12 * GRANULE);
    assert!(text.starts_with("0 B of 1.00 MiB are free on the device, while 768.00 KiB lie free"), "{text}");
    assert!(story(6).finding(Cause::E3).is_none(), "6 granules are free on the device");
}

#[test]
fn h1_is_the_limit_that_was_set() {
    let world = World::with(still().memory_limit_bytes(8 * GRANULE));
    let [s] = world.streams();
    let kept = world.bytes(&s, granules(6));
    let report = world.no_room(&s, granules(4));
    let verdict = verdict(&world, Look::Failure);
    let (_, text) = certain(&verdict, Cause::H1);
    assert!(text.contains("a limit stands at 512.00 KiB"), "{text}");
    assert_eq!((verdict.limit_bytes, verdict.deficit_bytes), (Some(8 * GRANULE), Some(2 * GRANULE)));
    assert_eq!(report.cause.as_ref().map(|cause| &*cause.id), Some("H1"));
    let text = report.to_string();
    assert!(text.contains("of 1.00 MiB capacity, 512.00 KiB allowed, 384.00 KiB are live"), "{text}");
    let message = Message::parse(&text).unwrap();
    assert_eq!((message.capacity_bytes, message.allowed_bytes), (Some(MEMORY), Some(8 * GRANULE)));
    assert_eq!(message.verdict().cause(), Cause::H1);
    drop((kept, s));
    world.end();
}

/// A program that keeps a granule in each iteration, until memory ends or it has done so many; the error, if one came.
fn leak(world: &World, iterations: usize, keeper: &mut Vec<highwater::Buffer<u8>>) -> Result<(), AllocError> {
    let s = world.allocator.default_stream();
    for _ in 0..iterations {
        let batch = s.alloc::<u8>(granules(2))?;
        let small = s.alloc::<u8>(3000)?;
        world.pass(1000);
        drop((batch, small));
        keeper.push(s.alloc::<u8>(granules(1))?);
    }
    Ok(())
}

#[test]
fn f1_is_in_the_error_and_message_only_mode_reads_it() {
    let world = World::with(still());
    let mut kept = Vec::new();
    let Err(AllocError::OutOfMemory(report)) = leak(&world, 100, &mut kept) else { panic!("it ends") };
    // Nobody marked the iterations, so it is not certain that they are some.
    let verdict = verdict(&world, Look::Failure);
    let (first, text) = (&verdict.findings[0], verdict.findings[0].evidence.join("\n"));
    assert_eq!((first.cause, first.sufficient), (Cause::F1, true), "{:#?}", verdict.findings);
    let cause = report.cause.clone().expect("it is told");
    assert_eq!((&*cause.id, cause.bytes, cause.title), ("F1", first.explained_bytes, first.title));
    assert!(text.contains("why.rs") && cause.evidence.contains("why.rs"), "{text}");
    let error = AllocError::OutOfMemory(report).to_string();
    assert!(
        error.contains("; cause F1, a leak: live memory grows with each iteration (sufficient, explains "),
        "{error}"
    );
    assert!(error.contains("; to do: ") && !error.contains('\n'), "{error}");
    let told = Message::parse(&format!("step 9\n{error}\nbye")).unwrap().verdict();
    assert_eq!((told.cause(), told.findings[0].sufficient), (Cause::F1, true));
    assert_eq!(told.findings[0].evidence[0], cause.evidence);
    assert!(told.findings[0].explained_bytes.abs_diff(cause.bytes) <= cause.bytes / 100, "rounded to two decimals");
    drop(kept);
    world.end();
}

#[test]
fn growth_names_the_line_and_the_end_before_it_comes() {
    let world = World::with(Settings::builder().page_time(1.0));
    let mut kept = Vec::new();
    leak(&world, 9, &mut kept).unwrap();
    let verdict = verdict(&world, Look::Growth);
    let growth = verdict.growth.expect("nine iterations are enough");
    assert!(growth.sites[0].site.contains("why.rs") && growth.sites[0].bytes >= 7 * GRANULE, "{:?}", growth.sites);
    assert_eq!(growth.bytes_per_iteration, GRANULE as i64);
    assert_eq!((growth.iterations_left, growth.freed_again), (Some(MEMORY / GRANULE - 9), 0));
    assert_eq!(growth.time_left_us, Some(7));
    // So it is, but for what an iteration needs for itself.
    leak(&world, 4, &mut kept).unwrap();
    leak(&world, 3, &mut kept).unwrap_err();
    drop(kept);
    world.end();
}

#[test]
fn an_allocator_that_fails_again_and_again_tells_its_books_alone() {
    let world = World::with(still().memory_limit_bytes(8 * GRANULE));
    let [s] = world.streams();
    let kept = world.bytes(&s, granules(6));
    let told = (0..20).filter(|_| world.no_room(&s, granules(4)).cause.is_some()).count();
    assert_eq!(told, 16);
    drop((kept, s));
    world.end();
}
