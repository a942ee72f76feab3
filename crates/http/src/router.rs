//! From method and path to a route.

use crate::method::{Allow, Method};
use crate::params::{Params, Ranges};
use crate::percent;
use crate::route::{self, RouteError, Segment};
use std::borrow::Cow;

/// A tree of routes. `T` is what a route leads to, usually an index into the caller's handlers: the
/// router calls nothing.
///
/// Patterns are paths in which a whole segment may be `{name}` (any one segment, not empty) or, at the
/// end, `{*rest}` (all that remains, possibly nothing). Where several match, the segment that is
/// spelled out wins over `{name}`, and that over `{*rest}`, from left to right; a route that lacks the
/// method is passed over for a less specific one that has it. A slash at the end counts.
///
/// ```
/// use throng_http::{Match, Method, Router};
///
/// let mut router = Router::new();
/// router.add(Method::Get, "/users/{id}", 1)?;
/// router.add(Method::Get, "/users/me", 2)?;
/// let Match::Found { value, params } = router.find("GET", "/users/7") else { panic!("found") };
/// assert_eq!((value, params.raw("/users/7", "id")), (1, Some("7")));
/// assert!(matches!(router.find("GET", "/users/me"), Match::Found { value: 2, .. }));
/// # Ok::<(), throng_http::RouteError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Router<T> {
    root: Node<T>,
    /// Of all routes, for `OPTIONS *`.
    allow: Allow,
}

/// What a method and a path lead to.
#[derive(Clone, Copy, Debug)]
pub enum Match<'r, T> {
    /// A route. A HEAD may lead to a route for GET: answer it without the body.
    Found {
        /// What it was registered with.
        value: T,
        /// Its parameters.
        params: Params<'r>,
    },
    /// OPTIONS of a path that exists, or `*`, without a route of its own: 204 with `Allow`.
    Options(Allow),
    /// The path exists, not with this method: 405 with `Allow`.
    MethodNotAllowed(Allow),
    /// The path does not exist: 404.
    NotFound,
    /// The path has a broken percent-encoding: 400.
    BadPath,
    /// The method is unknown here, or is CONNECT: 501.
    NotImplemented,
}

#[derive(Clone, Debug)]
struct Node<T> {
    /// Sorted by segment.
    statics: Vec<(Box<str>, Self)>,
    param: Option<Box<Self>>,
    rest: Vec<Route<T>>,
    here: Vec<Route<T>>,
}

#[derive(Clone, Debug)]
struct Route<T> {
    /// `None`: any method.
    method: Option<Method>,
    names: Box<[Box<str>]>,
    value: T,
}

impl<T> Default for Router<T> {
    fn default() -> Self {
        Self { root: Node::new(), allow: Allow::NONE }
    }
}

impl<T> Router<T> {
    /// Without routes: everything is 404.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a route for one method.
    ///
    /// # Errors
    ///
    /// [`RouteError`]: the pattern is not valid, or taken.
    pub fn add(&mut self, method: Method, pattern: &str, value: T) -> Result<(), RouteError> {
        self.insert(Some(method), pattern, value)
    }

    /// Registers a route for every method, unknown ones included; a route for one method wins over it.
    ///
    /// # Errors
    ///
    /// [`RouteError`]: the pattern is not valid, or taken.
    pub fn add_any(&mut self, pattern: &str, value: T) -> Result<(), RouteError> {
        self.insert(None, pattern, value)
    }

    fn insert(
        &mut self,
        method: Option<Method>,
        pattern: &str,
        value: T,
    ) -> Result<(), RouteError> {
        let segments = route::parse(pattern)?;
        let names = segments.iter().filter_map(|segment| match segment {
            Segment::Static(_) => None,
            Segment::Param(name) | Segment::Rest(name) => Some(Box::from(*name)),
        });
        let route = Route { method, names: names.collect(), value };
        let mut node = &mut self.root;
        let mut is_rest = false;
        for segment in segments {
            match segment {
                Segment::Static(text) => node = node.static_child(text),
                Segment::Param(_) => node = node.param.get_or_insert_with(|| Box::new(Node::new())),
                Segment::Rest(_) => is_rest = true,
            }
        }
        let routes = if is_rest { &mut node.rest } else { &mut node.here };
        if routes.iter().any(|known| known.method == method) {
            return Err(RouteError::Duplicate(pattern.into()));
        }
        routes.push(route);
        self.allow = method.map_or(Allow::ALL, |method| self.allow.with(method));
        Ok(())
    }
}

