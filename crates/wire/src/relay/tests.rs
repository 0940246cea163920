//! Reading a request and editing it, by example and by law.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const BASE: &str = r#"{"model":"fast","messages":[{"role":"user","content":"hi"}]}"#;

fn read(body: &str) -> Result<Relay, BadRequest> {
    Relay::read(RelayKind::Chat, body.as_bytes())
}

fn edited(body: &str, edits: &Edits<'_>) -> String {
    let patches = read(body).unwrap().patches(edits);
    String::from_utf8(patched(body.as_bytes(), &patches)).unwrap()
}

/// The base with these members after it.
fn with(members: &str) -> String {
    format!("{},{members}}}", BASE.strip_suffix('}').unwrap())
}

fn most(tokens: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(tokens)
}

#[test]
fn only_the_name_of_the_model_is_another() {
    let body = with(
        r#""chat_template_kwargs":{"enable_thinking":false},"seed":12345678901234567890, "x" : 1.50"#,
    );
    let edits = Edits {
        model: Some("qwen-0.5b"),
        ..Edits::default()
    };
    assert_eq!(edited(&body, &edits), body.replace("fast", "qwen-0.5b"));
    assert_eq!(edited(&body, &Edits::default()), body);
}

#[test]
fn the_texts_of_a_prompt_are_handed_on_and_its_messages_counted() {
    let tools = r#"[{"type":"function","function":{"name":"f"}}]"#;
    let body = format!(
        r#"{{"model":"m","tools":{tools},"messages":[{{"role":"system","content":"be\n"}},
            {{"role":"user","content":[{{"type":"text","text":"hi"}}]}}]}}"#
    );
    let relay = read(&body).unwrap();
    let mut texts = Vec::new();
    relay.each_text(body.as_bytes(), &mut |text| texts.push(text.to_owned()));
    assert_eq!(texts, ["be\n", "hi", tools]);
    assert_eq!(relay.messages(body.as_bytes()), 2);
    let body = r#"{"model":"m","prompt":"one"}"#.as_bytes();
    let relay = Relay::read(RelayKind::Text, body).unwrap();
    relay.each_text(body, &mut |text| assert_eq!(text, "one"));
    assert_eq!(relay.messages(body), 1);
}

