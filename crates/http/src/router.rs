//! The router: from method and path to a route.

use crate::method::{Allow, Method};
use crate::params::{Params, Ranges};
use crate::percent;
use crate::route::{self, RouteError, Segment};

/// A tree of routes. `T` is the value of a route, usually an index into the caller's handlers,
/// since the router never calls a handler.
///
/// Patterns are paths in which a whole segment may be `{name}` (any one segment, not empty) or, at
/// the end, `{*rest}` (the rest of the path, possibly empty). If several patterns match, a literal
/// segment wins over `{name}`, and `{name}` over `{*rest}`, from left to right; a route without the
/// method is skipped in favour of a less specific route that has it. A final slash is significant.
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
    /// The methods of all routes, for `OPTIONS *`.
    allow: Allow,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug)]
pub enum Match<'r, T> {
    /// A route. A HEAD may lead to a route for GET: answer it without the body.
    Found {
        /// The value of the route.
        value: T,
        /// Its parameters.
        params: Params<'r>,
    },
    /// OPTIONS of a path that exists, or `*`, without a route of its own: 204 with `Allow`.
    Options(Allow),
    /// The path exists, but not with this method: 405 with `Allow`.
    MethodNotAllowed(Allow),
    /// The path does not exist: 404.
    NotFound,
    /// The path has an invalid percent-encoding: 400.
    BadPath,
    /// The method is unknown, or is CONNECT: 501.
    NotImplemented,
}

#[derive(Clone, Debug)]
struct Node<T> {
    statics: Children<T>,
    param: Option<Box<Self>>,
    rest: Vec<Route<T>>,
    here: Vec<Route<T>>,
}

#[derive(Clone, Debug)]
struct Route<T> {
    /// `None` for any method.
    method: Option<Method>,
    /// Whether a GET also answers HEAD.
    answers_head: bool,
    names: Box<[Box<str>]>,
    value: T,
}

impl<T> Route<T> {
    /// Returns `allow` with the methods of this route added.
    fn allow(&self, allow: Allow) -> Allow {
        match self.method {
            None => Allow::ALL,
            Some(method) if self.answers_head => allow.with(method),
            Some(method) => allow.with_only(method),
        }
    }
}

impl<T> Default for Router<T> {
    fn default() -> Self {
        Self { root: Node::new(), allow: Allow::NONE }
    }
}

impl<T> Router<T> {
    /// Creates a router without routes: everything is 404.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a route for one method.
    ///
    /// # Errors
    ///
    /// [`RouteError`]: the pattern is invalid or already registered.
    pub fn add(&mut self, method: Method, pattern: &str, value: T) -> Result<(), RouteError> {
        self.insert(Some(method), true, pattern, value)
    }

    /// Registers a route for GET that does not answer HEAD, such as a WebSocket's: a HEAD request
    /// goes to the next matching route. There may be another route for GET at the same path;
    /// [`find_if`](Self::find_if) distinguishes them.
    ///
    /// # Errors
    ///
    /// [`RouteError`]: the pattern is invalid or already registered.
    pub fn add_get_only(&mut self, pattern: &str, value: T) -> Result<(), RouteError> {
        self.insert(Some(Method::Get), false, pattern, value)
    }

    /// Registers a route for every method, including unknown ones; a route for one method wins over
    /// it.
    ///
    /// # Errors
    ///
    /// [`RouteError`]: the pattern is invalid or already registered.
    pub fn add_any(&mut self, pattern: &str, value: T) -> Result<(), RouteError> {
        self.insert(None, true, pattern, value)
    }

