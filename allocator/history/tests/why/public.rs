//! Cases that people have reported in public, rebuilt in small with the proportions that they gave. What nobody found
//! out there is not found out here either.

use highwater_history::why::{Cause, Message};

use crate::world::{GIB, KIB, MIB, Value, World, capacity, causes};

fn first(world: &World) -> (String, u64) {
    let verdict = world.why();
    (causes(&verdict)[0].clone(), verdict.findings[0].explained_bytes)
}

fn told(text: &str) -> (Cause, u64) {
    let verdict = Message::parse(text).expect("it is a message").verdict();
    (verdict.cause(), verdict.findings[0].explained_bytes)
}

/// pytorch 35901: a segment of 11.6 GB, later with 499 MB of small blocks in it; 20.6 GB reserved, 12.2 GB live.
#[test]
fn a_big_segment_that_small_blocks_hold() {
    let mut world = World::new();
    for layer in 0..9 {
        world.alloc(GIB, &format!("model.py:{layer} in build"));
    }
    let segment = world.segment(11_878 * MIB);
    world.put(segment, 2776 * MIB, "model.py:9 in build");
    for block in 0..29 {
        world.put(segment + (2776 + block * 314) * MIB, 17 * MIB, "state.py:5 in keep");
    }
    world.out_of_memory(GIB, 0, "train.py:3 in forward");
    let free = (11_878 - 2776 - 29 * 17) * MIB;
    assert_eq!(first(&world), ("B1".to_owned(), free));
    let verdict = world.why();
    assert_eq!(verdict.ledger.reserved_bytes(), 9 * GIB + 11_878 * MIB);
    assert!(verdict.findings[0].evidence[1].contains("state.py:5 in keep"), "{:?}", verdict.findings[0].evidence);
}

/// pytorch 147168, 124260, torchtitan 735: gathered parameters recorded on another stream, prefetched far ahead.
#[test]
fn collectives_record_streams() {
    let mut world = World::new();
    world.alloc(20 * GIB, "model.py:1 in build");
    let gathered: Vec<u64> = (0..12).map(|_| world.alloc(2 * GIB, "fsdp.py:88 in unshard")).collect();
    for &address in &gathered[..10] {
        world.request_free(address);
    }
    world.out_of_memory(2 * GIB, 512 * MIB, "fsdp.py:88 in unshard");
    assert_eq!(first(&world), ("C1".to_owned(), 20 * GIB));
}

