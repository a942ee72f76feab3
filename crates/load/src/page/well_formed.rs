//! A check of pages for tests, here and in `dev/lab`.

/// Panics unless `text` is well-formed with respect to tags, quotes of attributes and `&`.
pub fn assert_well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        assert_entities(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.find('>').expect("a tag that ends");
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        assert!(!tag.contains('<'), "<{tag}>");
        assert_entities(tag);
        if tag.starts_with('!') || tag.starts_with('?') {
            continue;
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("a name"));
        }
    }
    assert_entities(rest);
    assert!(open.is_empty(), "left open: {open:?}");
}

fn assert_entities(text: &str) {
    for (at, _) in text.match_indices('&') {
        let entity = text[at..].split_inclusive(';').next().unwrap_or_default();
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&apos;"].contains(&entity);
        assert!(known || entity.starts_with("&#"), "{entity:?}");
    }
}
