//! Route patterns, validated at registration.

use crate::params::MAX_PARAMS;
use std::fmt;

/// The reason why a route cannot be registered: a mistake in the program, described with its
/// remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// The pattern does not start with `/`.
    NoLeadingSlash(String),
    /// Braces are not `{name}` or `{*name}` filling a whole segment.
    BadBraces(String),
    /// A `{*name}` is not the last segment.
    RestNotLast(String),
    /// Two parameters have the same name.
    RepeatedName(String),
    /// More than [`MAX_PARAMS`] parameters.
    TooManyParams(String),
    /// This method and pattern are already registered.
    Duplicate(String),
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLeadingSlash(pattern) => write!(f, "route {pattern:?} must start with \"/\""),
            Self::BadBraces(pattern) => write!(
                f,
                "route {pattern:?}: a parameter is a whole segment, written {{name}} or {{*rest}}"
            ),
            Self::RestNotLast(pattern) => {
                write!(f, "route {pattern:?}: nothing can follow {{*rest}}")
            }
            Self::RepeatedName(pattern) => {
                write!(f, "route {pattern:?} uses a parameter name twice")
            }
            Self::TooManyParams(pattern) => {
                write!(f, "route {pattern:?} has more than {MAX_PARAMS} parameters")
            }
            Self::Duplicate(pattern) => {
                write!(f, "route {pattern:?} is registered twice for the same method")
            }
        }
    }
}

impl std::error::Error for RouteError {}

/// One segment of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment<'p> {
    Static(&'p str),
    Param(&'p str),
    Rest(&'p str),
}

/// The names of a pattern's parameters, in order.
///
/// # Errors
/// The pattern is not valid.
pub fn param_names(pattern: &str) -> Result<Box<[Box<str>]>, RouteError> {
    let name = |segment: &Segment<'_>| match *segment {
        Segment::Static(_) => None,
        Segment::Param(name) | Segment::Rest(name) => Some(Box::from(name)),
    };
    Ok(parse(pattern)?.iter().filter_map(name).collect())
}

/// Splits and validates a pattern.
pub(crate) fn parse(pattern: &str) -> Result<Vec<Segment<'_>>, RouteError> {
    let Some(path) = pattern.strip_prefix('/') else {
        return Err(RouteError::NoLeadingSlash(pattern.into()));
    };
    let mut segments = Vec::new();
    let mut names = Vec::new();
    for text in path.split('/') {
        if matches!(segments.last(), Some(Segment::Rest(_))) {
            return Err(RouteError::RestNotLast(pattern.into()));
        }
        let segment = parse_segment(text).ok_or_else(|| RouteError::BadBraces(pattern.into()))?;
        if let Segment::Param(name) | Segment::Rest(name) = segment {
            if names.contains(&name) {
                return Err(RouteError::RepeatedName(pattern.into()));
            }
            names.push(name);
        }
        segments.push(segment);
    }
    if names.len() > MAX_PARAMS {
        return Err(RouteError::TooManyParams(pattern.into()));
    }
    Ok(segments)
}

fn parse_segment(text: &str) -> Option<Segment<'_>> {
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let segment = match inner.map(|inner| (inner, inner.strip_prefix('*'))) {
        None => Segment::Static(text),
        Some((_, Some(name))) => Segment::Rest(name),
        Some((name, None)) => Segment::Param(name),
    };
    let (Segment::Static(body) | Segment::Param(body) | Segment::Rest(body)) = segment;
    let named = inner.is_none() || !body.is_empty();
    (named && !body.contains(['{', '}', '*'])).then_some(segment)
}
