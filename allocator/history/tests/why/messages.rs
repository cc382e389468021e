//! The text of errors, in all spellings, and what follows from the text alone.

use highwater_history::why::{Cause, Message, MessageError, Process};

use crate::world::{GIB, KIB, MIB};

fn gib(value: f64) -> Option<u64> {
    Some((value * GIB as f64).round() as u64)
}

fn parse(text: &str) -> Message {
    Message::parse(text).expect("it is a message")
}

fn cause(text: &str) -> Cause {
    parse(text).verdict().cause()
}

const TODAY: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.65 GiB. GPU 2 has a total capacity of \
    79.19 GiB of which 6.87 GiB is free. Process 12 has 1.00 GiB memory in use. Including non-PyTorch memory, this process \
    has 71.31 GiB memory in use. 75.00 GiB allowed; Of the allocated memory 70.63 GiB is allocated by PyTorch, with 1.25 GiB \
    allocated in private pools (e.g., CUDA Graphs), and 133.12 MiB is reserved by PyTorch but unallocated. If reserved but \
    unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";

#[test]
fn todays_spelling() {
    let message = parse(TODAY);
    assert_eq!((message.request_bytes, message.capacity_bytes), (gib(7.65), gib(79.19)));
    assert_eq!((message.free_bytes, message.allocated_bytes), (gib(6.87), gib(70.63)));
    assert_eq!((message.private_bytes, message.allowed_bytes), (gib(1.25), gib(75.0)));
    assert_eq!(message.unallocated_bytes, Some((133.12 * MIB as f64).round() as u64));
    assert_eq!(message.own_process_bytes, gib(71.31));
    assert_eq!(message.processes, [Process { pid: 12, bytes: GIB }]);
}

