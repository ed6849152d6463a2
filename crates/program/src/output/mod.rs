//! Output on standard output and standard error.
//!
//! If the reader is gone, as after `| head`, the output is dropped: that is no reason to panic or to leave work undone.
//! Colours are used only where they are visible. Foreign text does nothing to a terminal: see [`escape`]. That is seen
//! to here, in the writers, and in no caller; only data for a pipe or a file is written as it is ([`data`]).

pub mod escape;

use anstyle::Style;
use escape::{Escaped, Kept, TerminalWriter};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Write};

/// Whether anybody still reads what is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// It reads on.
    Listens,
    /// It is gone, and more output would be dropped.
    Gone,
}

impl Reader {
    /// Which of the two it is after something was printed.
    pub fn after(printed: &io::Result<()>) -> Self {
        if printed.is_ok() { Self::Listens } else { Self::Gone }
    }
}

/// Prints text on standard output, and ends its last line. Line breaks and tabs are layout.
pub fn say(text: impl Display) {
    let _ = tell(text);
}

/// Prints as [`say`], and says whether it is worth while to print more.
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

/// Prints text that has styles in it already. All its foreign parts were escaped: by [`styled`] or [`Escaped`].
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
            complain(format_args!("portcullis: the result is no JSON: {error}"));
            Reader::Listens
        }
    }
}

/// Where data goes on standard output: byte for byte, or with escapes where it is a terminal.
pub fn data() -> Box<dyn Write> {
    let output = io::stdout().lock();
    if output.is_terminal() {
        Box::new(TerminalWriter::new(BufWriter::new(output)))
    } else {
        Box::new(BufWriter::new(output))
    }
}

/// Prints a line on standard error: an error, or something beside the result.
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
