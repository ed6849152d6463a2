//! The field of the node's configuration that each option sets.

use super::limits::LimitOptions;
use super::{ServeOptions, settings};
use clap::{Arg, Command};
use std::sync::LazyLock;

/// Declares the options of a struct. An option whose value is that of a field of
/// [`HostConfig`](portcullis::host::HostConfig) names the field: behind `=` if it has the field's default as well
/// (`headers: u32 = node.headers`), otherwise behind `=>`. The struct gets two items:
///
/// - `set_fields`, which sets these fields.
/// - `FIELDS`, the list of them, each with the option's id.
macro_rules! options {
    (
        $(#[$of_struct:meta])*
        $visibility:vis struct $name:ident {
            $(
                $(#[$of_option:meta])*
                $option:ident: $kind:ty
                    $(= $with:ident $(. $default:ident)*)?
                    $(=> $without:ident $(. $field:ident)*)?,
            )*
        }
    ) => {
        $(#[$of_struct])*
        $visibility struct $name {
            $(
                $(#[$of_option])*
                $(#[arg(default_value_t = portcullis::host::HostConfig::default().$with$(.$default)*)])?
                $option: $kind,
            )*
        }

        impl $name {
            /// The fields that these options set, each with the id of its option.
            pub(crate) const FIELDS: &[(&'static str, &'static str)] = &[
                $(
                    $((concat!(stringify!($with) $(, ".", stringify!($default))*), stringify!($option)),)?
                    $((concat!(stringify!($without) $(, ".", stringify!($field))*), stringify!($option)),)?
                )*
            ];

            /// Sets the fields of these options.
            pub(crate) fn set_fields(&self, config: &mut portcullis::host::HostConfig) {
                $(
                    $($crate::fields::Value::set(&self.$option, &mut config.$with$(.$default)*);)?
                    $($crate::fields::Value::set(&self.$option, &mut config.$without$(.$field)*);)?
                )*
            }
        }
    };
}
pub(crate) use options;

/// The value of an option for a field of type `T`.
pub trait Value<T> {
    /// Sets the field. An option that has no default and is not given leaves it.
    fn set(&self, field: &mut T);
}

impl<T: Clone> Value<T> for T {
    fn set(&self, field: &mut T) {
        field.clone_from(self);
    }
}

impl<T: Clone> Value<T> for Option<T> {
    fn set(&self, field: &mut T) {
        if let Some(value) = self {
            field.clone_from(value);
        }
    }
}

static COMMAND: LazyLock<Command> = LazyLock::new(settings::command);

/// All options as written on a command line, each by the library's name of its limit. An option that sets no field has
/// its id as this name.
static OPTIONS: LazyLock<Vec<(&'static str, String)>> = LazyLock::new(|| {
    let named = |arg: &'static Arg| Some((limit_of(arg.get_id().as_str()), format!("--{}", arg.get_long()?)));
    COMMAND.get_arguments().filter_map(named).collect()
});

fn fields() -> impl Iterator<Item = (&'static str, &'static str)> {
    ServeOptions::FIELDS.iter().chain(LimitOptions::FIELDS).copied()
}

/// The library's name of the limit that the option with this id sets: its field, within the node's or the ports' part
/// of the configuration.
fn limit_of(id: &'static str) -> &'static str {
    let field = fields().find(|(_, option)| *option == id).map(|(field, _)| field);
    field.map_or(id, |field| field.split_once('.').map_or(field, |(_, limit)| limit))
}

/// The option that sets a limit of the library.
pub fn option_of(limit: &'static str) -> &'static str {
    OPTIONS.iter().find(|(name, _)| *name == limit).map_or(limit, |(_, option)| option)
}

/// A text of the library with the names of options in place of configuration fields.
pub fn with_options(text: &str) -> String {
    let fields = OPTIONS.iter().filter(|(name, _)| name.contains('_'));
    fields.fold(text.to_owned(), |text, (name, option)| text.replace(name, option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_called_by_their_options() {
        let text = "spare_queue_pairs can be 15 at most, and send_depth a power of two";
        assert_eq!(
            with_options(text),
            "--spare-queue-pairs can be 15 at most, and --send-depth a power of two"
        );
    }

    #[test]
    fn each_limit_is_called_by_its_option() {
        for (limit, option) in [
            ("pool_bytes", "--memory"),
            ("quota.bytes_max", "--quota-bytes"),
            ("violations.bar_after", "--violations-bar-after"),
            ("ports_bytes_max", "--ports-memory"),
            ("chunks", "--chunks"),
            ("chunks_per_client", "--chunks-per-client"),
        ] {
            assert_eq!(option_of(limit), option);
        }
    }

    #[test]
    fn each_field_has_an_option_that_is_there() {
        let is_there =
            |id: &str| COMMAND.get_arguments().any(|arg| arg.get_id() == id && arg.get_long().is_some());
        for (field, id) in fields() {
            assert!(is_there(id), "{field}: {id}");
        }
    }
}
