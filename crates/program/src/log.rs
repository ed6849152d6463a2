//! The log on standard error, and the exit of a program that was called with wrong arguments.

use crate::output;
use crate::output::escape::{Escaped, Kept, acts};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;

pub use tracing_subscriber::filter::LevelFilter;

/// Starts the log on standard error, with the filter in `RUST_LOG` or with this level.
pub fn start(level: LevelFilter) {
    // An event may contain foreign text: its fields are escaped as messages are. The formatter's own colours stay.
    let fields = format::debug_fn(|writer, field, value| match field.name() {
        "message" => write!(writer, "{}", Escaped(format_args!("{value:?}"), Kept::Nothing)),
        name => write!(writer, "{name}={}", Escaped(format_args!("{value:?}"), Kept::Nothing)),
    });
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().with_default_directive(level.into()).from_env_lossy())
        .fmt_fields(fields.delimited(" "))
        .with_writer(std::io::stderr)
        .with_ansi(output::errors_in_colour())
        .log_internal_errors(false)
        .init();
}

/// Prints clap's help or error and exits. An error repeats words of the command line, and a word that a shell has
/// expanded to a file name is foreign text. If a word contains characters that act on a terminal, the output has no
/// colours, because clap mixes colours with those words.
pub fn refuse(error: &clap::Error) -> ! {
    let is_plain = std::env::args_os().all(|word| !word.to_string_lossy().contains(acts));
    if is_plain {
        error.exit();
    }
    output::complain_lines(&error.to_string());
    std::process::exit(error.exit_code());
}