    fn insert(
        &mut self,
        method: Option<Method>,
        answers_head: bool,
        pattern: &str,
        value: T,
    ) -> Result<(), RouteError> {
        let segments = route::parse(pattern)?;
        let names = segments.iter().filter_map(|segment| match segment {
            Segment::Static(_) => None,
            Segment::Param(name) | Segment::Rest(name) => Some(Box::from(*name)),
        });
        let route = Route { method, answers_head, names: names.collect(), value };
        let mut node = &mut self.root;
        let mut is_rest = false;
        for segment in segments {
            match segment {
                Segment::Static(text) => node = node.statics.child(text),
                Segment::Param(_) => node = node.param.get_or_insert_with(|| Box::new(Node::new())),
                Segment::Rest(_) => is_rest = true,
            }
        }
        let routes = if is_rest { &mut node.rest } else { &mut node.here };
        let is_same =
            |known: &Route<T>| known.method == method && known.answers_head == answers_head;
        if routes.iter().any(is_same) {
            return Err(RouteError::Duplicate(pattern.into()));
        }
        self.allow = route.allow(self.allow);
        // Most patterns have one.
        routes.reserve_exact(1);
        routes.push(route);
        Ok(())
    }
}

impl<T: Copy> Router<T> {
    /// Finds the route for a method and a path (percent-encoded, without the query). Does not
    /// allocate.
    pub fn find<'r>(&'r self, method: &str, path: &str) -> Match<'r, T> {
        self.find_if(method, path, |_| true)
    }

    /// Finds the route among the routes whose value `admits` accepts; otherwise like
    /// [`find`](Self::find). `admits` is asked only about routes of the path and the method, the
    /// most specific first.
    pub fn find_if<'r>(
        &'r self,
        method: &str,
        path: &str,
        admits: impl Fn(T) -> bool,
    ) -> Match<'r, T> {
        let is_encoded = path.contains('%');
        if is_encoded && path.starts_with('/') && !percent::is_valid_path(path) {
            return Match::BadPath;
        }
        self.search(Method::parse(method), path, is_encoded, admits)
    }

    /// Finds the route of a path as it was sent, without decoding: `/%61` is not `/a`, and no
    /// encoding is invalid. Otherwise like [`find_if`](Self::find_if).
    pub fn find_as_sent<'r>(
        &'r self,
        method: &str,
        path: &str,
        admits: impl Fn(T) -> bool,
    ) -> Match<'r, T> {
        self.search(Method::parse(method), path, false, admits)
    }

    fn search<'r>(
        &'r self,
        wanted: Option<Method>,
        path: &str,
        is_encoded: bool,
        admits: impl Fn(T) -> bool,
    ) -> Match<'r, T> {
        if path == "*" {
            return Match::Options(self.allow.with(Method::Options));
        }
        let Some(segments) = path.strip_prefix('/') else {
            // Only CONNECT has a target without a path.
            return Match::NotImplemented;
        };
        let (ranges, allow) = (Ranges::default(), Allow::NONE);
        let mut search = Search { wanted, path, is_encoded, ranges, allow, admits };
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
        Self { statics: Children::new(), param: None, rest: Vec::new(), here: Vec::new() }
    }
}

/// The children of a node by their literal segments.
#[derive(Clone, Debug)]
struct Children<T> {
    all: Vec<(Box<str>, Node<T>)>,
    /// With more than a few: their places plus 1, by hash; 0 for none. At most half is in use.
    /// Requests are looked up in it, but only routes are added, so a weak hash is enough.
    table: Vec<u32>,
}

impl<T> Children<T> {
    /// So many are compared one by one.
    const FEW: usize = 8;

    const fn new() -> Self {
        Self { all: Vec::new(), table: Vec::new() }
    }

    /// Returns the place of a segment, whose bytes `bytes` returns.
    fn find<I: Iterator<Item = u8>>(&self, bytes: impl Fn() -> I) -> Option<usize> {
        let is_it = |place: &usize| self.all[*place].0.bytes().eq(bytes());
        if self.table.is_empty() {
            return (0..self.all.len()).find(is_it);
        }
        self.probe(hash(bytes())).find_map(|at| match self.table[at] {
            0 => Some(None),
            place => Some(Some(place as usize - 1)).filter(|it| it.as_ref().is_some_and(is_it)),
        })?
    }

    /// Returns the child of a segment, which is added if there is none.
    fn child(&mut self, text: &str) -> &mut Node<T> {
        let place = self.find(|| text.bytes()).unwrap_or_else(|| {
            self.all.push((text.into(), Node::new()));
            self.index();
            self.all.len() - 1
        });
        &mut self.all[place].1
    }

