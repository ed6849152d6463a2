//! Output on standard output and standard error.
//!
//! If the reader is gone, as after `| head`, the output is dropped: that is no reason to panic or to leave work undone.
//! Colours are used only where they are visible.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// Prints a line on standard output.
pub fn say(text: impl Display) {
    let mut output = anstream::stdout();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
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
