//! `strftime_now`: Python's `datetime.now().strftime`, which is the C library's in the C locale.

use chrono::{DateTime, Local, NaiveDateTime, Timelike};
use minijinja::value::Value;
use minijinja::{Error, State};

/// The longest text of a code, per byte of the code: `%c`.
const MAX_GROWTH: usize = 13;

pub fn strftime_now(fixed_time: Option<NaiveDateTime>) -> Value {
    Value::from_function(move |state: &State, format: &str| -> Result<String, Error> {
        state.consume_fuel((format.len() * MAX_GROWTH / 64) as u64)?;
        Ok(strftime(fixed_time.unwrap_or_else(|| Local::now().naive_local()), format))
    })
}

/// Codes that don't exist stay as they are written.
fn strftime(time: NaiveDateTime, format: &str) -> String {
    let mut text = String::with_capacity(format.len());
    let mut rest = format;
    while let Some((before, code)) = rest.split_once('%') {
        text.push_str(before);
        let flag = code.chars().next().filter(|flag| "-_0^#".contains(*flag));
        let letter = &code[flag.map_or(0, char::len_utf8)..];
        // Other calendars and digits, which the C locale does not have.
        let letter = letter.strip_prefix(['E', 'O']).unwrap_or(letter);
        let mut after = letter.chars();
        match after.next().and_then(|letter| of_letter(time, letter)) {
            Some(value) => {
                text.push_str(&with_flag(value, flag));
                rest = after.as_str();
            }
            None => {
                text.push('%');
                rest = code;
            }
        }
    }
    text + rest
}

fn with_flag(value: String, flag: Option<char>) -> String {
    let is_padded = value.trim_start_matches(['0', ' ']).bytes().all(|byte| byte.is_ascii_digit()) && value.len() > 1;
    let (padding, digits) =
        value.split_at(if is_padded { value.len() - value.trim_start_matches(['0', ' ']).len().max(1) } else { 0 });
    match flag {
        Some('-') => digits.into(),
        Some('_') => " ".repeat(padding.len()) + digits,
        Some('0') => "0".repeat(padding.len()) + digits,
        Some('^') => value.to_uppercase(),
        Some('#') if value.chars().any(char::is_lowercase) => value.to_uppercase(),
        Some('#') => value.to_lowercase(),
        _ => value,
    }
}

fn of_letter(time: NaiveDateTime, letter: char) -> Option<String> {
    let hour = match time.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    Some(match letter {
        // chrono writes these as C does.
        'a' | 'A' | 'b' | 'B' | 'c' | 'C' | 'd' | 'D' | 'e' | 'F' | 'g' | 'G' | 'h' | 'H' | 'I' | 'j' | 'm' | 'M'
        | 'p' | 'P' | 'R' | 'S' | 'T' | 'u' | 'U' | 'V' | 'w' | 'W' | 'y' | 'Y' => {
            let code = ['%', letter];
            time.format(&code.iter().collect::<String>()).to_string()
        }
        'x' => time.format("%m/%d/%y").to_string(),
        'X' => time.format("%H:%M:%S").to_string(),
        'r' => time.format("%I:%M:%S %p").to_string(),
        'f' => format!("{:06}", time.nanosecond() / 1000 % 1_000_000),
        'k' => format!("{:2}", time.hour()),
        'l' => format!("{hour:2}"),
        's' => time.and_local_timezone(Local).earliest().as_ref().map_or(0, DateTime::timestamp).to_string(),
        'n' => "\n".into(),
        't' => "\t".into(),
        '%' => "%".into(),
        // A time without a zone, as Python's is.
        'z' | 'Z' => String::new(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected texts are Python's.
    #[test]
    fn codes_are_pythons() {
        let at = |y, m, d, h, min, s| chrono::NaiveDate::from_ymd_opt(y, m, d).unwrap().and_hms_opt(h, min, s).unwrap();
        let afternoon = at(2025, 3, 9, 14, 5, 7);
        for (format, expected) in [
            (
                "%A %a %B %b %d %-d %e %j %U %p %I %y %Z %z %% %f",
                "Sunday Sun March Mar 09 9  9 068 10 PM 02 25   % 000000",
            ),
            ("%x %X %c %D %F %T", "03/09/25 14:05:07 Sun Mar  9 14:05:07 2025 03/09/25 2025-03-09 14:05:07"),
            ("%G %V %u %w %n %t %C %h %k %l %M %R %S", "2025 10 7 0 \n \t 20 Mar 14  2 05 14:05 07"),
            ("%H %m %Y %r %P %g %W", "14 03 2025 02:05:07 PM pm 25 09"),
            ("%^a %#p %#Z %_d %-j %0e %-I %^B %Ey %Od", "SUN pm   9 68 09 2 MARCH 25 09"),
            (
                "%N|%L|%i|%v|%+|%E|%J|%K|%q|%1|%é|%-|%_|%-Q|%-%|%-n|%-D|%_H",
                "%N|%L|%i|%v|%+|%E|%J|%K|%q|%1|%é|%-|%_|%-Q|%|\n|03/09/25|14",
            ),
            ("%-y|%_m|%-S|%^p|%#a|%#B", "25| 3|7|PM|SUN|MARCH"),
            ("%Q%!%", "%Q%!%"),
            ("", ""),
        ] {
            assert_eq!(strftime(afternoon, format), expected, "{format}");
        }
        let format = "%_H|%-H|%_S|%I|%l|%k|%-M|%_j|%-U|%U|%-Y|%-C|%0k|%_y|%-u|%-w";
        let expected = " 0|0| 0|12|12| 0|0|  1|0|00|2025|20|00|25|3|3";
        assert_eq!(strftime(at(2025, 1, 1, 0, 0, 0), format), expected);
        let seconds: i64 = strftime(afternoon, "%s").parse().unwrap();
        assert!((1_741_529_107 - seconds).abs() <= 14 * 3600, "{seconds} in any zone");
    }
}
