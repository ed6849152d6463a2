//! A model's inputs, and its results beside the published ones.

use serde::Serialize;
use std::fmt;

/// The origin of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The paper that is modelled states the value.
    Paper,
    /// The authors' public code or notes state the value; the paper does not.
    Artifact,
    /// OneSidedMW's slides state the value.
    Slides,
    /// The value is derived or chosen, and the source states how. It is never chosen to make an output come out
    /// right.
    Assumed,
}

/// An input, as a row of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InputRow {
    /// The input's name.
    pub name: &'static str,
    /// The input's value.
    pub value: f64,
    /// The input's unit.
    pub unit: &'static str,
    /// The input's origin.
    pub origin: Origin,
    /// The paper's section, or the derivation.
    pub source: &'static str,
}

pub(crate) fn row(
    name: &'static str,
    value: f64,
    unit: &'static str,
    origin: Origin,
    source: &'static str,
) -> InputRow {
    InputRow { name, value, unit, origin, source }
}

/// An output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputRow {
    /// The figure or table of the paper, or the result of the slides.
    pub figure: &'static str,
    /// Description of the output.
    pub what: String,
    /// The output's unit.
    pub unit: &'static str,
    /// The model's value.
    pub model: f64,
    /// The published value, if a text gives a number. No value is read off a plot.
    pub paper: Option<f64>,
    /// The place of the published value, or the published statement without a number.
    pub paper_source: &'static str,
    /// The model's deviation from the published value, in percent of that value.
    pub deviation_percent: Option<f64>,
    /// The interpretation of the result.
    pub reading: String,
    /// Whether the published claim about this output holds in the model, if there is such a claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<bool>,
}

impl OutputRow {
    /// Creates an output without a published value.
    pub(crate) fn new(figure: &'static str, what: impl Into<String>, unit: &'static str, model: f64) -> Self {
        Self {
            figure,
            what: what.into(),
            unit,
            model,
            paper: None,
            paper_source: "no number in the text",
            deviation_percent: None,
            reading: String::new(),
            holds: None,
        }
    }

    /// Adds the published value.
    pub(crate) fn paper(self, paper: f64, source: &'static str) -> Self {
        let deviation = (self.model - paper) * 100.0 / paper;
        Self { paper: Some(paper), paper_source: source, deviation_percent: Some(deviation), ..self }
    }

    /// Adds a published statement without a comparable number.
    pub(crate) fn said(self, source: &'static str) -> Self {
        Self { paper_source: source, ..self }
    }

    /// Adds the interpretation of the result.
    pub(crate) fn reading(self, reading: impl Into<String>) -> Self {
        Self { reading: reading.into(), ..self }
    }
}

impl OutputRow {
    /// Sets whether the published claim about the output holds.
    pub(crate) fn holds(self, holds: bool) -> Self {
        Self { holds: Some(holds), ..self }
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
        let claims = self.outputs.iter().filter_map(|row| Some((row, row.holds?)));
        for (number, (row, holds)) in claims.enumerate() {
            let head = if number == 0 { "\nCLAIMS\n" } else { "" };
            let verdict = if holds { "holds" } else { "does NOT hold" };
            writeln!(f, "{head}{verdict}: {}, {}: {}", row.figure, row.what, row.paper_source)?;
        }
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

/// Formats a number with three digits, or with all digits of a whole number.
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