#[test]
fn the_spelling_of_2_1_with_its_typo() {
    let message = parse(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 15.77 GiB of which 12.88 MiB is free. \
         Including non-PyTorch memory, this process has 15.75 GiB memory in use. Of the allocated memory 14.90 GiB is \
         allocated by PyTorch, and 100.50 MiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!((message.capacity_bytes, message.request_bytes), (gib(15.77), Some(20 * MIB)));
    assert_eq!((message.allocated_bytes, message.private_bytes), (gib(14.9), None));
    assert!(message.processes.is_empty(), "this process is not another one");
}

#[test]
fn the_spelling_before() {
    let message = parse(
        "RuntimeError: CUDA out of memory. Tried to allocate 512.00 KiB (GPU 0; 7.79 GiB total capacity; 5.20 GiB already \
         allocated; 19.06 MiB free; 7.00 GiB allowed; 5.50 GiB reserved in total by PyTorch) If reserved memory is >> \
         allocated memory try setting max_split_size_mb to avoid fragmentation.",
    );
    assert_eq!((message.request_bytes, message.capacity_bytes), (Some(512 * KIB), gib(7.79)));
    assert_eq!((message.allocated_bytes, message.allowed_bytes), (gib(5.2), gib(7.0)));
    assert_eq!(message.free_bytes, Some((19.06 * MIB as f64).round() as u64));
    assert_eq!(
        message.unallocated_bytes,
        Some(gib(5.5).unwrap() - gib(5.2).unwrap()),
        "the total is with the allocated"
    );
}

#[test]
fn the_oldest_spelling() {
    let message = parse(
        "RuntimeError: CUDA out of memory. Tried to allocate 100 bytes (GPU 1; 10.92 GiB total capacity; 9.79 GiB already \
         allocated; 14.06 MiB free; 537.50 MiB cached)",
    );
    assert_eq!((message.request_bytes, message.allocated_bytes), (Some(100), gib(9.79)));
    assert_eq!(message.unallocated_bytes, Some((537.5 * MIB as f64).round() as u64), "beside the allocated");
}

#[test]
fn this_projects_own_spelling() {
    let text = "out of memory: 64.00 MiB requested on stream \"main\"; of 1.00 GiB capacity 700.00 MiB are live (main 700.00 \
        MiB), 1.00 MiB rounding, 300.00 MiB pending (side 300.00 MiB), 23.00 MiB cached (main 23.00 MiB) (largest free piece \
        of the stream 2.00 MiB); 512 B free on the device; the limit is reached";
    let message = parse(text);
    assert_eq!((message.request_bytes, message.capacity_bytes), (Some(64 * MIB), Some(GIB)));
    assert_eq!((message.allocated_bytes, message.pending_bytes), (Some(700 * MIB), Some(300 * MIB)));
    assert_eq!((message.unallocated_bytes, message.largest_run_bytes), (Some(23 * MIB), Some(2 * MIB)));
    assert_eq!((message.rounding_bytes, message.free_bytes), (Some(MIB), Some(512)));
    assert_eq!(message.verdict().cause(), Cause::C1);
}

#[test]
fn the_cause_that_an_error_tells_comes_first() {
    let text = "step 3\nout of memory: 8.00 MiB requested on stream \"main\"; of 1.00 GiB capacity, 64.00 MiB allowed, 60.00 \
        MiB are live (main 60.00 MiB), 0 B rounding, 0 B pending, 0 B cached (largest free piece of the stream 0 B); 900.00 \
        MiB free on the device; the limit is reached; most of what is live was asked for at a.rs:3 (60.00 MiB in 20 blocks \
        on main); cause F1, a leak: live memory grows with each iteration (sufficient, explains 40.00 MiB): a.rs:9 keeps \
        40.00 MiB in 20 blocks; to do: find what holds it (about 40.00 MiB); highwater why x.pickle tells more\nbye";
    for broken in [text.to_owned(), text.replace(' ', "\n")] {
        let message = parse(&broken);
        assert_eq!((message.capacity_bytes, message.allowed_bytes), (Some(GIB), Some(64 * MIB)));
        let verdict = message.verdict();
        let first = &verdict.findings[0];
        assert_eq!((first.cause, first.sufficient, first.explained_bytes), (Cause::F1, true, 40 * MIB));
        assert_eq!(first.evidence, ["a.rs:9 keeps 40.00 MiB in 20 blocks"]);
        assert_eq!(first.advice[0].text, "find what holds it (about 40.00 MiB)");
        assert_eq!(verdict.findings[1].cause, Cause::H1, "the limit is told beside it");
        assert_eq!(verdict.limit_bytes, Some(64 * MIB));
    }
    let unknown = text.replace("cause F1", "cause Z9");
    assert_eq!(parse(&unknown).verdict().cause(), Cause::H1, "what is not known is not told");
}

#[test]
fn the_last_message_of_a_log_counts_however_it_is_broken_into_lines() {
    let log = format!("step 1\n{}\nretry\n{}\nbye", TODAY.replace("7.65", "1.00"), TODAY.replace(' ', "\n"));
    assert_eq!(parse(&log), parse(TODAY));
}

#[test]
fn messages_that_say_nothing_are_not_guessed_at() {
    for text in [
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCTensorCopy.cu:205",
        "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes.",
    ] {
        let verdict = parse(text).verdict();
        assert_eq!(verdict.cause(), Cause::X, "{text}");
        assert!(verdict.findings[0].advice.is_empty());
    }
    assert_eq!(Message::parse("all is well"), Err(MessageError::NoMessage));
    assert_eq!(Message::parse(""), Err(MessageError::NoMessage));
    assert_eq!(
        parse("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes.").request_bytes,
        Some(KIB)
    );
}

fn told(request: &str, capacity: &str, free: &str, parts: &str, allocated: &str, unallocated: &str) -> String {
    format!(
        "CUDA out of memory. Tried to allocate {request}. GPU 0 has a total capacity of {capacity} of which {free} is free. \
         {parts}Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved by PyTorch but \
         unallocated."
    )
}

#[test]
fn verdicts_from_text_alone() {
    let small = "10.00 MiB";
    let others = "Process 9 has 20.00 GiB memory in use. ";
    let allowed = "40.00 GiB allowed; ";
    let pools = "with 30.00 GiB allocated in private pools (e.g., CUDA Graphs), ";
    let cases = [
        (told("2.00 GiB", "80.00 GiB", small, others, "58.00 GiB", small), Cause::E1),
        (told("2.00 GiB", "80.00 GiB", small, "", "58.00 GiB", small), Cause::E2),
        (told("2.00 GiB", "80.00 GiB", "39.00 GiB", allowed, "39.00 GiB", small), Cause::H1),
        (told("2.00 GiB", "80.00 GiB", "39.00 GiB", "", "40.00 GiB", small), Cause::H2),
        (told("2.00 GiB", "80.00 GiB", small, "", "75.00 GiB", "4.00 GiB"), Cause::X),
        (told("2.00 GiB", "80.00 GiB", small, "", "79.00 GiB", small), Cause::A1),
        (
            told("2.00 GiB", "80.00 GiB", small, "", "79.00 GiB", small)
                .replace("by PyTorch, and", &format!("by PyTorch, {pools}and")),
            Cause::D2,
        ),
        // Not E: the others have less than a part in ten.
        (told("2.00 GiB", "80.00 GiB", small, "", "73.00 GiB", small), Cause::A1),
        // Not X: what is reserved is less than the request.
        (told("2.00 GiB", "80.00 GiB", small, "", "77.00 GiB", "1.90 GiB"), Cause::A1),
    ];
    for (text, expected) in cases {
        assert_eq!(cause(&text), expected, "{text}");
        let verdict = parse(&text).verdict();
        assert!(verdict.ledger.total_bytes().abs_diff(80 * GIB) <= 1, "the ledger sums to the capacity");
        assert!(verdict.findings.iter().flat_map(|finding| &finding.advice).all(|advice| advice.bytes > 0));
    }
}

#[test]
fn odd_numbers_do_no_harm() {
    for number in ["-1", "nan", "inf", "1e400", "99999999999999999999999", ""] {
        let text =
            told(&format!("{number} GiB"), &format!("{number} GiB"), "1.00 GiB", "", &format!("{number} TiB"), "1 B");
        let verdict = parse(&text).verdict();
        assert!(!verdict.findings.is_empty());
    }
}
