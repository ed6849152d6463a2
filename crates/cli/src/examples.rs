//! Tests of the examples in the help texts, README.md and docs: each must work when it is copied. Both programs have
//! such tests, each for its own examples.

use crate::Arguments;
use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser};

/// The least width of a terminal. The terminal would break a longer line in the middle of a word.
const COLUMNS: usize = 80;

/// Collects every command's help, with the command's name.
fn helps(mut command: Command, name: String, helps: &mut Vec<(String, String)>) {
    helps.push((name.clone(), command.render_long_help().to_string()));
    for below in command.get_subcommands() {
        helps_of(below, &name, helps);
    }
}

fn helps_of(command: &Command, above: &str, all: &mut Vec<(String, String)>) {
    helps(command.clone(), format!("{above} {}", command.get_name()), all);
}

/// The calls of the program in a text. A backslash joins lines.
fn calls(text: &str) -> Vec<String> {
    let beginning = format!("{} ", Arguments::command().get_name());
    let mut calls: Vec<String> = Vec::new();
    let mut open = false;
    for line in text.lines().map(str::trim) {
        let line = line.strip_prefix("$ ").unwrap_or(line);
        let line = line.strip_prefix("target/release/").unwrap_or(line);
        let (words, goes_on) = line.strip_suffix('\\').map_or((line, false), |words| (words, true));
        match calls.last_mut() {
            Some(last) if open => *last = format!("{last} {words}"),
            _ if line.starts_with(&beginning) => calls.push(words.to_owned()),
            _ => continue,
        }
        open = goes_on;
    }
    calls
}

/// The words that the program gets when a shell runs the call.
fn words(call: &str) -> Vec<String> {
    let words = shlex::split(call).unwrap_or_else(|| panic!("no shell reads this: {call}"));
    words.into_iter().take_while(|word| !["|", ">", "&&"].contains(&word.as_str())).collect()
}

fn check(place: &str, call: &str) {
    match Arguments::try_parse_from(words(call)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {}
        Err(error) => panic!("{place}: {call}: {error}"),
    }
}

#[test]
fn every_example_of_a_help_text_can_be_run_as_it_is_written() {
    let mut texts = Vec::new();
    helps(Arguments::command(), Arguments::command().get_name().to_owned(), &mut texts);
    let mut found = 0;
    for (name, text) in &texts {
        let examples = text.split_once("Examples:").map_or("", |(_, examples)| examples);
        for call in calls(examples) {
            found += 1;
            check(name, &call);
        }
        for line in examples.lines() {
            let columns = line.chars().count();
            assert!(columns <= COLUMNS, "{name}: {columns} columns break on a terminal of {COLUMNS}: {line}");
        }
    }
    assert!(found >= 20, "{found} examples: where are the others?");
}

#[test]
fn every_call_in_the_documents_can_be_run_as_it_is_written() {
    let documents = [
        ("README.md", include_str!("../../../README.md")),
        ("docs/hardware.md", include_str!("../../../docs/hardware.md")),
        ("docs/figures.md", include_str!("../../../docs/figures.md")),
        ("lab/figures/calls.md", include_str!("../../../lab/figures/calls.md")),
        ("lab/figures/chunks.md", include_str!("../../../lab/figures/chunks.md")),
        ("lab/figures/far.md", include_str!("../../../lab/figures/far.md")),
        ("lab/figures/instructions.md", include_str!("../../../lab/figures/instructions.md")),
        ("lab/figures/languages.md", include_str!("../../../lab/figures/languages.md")),
        ("lab/figures/patronus.md", include_str!("../../../lab/figures/patronus.md")),
        ("lab/figures/real-verbs.md", include_str!("../../../lab/figures/real-verbs.md")),
        ("lab/figures/simulator.md", include_str!("../../../lab/figures/simulator.md")),
        ("lab/figures/structures.md", include_str!("../../../lab/figures/structures.md")),
        ("lab/figures/udp.md", include_str!("../../../lab/figures/udp.md")),
        ("docs/guide/c.md", include_str!("../../../docs/guide/c.md")),
        ("docs/guide/calls.md", include_str!("../../../docs/guide/calls.md")),
        ("docs/guide/far.md", include_str!("../../../docs/guide/far.md")),
        ("docs/guide/kv.md", include_str!("../../../docs/guide/kv.md")),
        ("docs/guide/memcached.md", include_str!("../../../docs/guide/memcached.md")),
        ("docs/guide/names.md", include_str!("../../../docs/guide/names.md")),
        ("docs/guide/node.md", include_str!("../../../docs/guide/node.md")),
        ("docs/guide/rdma.md", include_str!("../../../docs/guide/rdma.md")),
        ("docs/guide/recycling.md", include_str!("../../../docs/guide/recycling.md")),
        ("docs/guide/rust.md", include_str!("../../../docs/guide/rust.md")),
        ("docs/guide/simulator.md", include_str!("../../../docs/guide/simulator.md")),
        ("docs/guide/udp.md", include_str!("../../../docs/guide/udp.md")),
    ];
    let mut found = 0;
    for (name, text) in documents {
        let fenced = text.split("```").skip(1).step_by(2);
        let fenced = fenced.filter(|block| block.starts_with("sh\n") || block.starts_with("console\n"));
        let calls: Vec<String> = fenced.flat_map(calls).collect();
        found += calls.len();
        for call in calls {
            // The brackets around optional parts are no shell syntax.
            check(name, &call.replace(['[', ']'], ""));
        }
    }
    assert!(found >= 10, "{found} examples: where are the others?");
}

#[test]
fn a_call_is_joined_over_its_lines_and_ends_where_the_shell_ends_it() {
    let name = Arguments::command().get_name().to_owned();
    let text = format!(
        "  {name} serve --listen 'shm:/a b' \\\n      --json   # why\nprose\n  {name} doctor | jq x\n"
    );
    let all = calls(&text);
    assert_eq!(words(&all[0]), [&name, "serve", "--listen", "shm:/a b", "--json"]);
    assert_eq!(words(&all[1]), [&name, "doctor"]);
    assert_eq!(all.len(), 2);
}
