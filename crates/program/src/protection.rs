//! Protection mechanisms on the command line, by their present names and by one former name.

use crate::output;
use portcullis::{Mechanism, UnknownMechanism};

/// The former name of `node-copy`, from before shared-memory calls were planned.
const FORMER_NAME: &str = "rpc";

/// The mechanism with this name. A former name causes a note on standard error.
///
/// # Errors
/// No mechanism has this name.
pub fn mechanism(name: &str) -> Result<Mechanism, UnknownMechanism> {
    if name == FORMER_NAME {
        let now = Mechanism::NodeCopy;
        output::complain(format_args!("note: protection {FORMER_NAME:?} is called {now} now"));
        return Ok(now);
    }
    name.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_name_still_means_what_it_meant() {
        assert_eq!(mechanism("rpc"), Ok(Mechanism::NodeCopy));
        for known in Mechanism::ALL {
            assert_eq!(mechanism(known.name()), Ok(known));
        }
        assert!(mechanism("guard").is_err());
    }
}
