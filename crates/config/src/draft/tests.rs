//! Tests of lists of tables.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::{Defaults, Key, Kind, Rate, Records, Sources, Table};

const WORD: Kind = Kind::Word(&["tcp", "http"]);

static ROUTES: Records = Records {
    alias: Some("route"),
    fields: &[
        Key::new("path", Kind::List(&Kind::Text("a path")), "", "a path"),
        Key::new("header", Kind::Map(&Kind::Text("a value")), "", "headers"),
        Key::new("pick", WORD, "", "as of the pool"),
        Key::new("rate", Kind::Rate, "5/s", "a rate"),
    ],
    is_first_required: false,
    parse: None,
    example: "a route such as { path = \"/ws\" }",
    defaults: Defaults::new(),
};

static POOLS: Records = Records {
    alias: Some("pool"),
    fields: &[
        Key::new("name", Kind::Text("a name such as \"chat\""), "", "its name"),
        Key::new("check.kind", WORD, "", "the kind"),
        Key::new("check.interval", Kind::POSITIVE_DURATION, "2s", "the interval"),
        Key::new("tls.name", Kind::Text("a name"), "", "a name"),
        Key::new("routes", Kind::Records(&ROUTES), "", "the routes"),
        Key::new("file", Kind::Path, "", "a file"),
    ],
    is_first_required: true,
    parse: None,
    example: "a pool such as { name = \"chat\" }",
    defaults: Defaults::new(),
};

static TABLE: Table = Table {
    program: "balance",
    keys: &[
        Key::new("pools", Kind::Records(&POOLS), "", "the pools"),
        Key::new("check.kind", WORD, "", "the kind"),
        Key::new("check.interval", Kind::POSITIVE_DURATION, "7s", "the interval"),
        Key::new("rate", Kind::Rate, "600/m", "a rate"),
    ],
};

fn draft(text: &str) -> Draft {
    let mut sources = Sources::new(&TABLE);
    sources.file("dir/t.toml", text);
    sources.finish()
}

fn errors(text: &str) -> String {
    draft(text).finish().unwrap_err().to_string()
}

#[test]
fn headers_inline_tables_and_dotted_keys_are_alike() {
    let headers = "[[pool]]\nname = \"a\"\n[pool.check]\nkind = \"http\"\ninterval = \"1s\"\n\
                   [[pool.route]]\npath = \"/ws\"\nheader = { X-Beta = \"v2*\" }\n\
                   [[pool.route]]\nrate = \"10/m\"\n[[pool]]\nname = \"b\"\n";
    let inline = "pools = [{ name = \"a\", check = { kind = \"http\", interval = \"1s\" }, \
                  routes = [{ path = [\"/ws\"], header.X-Beta = \"v2*\" }, { rate = \"10/m\" }] }, \
                  { name = \"b\" }]\n";
    let dotted = "[[pools]]\nname = \"a\"\ncheck.kind = \"http\"\ncheck.interval = \"1s\"\n\
                  [[pools.routes]]\npath = \"/ws\"\n[pools.routes.header]\nX-Beta = \"v2*\"\n\
                  [[pools.routes]]\nrate = \"10/m\"\n[[pools]]\nname = \"b\"\n";
    for text in [headers, inline, dotted] {
        let draft = draft(text);
        let pools = draft.records("pools");
        let names: Vec<String> = pools.iter().map(|pool| pool.get("name")).collect();
        assert_eq!(names, ["a", "b"], "{text}");
        assert_eq!(pools[0].get::<String>("check.kind"), "http");
        assert_eq!(pools[0].get::<Duration>("check.interval"), Duration::from_secs(1));
        assert_eq!(pools[1].get::<Duration>("check.interval"), Duration::from_secs(2));
        let routes = pools[0].records("routes");
        assert_eq!(routes[0].get::<Vec<String>>("path"), ["/ws"]);
        let header: BTreeMap<String, String> = routes[0].get("header");
        assert_eq!(header, BTreeMap::from([("X-Beta".to_owned(), "v2*".to_owned())]));
        assert!(routes[1].get::<BTreeMap<String, String>>("header").is_empty());
        let rates: Vec<u32> = routes.iter().map(|r| r.get::<Rate>("rate").events).collect();
        assert_eq!(rates, [5, 10]);
        assert!(pools[1].records("routes").is_empty());
        draft.finish().unwrap();
    }
}

#[test]
fn shown_tables_can_be_read_again() {
    let text = "pools = [{ name = \"a\", check.kind = \"http\", tls = {}, routes = \
                [{ path = [\"/a\", \"/b\"], header = { X-Beta = \"\", \"a.b\" = \"1\" }, \
                rate = \"1k/h\" }] }]\n";
    let first = draft(text).finish().unwrap();
    let shown = format!("pools = {}\n", first.entry("pools").unwrap().to_toml());
    let second = draft(&shown).finish().unwrap();
    assert_eq!(second.entry("pools").unwrap().to_toml(), shown[8..].trim_end());
    assert!(shown.contains("tls = {") && shown.contains("\"a.b\" = \"1\""), "{shown}");
    assert!(!shown.contains("interval"), "{shown}");
}

