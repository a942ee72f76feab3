use serde_json::{Value as Json, json};
use throng_config::Table;

use super::*;

#[test]
fn the_schema_has_every_key_in_its_section() {
    let tables = [
        &serve::TABLE,
        #[cfg(feature = "balance")]
        Config::table(),
    ];
    for table in tables {
        let schema = schema::of(table);
        for key in table.keys {
            let path = format!("/properties/{}", key.name.replace('.', "/properties/"));
            let property = schema.pointer(&path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(property["description"], key.meaning());
        }
        assert_eq!(schema["additionalProperties"], false);
    }
    let schema = schema::of(&serve::TABLE);
    assert!(schema.pointer("/properties/heartbeat/properties/interval").is_some());
}

/// The values of these words after `throng config show`.
fn shown(words: &[&str]) -> Values {
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        of: ProgramArgs,
    }
    let line = Line::try_parse_from(std::iter::once("show").chain(words.iter().copied()));
    let program = line.unwrap().of.program().map_err(|failure| failure.message).unwrap();
    values(&program).map_err(|failure| failure.message).unwrap()
}

#[test]
fn shown_settings_can_be_read_back() {
    let programs = [
        (&serve::TABLE, &["--set", "max_connections=10k", "--channel", "a=latest"][..]),
        #[cfg(feature = "balance")]
        (Config::table(), &["balance", "--backend", "127.0.0.1:1,weight=2", "--sticky", "ip"]),
    ];
    for (table, words) in programs {
        let values = shown(words);
        let lines = values.iter().filter(|(_, entry)| entry.origin().is_set());
        let text: String =
            lines.map(|(key, entry)| format!("{} = {}\n", key.name, entry.to_toml())).collect();
        let mut sources = throng_config::Sources::new(table);
        sources.file("shown.toml", &text);
        let again = sources.finish().finish().unwrap();
        for ((key, before), (_, after)) in values.iter().zip(again.iter()) {
            assert_eq!(before.to_toml(), after.to_toml(), "{}", key.name);
        }
    }
}

#[cfg(feature = "balance")]
#[test]
fn json_has_types_and_hides_secrets() {
    let values = shown(&["balance", "--set", "cookie_secret=0123456789abcdef", "--shards", "2"]);
    let json = as_json(&values);
    let of = |key: &str| {
        let settings = json["settings"].as_array().unwrap();
        settings.iter().find(|setting| setting["key"] == key).unwrap().clone()
    };
    assert_eq!(
        (&of("shards")["value"], &of("shards")["origin"]),
        (&json!(2), &json!("flag --shards"))
    );
    assert_eq!(of("cookie_secret")["value"], "(secret)");
    assert_eq!(of("listen")["value"], json!(["127.0.0.1:8080"]));
    assert_eq!(of("admin.listen")["value"], Json::Null);
    assert!(!json.to_string().contains("0123456789abcdef"));
    assert!(shown(&["balance"]).iter().count() > 50, "without backends, too");
}

#[test]
fn the_schema_of_tables_in_tables_has_their_fields() {
    use throng_config::{Defaults, Key, Kind, Records};

    static INNER: Records = Records {
        alias: Some("inner"),
        fields: &[
            Key::new("limits.rate", Kind::Rate, "5/s", "a rate"),
            Key::new("header", Kind::Map(&Kind::COUNT), "", "counts"),
        ],
        is_first_required: false,
        parse: None,
        example: "a table",
        defaults: Defaults::new(),
    };
    static OUTER: Records = Records {
        alias: None,
        fields: &[Key::new("inners", Kind::Records(&INNER), "", "tables")],
        is_first_required: true,
        parse: None,
        example: "a table",
        defaults: Defaults::new(),
    };
    static KEYS: [Key; 1] = [Key::new("outers", Kind::Records(&OUTER), "", "tables")];
    let schema = schema::of(&Table { program: "serve", keys: &KEYS });
    let outer = &schema["properties"]["outers"]["items"];
    assert_eq!(outer["required"], json!(["inners"]));
    for name in ["inner", "inners"] {
        let inner = &outer["properties"][name]["items"];
        assert_eq!(inner["required"], Json::Null);
        assert_eq!(inner["additionalProperties"], false);
        let rate = &inner["properties"]["limits"]["properties"]["rate"];
        assert_eq!((&rate["type"], &rate["default"]), (&json!("string"), &json!("5/s")));
        let count = &inner["properties"]["header"]["additionalProperties"];
        assert_eq!(count["anyOf"][0]["type"], "integer");
    }
}
