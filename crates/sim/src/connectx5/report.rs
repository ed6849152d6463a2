//! The model's results beside those of Patronus' paper and of OneSidedMW's slides.

use super::inputs::{InputRow, Origin};
use serde::Serialize;
use std::fmt;

/// An output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputRow {
    /// The figure or table of Patronus' paper, or the result of OneSidedMW's slides.
    pub figure: &'static str,
    /// What the output is.
    pub what: String,
    /// The output's unit.
    pub unit: &'static str,
    /// The model's value.
    pub model: f64,
    /// The published value, where a text gives a number. No value is read off a plot.
    pub paper: Option<f64>,
    /// Where that value stands, or what is said instead of a number.
    pub paper_source: &'static str,
    /// The model's deviation from the published value, in percent of that value.
    pub deviation_percent: Option<f64>,
    /// The interpretation of the result.
    pub reading: String,
}

impl OutputRow {
    /// An output without a published value.
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

    /// Adds the published value.
    pub(super) fn paper(self, paper: f64, source: &'static str) -> Self {
        let deviation = (self.model - paper) * 100.0 / paper;
        Self { paper: Some(paper), paper_source: source, deviation_percent: Some(deviation), ..self }
    }

    /// Adds what is said without a comparable number.
    pub(super) fn said(self, source: &'static str) -> Self {
        Self { paper_source: source, ..self }
    }

    /// Adds the interpretation of the result.
    pub(super) fn reading(self, reading: impl Into<String>) -> Self {
        Self { reading: reading.into(), ..self }
    }
}

/// The model's report: inputs and outputs. No value is both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// The model's name.
    pub model: &'static str,
    /// The inputs.
    pub inputs: Vec<InputRow>,
    /// The outputs.
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
                Origin::Slides => "slides",
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
        let head = ["", "what", "model", "published", "deviation", "unit", "where, or what is said"]
            .map(str::to_owned);
        table(f, &std::iter::once(head).chain(outputs).collect::<Vec<_>>(), 2..5)?;
        writeln!(f, "\nREADINGS")?;
        for row in self.outputs.iter().filter(|row| !row.reading.is_empty()) {
            writeln!(f, "{}, {}: {}", row.figure, row.what, row.reading)?;
        }
        Ok(())
    }
}

fn percent(value: f64) -> String {
    // This avoids «-0».
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

/// Writes lines of aligned cells. The columns in `right` are aligned to the right.
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
