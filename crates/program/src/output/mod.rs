//! Output on standard output and standard error.
//!
//! If the reader is gone, as after `| head`, the output is dropped: that is no reason to panic or to leave work undone.
//! Colours are used only if they are visible. Foreign text cannot control a terminal: see [`escape`]. The writers in
//! this module ensure that, and callers need not. Only data for a pipe or a file is written unchanged ([`data`]).

pub mod escape;

use anstyle::Style;
use escape::{Escaped, Kept, TerminalWriter};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Write};

/// Whether a process still reads the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// The reader still reads.
    Listens,
    /// The reader is gone, and more output would be dropped.
    Gone,
}

impl Reader {
    /// Derives the reader's state from the result of printing.
    pub fn after(printed: &io::Result<()>) -> Self {
        if printed.is_ok() { Self::Listens } else { Self::Gone }
    }
}

/// Prints text on standard output, and ends its last line. Line breaks and tabs are layout.
pub fn say(text: impl Display) {
    let _ = tell(text);
}

/// Prints as [`say`], and returns whether the output still has a reader.
pub fn tell(text: impl Display) -> Reader {
    print(Escaped(text, Kept::Layout))
}

/// Prints one line on standard output whose parts have styles.
pub fn print_styled(parts: &[(Style, &dyn Display)]) -> Reader {
    print(styled(parts))
}

/// One line whose parts have styles, as a text with the styles in it: for [`print_drawn`].
pub fn styled(parts: &[(Style, &dyn Display)]) -> String {
    let part =
        |(style, text): &(Style, &dyn Display)| format!("{style}{}{style:#}", Escaped(text, Kept::Nothing));
    parts.iter().map(part).collect()
}

/// Prints text that contains styles already. All its foreign parts were escaped: by [`styled`] or [`Escaped`].
pub fn print_drawn(text: &str) {
    let _ = print(text);
}

fn print(text: impl Display) -> Reader {
    let mut output = anstream::stdout();
    Reader::after(&writeln!(output, "{text}").and_then(|()| output.flush()))
}

/// Prints a value on standard output as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Reader {
    match serde_json::to_string(value) {
        Ok(text) => print(escape::in_json(&text)),
        Err(error) => {
            complain(format_args!("portcullis: the result cannot be written as JSON: {error}"));
            Reader::Listens
        }
    }
}

/// A writer of data to standard output: byte for byte, or with escapes if it is a terminal.
pub fn data() -> Box<dyn Write> {
    let output = io::stdout().lock();
    if output.is_terminal() {
        Box::new(TerminalWriter::new(BufWriter::new(output)))
    } else {
        Box::new(BufWriter::new(output))
    }
}

/// Prints a line on standard error: an error, or information that is not part of the result.
pub fn complain(text: impl Display) {
    let mut output = anstream::stderr();
    let _ = writeln!(output, "{}", Escaped(text, Kept::Nothing)).and_then(|()| output.flush());
}

/// Prints several lines on standard error, as [`complain`] prints one.
pub fn complain_lines(text: &str) {
    text.lines().for_each(complain);
}

/// Whether colours on standard error are visible and wanted (see no-color.org).
pub fn errors_in_colour() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !plain
}