    /// Adds the last child to the table, and makes a larger one if that is due.
    fn index(&mut self) {
        let len = self.all.len();
        if len <= Self::FEW {
            return;
        }
        let mut from = len - 1;
        if 2 * len > self.table.len() {
            self.table = vec![0; (4 * len).next_power_of_two()];
            from = 0;
        }
        for place in from..len {
            let free = self.probe(hash(self.all[place].0.bytes())).find(|at| self.table[*at] == 0);
            if let Some(free) = free {
                self.table[free] = place as u32 + 1;
            }
        }
    }

    /// Returns the places of the table where a hash may be. Some are free.
    fn probe(&self, hash: u32) -> impl Iterator<Item = usize> + use<T> {
        let mask = self.table.len() - 1;
        (0..).map(move |step| (hash as usize + step) & mask)
    }
}

/// FNV-1a with mixed low bits.
fn hash(bytes: impl Iterator<Item = u8>) -> u32 {
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash ^ hash >> 15
}

/// One lookup. Each node of the tree is visited at most once, since its depth determines the
/// segment it is compared with: no path makes this slow.
struct Search<'p, F> {
    wanted: Option<Method>,
    path: &'p str,
    is_encoded: bool,
    ranges: Ranges,
    /// The methods of routes that matched the path but not the method.
    allow: Allow,
    admits: F,
}

