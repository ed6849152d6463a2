//! Warnings of a certificate that ends soon, for programs that run for months.

use portcullis::Validity;
use std::time::{Duration, SystemTime};

/// Time before the end of a certificate at which warnings begin, unless the certificate is valid for a short time only.
const WARNED_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Divisor of a certificate's validity that gives the length of its last part, if that is shorter.
const LAST_PART: u32 = 3;
const WARNED_EVERY: Duration = Duration::from_secs(24 * 3600);

/// Starts a thread that warns once a day while a certificate is near its end. The thread ends with the process.
///
/// # Errors
/// The operating system refuses a thread.
pub fn watch(validity: Validity) -> std::io::Result<()> {
    let warn = move || {
        loop {
            let now = SystemTime::now();
            if let Some(warning) = warning(validity, now) {
                tracing::warn!("{warning}");
            }
            std::thread::sleep(until_next(validity, now));
        }
    };
    std::thread::Builder::new().name("portcullis-expiry".to_owned()).spawn(warn).map(drop)
}

/// Returns the time at which a certificate's last part begins.
fn near_end(validity: Validity) -> SystemTime {
    let lasts = validity.until.duration_since(validity.from).unwrap_or_default();
    validity.until - WARNED_BEFORE.min(lasts / LAST_PART)
}

/// Returns the warning that is due at this moment, if any.
fn warning(validity: Validity, now: SystemTime) -> Option<String> {
    const CURE: &str = "make a new one with `portcullis certificates` and start again";
    if now < near_end(validity) {
        return None;
    }
    Some(match validity.until.duration_since(now) {
        Ok(left) => format!("the certificate ends in {}: {CURE}", in_days(left)),
        Err(_) => format!("the certificate has ended, and peers do not accept it any more: {CURE}"),
    })
}

fn in_days(left: Duration) -> String {
    const HOUR: u64 = 3600;
    match left.as_secs() {
        seconds if seconds >= 48 * HOUR => format!("{} days", seconds / (24 * HOUR)),
        seconds if seconds >= 2 * HOUR => format!("{} hours", seconds / HOUR),
        seconds => format!("{} minutes", seconds / 60),
    }
}

/// Time until the certificate must be checked again: at most one day, because the system clock may be set meanwhile.
fn until_next(validity: Validity, now: SystemTime) -> Duration {
    [near_end(validity), validity.until]
        .into_iter()
        .filter_map(|moment| moment.duration_since(now).ok().filter(|left| !left.is_zero()))
        .fold(WARNED_EVERY, Duration::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn lasting(days: u32) -> Validity {
        let from = SystemTime::UNIX_EPOCH + 1000 * DAY;
        Validity { from, until: from + days * DAY }
    }

    #[test]
    fn a_certificate_is_warned_of_from_its_last_month_on_and_a_short_one_from_its_last_third_on() {
        for (days, first) in [(365, 335), (90, 60), (9, 6)] {
            let validity = lasting(days);
            let after = |days: u32| warning(validity, validity.from + days * DAY);
            assert_eq!((after(0), after(first - 1)), (None, None), "of {days} days");
            let left = days - first;
            assert!(after(first).expect("a warning").contains(&format!("ends in {left} days: make")));
            assert!(after(days + 1).expect("a warning").contains("has ended"));
        }
    }

    #[test]
    fn it_is_looked_at_when_its_last_part_begins_when_it_ends_and_daily() {
        let validity = lasting(9);
        let next = |after| until_next(validity, validity.from + after);
        assert_eq!(next(Duration::ZERO), DAY);
        assert_eq!(next(6 * DAY - Duration::from_secs(5)), Duration::from_secs(5));
        assert_eq!(next(6 * DAY), DAY);
        assert_eq!(next(9 * DAY - Duration::from_secs(5)), Duration::from_secs(5));
        assert_eq!(next(20 * DAY), DAY);
    }
}
