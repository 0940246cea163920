//! Whatever a client sends: reading it never panics, and an edit changes what it says and no other
//! byte.

#![no_main]

use std::num::NonZeroU32;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tollgate_wire::{Edits, Relay, RelayKind, patched};

fuzz_target!(|body: &[u8]| {
    for kind in [RelayKind::Chat, RelayKind::Text, RelayKind::Embeddings] {
        if let Ok(relay) = Relay::read(kind, body) {
            check(kind, &relay, body);
        }
    }
});

fn check(kind: RelayKind, relay: &Relay, body: &[u8]) {
    assert_eq!(patched(body, &relay.patches(&Edits::default())), body);
    // What is counted as tokens is what is measured in bytes.
    let mut bytes = 0;
    relay.each_text(body, &mut |text| bytes += text.len() as u64);
    assert_eq!(bytes, relay.size.text_bytes);
    assert!(relay.messages(body) <= body.len() as u64 + 1);
    let edits = Edits {
        model: Some("qwen"),
        include_usage: true,
        max_output: NonZeroU32::new(7),
        cache_salt: Some("salt"),
        priority: Some(-1),
    };
    let patches = relay.patches(&edits);
    let after = patched(body, &patches);
    // Outside its patches, the body is the client's own.
    let (mut before, mut behind) = (0, 0);
    for patch in &patches {
        let kept = patch.at.start - before;
        assert_eq!(body[before..patch.at.start], after[behind..behind + kept]);
        behind += kept + patch.with.len();
        before = patch.at.end;
    }
    assert_eq!(body[before..], after[behind..]);
    // A body that its engine can read is still one, and says what it is to say.
    let again = Relay::read(kind, &after).expect("an edited body is a body");
    assert_eq!(again.model, "qwen");
    assert!(again.max_output.is_some_and(|most| most.get() <= 7));
    assert_eq!(again.delivery.include_usage, again.delivery.stream);
    if let Ok(value) = serde_json::from_slice::<Value>(&after) {
        assert_eq!((&value["cache_salt"], &value["priority"]), (&"salt".into(), &(-1).into()));
    }
}
