//! Sites as they are configured.

use std::str::FromStr;

use throng_tls::{CertificateFiles, ClientAuth, Version};

use throng_config::AccessDetail;
use throng_http::Network;

use super::guard::GuardConfig;
use super::matchers::Matchers;
use super::pages::Page;
use super::policy::PolicyConfig;
use super::split::SplitConfig;
use super::template::{RedirectTarget, Template};

/// A site: the hosts of requests, and the routes among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteConfig {
    /// Its name in the log. Default: its first host.
    pub name: Option<String>,
    /// Its hosts: names, `*.` and a domain for names with one label more, `**.` and a domain for
    /// names with one or several more, `*` for all others.
    pub hosts: Vec<String>,
    /// The names of the listeners where it has them. Default: all.
    pub listeners: Vec<String>,
    /// Its routes.
    pub routes: Vec<RouteConfig>,
    /// The action of requests without a route, and the default of routes. Default: the pool of
    /// the top-level backends if there are any, otherwise 404.
    pub action: Option<RouteAction>,
    /// The treatment of ambiguous paths.
    pub paths: Paths,
    /// The names of limits of all its requests.
    pub limits: Vec<String>,
    /// The clients and pages that may use it.
    pub guard: GuardConfig,
    /// The requests that are logged. Default: what [`AccessLog::detail`](crate::AccessLog::detail)
    /// returns.
    pub access: Option<AccessDetail>,
    /// The page of its maintenance: while it has one, requests are answered with 503, and open
    /// tunnels go on. Default: none.
    pub maintenance: Option<Page>,
    /// The clients that it serves in maintenance.
    pub maintenance_except: Vec<Network>,
    /// The treatment of its requests and answers.
    pub policy: PolicyConfig,
    /// Its TLS. Default: as `[tls]` says.
    pub tls: SiteTls,
}

/// The TLS of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteTls {
    /// Its certificates, besides the certificates of `[tls]`: clients get the one with the name
    /// that they ask for.
    pub certificates: Vec<CertificateFiles>,
    /// Whether the authority of `[tls.acme]` also certifies its hosts.
    pub is_issued: bool,
    /// The lowest accepted version. Default: as `[tls]` says.
    pub min_version: Option<Version>,
    /// The certificates required of its clients, or none. Default: as `[tls]` says.
    pub client_auth: Option<Option<ClientAuth>>,
    /// The name of the pool whose backends end the TLS of its hosts. Default: the balancer ends it.
    pub passthrough: Option<String>,
}

/// A route: requests with one of these paths, for which all conditions hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteConfig {
    /// Its name in the log. Default: its first path or prefix.
    pub name: Option<String>,
    /// Paths: patterns in which a whole segment may be `{name}`, for any one segment, or at the end
    /// `{*rest}`, for the rest.
    pub path: Vec<String>,
    /// Beginnings of paths by whole segments: `/api` is for `/api`, `/api/` and all below. Without
    /// a path and a prefix, the route is for all paths.
    pub prefix: Vec<String>,
    /// Conditions beside the path.
    pub matchers: Matchers,
    /// The action of its requests. Default: the action of its site.
    pub action: Option<RouteAction>,
    /// The treatment of ambiguous paths. Default: the site's.
    pub paths: Option<Paths>,
    /// The names of limits of its requests, besides the limits of its site.
    pub limits: Vec<String>,
    /// The clients and pages that may use it, besides the rules of its site.
    pub guard: GuardConfig,
    /// The requests that are logged. Default: the site's.
    pub access: Option<AccessDetail>,
    /// Count its requests also apart from the site's.
    pub metrics: bool,
    /// The treatment of its requests and answers, besides its site's.
    pub policy: PolicyConfig,
}

/// The action of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// A backend of the pool with this name answers it.
    Pool(String),
    /// A backend of one of several pools answers it.
    Split(SplitConfig),
    /// The client is sent elsewhere.
    Redirect {
        /// The target.
        to: RedirectTarget,
        /// 301, 302, 303, 307 or 308.
        status: u16,
    },
    /// The balancer answers it.
    Respond {
        /// 200 to 599.
        status: u16,
        /// Plain text.
        text: Template,
    },
    /// The balancer answers it with a file.
    File {
        /// 200 to 599.
        status: u16,
        /// The file.
        page: Page,
    },
}

/// The treatment of paths that backends are known to read in several ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paths {
    /// Each reading must lead to the same route, and no segment may be `.` or `..`; otherwise the
    /// answer is 400.
    #[default]
    Strict,
    /// Only the path as sent counts, without decoding.
    Raw,
}

impl FromStr for Paths {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "strict" => Ok(Self::Strict),
            "raw" => Ok(Self::Raw),
            _ => Err("write \"strict\" or \"raw\""),
        }
    }
}
