//! Locations as routes.

use super::super::Left;
use super::super::output::Table;
use super::super::parse::Directive;
use super::super::value::template;
use super::Translation;
use super::level::Level;
use super::pools::Target;

/// The text of a location that is closed.
const CLOSED: &str = "this part of the configuration is not translated";

impl Translation {
    /// Translates a location and those in it.
    ///
    /// # Errors
    /// It is chosen by a regular expression, or in another way that has no counterpart: requests
    /// for it would go elsewhere.
    pub(super) fn location(
        &mut self,
        location: &Directive,
        outer: &Level,
        routes: &mut Vec<Table>,
    ) -> Result<(), Left> {
        let (key, path) = match &location.args[..] {
            [name] if name.starts_with('@') => return Ok(()),
            [path] if path.starts_with('/') => ("prefix", path),
            [modifier, path] if modifier == "^~" => ("prefix", path),
            [modifier, path] if modifier == "=" => ("path", path),
            _ => {
                return Err(location.left(
                    "regular expressions win by their order, and are not translated; write a path \
                     or a prefix",
                ));
            }
        };
        let is_plain = |c: char| c.is_ascii_graphic() && !"{}%\\;?#*".contains(c);
        if !path.starts_with('/') || !path.chars().all(is_plain) || path.contains("//") {
            return Err(location.left("its path has signs with another meaning here"));
        }
        let mut table = Table::new("[[site.route]]", format!("{}: location", location.place()));
        // A prefix is for the path without a slash at its end, too, which nginx redirects.
        let prefix = if path == "/" { path } else { path.trim_end_matches('/') };
        table.list(key, &[if key == "prefix" { prefix } else { path }]);
        let inner: Vec<&Directive> = location.block.iter().flatten().collect();
        let mut level = outer.clone();
        level.read(inner.iter().copied(), &self.zones, &mut self.left);
        let action = self.action(&inner, (key == "prefix").then_some(path), &level, &mut table);
        match action {
            Ok(()) if level.closed.is_empty() => {}
            action => {
                self.left.extend(action.err());
                self.left.append(&mut level.closed.clone());
                table = Table::new("[[site.route]]", format!("{}: closed", location.place()));
                table.list(key, &[if key == "prefix" { prefix } else { path }]);
                table.set("respond.status", "503");
                table.text("respond.text", CLOSED);
            }
        }
        routes.push(table);
        for nested in inner.iter().filter(|directive| directive.name == "location") {
            self.location(nested, &level, routes)?;
        }
        Ok(())
    }

    /// Translates the action of a location or a server.
    pub(super) fn action(
        &mut self,
        inner: &[&Directive],
        prefix: Option<&str>,
        level: &Level,
        table: &mut Table,
    ) -> Result<(), Left> {
        let of = |name: &str| inner.iter().copied().find(|directive| directive.name == name);
        if let Some(answer) = of("return") {
            level.write(None, &mut self.left, table);
            return answer_with(answer, table);
        }
        let Some(pass) = of("proxy_pass") else {
            // Only a `deny all` needs no action.
            level.write(None, &mut self.left, table);
            table.set("respond.status", "404");
            let serves = ["root", "alias", "try_files", "index", "autoindex"];
            let serves = serves.iter().find_map(|name| of(name));
            let others = inner.iter().copied().find(|directive| directive.name.ends_with("_pass"));
            return match others.or(serves) {
                Some(directive) if others.is_some() => {
                    Err(directive.left("a pool speaks HTTP: put an HTTP server before it"))
                }
                Some(directive) => Err(directive
                    .left("files are served by `throng serve --dir`: make it a pool of its own")),
                None => Ok(()),
            };
        };
        let target = Target::parse(pass.arg())
            .ok_or_else(|| pass.left("a pool has a literal address: http://HOST:PORT"))?;
        match (target.uri, prefix) {
            (None, _) => {}
            (Some(uri), Some(path)) if uri.trim_end_matches('/') == path.trim_end_matches('/') => {}
            (Some("/"), Some("/")) => {}
            (Some("/"), Some(path)) if path.ends_with('/') => {
                table.text("strip_prefix", path.trim_end_matches('/'));
            }
            (Some(uri), None) if !uri.contains(['?', '$', '{', '}']) => table.text("rewrite", uri),
            _ => return Err(pass.left("write strip_prefix or rewrite for its path")),
        }
        let pool = self.pools.pool(&target, pass, level.connect.as_deref());
        table.text("pool", &pool);
        level.write(Some(target.host), &mut self.left, table);
        Ok(())
    }
}

/// Translates `return CODE [TEXT]` and `return URL`.
fn answer_with(answer: &Directive, table: &mut Table) -> Result<(), Left> {
    let no_counterpart = || answer.left("a variable has no counterpart");
    let (status, rest) = match &answer.args[..] {
        [url] if url.contains("://") => (302, Some(url)),
        [status] => (status.parse().unwrap_or(0), None),
        [status, rest] => (status.parse().unwrap_or(0), Some(rest)),
        _ => (0, None),
    };
    match (status, rest) {
        (301 | 302 | 303 | 307 | 308, Some(to)) => {
            table.text("redirect.to", &template(to).ok_or_else(no_counterpart)?);
            table.set("redirect.status", status.to_string());
        }
        (200..=299 | 400..=599, rest) => {
            let text = rest.map_or("", String::as_str);
            table.set("respond.status", status.to_string());
            table.text("respond.text", &template(text).ok_or_else(no_counterpart)?);
        }
        _ => return Err(answer.left("a route cannot answer so")),
    }
    Ok(())
}
