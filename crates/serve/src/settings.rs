//! Settings from a file. The file's keys are the options' names. An option on the command line overrides the file.
//!
//! There is only one list of settings: the options. The file's content is turned into command-line words and parsed
//! like them.

use super::{NotServed, ServeOptions};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use portcullis_program::files::{Input, line_at};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use toml::Value;

/// Options that a file cannot set.
const OUTSIDE: [&str; 4] = ["config", "print-config", "help", "version"];
/// The largest file of settings, in bytes. There are some fifty settings.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Least similarity of a wrong name and an option's name for a suggestion.
const ALIKE: f64 = 0.7;

/// The settings in force, and their origins.
#[derive(Debug)]
pub struct Settings {
    /// The options.
    pub options: ServeOptions,
    file: Option<Input>,
    /// The settings of the file and of the command line, by the options' names.
    in_file: BTreeMap<String, Vec<OsString>>,
    on_line: BTreeMap<String, Vec<OsString>>,
    matches: ArgMatches,
}

/// The options, without the program's name and `--help`.
pub fn command() -> Command {
    ServeOptions::augment_args(Command::new("portcullis serve").no_binary_name(true).disable_help_flag(true))
}

/// All options that a file can set, by their names.
fn settable(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let named = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    named.filter(|(name, _)| !OUTSIDE.contains(name))
}

impl Settings {
    /// Reads the command line, and the file that it names.
    pub fn of(line: &ArgMatches) -> Result<Self, NotServed> {
        let command = command();
        let file = line.get_one::<Input>("config").cloned();
        let in_file = match &file {
            Some(file) => from_file(&command, file)?,
            None => BTreeMap::new(),
        };
        let on_line: BTreeMap<String, Vec<OsString>> = settable(&command)
            .filter(|(_, arg)| line.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine))
            .map(|(name, arg)| (name.to_owned(), raw(line, arg)))
            .collect();
        let merged = in_file.iter().filter(|(name, _)| !on_line.contains_key(*name)).chain(&on_line);
        let matches =
            command.clone().try_get_matches_from(words(&command, merged)).map_err(|error| wrong(&error))?;
        let mut options = ServeOptions::from_arg_matches(&matches).map_err(|error| wrong(&error))?;
        options.print_config = line.get_flag("print_config");
        if file == Some(Input::Standard) && options.stop_at_end_of_input {
            let why = "--config - reads standard input to its end, and --stop-at-end-of-input would stop the \
                node there";
            return Err(NotServed::Call(why.to_owned()));
        }
        Ok(Self { options, file, in_file, on_line, matches })
    }

    /// The settings in force as TOML, with their origins.
    pub fn in_force(&self) -> String {
        let command = command();
        let mut text =
            String::from("# The settings in force for `portcullis serve`. --config can read this file.\n");
        for (name, arg) in settable(&command) {
            let from = match &self.file {
                _ if self.on_line.contains_key(name) => "the command line".to_owned(),
                Some(file) if self.in_file.contains_key(name) => file.to_string(),
                _ => "default".to_owned(),
            };
            let _ = match in_toml(arg, &raw(&self.matches, arg)) {
                Some(value) => writeln!(text, "{:<40} # {from}", format!("{name} = {value}")),
                None => writeln!(text, "# {name} is not set"),
            };
        }
        text
    }
}

fn raw(matches: &ArgMatches, arg: &Arg) -> Vec<OsString> {
    let values = matches.get_raw(arg.get_id().as_str());
    values.into_iter().flatten().map(ToOwned::to_owned).collect()
}

/// A value in TOML's syntax. `None` if the option has no value.
fn in_toml(arg: &Arg, values: &[OsString]) -> Option<String> {
    let texts: Vec<String> = values.iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let one = |text: &String| match text.parse::<i64>() {
        Ok(number) if number.to_string() == *text => text.clone(),
        _ => Value::String(text.clone()).to_string(),
    };
    match arg.get_action() {
        ArgAction::SetTrue => Some((texts.last().map(String::as_str) == Some("true")).to_string()),
        ArgAction::Append if texts.is_empty() => None,
        ArgAction::Append => Some(format!("[{}]", texts.iter().map(one).collect::<Vec<_>>().join(", "))),
        _ => texts.last().map(one),
    }
}

/// The command-line words for these settings.
fn words<'a>(
    command: &Command,
    settings: impl Iterator<Item = (&'a String, &'a Vec<OsString>)>,
) -> Vec<OsString> {
    let flags: Vec<&str> = settable(command)
        .filter(|(_, arg)| matches!(arg.get_action(), ArgAction::SetTrue))
        .map(|(name, _)| name)
        .collect();
    let mut words = Vec::new();
    for (name, values) in settings {
        let option = OsString::from(format!("--{name}"));
        if flags.contains(&name.as_str()) {
            words.push(option);
            continue;
        }
        words.extend(values.iter().map(|value| {
            let mut word = option.clone();
            word.push("=");
            word.push(value);
            word
        }));
    }
    words
}

