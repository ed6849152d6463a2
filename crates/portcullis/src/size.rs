//! Sizes as people write them on the command line and in bindings of other languages: `64`, `4KiB`, `1GiB`.

/// Parses a number of bytes with an optional unit of 1024.
///
/// # Errors
/// The text is no size. The error explains this to the person who typed it.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(format!("{unit:?} is not a unit of size: use KiB, MiB, GiB or TiB")),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is not a size: write for example 64, 4KiB or 1GiB"))?;
    number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number)
        .ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(parse("64"), Ok(64));
        assert_eq!(parse("4KiB"), Ok(4096));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("2 M"), Ok(2 << 20));
        for wrong in ["", "x", "1.5GiB", "12 parsecs", "99999999999999999999", "99999999TiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
