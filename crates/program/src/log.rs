//! The log on standard error, and the end of a program whose call was wrong.

use crate::output;
use crate::output::escape::{Escaped, Kept, acts};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;

pub use tracing_subscriber::filter::LevelFilter;

/// Starts the log on standard error, with what `RUST_LOG` says or this level.
pub fn start(level: LevelFilter) {
    // What an event says may be foreign text: its fields are escaped as messages are. Colours are the formatter's own.
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

/// Ends with what clap has to print: help, or what is wrong with the call. A mistake repeats words of the call, and a
/// name that a shell has put there is foreign text. Then colours, which clap mixes with those words, are left out.
pub fn refuse(error: &clap::Error) -> ! {
    let is_plain = std::env::args_os().all(|word| !word.to_string_lossy().contains(acts));
    if is_plain {
        error.exit();
    }
    output::complain_lines(&error.to_string());
    std::process::exit(error.exit_code());
}
