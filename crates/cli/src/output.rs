//! Output on standard output and standard error.
//!
//! If the reader is gone, as after `| head`, the output is dropped: that is no reason to panic or to leave work undone.
//! Colours are used only where they are visible.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// Whether anybody still reads what is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    Listens,
    Gone,
}

impl Reader {
    /// Which of the two it is after something was printed.
    pub fn after(printed: &std::io::Result<()>) -> Self {
        if printed.is_ok() { Self::Listens } else { Self::Gone }
    }
}

/// Prints a line on standard output.
pub fn say(text: impl Display) {
    let _ = tell(text);
}

/// Prints a line on standard output, and says whether it is worth while to print another.
pub fn tell(text: impl Display) -> Reader {
    let mut output = anstream::stdout();
    Reader::after(&writeln!(output, "{text}").and_then(|()| output.flush()))
}

/// Prints a line on standard error: an error, or something beside the result.
pub fn complain(text: impl Display) {
    let mut output = anstream::stderr();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
}

/// Whether colours on standard error are visible and wanted (see no-color.org).
pub fn errors_in_colour() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !plain
}
