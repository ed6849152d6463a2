//! Tests of the examples in the help texts, README.md and docs: each must work when it is copied. Both programs have
//! such tests, each for its own examples.

use crate::Arguments;
use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser};
use std::path::Path;

/// The programs that documents call.
const PROGRAMS: [&str; 2] = ["portcullis", "portcullis-lab"];
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

/// The calls of a program in a text. A backslash joins lines.
fn calls_of(text: &str, program: &str) -> Vec<String> {
    let beginning = format!("{program} ");
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
        for call in calls_of(examples, Arguments::command().get_name()) {
            found += 1;
            check(name, &call);
        }
        for line in examples.lines() {
            let columns = line.chars().count();
            assert!(columns <= COLUMNS, "{name}: {columns} columns break on a terminal of {COLUMNS}: {line}");
        }
    }
    assert!(found >= 30, "{found} examples: where are the others?");
}

/// The documents whose calls are checked, by their paths from the root.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: String| {
        let text =
            std::fs::read_to_string(root.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, text)
    };
    let mut names = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/guide", "lab/figures"] {
        let entries =
            std::fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let files = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
        names.extend(files.filter(|file| file.ends_with(".md")).map(|file| format!("{folder}/{file}")));
    }
    names.into_iter().map(read).collect()
}

#[test]
fn every_call_in_the_documents_can_be_run_as_it_is_written() {
    let mut found = Vec::new();
    for (name, text) in documents() {
        let fenced = || text.split("```").skip(1).step_by(2);
        let blocks = || fenced().filter(|block| block.starts_with("sh\n") || block.starts_with("console\n"));
        for call in blocks().flat_map(|block| calls_of(block, Arguments::command().get_name())) {
            // The brackets around optional parts are no shell syntax.
            check(&name, &call.replace(['[', ']'], ""));
        }
        if PROGRAMS.iter().any(|program| blocks().any(|block| !calls_of(block, program).is_empty())) {
            found.push(name);
        }
    }
    for name in ["README.md", "docs/hardware.md", "docs/figures.md"] {
        assert!(found.iter().any(|found| found == name), "{name} has no example any more");
    }
    assert!(found.len() >= 15, "only {found:?} have examples: where are the others?");
}

#[test]
fn a_call_is_joined_over_its_lines_and_ends_where_the_shell_ends_it() {
    let name = Arguments::command().get_name().to_owned();
    let text = format!(
        "  {name} serve --listen 'shm:/a b' \\\n      --json   # why\nprose\n  {name} doctor | jq x\n"
    );
    let all = calls_of(&text, &name);
    assert_eq!(words(&all[0]), [&name, "serve", "--listen", "shm:/a b", "--json"]);
    assert_eq!(words(&all[1]), [&name, "doctor"]);
    assert_eq!(all.len(), 2);
}
