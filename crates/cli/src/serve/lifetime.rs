//! Times on the command line: `500us`, `50ms`, `10s`.

use portcullis::Lifetime;

/// A lifetime, from a number with its unit.
///
/// # Errors
/// What was wrong, for the person who typed it.
pub fn parse(text: &str) -> Result<Lifetime, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let micros: u64 = match unit.trim() {
        "us" | "µs" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "" => return Err(format!("{text:?} has no unit: write for example 500us, 50ms or 10s")),
        _ => return Err(format!("{unit:?} is no unit of time: use us, ms, s or min")),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is no time: write for example 500us, 50ms or 10s"))?;
    number.checked_mul(micros).map(Lifetime).ok_or_else(|| format!("{text} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_people_write_them() {
        assert_eq!(parse("500us"), Ok(Lifetime::micros(500)));
        assert_eq!(parse("50 ms"), Ok(Lifetime::millis(50)));
        assert_eq!(parse("10s"), Ok(Lifetime::seconds(10)));
        assert_eq!(parse("1min"), Ok(Lifetime::seconds(60)));
        for wrong in ["", "10", "s", "1.5s", "3 fortnights", "99999999999999999999s", "99999999999999min"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