#[test]
fn fields_that_are_not_written_share_their_values() {
    let draft = draft("pools = [{ name = \"a\" }, { name = \"b\", check.kind = \"tcp\" }]\n");
    let pools = draft.records("pools");
    let number = |pool: &Record<'_>| pool.fields().unwrap().written().count();
    assert_eq!((number(&pools[0]), number(&pools[1])), (1, 2));
    let default = |pool: &Record<'_>| std::ptr::from_ref(pool.find("check.interval").unwrap());
    assert_eq!(default(&pools[0]), default(&pools[1]));
}

#[test]
fn fields_come_from_the_level_above() {
    let draft = draft(
        "pools = [{ name = \"a\" }, { name = \"b\", check.interval = \"1s\" }]\n\
         [check]\nkind = \"tcp\"\n",
    );
    let top = draft.top();
    let pools: Vec<_> = draft.records("pools").into_iter().map(|p| p.within(&top)).collect();
    let interval = |pool: &Record<'_>| pool.get::<Duration>("check.interval").as_secs();
    assert_eq!((interval(&pools[0]), interval(&pools[1])), (7, 1));
    assert_eq!(pools[1].get::<String>("check.kind"), "tcp");
    assert!(pools[0].has_section("check") && !pools[0].is_set("check.kind"));
    assert!(!draft.records("pools")[0].has_section("check"));
    assert_eq!(pools[0].get::<String>("tls.name"), "");
}

#[test]
fn an_empty_table_in_a_table_is_there() {
    let draft = draft("pools = [{ name = \"a\", tls = {} }, { name = \"b\" }]\n");
    let pools = draft.records("pools");
    assert!(pools[0].has_section("tls") && !pools[1].has_section("tls"));
    assert_eq!(pools[0].get::<String>("tls.name"), "");
}

#[test]
fn paths_are_relative_to_the_file() {
    let draft = draft("pools = [{ name = \"a\", file = \"x.pem\" }]\n");
    assert_eq!(draft.records("pools")[0].path("file"), Some("dir/x.pem".into()));
}

#[test]
fn mistakes_in_tables_name_their_place() {
    for (text, what) in [
        ("[[pool]]\ncheck.kind = \"tcp\"\n", ":1:1: pools[0] is [[pool]]: its name is missing"),
        ("[[pool]]\nname = \"a\"\ncheck.knd = 1\n", ":3:7: pools[0].check.knd is an unknown key"),
        ("[[pool]]\nname = \"a\"\ncheck = 1\n", "write check = { kind = \"tcp\" }"),
        ("pools = [{ name = \"a\", check.kind = \"udp\" }]\n", "write \"tcp\" or \"http\""),
        ("pools = [\"a\"]\n", "write a pool such as { name = \"chat\" }"),
        ("[[pool]]\nname = \"a\"\n[[pools]]\nname = \"b\"\n", "write one of the two"),
        (
            "[[pool]]\nname = \"a\"\n[[pool.route]]\n[[pool.routes]]\n",
            "routes is there, too: write one of the two",
        ),
        (
            "[[pool]]\nname = \"a\"\n[[pool.route]]\nheader = \"x\"\n",
            "pools[0].routes[0].header is \"x\": write a table such as { NAME = ",
        ),
        (
            "[[pool]]\nname = \"a\"\nroutes = [{ header = { X = [1] } }]\n",
            ":3:28: pools[0].routes[0].header.X is [1]",
        ),
        ("[[pool]]\nname = \"a\"\nroutes = [{ rate = \"5/d\" }]\n", "a rate such as \"5/s\""),
        ("[[pool]]\nname = \"a\"\nroutes = [{ rats = 1 }]\n", "did you mean rate?"),
    ] {
        let errors = errors(text);
        assert!(errors.contains(what) && !errors.contains('\n'), "{text}: {errors}");
    }
}

#[test]
fn errors_of_programs_have_the_nearest_place() {
    let draft = draft(
        "[[pool]]\nname = \"a\"\n\n[pool.check]\nkind = \"tcp\"\n[[pool.route]]\npath = \"/\"\n",
    );
    let pool = draft.records("pools")[0];
    pool.wrong_field("check", "w1");
    pool.records("routes")[0].wrong_field("path", "w2");
    pool.wrong_field("tls.name", "w3");
    let errors = draft.finish().unwrap_err().to_string();
    for what in
        [":5:8: pools[0].check is", ":7:8: pools[0].routes[0].path is", ":1:1: pools[0].tls"]
    {
        assert!(errors.contains(what), "{errors}");
    }
}
