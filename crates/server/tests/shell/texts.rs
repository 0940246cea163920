//! What the text of an answer is, and that it is the same whichever way it is sent.

use serde_json::{Value, json};

use crate::support::chat::{hi, say, stream, told, with};
use crate::support::rig::{FAST, Rig};
use crate::support::stream::Stream;

/// The text and the reason, which a stream and a whole answer must agree on.
async fn both(rig: &Rig, members: Value) -> (String, String) {
    let whole = told(&rig.send(&say(members.clone())).await);
    let streamed = Stream::begin(rig.address(), &stream(members)).await;
    let streamed = streamed.rest().await;
    streamed.assert_complete();
    assert_eq!((streamed.text, streamed.finish.unwrap()), whole);
    whole
}

#[tokio::test]
async fn a_seed_repeats_the_text_streamed_or_not() {
    let rig = Rig::start(FAST).await;
    let mut texts = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let (text, _) = both(&rig, json!({"seed": seed, "max_tokens": 200})).await;
        texts.insert(text);
    }
    assert!(texts.len() > 15, "seeds make a difference");
    let zero = both(&rig, json!({"temperature": 0, "max_tokens": 50})).await;
    assert_eq!(
        zero,
        both(&rig, json!({"temperature": 0, "max_tokens": 50})).await
    );
}

#[tokio::test]
async fn characters_of_every_length_come_out_whole() {
    let rig = Rig::start(FAST).await;
    let (text, _) = both(
        &rig,
        json!({"seed": 5, "ignore_eos": true, "max_tokens": 2000}),
    )
    .await;
    for word in ["你好", "🙂", "é"] {
        assert!(text.contains(word), "no {word} in {text}");
    }
    // Only the very last character can have been cut by the limit.
    let replaced = text.trim_end_matches('\u{fffd}');
    assert!(!replaced.contains('\u{fffd}'));
}

#[tokio::test]
async fn a_stop_string_cuts_the_text_where_it_begins() {
    let rig = Rig::start(FAST).await;
    let base = json!({"seed": 11, "ignore_eos": true, "max_tokens": 300});
    let (free, _) = both(&rig, base.clone()).await;
    let chars: Vec<char> = free.chars().collect();
    for (start, length) in [(0, 3), (7, 4), (20, 9), (33, 2), (50, 14)] {
        let stop: String = chars[start..start + length].iter().collect();
        let expected = &free[..free.find(&stop).unwrap()];
        for stops in [json!(stop), json!(["never there", stop])] {
            let members = with(base.clone(), json!({"stop": stops}));
            let (text, reason) = both(&rig, members).await;
            assert_eq!(
                (text.as_str(), reason.as_str()),
                (expected, "stop"),
                "{stop:?}"
            );
        }
    }
}

#[tokio::test]
async fn text_that_might_have_become_a_stop_string_is_not_lost() {
    let rig = Rig::start(FAST).await;
    let base = json!({"seed": 11, "ignore_eos": true, "max_tokens": 120});
    let (free, _) = both(&rig, base.clone()).await;
    let tail: String = free
        .trim_end_matches('\u{fffd}')
        .chars()
        .rev()
        .take(5)
        .collect();
    let tail: String = tail.chars().rev().collect();
    let members = with(
        base,
        json!({"stop": format!("{tail} and then something else")}),
    );
    let (text, reason) = both(&rig, members).await;
    assert_eq!((text, reason.as_str()), (free, "length"));
}

#[tokio::test]
async fn the_limit_that_was_asked_for_is_exact() {
    let rig = Rig::start(FAST).await;
    for name in ["max_tokens", "max_completion_tokens"] {
        for most in [1, 2, 33] {
            let members = json!({"ignore_eos": true, name: most});
            let answer = rig.send(&say(members)).await;
            assert_eq!(told(&answer).1, "length");
            assert_eq!(answer.json()["usage"]["completion_tokens"], most);
        }
    }
}

#[tokio::test]
async fn an_answer_ends_with_length_where_the_context_is_full() {
    let small = FAST.replace(
        "prefill_tokens",
        "context: 64, kv_tokens: 1024, prefill_tokens",
    );
    let rig = Rig::start(&small).await;
    let asked = [
        json!({}),
        json!({"max_tokens": 100_000}),
        json!({"max_tokens": null}),
    ];
    for members in asked {
        let answer = rig
            .send(&say(with(members, json!({"ignore_eos": true}))))
            .await;
        assert_eq!(told(&answer).1, "length");
        assert_eq!(answer.json()["usage"]["total_tokens"], 64);
    }
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn what_others_ask_changes_nobodys_text() {
    let rig = Rig::start(FAST).await;
    let ask = |n: u64| {
        let messages = json!([{"role": "user", "content": format!("number {n}")}]);
        with(
            hi(),
            json!({"messages": messages, "seed": n, "max_tokens": 150, "stream": true}),
        )
    };
    let mut alone = Vec::new();
    for n in 0..8 {
        let request = crate::support::chat::chat(&ask(n));
        alone.push(
            Stream::begin(rig.address(), &request)
                .await
                .rest()
                .await
                .text,
        );
    }
    let mut together = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (address, request) = (rig.address(), crate::support::chat::chat(&ask(n)));
        together.spawn(async move {
            let told = Stream::begin(address, &request).await.rest().await;
            (usize::try_from(n).unwrap(), told.text)
        });
    }
    for (n, text) in together.join_all().await {
        assert_eq!(text, alone[n]);
    }
}
