//! Formats the day of a time in milliseconds since the Unix epoch.

/// Formats the day in UTC of a time in milliseconds since the Unix epoch, such as `2026-11-20`.
pub fn format_day(ms: u64) -> String {
    // Civil date from days, by the era of 400 years (Howard Hinnant's algorithm).
    let days = ms / 86_400_000 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::format_day;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(format_day(0), "1970-01-01");
        assert_eq!(format_day(951_782_400_000), "2000-02-29");
        assert_eq!(format_day(1_700_000_000_000), "2023-11-14");
        assert_eq!(format_day(1_795_132_799_999), "2026-11-19");
        assert_eq!(format_day(1_795_132_800_000), "2026-11-20");
    }
}
