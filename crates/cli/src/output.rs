//! Saying things on standard output and standard error.
//!
//! That nobody reads them any more, as `head` leaves a pipe, is no reason to panic, and none to leave work undone: what
//! is said to nobody is dropped. Colours go where they can be seen.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// A line on standard output.
pub fn say(text: impl Display) {
    let mut output = anstream::stdout();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
}

/// A line on standard error: what went wrong, or what is beside the result.
pub fn complain(text: impl Display) {
    let mut output = anstream::stderr();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
}

/// Whether colours on standard error are seen, and wanted: see no-color.org.
pub fn errors_in_colour() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !plain
}
