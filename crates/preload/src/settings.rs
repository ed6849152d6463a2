//! Settings that the monitor passes to the library in one environment variable.

/// The name of the variable that the monitor writes.
pub(crate) const VARIABLE: &core::ffi::CStr = c"PORTCULLIS_FAR";

/// Settings from the monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// The socket to the monitor.
    pub(crate) socket: i32,
    /// The process number of the monitor.
    pub(crate) monitor: i32,
    /// Bytes of the range.
    pub(crate) range: u64,
    /// Total bytes of small blocks that are local before small blocks are far.
    pub(crate) first: u64,
    /// The minimal size of a far block in bytes.
    pub(crate) least: u64,
}

impl Settings {
    /// Parses five numbers with commas between them. `None`: the text is malformed.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|&byte| byte == b',');
        let mut number = || parts.next().and_then(number);
        let settings = Self {
            socket: i32::try_from(number()?).ok()?,
            monitor: i32::try_from(number()?).ok()?,
            range: number()?,
            first: number()?,
            least: number()?,
        };
        parts.next().is_none().then_some(settings)
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| {
        let digit = digit.checked_sub(b'0').filter(|&digit| digit < 10)?;
        sum.checked_mul(10)?.checked_add(digit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn only_five_numbers_are_settings() {
        let all = Settings { socket: 7, monitor: 4711, range: 1 << 32, first: 1 << 20, least: 0 };
        assert_eq!(Settings::parse(b"7,4711,4294967296,1048576,0"), Some(all));
        for wrong in [
            "",
            "7",
            "7,4711,1,2",
            "7,4711,1,2,3,4",
            "7,4711,x,0,0",
            "7,,1,2,3",
            "7,4711,99999999999999999999,0,0",
        ] {
            assert_eq!(Settings::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