impl<F> Search<'_, F> {
    /// Visits a node; `start` is where the segment for its children starts.
    fn visit<'r, T: Copy>(&mut self, node: &'r Node<T>, start: usize) -> Option<&'r Route<T>>
    where
        F: Fn(T) -> bool,
    {
        let rest = self.path.get(start..)?;
        // Segments are short: a search by blocks would cost more than it saves.
        let slash = rest.bytes().position(|byte| byte == b'/');
        let end = slash.map_or(self.path.len(), |length| start + length);
        let segment = &self.path[start..end];
        let found = match self.is_encoded {
            false => node.statics.find(|| segment.bytes()),
            true => node.statics.find(|| percent::decoded_bytes(segment)),
        };
        if let Some(place) = found
            && let Some(route) = self.descend(&node.statics.all[place].1, end)
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

    /// Descends from a node; `end` is where its segment ended.
    fn descend<'r, T: Copy>(&mut self, node: &'r Node<T>, end: usize) -> Option<&'r Route<T>>
    where
        F: Fn(T) -> bool,
    {
        if end == self.path.len() { self.choose(&node.here) } else { self.visit(node, end + 1) }
    }

    fn choose<'r, T: Copy>(&mut self, routes: &'r [Route<T>]) -> Option<&'r Route<T>>
    where
        F: Fn(T) -> bool,
    {
        let admitted = |route: &&Route<T>| (self.admits)(route.value);
        let of = |method| routes.iter().filter(move |route| route.method == method).find(admitted);
        let found = self.wanted.and_then(|method| of(Some(method)));
        let found = found.or_else(|| match self.wanted {
            Some(Method::Head) => of(Some(Method::Get)).filter(|route| route.answers_head),
            _ => None,
        });
        let found = found.or_else(|| of(None));
        if found.is_none() {
            let others = routes.iter().filter(|route| route.method.is_some()).filter(admitted);
            self.allow = others.fold(self.allow, |allow, route| route.allow(allow));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats the result of a lookup.
    fn find(router: &Router<&'static str>, method: &str, path: &str) -> String {
        match router.find(method, path) {
            Match::Found { value, params } => {
                let names = ["a", "b", "id", "name", "rest"];
                let known = names
                    .iter()
                    .filter_map(|name| Some(format!(" {name}={}", params.raw(path, name)?)));
                value.to_owned() + &known.collect::<String>()
            }
            Match::Options(allow) => format!("204 {allow}"),
            Match::MethodNotAllowed(allow) => format!("405 {allow}"),
            Match::NotFound => "404".into(),
            Match::BadPath => "400".into(),
            Match::NotImplemented => "501".into(),
        }
    }

    fn router(routes: &[(&str, &'static str)]) -> Router<&'static str> {
        let mut router = Router::new();
        for (pattern, value) in routes {
            router.add(Method::Get, pattern, *value).expect("a valid pattern");
        }
        router
    }

    #[test]
    fn paths_match_whole_segments() {
        let router = router(&[
            ("/", "root"),
            ("/live", "live"),
            ("/users/{id}", "user"),
            ("/users/{id}/posts/{name}", "post"),
            ("/files/{*rest}", "files"),
            ("/slash/", "slash"),
        ]);
        for (path, expected) in [
            ("/", "root"),
            ("/live", "live"),
            ("/live/", "404"),
            ("/liv", "404"),
            ("/livez", "404"),
            ("//", "404"),
            ("/users/7", "user id=7"),
            ("/users/", "404"),
            ("/users", "404"),
            ("/users/7/", "404"),
            ("/users/7/posts/x", "post id=7 name=x"),
            ("/users//posts/x", "404"),
            ("/users/7/posts", "404"),
            ("/files/", "files rest="),
            ("/files/a", "files rest=a"),
            ("/files/a/b/c.txt", "files rest=a/b/c.txt"),
            ("/files/a//", "files rest=a//"),
            ("/files", "404"),
            ("/slash/", "slash"),
            ("/slash", "404"),
            ("/Live", "404"),
        ] {
            assert_eq!(find(&router, "GET", path), expected, "{path}");
        }
    }

    #[test]
    fn a_literal_segment_wins_over_a_parameter_and_that_over_a_rest() {
        let router = router(&[
            ("/{*rest}", "rest"),
            ("/{a}", "param"),
            ("/x", "static"),
            ("/{a}/y", "param-y"),
            ("/x/{b}", "x-param"),
            ("/x/z/w", "deep"),
            ("/{a}/z/{b}", "param-z-param"),
        ]);
        for (path, expected) in [
            ("/x", "static"),
            ("/q", "param a=q"),
            ("/", "rest rest="),
            ("/x/y", "x-param b=y"),
            ("/q/y", "param-y a=q"),
            ("/x/z", "x-param b=z"),
            ("/x/z/w", "deep"),
            // The literal branch ends. The router tries the parameter's branch, and keeps nothing
            // of the first.
            ("/x/z/q", "param-z-param a=x b=q"),
            ("/x/q/q", "rest rest=x/q/q"),
        ] {
            assert_eq!(find(&router, "GET", path), expected, "{path}");
        }
    }

    #[test]
    fn each_of_many_literals_is_found_in_all_its_notations() {
        for count in [1, 8, 9, 16, 17, 5_000] {
            let mut router = Router::new();
            router.add(Method::Get, "/{a}", usize::MAX).unwrap();
            for at in 0..count {
                router.add(Method::Get, &format!("/r{at}"), at).unwrap();
            }
            assert!(router.add(Method::Get, "/r0", 0).is_err());
            let find = |path: &str| match router.find("GET", path) {
                Match::Found { value, .. } => Some(value),
                _ => None,
            };
            for at in 0..count {
                assert_eq!(find(&format!("/r{at}")), Some(at), "of {count}");
                assert_eq!(find(&format!("/%72{at}")), Some(at), "of {count}");
            }
            assert_eq!(find(&format!("/r{count}")), Some(usize::MAX));
            assert_eq!(find("/r0/"), None);
        }
    }

    #[test]
    fn methods_are_chosen_and_named() {
        let mut router = Router::new();
        router.add(Method::Get, "/a", "get").unwrap();
        router.add(Method::Post, "/a", "post").unwrap();
        router.add(Method::Put, "/{a}", "put").unwrap();
        router.add(Method::Head, "/h", "head").unwrap();
        router.add(Method::Get, "/h", "get-h").unwrap();
        router.add_any("/any", "any").unwrap();
        router.add(Method::Options, "/o", "options").unwrap();
        for (method, path, expected) in [
            ("GET", "/a", "get"),
            ("HEAD", "/a", "get"),
            ("HEAD", "/h", "head"),
            ("POST", "/a", "post"),
            // Skipped in favour of the less specific route that has the method.
            ("PUT", "/a", "put a=a"),
            ("DELETE", "/a", "405 GET, HEAD, POST, PUT, OPTIONS"),
            ("DELETE", "/b", "405 PUT, OPTIONS"),
            ("OPTIONS", "/a", "204 GET, HEAD, POST, PUT, OPTIONS"),
            ("OPTIONS", "/o", "options"),
            ("OPTIONS", "/none/at/all", "404"),
            ("get", "/a", "501"),
            ("BREW", "/a", "501"),
            ("BREW", "/none/at/all", "404"),
            ("BREW", "/any", "any"),
            ("DELETE", "/any", "any"),
            ("GET", "/none/at/all", "404"),
            ("CONNECT", "", "501"),
        ] {
            assert_eq!(find(&router, method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_get_without_head_does_not_allow_head() {
        let mut router = Router::new();
        router.add_get_only("/ws", "ws").unwrap();
        router.add_get_only("/both", "ws").unwrap();
        router.add_any("/{*rest}", "any").unwrap();
        assert_eq!(find(&router, "GET", "/both"), "ws");
        assert_eq!(find(&router, "HEAD", "/both"), "any rest=both");
        let mut router = Router::new();
        router.add_get_only("/ws", "ws").unwrap();
        assert_eq!(find(&router, "GET", "/ws"), "ws");
        for method in ["HEAD", "POST"] {
            assert_eq!(find(&router, method, "/ws"), "405 GET, OPTIONS", "{method}");
        }
        for path in ["/ws", "*"] {
            assert_eq!(find(&router, "OPTIONS", path), "204 GET, OPTIONS", "{path}");
        }
        router.add(Method::Head, "/ws", "head").unwrap();
        assert_eq!(find(&router, "HEAD", "/ws"), "head");
        assert_eq!(find(&router, "POST", "/ws"), "405 GET, HEAD, OPTIONS");
        assert!(router.add_get_only("/ws", "again").is_err());
        router.add(Method::Get, "/ws", "page").unwrap();
        assert!(router.add(Method::Get, "/ws", "again").is_err());
        for wanted in ["ws", "page"] {
            let found = router.find_if("GET", "/ws", |value| value == wanted);
            assert!(matches!(found, Match::Found { value, .. } if value == wanted), "{found:?}");
        }
    }

    #[test]
    fn inadmissible_files_are_not_found() {
        let mut router = Router::new();
        router.add(Method::Get, "/{*rest}", "socket").unwrap();
        router.add_any("/{*rest}", "any").unwrap();
        router.add(Method::Get, "/a", "socket").unwrap();
        router.add(Method::Post, "/a", "post").unwrap();
        let find = |method: &str, path: &str| match router
            .find_if(method, path, |value| value != "socket")
        {
            Match::Found { value, .. } => value,
            other => panic!("{other:?}"),
        };
        for path in ["/", "/a", "/b", "/a/b"] {
            assert_eq!((find("GET", path), find("HEAD", path)), ("any", "any"), "{path}");
        }
        assert_eq!((find("POST", "/a"), find("POST", "/")), ("post", "any"));
        let none = router.find_if("GET", "/a", |_| false);
        assert!(matches!(none, Match::NotFound), "{none:?}");
        let only = router.find_if("GET", "/a", |value| value == "post");
        let Match::MethodNotAllowed(allow) = only else { panic!("{only:?}") };
        assert_eq!(allow.to_string(), "POST, OPTIONS");
    }

    #[test]
    fn rfc9110_9_3_7_options_of_the_whole_server() {
        let one = router(&[("/", "root")]);
        assert_eq!(find(&one, "OPTIONS", "*"), "204 GET, HEAD, OPTIONS");
        assert_eq!(find(&Router::new(), "OPTIONS", "*"), "204 OPTIONS");
    }

    #[test]
    fn rfc3986_2_1_encodings_are_compared_decoded_and_checked() {
        let router = router(&[
            ("/live", "live"),
            ("/a b", "space"),
            ("/{a}/x", "param"),
            ("/f/{*rest}", "rest"),
        ]);
        for (path, expected) in [
            ("/%6Cive", "live"),
            ("/%6cive", "live"),
            ("/a%20b", "space"),
            // An encoded slash is not a separator.
            ("/a%2Fb/x", "param a=a%2Fb"),
            ("/f/%2e%2e/x", "rest rest=%2e%2e/x"),
            ("/live%", "400"),
            ("/%zz/x", "400"),
            ("/%ff/x", "400"),
            ("/f/%00", "400"),
            ("/nowhere/at/all%4", "400"),
        ] {
            assert_eq!(find(&router, "GET", path), expected, "{path}");
        }
        for (path, expected) in [
            ("/live", Some("live")),
            ("/%6Cive", None),
            ("/f/%zz", Some("rest")),
            ("/%/x", Some("param")),
        ] {
            let found = match router.find_as_sent("GET", path, |_| true) {
                Match::Found { value, .. } => Some(value),
                _ => None,
            };
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_reported_at_registration() {
        let add = |pattern: &str| Router::new().add(Method::Get, pattern, ()).unwrap_err();
        for pattern in ["", "a", "{a}", "*"] {
            assert_eq!(add(pattern), RouteError::NoLeadingSlash(pattern.into()));
        }
        for pattern in
            ["/{}", "/{*}", "/a{b}", "/{a}b", "/{a", "/a}", "/{a}{b}", "/*", "/{{a}}", "/{**a}"]
        {
            assert_eq!(add(pattern), RouteError::BadBraces(pattern.into()), "{pattern}");
        }
        assert_eq!(add("/{*a}/b"), RouteError::RestNotLast("/{*a}/b".into()));
        assert_eq!(add("/{a}/{a}"), RouteError::RepeatedName("/{a}/{a}".into()));
        let many: String = (0..9).map(|index| format!("/{{p{index}}}")).collect();
        assert_eq!(add(&many), RouteError::TooManyParams(many.clone()));
        assert!(Router::new().add(Method::Get, &many[..many.len() - 5], ()).is_ok());

        let mut router = router(&[("/a/{id}", "first")]);
        let again = router.add(Method::Get, "/a/{name}", "second");
        assert_eq!(again, Err(RouteError::Duplicate("/a/{name}".into())));
        assert!(router.add(Method::Post, "/a/{name}", "other").is_ok());
        assert!(router.add_any("/a/{name}", "any").is_ok());
        // Each route has its own names.
        assert_eq!(find(&router, "GET", "/a/7"), "first id=7");
        assert_eq!(find(&router, "POST", "/a/7"), "other name=7");
    }

    #[test]
    fn eight_params_are_all_kept() {
        let pattern: String = (0..8).map(|index| format!("/{{p{index}}}")).collect();
        let mut router = Router::new();
        router.add(Method::Get, &pattern, ()).unwrap();
        let path = "/0/1/2/3/4/5/6/7";
        let Match::Found { params, .. } = router.find("GET", path) else { panic!("found") };
        for index in 0..8 {
            let value = params.raw(path, &format!("p{index}"));
            assert_eq!(value, Some(index.to_string().as_str()));
        }
    }

    #[test]
    fn matching_a_long_path_costs_no_more_than_the_depth_of_the_tree() {
        // A router that recurses by path would overflow the stack here; unbounded backtracking
        // would not end.
        let router = router(&[
            ("/{a}/{b}/x", "x"),
            ("/a/{b}/x", "ax"),
            ("/a/a/x", "aax"),
            ("/a/a/{*rest}", "rest"),
        ]);
        let path = "/a".repeat(1_000_000);
        assert!(find(&router, "GET", &path).starts_with("rest"));
        assert_eq!(find(&router, "GET", &"/".repeat(1_000_000)), "404");
    }
}