fn from_file(command: &Command, file: &Input) -> Result<BTreeMap<String, Vec<OsString>>, NotServed> {
    let text = file
        .read_text(FILE_BYTES_MAX)
        .map_err(|error| NotServed::Machine(format!("--config {file} cannot be read: {error}")))?;
    let inside = |what: String| NotServed::Call(format!("--config {file}: {what}"));
    let table: toml::Table = text.parse().map_err(|error| inside(in_one_line(&text, &error)))?;
    let mut settings = BTreeMap::new();
    for (key, value) in &table {
        if value.is_table() {
            return Err(inside(format!(
                "there are no sections: write the keys of [{key}] without that line"
            )));
        }
        let (name, arg) =
            settable(command).find(|(name, _)| name == key).ok_or_else(|| inside(unknown(command, key)))?;
        if let Some(values) = values_of(arg, value).map_err(|what| inside(format!("{key}: {what}")))? {
            settings.insert(name.to_owned(), values);
        }
    }
    // The file is parsed alone first: a bad value in it is reported even if the command line overrides it.
    let read = command.clone().try_get_matches_from(words(command, settings.iter()));
    read.map_err(|error| inside(told(&error)))?;
    Ok(settings)
}

/// An error of the parser with its line.
fn in_one_line(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.as_bytes().get(..span.start));
    before.map_or_else(String::new, |before| format!("line {}: ", line_at(before))) + error.message()
}

fn unknown(command: &Command, key: &str) -> String {
    if OUTSIDE.contains(&key) {
        return format!("{key} can be given on the command line only");
    }
    let alike = settable(command).map(|(name, _)| (strsim::jaro_winkler(name, key), name));
    let nearest = alike.max_by(|one, other| one.0.total_cmp(&other.0)).filter(|(alike, _)| *alike >= ALIKE);
    let meant = nearest.map(|(_, name)| format!("did you mean {name}?"));
    let meant =
        meant.unwrap_or_else(|| "keys are named like the options of `portcullis serve --help`".to_owned());
    format!("there is no setting {key:?}: {meant}")
}

/// The command-line words for a value. `None` for an option that is switched off.
fn values_of(arg: &Arg, value: &Value) -> Result<Option<Vec<OsString>>, String> {
    match (value, arg.get_action()) {
        (Value::Boolean(set), ArgAction::SetTrue) => Ok(set.then(Vec::new)),
        (_, ArgAction::SetTrue) => Err("this must be true or false".to_owned()),
        (Value::Array(values), ArgAction::Append) => {
            values.iter().map(scalar).collect::<Result<_, _>>().map(Some)
        }
        (Value::Array(_), _) => Err("this takes one value, not a list".to_owned()),
        (one, _) => Ok(Some(vec![scalar(one)?])),
    }
}

fn scalar(value: &Value) -> Result<OsString, String> {
    match value {
        Value::String(text) => Ok(text.into()),
        Value::Integer(number) => Ok(number.to_string().into()),
        other => Err(format!("this is a {}: write a string or a whole number", other.type_str())),
    }
}

fn wrong(error: &clap::Error) -> NotServed {
    NotServed::Call(told(error))
}

/// The message of clap without its layout.
fn told(error: &clap::Error) -> String {
    let text = error.to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    first.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(file: &str, line: &[&str]) -> Result<Settings, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("serve.toml");
        std::fs::write(&path, file).expect("a file");
        let path = path.to_str().expect("text").to_owned();
        let words = ["--config", &path].into_iter().chain(line.iter().copied());
        let line = command().try_get_matches_from(words).expect("a call");
        Settings::of(&line).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_goes_before_the_file_and_the_file_before_defaults() {
        let file = "memory = \"1GiB\"\nclients-max = 7\nlisten = [\"shm:/a\", \"shm:/b\"]\njson = true\n";
        let both = settings(file, &["--memory", "2GiB", "--listen", "shm:/c"]).expect("settings");
        assert_eq!((both.options.memory, both.options.clients_max, both.options.json), (2 << 30, 7, true));
        assert_eq!(both.options.listen.len(), 1, "lists are replaced, not joined");
        let alone = settings(file, &[]).expect("settings");
        assert_eq!((alone.options.memory, alone.options.listen.len()), (1 << 30, 2));
        assert!(!settings("json = false", &[]).expect("settings").options.json);
    }

    #[test]
    fn what_is_in_force_reads_back_as_itself() {
        let file =
            "memory = \"1GiB\"\nwithout = [\"handover\"]\nsocket-mode = \"0640\"\nlisten = \"shm:/a b\"\n";
        let first = settings(file, &["--processors", "0"]).expect("settings").in_force();
        for line in
            ["memory = \"1GiB\"", "processors = 0", "socket-mode = \"0640\"", "listen = [\"shm:/a b\"]"]
        {
            assert!(first.lines().any(|told| told.starts_with(line)), "{line}: {first}");
        }
        assert!(first.contains("# the command line") && first.contains("# default"), "{first}");
        let again = settings(&first, &[]).expect("settings").in_force();
        let bare = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split(" # ").next().unwrap_or_default().trim().to_owned()).collect()
        };
        assert_eq!(bare(&first), bare(&again));
    }

    #[test]
    fn what_a_file_says_wrongly_is_told_with_the_file_and_the_key() {
        for (file, told) in [
            ("quota_bytes = 5", "did you mean quota-bytes?"),
            ("zzz = 5", "keys are named like the options"),
            ("config = \"x\"", "on the command line only"),
            ("memory = \"12 parsecs\"", "'--memory <SIZE>': \" parsecs\" is not a unit of size"),
            ("memory = 1.5", "memory: this is a float"),
            ("memory = [1]", "memory: this takes one value"),
            ("json = \"yes\"", "json: this must be true or false"),
            ("socket-mode = 432", "octal"),
            ("memory = ", "line 1"),
            (
                "[serve]\nmemory = \"1GiB\"",
                "there are no sections: write the keys of [serve] without that line",
            ),
        ] {
            let said = settings(file, &[]).expect_err(file);
            assert!(said.contains("serve.toml: ") && said.contains(told), "{file}: {said}");
        }
    }
}
