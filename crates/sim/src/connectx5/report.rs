//! What the model says, beside what the paper says.

use super::inputs::{InputRow, Origin};
use serde::Serialize;
use std::fmt;

/// One output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputRow {
    /// The figure or table of the paper.
    pub figure: &'static str,
    /// What it is.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// What the model says.
    pub model: f64,
    /// What the paper says, where its text gives a number. None is ever read off a plot.
    pub paper: Option<f64>,
    /// Where the paper says so, or what it says instead of a number.
    pub paper_source: &'static str,
    /// How far the model is from the paper's number, in percent of it.
    pub deviation_percent: Option<f64>,
    /// What is to be made of it.
    pub reading: String,
}

impl OutputRow {
    /// Something that the paper gives no number for.
    pub(super) fn new(figure: &'static str, what: impl Into<String>, unit: &'static str, model: f64) -> Self {
        Self {
            figure,
            what: what.into(),
            unit,
            model,
            paper: None,
            paper_source: "no number in the text",
            deviation_percent: None,
            reading: String::new(),
        }
    }

    /// The paper's number for it.
    pub(super) fn paper(self, paper: f64, source: &'static str) -> Self {
        let deviation = (self.model - paper) * 100.0 / paper;
        Self { paper: Some(paper), paper_source: source, deviation_percent: Some(deviation), ..self }
    }

    /// What the paper says without a number that this one can be held against.
    pub(super) fn said(self, source: &'static str) -> Self {
        Self { paper_source: source, ..self }
    }

    /// What is to be made of it.
    pub(super) fn reading(self, reading: impl Into<String>) -> Self {
        Self { reading: reading.into(), ..self }
    }
}

/// The model's report: what went in, and what came out. No row is in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// The model's name.
    pub model: &'static str,
    /// What went in.
    pub inputs: Vec<InputRow>,
    /// What came out.
    pub outputs: Vec<OutputRow>,
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: a model in virtual time, not a measurement of any NIC\n", self.model)?;
        writeln!(f, "INPUTS")?;
        let inputs = self.inputs.iter().map(|row| {
            let origin = match row.origin {
                Origin::Paper => "paper",
                Origin::Artifact => "artifact",
                Origin::Assumed => "ASSUMED",
            };
            [row.name.to_owned(), number(row.value), row.unit.to_owned(), origin.into(), row.source.into()]
        });
        let head = ["name", "value", "unit", "origin", "source"].map(str::to_owned);
        table(f, &std::iter::once(head).chain(inputs).collect::<Vec<_>>(), 1..2)?;
        writeln!(f, "\nOUTPUTS")?;
        let outputs = self.outputs.iter().map(|row| {
            [
                row.figure.to_owned(),
                row.what.clone(),
                number(row.model),
                row.paper.map_or_else(|| "-".to_owned(), number),
                row.deviation_percent.map_or_else(|| "-".to_owned(), percent),
                row.unit.to_owned(),
                row.paper_source.to_owned(),
            ]
        });
        let head = ["", "what", "model", "paper", "deviation", "unit", "the paper says"].map(str::to_owned);
        table(f, &std::iter::once(head).chain(outputs).collect::<Vec<_>>(), 2..5)?;
        writeln!(f, "\nREADINGS")?;
        for row in self.outputs.iter().filter(|row| !row.reading.is_empty()) {
            writeln!(f, "{}, {}: {}", row.figure, row.what, row.reading)?;
        }
        Ok(())
    }
}

fn percent(value: f64) -> String {
    // Not «-0».
    if value.abs() < 0.5 { "0 %".to_owned() } else { format!("{value:+.0} %") }
}

/// Three digits, or all of a whole number.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Lines of cells, aligned; those of the columns in `right` to the right.
fn table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    lines: &[[String; N]],
    right: std::ops::Range<usize>,
) -> fmt::Result {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for line in lines {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate() {
            let gap = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) = if right.contains(&column) { (&gap[..], "") } else { ("", &gap[..]) };
            text.extend([before, cell, after, "  "]);
        }
        writeln!(f, "{}", text.trim_end())?;
    }
    Ok(())
}
