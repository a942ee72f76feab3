//! The statuses that count as success.

use std::fmt;

/// Statuses that count as success, as ranges. Default 200 to 299.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    ranges: Vec<(u16, u16)>,
}

impl Default for Expect {
    fn default() -> Self {
        Self { ranges: vec![(200, 299)] }
    }
}

impl Expect {
    /// Parses a list of statuses and classes: `200`, `2xx`, `200,304`.
    ///
    /// # Errors
    /// The error is one line that names the invalid part and shows a valid form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let one = |part: &str| {
            let part = part.trim();
            let number: Option<u16> = part.parse().ok().filter(|n| (100..=999).contains(n));
            let class = match part.as_bytes() {
                &[digit @ b'1'..=b'9', b'x' | b'X', b'x' | b'X'] => Some(u16::from(digit - b'0')),
                _ => None,
            };
            match (number.filter(|_| part.len() == 3), class) {
                (Some(number), _) => Ok((number, number)),
                (_, Some(class)) => Ok((class * 100, class * 100 + 99)),
                _ => Err(format!("{part:?} is not a status: write 200, 2xx, or a list: 200,304")),
            }
        };
        Ok(Self { ranges: text.split(',').map(one).collect::<Result<_, _>>()? })
    }

    /// Returns whether an answer with `status` counts.
    #[must_use]
    pub fn accepts(&self, status: u16) -> bool {
        self.ranges.iter().any(|&(low, high)| (low..=high).contains(&status))
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, &(low, high)) in self.ranges.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            match low == high {
                true => write!(f, "{comma}{low}")?,
                false => write!(f, "{comma}{}xx", low / 100)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_classes() {
        let expect = Expect::parse("2xx, 304").unwrap();
        let accepted: Vec<u16> = (100..1000).filter(|&status| expect.accepts(status)).collect();
        assert_eq!((accepted.len(), accepted[0], accepted[100]), (101, 200, 304));
        assert_eq!(expect.to_string(), "2xx,304");
        assert_eq!(Expect::parse("2XX"), Ok(Expect::default()));
    }

    #[test]
    fn anything_else_is_explained() {
        for text in ["", "ok", "20", "2000", "099", "0xx", "200;304", "2x", "200,", "+20"] {
            let error = Expect::parse(text).unwrap_err();
            assert!(error.contains("200,304"), "{text}: {error}");
        }
    }
}
