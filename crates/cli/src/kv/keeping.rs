//! The time for which a table or a queue is kept.

use super::CommandOutcome;
use crate::output::{complain, print_json, say};
use portcullis::{Allocate, DirectoryName, Error, Keep, Refusal};
use portcullis_structures::Pipeline;
use serde_json::json;
use std::fmt;
use std::rc::Rc;

/// The requested time for which a structure is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Longest,
    Exactly(Keep),
}

/// Parses the requested time on the command line.
pub fn wish(text: &str) -> Result<Wish, String> {
    Ok(match text {
        "longest" => Wish::Longest,
        "forever" => Wish::Exactly(Keep::Pinned),
        "attached" => Wish::Exactly(Keep::Attached),
        time => Wish::Exactly(Keep::For(time.parse().map_err(|error: portcullis::NoLifetime| {
            format!("{error}; or write longest, forever or attached")
        })?)),
    })
}

/// The time for which a structure is kept, in words.
pub struct Kept(pub Keep);

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Keep::No | Keep::Attached => f.write_str("it is freed when the last client of its tenant goes"),
            Keep::For(time) => {
                write!(f, "it stays for {time} after the last client of its tenant has gone")
            }
            Keep::Pinned => f.write_str("it stays for as long as the node runs"),
        }
    }
}

/// Reports whether a structure was made, and for how long it is kept. `kind`: `table` or `queue`; `remove`: the command
/// that removes one.
pub fn say_made(
    kind: &str,
    name: DirectoryName,
    keep: Option<Keep>,
    (json, remove): (bool, &str),
) -> CommandOutcome {
    match keep {
        _ if json => {
            print_json(&json!({kind: name.as_str(), "made": keep.is_some(), "keep": keep}));
        }
        Some(keep) => say(format_args!("made {kind} {name}: {}", Kept(keep))),
        None => complain(format_args!(
            "portcullis kv: {kind} {name} exists already, and is unchanged: `portcullis {remove}` removes it"
        )),
    }
    if keep.is_some() { CommandOutcome::AsAsked } else { CommandOutcome::NotAll }
}

/// Returns the time for which the node keeps a structure with this wish. The client tries it with an object of its own,
/// before any part of the structure exists.
pub async fn allowed(pipeline: &Rc<Pipeline>, wish: Wish) -> Result<Keep, Error> {
    let keep = match wish {
        Wish::Longest => Keep::Pinned,
        Wish::Exactly(keep) => keep,
    };
    match pipeline.allocate(Allocate { keep, ..Allocate::bytes(8) }).await {
        Ok(permission) => {
            pipeline.revoke(permission, true).await?;
            Ok(keep)
        }
        Err(Error::Refused(Refusal::KeptTooLong { longest })) if wish == Wish::Longest && longest.0 > 0 => {
            Ok(Keep::For(longest))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis::Lifetime;

    #[test]
    fn how_long_to_keep_is_a_time_or_one_of_three_words() {
        assert_eq!(wish("longest"), Ok(Wish::Longest));
        assert_eq!(wish("forever"), Ok(Wish::Exactly(Keep::Pinned)));
        assert_eq!(wish("90s"), Ok(Wish::Exactly(Keep::For(Lifetime::seconds(90)))));
        assert!(wish("soon").is_err_and(|error| error.contains("forever")));
    }
}