/// pytorch 147179: 60 active, 82 reserved, and 96 GB in nvidia-smi.
#[test]
fn process_groups_outside_of_the_allocator() {
    let (cause, bytes) = told(
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 96.00 GiB of which 8.00 MiB is free. \
         Including non-PyTorch memory, this process has 96.00 GiB memory in use. Of the allocated memory 60.00 GiB is \
         allocated by PyTorch, and 22.00 GiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!(cause, Cause::E2);
    assert_eq!(bytes, 14 * GIB - 8 * MIB - 512 * MIB);
}

/// pytorch 179128: a reduction buffer is kept for each layer, 34 MB each, within one backward pass.
#[test]
fn a_buffer_for_each_layer() {
    let mut world = World::new();
    world.alloc(GIB, "model.py:1 in build");
    for _ in 0..30 {
        let gradient = world.alloc(68 * MIB, "autograd/graph.py:1 in backward < train.py:4 in step");
        world.alloc(
            34 * MIB,
            "fsdp/collectives.py:500 in foreach_reduce < autograd/graph.py:1 in backward < train.py:4 in step",
        );
        world.free(gradient);
    }
    world.out_of_memory(68 * MIB, 0, "autograd/graph.py:1 in backward < train.py:4 in step");
    let (cause, bytes) = first(&world);
    assert_eq!(cause, "F1");
    assert!((29 * 34 * MIB..=30 * 34 * MIB).contains(&bytes), "{bytes}");
}

/// pytorch 139234: gradients are kept over iterations, one more with each, four in the end.
#[test]
fn gradients_that_pile_up() {
    let mut world = World::new();
    world.alloc(10 * GIB, "model.py:1 in build");
    for _ in 0..5 {
        world.mark("Optimizer.step#AdamW.step");
        let activations = world.alloc(3 * GIB, "train.py:3 in forward");
        world.alloc(4 * GIB, "autograd/graph.py:1 in backward < train.py:4 in step");
        world.free(activations);
    }
    world.out_of_memory(4 * GIB, GIB, "autograd/graph.py:1 in backward < train.py:4 in step");
    assert_eq!(first(&world), ("F1".to_owned(), 16 * GIB));
}

/// pytorch 189504: the block that fits is pending; the same request succeeds right after.
#[test]
fn a_second_try_succeeds() {
    let mut world = World::new();
    world.alloc(GIB, "repro.py:1 in main");
    let pending = world.alloc(512 * MIB, "repro.py:2 in main");
    world.request_free(pending);
    world.out_of_memory(512 * MIB, 0, "repro.py:5 in main");
    world.complete(pending);
    world.alloc(512 * MIB, "repro.py:6 in main");
    assert_eq!(first(&world), ("C3".to_owned(), 512 * MIB));
}

/// pytorch 123548, 193400: reserved from 220 to 14,060 MiB, 266 MiB live; max_split 128, sizes 91, 45.5 and 2 MiB.
#[test]
fn a_split_size_with_expandable_segments() {
    let mut world = World::new();
    world.expandable = true;
    world.setting("max_split_size", Value::Int(128 * MIB));
    world.setting("expandable_segments", Value::Bool(true));
    let run = world.segment(14_060 * MIB);
    world.put(run, 91 * MIB, "a.py:1 in f");
    world.put(run + 7000 * MIB, 91 * MIB, "a.py:1 in f");
    world.put(run + 14_060 * MIB - 84 * MIB, 84 * MIB, "a.py:2 in f");
    world.refuse(91 * MIB, 0, "a.py:1 in f");
    assert_eq!(first(&world), ("B3".to_owned(), (14_060 - 266) * MIB));
}

/// vllm 49224: memory of graphs was not planned for.
#[test]
fn graphs_that_were_not_planned_for() {
    let mut world = World::new();
    world.alloc(30 * GIB, "model.py:1 in build");
    world.pool = (0, 1);
    for size in 0..20 {
        world.alloc(GIB, &format!("graph.py:{size} in capture"));
    }
    world.pool = (0, 0);
    world.out_of_memory(4 * GIB, 0, "cache.py:2 in blocks");
    assert_eq!(first(&world), ("D2".to_owned(), 20 * GIB));
}

/// pytorch 1840, 17568, lightning 9343: a loss is summed up with its graph.
#[test]
fn a_loss_with_its_graph() {
    let mut world = World::new();
    world.alloc(2 * GIB, "model.py:1 in build");
    for _ in 0..40 {
        let hidden = world.alloc(90 * MIB, "site-packages/torch/nn/linear.py:1 in forward < train.py:21 in step");
        world.alloc(30 * MIB, "train.py:22 in step");
        let gradient = world.alloc(100 * MIB, "autograd/graph.py:1 in backward < train.py:23 in step");
        world.free(gradient);
        world.free(hidden);
        world.alloc(512, "train.py:24 in step");
    }
    world.out_of_memory(100 * MIB, 20 * MIB, "site-packages/torch/nn/linear.py:1 in forward < train.py:21 in step");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "F1");
    assert!(verdict.findings[0].evidence[0].starts_with("train.py:22 in step keeps"), "{:?}", verdict.findings[0]);
}

/// sglang 13940: a tensor of each request is never let go of; requests are not alike.
#[test]
fn a_tensor_of_each_request() {
    let mut world = World::new();
    world.alloc(8 * GIB, "model.py:1 in build");
    for request in 0..50_u64 {
        let images = world.alloc((100 + request * 37 % 90) * MIB, "serve.py:10 in embed");
        let cache = world.alloc((200 + request * 53 % 150) * MIB, "serve.py:11 in cache");
        world.alloc((16 + request * 29 % 16) * MIB, "ipc.py:3 in rebuild");
        world.free(images);
        world.free(cache);
    }
    world.out_of_memory(250 * MIB, 10 * MIB, "serve.py:10 in embed");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "F1");
    assert_eq!(verdict.growth.as_ref().unwrap().sites[0].site, "ipc.py:3 in rebuild");
}

/// sglang 8902, and the post on memory of the PyTorch blog: saw-teeth until one is too high.
#[test]
fn cycles_that_the_collector_ends() {
    let mut world = World::new();
    world.alloc(2 * GIB, "model.py:1 in build");
    let mut kept = Vec::new();
    for number in 0..40 {
        world.mark(&format!("ProfilerStep#{number}"));
        let batch = world.alloc(200 * MIB, "train.py:5 in step");
        world.free(batch);
        kept.push(world.alloc(64 * MIB, "cycle.py:7 in node"));
        if [9, 24].contains(&number) {
            kept.drain(..).for_each(|address| world.free(address));
        }
    }
    world.out_of_memory(512 * MIB, 0, "train.py:5 in step");
    let (cause, bytes) = first(&world);
    assert_eq!(cause, "F2");
    assert!((13 * 64 * MIB..=15 * 64 * MIB).contains(&bytes), "{bytes}");
}

/// OLMo-core 846: 96 MiB are asked for, 77.93 GiB are allocated, about 34 GiB of that the state of Adam.
#[test]
fn a_step_before_the_first() {
    const ADAM: &str = "site-packages/torch/optim/adam.py:180 in _init_group < checkpoint.py:3 in save";
    let mut world = World::new();
    for layer in 0..44 {
        world.alloc(GIB, &format!("model.py:{layer} in build"));
    }
    for _ in 0..34 {
        world.alloc(GIB, ADAM);
    }
    world.out_of_memory(96 * MIB, 60 * MIB, ADAM);
    assert_eq!(first(&world), ("A3".to_owned(), 34 * GIB));
}

