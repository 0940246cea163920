//! Values on a command line, with words of our own for what is none.

use std::str::FromStr;

/// A number from 1 on, of a type that has no 0.
///
/// # Errors
/// It is none, or more than the type holds.
pub fn from_one<T: FromStr>(text: &str) -> Result<T, String> {
    let wrong = "use a whole number from 1 on";
    text.parse().map_err(
        |_| match is_whole(text) && !text.trim_matches('0').is_empty() {
            true => "use a smaller number".to_owned(),
            false => wrong.to_owned(),
        },
    )
}

/// A number from 0 on.
///
/// # Errors
/// It is none, or more than the type holds.
pub fn from_zero<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| match is_whole(text) {
        true => "use a smaller number".to_owned(),
        false => "use a whole number from 0 on".to_owned(),
    })
}

/// A whole number within bounds.
///
/// # Errors
/// It is none, or outside of them.
pub fn within<T: TryFrom<u64>, const MIN: u64, const MAX: u64>(text: &str) -> Result<T, String> {
    let number: Option<u64> = text.parse().ok();
    let number = number.filter(|number| (MIN..=MAX).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("use a whole number from {MIN} to {MAX}"))
}

/// A number with a fraction, that is one at all.
///
/// # Errors
/// It is none, or not finite.
pub fn fraction(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let number = number.filter(|number| number.is_finite());
    number.ok_or_else(|| "use a number like 2 or 0.5".to_owned())
}

/// A name that is not empty.
///
/// # Errors
/// It is.
pub fn name(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("use a name that is not empty".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// An address to listen on.
///
/// # Errors
/// It is none.
pub fn address(text: &str) -> Result<std::net::SocketAddr, String> {
    let wanted = "use an address and a port, like 127.0.0.1:8080 or [::1]:8080";
    text.parse().map_err(|_| wanted.to_owned())
}

fn is_whole(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn what_is_no_number_is_told_what_to_be() {
        for text in ["0", "-1", "x", "", "1.5"] {
            let said = from_one::<NonZeroU32>(text).unwrap_err();
            assert_eq!(said, "use a whole number from 1 on", "{text}");
        }
        let said = from_one::<NonZeroU32>("99999999999").unwrap_err();
        assert_eq!(said, "use a smaller number");
        assert!(from_zero::<u64>("-1").unwrap_err().ends_with("from 0 on"));
        assert_eq!(within::<usize, 2, 9>("9"), Ok(9));
        let said = within::<usize, 2, 9>("10").unwrap_err();
        assert_eq!(said, "use a whole number from 2 to 9");
        for text in ["nan", "inf", "x", ""] {
            assert!(fraction(text).is_err(), "{text}");
        }
        assert!(name(" ").is_err());
        assert!(
            address("localhost:80")
                .unwrap_err()
                .contains("127.0.0.1:8080")
        );
    }
}