impl<T: Copy> Router<T> {
    /// The route for a method and a path (percent-encoded, without the query). Allocates only if the
    /// path has a percent-encoding.
    pub fn find<'r>(&'r self, method: &str, path: &str) -> Match<'r, T> {
        let wanted = Method::parse(method);
        if path == "*" {
            return Match::Options(self.allow.with(Method::Options));
        }
        let Some(segments) = path.strip_prefix('/') else {
            // Only CONNECT has a target without a path.
            return Match::NotImplemented;
        };
        let is_encoded = path.contains('%');
        if is_encoded && percent::decode_path(path).is_err() {
            return Match::BadPath;
        }
        let mut search =
            Search { wanted, path, is_encoded, ranges: Ranges::default(), allow: Allow::NONE };
        if let Some(route) = search.visit(&self.root, path.len() - segments.len()) {
            return Match::Found {
                value: route.value,
                params: Params::new(&route.names, search.ranges),
            };
        }
        match wanted {
            _ if search.allow.is_empty() => Match::NotFound,
            None => Match::NotImplemented,
            Some(Method::Options) => Match::Options(search.allow),
            Some(_) => Match::MethodNotAllowed(search.allow),
        }
    }
}

impl<T> Node<T> {
    const fn new() -> Self {
        Self { statics: Vec::new(), param: None, rest: Vec::new(), here: Vec::new() }
    }

    fn static_child(&mut self, text: &str) -> &mut Self {
        let found = self.statics.binary_search_by(|(known, _)| (**known).cmp(text));
        let index = found.unwrap_or_else(|index| {
            self.statics.insert(index, (text.into(), Self::new()));
            index
        });
        &mut self.statics[index].1
    }
}

/// One look-up. Each node of the tree is visited at most once, since its depth says which segment it
/// is compared with: no path makes this slow.
struct Search<'p> {
    wanted: Option<Method>,
    path: &'p str,
    is_encoded: bool,
    ranges: Ranges,
    /// The methods of routes that matched the path but not the method.
    allow: Allow,
}

impl Search<'_> {
    /// `start` is where the segment for the children of `node` starts.
    fn visit<'r, T>(&mut self, node: &'r Node<T>, start: usize) -> Option<&'r Route<T>> {
        let rest = self.path.get(start..)?;
        let end = rest.find('/').map_or(self.path.len(), |length| start + length);
        let segment = &self.path[start..end];
        let decoded = if self.is_encoded {
            percent::decode_path(segment).unwrap_or(Cow::Borrowed(segment))
        } else {
            Cow::Borrowed(segment)
        };
        if let Ok(index) = node.statics.binary_search_by(|(known, _)| (**known).cmp(&decoded))
            && let Some(route) = self.descend(&node.statics[index].1, end)
        {
            return Some(route);
        }
        if let Some(child) = &node.param
            && !segment.is_empty()
        {
            self.ranges.push(start, end);
            if let Some(route) = self.descend(child, end) {
                return Some(route);
            }
            self.ranges.pop();
        }
        let route = self.choose(&node.rest)?;
        self.ranges.push(start, self.path.len());
        Some(route)
    }

    /// `end` is where the segment of `node` ended.
    fn descend<'r, T>(&mut self, node: &'r Node<T>, end: usize) -> Option<&'r Route<T>> {
        if end == self.path.len() { self.choose(&node.here) } else { self.visit(node, end + 1) }
    }

    fn choose<'r, T>(&mut self, routes: &'r [Route<T>]) -> Option<&'r Route<T>> {
        let of = |method| routes.iter().find(|route| route.method == Some(method));
        let found = self.wanted.and_then(of);
        let found = found.or_else(|| match self.wanted {
            Some(Method::Head) => of(Method::Get),
            _ => None,
        });
        let found = found.or_else(|| routes.iter().find(|route| route.method.is_none()));
        if found.is_none() {
            let methods = routes.iter().filter_map(|route| route.method);
            self.allow = methods.fold(self.allow, Allow::with);
        }
        found
    }
}