/// Megatron-LM 3920: nothing is left for the library of communication, whose own allocation fails.
#[test]
fn nothing_left_for_communication() {
    let mut world = World::new();
    world.alloc(40 * GIB, "model.py:1 in build");
    let activations = world.alloc(38 * GIB, "train.py:3 in forward");
    world.free(activations);
    let device = crate::world::dict([
        ("name", crate::world::text("gpu")),
        ("capacity_bytes", Value::Int(80 * GIB)),
        ("other_bytes", Value::Int(2 * GIB - 64 * MIB)),
    ]);
    world.recorder = Some(crate::world::dict([("version", Value::Int(1)), ("devices", Value::List(vec![device]))]));
    let verdict = world.why();
    assert_eq!((verdict.cause(), verdict.findings[0].explained_bytes), (Cause::E3, 38 * GIB));
}

/// vllm 46515: mapped handles of other processes are never closed; the process has far more than its allocator.
#[test]
fn handles_that_are_never_closed() {
    let (cause, bytes) = told(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 80.00 GiB of \
         which 100.00 MiB is free. Including non-PyTorch memory, this process has 79.90 GiB memory in use. Of the allocated \
         memory 40.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!(cause, Cause::E2);
    assert!(bytes > 39 * GIB);
}

/// NeMo-RL 4227: one line asks for the log-probabilities of 160,000 tokens at once.
#[test]
fn one_line_for_all_tokens() {
    let mut world = World::new();
    for layer in 0..40 {
        world.alloc(900 * MIB, &format!("model.py:{layer} in build"));
    }
    world.out_of_memory(38 * GIB, 30 * GIB, "logprob.py:31 in dispatch");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "A2");
    assert_eq!(verdict.findings[0].explained_bytes, 38 * GIB - 900 * MIB);
    assert_eq!(verdict.request_site.unwrap().site, "logprob.py:31 in dispatch");
}

/// pytorch 129721: copies for the reduction were allocated in a side stream's pool.
#[test]
fn a_side_stream_keeps_its_copies() {
    let mut world = World::new();
    world.alloc(60 * GIB, "model.py:1 in build");
    world.stream = 11;
    let segment = world.segment(8 * GIB);
    world.put(segment + 4 * GIB - 4 * MIB, 4 * MIB, "fsdp.py:400 in copy_in");
    world.stream = 0;
    world.out_of_memory(3 * GIB, GIB, "train.py:3 in forward");
    assert_eq!(first(&world), ("D1".to_owned(), 8 * GIB - 4 * MIB));
}

/// torchtitan 2362: plain demand.
#[test]
fn plain_demand() {
    let (cause, bytes) = told(
        "CUDA out of memory. Tried to allocate 7.65 GiB. GPU 0 has a total capacity of 79.19 GiB of which 6.87 GiB is free. \
         Including non-PyTorch memory, this process has 72.31 GiB memory in use. Of the allocated memory 70.63 GiB is \
         allocated by PyTorch, and 133.12 MiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!(cause, Cause::A1);
    assert!(bytes.abs_diff((0.78 * GIB as f64) as u64) < 100 * KIB, "{bytes}");
}

/// pytorch 152135: nobody found out. The text leaves fragmentation, pending memory and other streams open.
#[test]
fn what_nobody_found_out() {
    let verdict = Message::parse(
        "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 79.26 GiB of which 100.00 MiB is \
         free. Including non-PyTorch memory, this process has 79.15 GiB memory in use. Of the allocated memory 74.77 GiB is \
         allocated by PyTorch, and 3.87 GiB is reserved by PyTorch but unallocated.",
    );
    let verdict = verdict.expect("it is a message").verdict();
    assert_eq!(verdict.cause(), Cause::X);
    let line = &verdict.findings[0].evidence[0];
    assert!(line.contains("a snapshot decides") && line.contains("3.87 GiB"), "{line}");
    for candidate in ["B1", "B2", "C1", "D1"] {
        assert!(line.contains(candidate), "{line}");
    }
}

/// The same with a snapshot: it does decide.
#[test]
fn the_snapshot_decides() {
    let mut world = World::new();
    for layer in 0..74 {
        world.alloc(GIB, &format!("model.py:{layer} in build"));
    }
    for _ in 0..16 {
        let address = world.alloc(248 * MIB, "comm.py:3 in gather");
        world.request_free(address);
    }
    world.out_of_memory(256 * MIB, 100 * MIB, "train.py:3 in forward");
    let verdict = world.why_with(&capacity(80 * GIB));
    assert_eq!(causes(&verdict)[0], "C1");
}