#[test]
fn usage_is_asked_for_in_whatever_way_the_stream_says_so_far() {
    let edits = Edits {
        include_usage: true,
        ..Edits::default()
    };
    for (options, expected) in [
        (r#"{"include_usage":true}"#, r#"{"include_usage":true}"#),
        (r#"{"include_usage": false}"#, r#"{"include_usage": true}"#),
        ("{}", r#"{"include_usage":true}"#),
        ("{ }", r#"{"include_usage":true }"#),
        ("null", r#"{"include_usage":true}"#),
        (
            r#"{"continuous_usage_stats":true}"#,
            r#"{"include_usage":true,"continuous_usage_stats":true}"#,
        ),
    ] {
        let body = with(&format!(r#""stream":true,"stream_options":{options}"#));
        let expected = with(&format!(r#""stream":true,"stream_options":{expected}"#));
        assert_eq!(edited(&body, &edits), expected, "{options}");
    }
    let body = with(r#""stream":true"#);
    let expected = body.replacen('{', r#"{"stream_options":{"include_usage":true},"#, 1);
    assert_eq!(edited(&body, &edits), expected);
    assert_eq!(edited(BASE, &edits), BASE, "no stream, no options");
}

#[test]
fn an_answer_is_capped_where_it_could_be_longer() {
    let edits = Edits {
        max_output: most(100),
        ..Edits::default()
    };
    let capped = |members: &str| edited(&with(members), &edits);
    assert_eq!(capped(r#""max_tokens":99"#), with(r#""max_tokens":99"#));
    assert_eq!(capped(r#""max_tokens":101"#), with(r#""max_tokens":100"#));
    assert_eq!(capped(r#""max_tokens":null"#), with(r#""max_tokens":100"#));
    assert_eq!(
        capped(r#""max_completion_tokens":101"#),
        with(r#""max_completion_tokens":100"#)
    );
    assert!(edited(BASE, &edits).starts_with(r#"{"max_tokens":100,"model""#));
}

#[test]
fn salt_and_priority_replace_what_the_caller_says() {
    let edits = Edits {
        cache_salt: Some("s\"1"),
        priority: Some(-3),
        ..Edits::default()
    };
    let body = with(r#""priority":9,"cache_salt":"mine""#);
    assert_eq!(
        edited(&body, &edits),
        with(r#""priority":-3,"cache_salt":"s\"1""#)
    );
    let added: Value = serde_json::from_str(&edited(BASE, &edits)).unwrap();
    assert_eq!(
        (&added["priority"], &added["cache_salt"]),
        (&json!(-3), &json!("s\"1"))
    );
}

#[test]
fn what_limits_need_is_read() {
    let body = with(r#""max_completion_tokens":7,"max_tokens":9,"n":2,"stream":true"#);
    let relay = read(&body).unwrap();
    assert_eq!((relay.max_output, relay.answers), (most(7), 2));
    assert!(relay.delivery.stream && !relay.delivery.include_usage);
    assert_eq!(relay.size.text_bytes, 2);
    let text = r#"{"model":"m","prompt":["ab","c"],"n":3}"#;
    let relay = Relay::read(RelayKind::Text, text.as_bytes()).unwrap();
    assert_eq!((relay.answers, relay.size.text_bytes), (6, 3));
    let ids = r#"{"model":"m","prompt":[1,2,3]}"#;
    let relay = Relay::read(RelayKind::Text, ids.as_bytes()).unwrap();
    assert_eq!((relay.answers, relay.size.tokens), (1, 3));
    let input = r#"{"model":"m","input":["ab","c"],"stream":true}"#;
    let relay = Relay::read(RelayKind::Embeddings, input.as_bytes()).unwrap();
    assert_eq!((relay.answers, relay.delivery.stream), (1, false));
}

#[test]
fn what_is_wrong_with_what_is_read_is_refused_by_name() {
    for (body, param) in [
        (with(r#""max_tokens":0"#), "max_tokens"),
        (with(r#""max_tokens":-1"#), "max_tokens"),
        (with(r#""max_tokens":1.5"#), "max_tokens"),
        (with(r#""n":129"#), "n"),
        (with(r#""stream":"yes""#), "stream"),
        (r#"{"model":"m","messages":"x"}"#.into(), "messages"),
        (r#"{"model":"m"}"#.into(), "messages"),
        (r#"{"messages":[]}"#.into(), "model"),
        (r#"{"model":"","messages":[]}"#.into(), "model"),
        (r#"{"model":7,"messages":[]}"#.into(), "model"),
        (r#"{"model":"a","model":"b","messages":[]}"#.into(), "model"),
        (
            r#"{"model":"a","mod\u0065l":"b","messages":[]}"#.into(),
            "model",
        ),
    ] {
        let refused = read(&body).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some(param), "{body}");
    }
}

#[test]
fn what_is_unknown_or_for_the_engine_to_judge_passes() {
    for members in [
        r#""store":true,"metadata":{"a":"b"},"service_tier":"auto","x_unknown":1"#,
        r#""temperature":9,"top_logprobs":50,"stream_options":{"include_usage":true}"#,
        r#""stream":true,"stream_options":7"#,
    ] {
        assert!(read(&with(members)).is_ok(), "{members}");
    }
}

/// Any JSON, up to a depth.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn an_edit_changes_what_it_says_and_nothing_else(
        others in prop::collection::btree_map("[a-z_]{1,8}", any_json(), 0..6),
        options in prop::option::of(any_json()),
        (asked, salt, priority) in (0_u32..200, any::<Option<String>>(), any::<Option<i64>>()),
        (pretty, usage, cap) in (any::<bool>(), any::<bool>(), prop::option::of(1_u32..200)),
    ) {
        let mut body: serde_json::Map<_, _> = others
            .into_iter()
            .filter(|(key, _)| !["n", "tools"].contains(&key.as_str()))
            .collect();
        body.insert("model".into(), "fast".into());
        body.insert("stream".into(), true.into());
        body.insert("messages".into(), json!([{"role": "user", "content": "hi"}]));
        body.insert("max_tokens".into(), if asked == 0 { Value::Null } else { asked.into() });
        body.remove("max_completion_tokens");
        if let Some(options) = options {
            body.insert("stream_options".into(), options);
        }
        let body = Value::Object(body);
        let text = if pretty {
            serde_json::to_string_pretty(&body).unwrap()
        } else {
            body.to_string()
        };
        let edits = Edits {
            model: Some("qwen"),
            include_usage: usage,
            max_output: cap.and_then(NonZeroU32::new),
            cache_salt: salt.as_deref(),
            priority,
        };
        let relay = read(&text).unwrap();
        let patches = relay.patches(&edits);
        let after: Value = serde_json::from_slice(&patched(text.as_bytes(), &patches)).unwrap();
        let mut expected = body;
        expected["model"] = "qwen".into();
        if let Some(salt) = salt {
            expected["cache_salt"] = salt.into();
        }
        if let Some(priority) = priority {
            expected["priority"] = priority.into();
        }
        if let Some(cap) = cap.filter(|cap| asked == 0 || asked > *cap) {
            expected["max_tokens"] = cap.into();
        }
        if usage {
            if !expected["stream_options"].is_object() {
                expected["stream_options"] = json!({});
            }
            expected["stream_options"]["include_usage"] = true.into();
        }
        prop_assert_eq!(after, expected);
        // Outside the patches it is the sender's own bytes.
        for pair in patches.windows(2) {
            prop_assert!(pair[0].at.end <= pair[1].at.start);
        }
    }

    #[test]
    fn bytes_of_any_kind_never_panic(body: Vec<u8>) {
        for kind in [RelayKind::Chat, RelayKind::Text, RelayKind::Embeddings] {
            let _ = Relay::read(kind, &body);
        }
    }
}
