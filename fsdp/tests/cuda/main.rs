//! Groups on a GPU: `cargo test -p highwater-fsdp --test cuda -- --ignored`.

mod nccl;
mod support;
mod threads;
