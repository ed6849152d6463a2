//! The demo's output on the terminal: lines as things happen, a bar during long parts, and a table at the end.

use super::figures::Finding;
use crate::output::escape::{Escaped, Kept};
use crate::output::{print_drawn, print_json, say, styled};
use anstyle::{AnsiColor, Style};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Time between two frames of a spinner.
const FRAME: Duration = Duration::from_millis(100);

/// The demo's output.
pub struct Screen {
    /// Whether nothing is printed but one object at the end.
    json: bool,
    coloured: bool,
    bar: ProgressBar,
}

impl Screen {
    /// Output for people, or for programs.
    pub fn new(json: bool) -> Self {
        let terminal =
            std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        // The convention of no-color.org.
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let bar = ProgressBar::new_spinner();
        let target =
            if terminal && !json { ProgressDrawTarget::stdout() } else { ProgressDrawTarget::hidden() };
        bar.set_draw_target(target);
        Self { json, coloured: terminal && !json && !plain, bar }
    }

    /// Begins a bar over `of` items.
    pub fn progress(&mut self, what: &'static str, of: usize) {
        if let Ok(style) = ProgressStyle::with_template("  {msg} {bar:40} {pos}/{len}") {
            self.bar.set_style(style);
        }
        self.bar.set_length(of as u64);
        self.bar.set_position(0);
        self.bar.set_message(what);
    }

    /// Counts one item of the bar as done.
    pub fn advance(&mut self) {
        self.bar.inc(1);
    }

    /// Begins a part of the demo.
    pub fn part(&mut self, what: &'static str) {
        self.bar.set_style(ProgressStyle::default_spinner());
        self.bar.set_message("");
        self.line(what);
        self.bar.enable_steady_tick(FRAME);
    }

    /// Prints a line for people.
    pub fn line(&self, text: &str) {
        if !self.json {
            self.bar.suspend(|| say(text));
        }
    }

    /// Prints text that contains styles already.
    fn drawn(&self, text: &str) {
        if !self.json {
            self.bar.suspend(|| print_drawn(text));
        }
    }

    /// Prints one result.
    pub fn finding(&self, finding: &Finding) {
        let (mark, style) = match finding.holds {
            true => ("ok", AnsiColor::Green.on_default()),
            false => ("NOT SO", AnsiColor::Red.on_default().bold()),
        };
        let (style, plain) = (if self.coloured { style } else { Style::new() }, Style::new());
        let rest = format_args!("  {}: {}", finding.what, finding.seen);
        self.drawn(&styled(&[(plain, &"  "), (style, &mark), (plain, &rest)]));
    }

    /// Prints all results as a table.
    pub fn table(&self, findings: &[Finding]) {
        self.bar.finish_and_clear();
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
        if !self.coloured {
            table.force_no_tty();
        }
        table.set_header(["what was tried", "what was seen", ""]);
        for finding in findings {
            let (mark, colour) = if finding.holds { ("ok", Color::Green) } else { ("NOT SO", Color::Red) };
            let mark = Cell::new(mark).fg(colour).add_attribute(Attribute::Bold);
            let seen = Cell::new(Escaped(&finding.seen, Kept::Nothing));
            table.add_row([Cell::new(finding.what), seen, mark]);
        }
        self.drawn(&format!("\n{table}"));
    }

    /// Prints the object for programs.
    pub fn object(&self, report: &impl serde::Serialize) {
        if self.json {
            print_json(report);
        }
    }
}
