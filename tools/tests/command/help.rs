//! Help, and command lines that make no sense.

use crate::scratch::Scratch;
use crate::support::{highwater, without_reader};

#[test]
fn without_a_subcommand_it_helps_and_ends_with_2() {
    let ended = highwater(Scratch::new().path(), "");
    assert_eq!((ended.code, &*ended.stdout), (Some(2), ""));
    assert!(ended.stderr.contains("Usage: highwater <COMMAND>") && ended.stderr.contains("Examples:"));
}

#[test]
fn help_is_a_result() {
    let ended = highwater(Scratch::new().path(), "--help");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    assert!(ended.stdout.contains("train") && ended.stdout.contains("Examples:\n  highwater train\n"));
}

#[test]
fn help_of_train_names_every_option_with_its_default() {
    let ended = highwater(Scratch::new().path(), "train --help");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let text = ended.stdout;
    let (options, examples) = text.split_once("Examples:\n").expect("it has examples");
    for (option, default) in [
        ("--layers", "3"),
        ("--width", "96"),
        ("--heads", "4"),
        ("--seq", "64"),
        ("--batch", "16"),
        ("--micro-batch", "4"),
        ("--steps", "300"),
        ("--lr", "0.002"),
        ("--seed", "1"),
        ("--device", "sim"),
        ("--group", "local"),
    ] {
        let (_, after) = options.split_once(&format!("      {option} <")).unwrap_or_else(|| panic!("no {option}"));
        let (_, after) = after.split_once("[default: ").unwrap_or_else(|| panic!("{option} has no default"));
        assert!(after.starts_with(&format!("{default}]")), "{option}: {after}");
    }
    for option in ["[FILES]...", "--ranks <N>", "--out <DIR>", "--json", "--no-attention"] {
        assert!(options.contains(option), "no {option}");
    }
    for file in ["metrics.jsonl", "timeline.json", "snapshot.pickle"] {
        assert!(options.contains(file), "what is {file}?");
    }
    assert!(examples.lines().filter(|line| line.starts_with("  highwater train")).count() >= 3);
}

#[test]
fn words_that_make_no_sense_end_with_2() {
    let scratch = Scratch::new();
    for (words, named) in [
        ("trian", "trian"),
        ("train --rank 4", "--rank"),
        ("train --device tpu", "tpu"),
        ("train --group mpi", "mpi"),
        ("doctor now", "now"),
        ("bench alloc 512", "512"),
        ("bench alloc --device gpu", "gpu"),
        ("bench alloc --recorder maybe", "maybe"),
        ("bench moves --device gpu", "gpu"),
        ("bench alloc --recorder", "--recorder"),
        ("train --ranks four", "four"),
        ("train --steps 1.5", "1.5"),
        ("train --ranks -1", "-1"),
        ("train --lr fast", "fast"),
        ("train --seed", "--seed"),
    ] {
        let ended = highwater(scratch.path(), words);
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{words}");
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(named), "{words}: {}", ended.stderr);
    }
}

#[test]
fn help_that_nobody_reads_is_no_error() {
    let ended = without_reader(Scratch::new().path(), "train --help");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
}
