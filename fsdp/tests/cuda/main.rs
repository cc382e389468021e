//! Groups on a GPU: `cargo test -p highwater-fsdp --test cuda -- --ignored`.

#[path = "../../../kernels/tests/gpu/gate.rs"]
mod gate;
mod nccl;
mod nccl_moves;
mod support;
mod threads;
