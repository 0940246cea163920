//! Embeddings: the forms of input and of numbers, usage, and what is refused.

use serde_json::{Value, json};

use crate::support::chat::{chat, hi};
use crate::support::http::{Answer, Request};
use crate::support::rig::Rig;
use crate::support::wait::secs;

const VECTORS: &str = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    context: 128
    fake: { step: 0us, per_sequence: 0us, prefill_tokens_per_second: 1000000000, vector: 8 }
";

async fn embed(rig: &Rig, input: Value, members: Value) -> Answer {
    let mut body = json!({"model": "m", "input": input});
    let members = members.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    rig.send(&Request::post("/v1/embeddings", body.to_string()))
        .await
}

fn vector(answer: &Value, place: usize) -> Vec<f64> {
    let numbers = answer["data"][place]["embedding"].as_array().unwrap();
    numbers
        .iter()
        .map(|number| number.as_f64().unwrap())
        .collect()
}

#[tokio::test]
async fn each_input_has_its_vector_in_its_place_and_usage_is_their_sum() {
    let rig = Rig::start(VECTORS).await;
    let all = embed(&rig, json!(["a", "bc", "a"]), json!({})).await;
    assert_eq!(all.status(), 200, "{}", all.text());
    let all = all.json();
    assert_eq!(
        (&all["object"], &all["model"]),
        (&json!("list"), &json!("m"))
    );
    assert_eq!(all["usage"], json!({"prompt_tokens": 4, "total_tokens": 4}));
    for (place, text) in ["a", "bc", "a"].into_iter().enumerate() {
        assert_eq!(all["data"][place]["index"], place);
        assert_eq!(all["data"][place]["object"], "embedding");
        let alone = embed(&rig, json!(text), json!({})).await.json();
        assert_eq!(vector(&alone, 0), vector(&all, place));
        let length: f64 = vector(&all, place).iter().map(|one| one * one).sum();
        assert!((length - 1.0).abs() < 1e-5);
    }
    assert_ne!(vector(&all, 0), vector(&all, 1));
    // Token ids say the same as the text that they are of.
    let ids = embed(&rig, json!([[97], [98, 99]]), json!({})).await.json();
    assert_eq!(vector(&ids, 1), vector(&all, 1));
    let one = embed(&rig, json!([98, 99]), json!({})).await.json();
    assert_eq!(vector(&one, 0), vector(&all, 1));
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn three_hundred_inputs_of_all_lengths_are_those_of_each_alone() {
    let rig = Rig::start(VECTORS).await;
    let text = |n: usize| "toll ".repeat(1 + n % 20);
    let inputs: Vec<_> = (0..300).map(text).collect();
    let all = embed(&rig, json!(inputs), json!({})).await.json();
    assert_eq!(all["data"].as_array().unwrap().len(), 300);
    for place in [0, 7, 19, 150, 299] {
        let alone = embed(&rig, json!(text(place)), json!({})).await.json();
        assert_eq!(vector(&alone, 0), vector(&all, place));
    }
}

#[tokio::test]
async fn base64_is_the_same_numbers() {
    let rig = Rig::start(VECTORS).await;
    let packed = embed(&rig, json!("a"), json!({"encoding_format": "base64"}))
        .await
        .json();
    let text = packed["data"][0]["embedding"].as_str().unwrap();
    // Eight numbers of four bytes.
    assert_eq!((text.len(), text.ends_with('=')), (44, true));
    let numbers: Vec<f64> = unpacked(text)
        .chunks(4)
        .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())))
        .collect();
    for members in [json!({"encoding_format": "float"}), json!({})] {
        let again = embed(&rig, json!("a"), members).await.json();
        let vector = vector(&again, 0);
        assert_eq!(vector.len(), numbers.len());
        let same = vector
            .iter()
            .zip(&numbers)
            .all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(same, "{vector:?} {numbers:?}");
    }
}

/// The bytes that base64 says (RFC 4648, section 4).
fn unpacked(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let place = |byte| ALPHABET.iter().position(|one| one == byte).unwrap();
        let bits = four.iter().fold(0, |bits, byte| (bits << 6) | place(byte));
        let whole = (bits << (6 * (4 - four.len()))).to_be_bytes();
        bytes.extend(&whole[whole.len() - 3..][..four.len() - 1]);
    }
    bytes
}

#[tokio::test]
async fn what_cannot_be_embedded_is_refused_by_name() {
    let rig = Rig::start(VECTORS).await;
    for (input, members, param) in [
        (json!(""), json!({}), "input"),
        (json!([]), json!({}), "input"),
        (json!(["a", ""]), json!({}), "input.1"),
        (json!([999]), json!({}), "input"),
        (json!("a"), json!({"dimensions": 4}), "dimensions"),
        (
            json!("a"),
            json!({"encoding_format": "int8"}),
            "encoding_format",
        ),
    ] {
        let answer = embed(&rig, input, members).await;
        assert_eq!(answer.status(), 400, "{}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param);
    }
    assert_eq!(
        embed(&rig, json!("a"), json!({"dimensions": 8}))
            .await
            .status(),
        200
    );
    let long = embed(&rig, json!(["a", "x".repeat(200)]), json!({})).await;
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
    let text = rig.send(&chat(&hi())).await;
    assert_eq!(text.json()["error"]["param"], "model");
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn what_was_embedded_is_what_is_charged() {
    let rig = Rig::start(VECTORS).await;
    embed(&rig, json!(["abc", "de"]), json!({})).await;
    let row = rig.ledger_first().await;
    assert_eq!(row["prompt_tokens"], 5, "{row}");
    assert_eq!(row["output_tokens"].as_u64(), Some(0), "{row}");
}
