//! Whatever an engine sends and however it is cut: the tap reads it alike, lets nothing through
//! that did not come, and never panics.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::{StreamUsage, Tap, Usage};

fuzz_target!(|data: &[u8]| {
    let Some((first, stream)) = data.split_first() else {
        return;
    };
    let wants = if first & 1 == 0 {
        StreamUsage::Omitted
    } else {
        StreamUsage::Final
    };
    let step = usize::from(first >> 1) + 1;
    let (whole, said) = read(wants, stream, stream.len().max(1));
    let (cut, said_cut) = read(wants, stream, step);
    assert_eq!(said, said_cut);
    assert_eq!(whole, cut);
    // One that keeps the text reads every event whole, and so by another way.
    let mut tap = Tap::new(wants, 1 << 20).keeping(1 << 20);
    let mut out = Vec::new();
    tap.push(stream, &mut out);
    tap.finish();
    assert_eq!(tap.facts(), &said);
    let kept = tap.text().map(|text| text.len() as u64);
    assert!(kept.is_none_or(|bytes| bytes == said.text_bytes));
    if wants == StreamUsage::Omitted {
        assert_is_some_of(&whole, stream);
    }
});

fn read(wants: StreamUsage, stream: &[u8], step: usize) -> (Vec<u8>, tollgate_wire::Facts) {
    let mut tap = Tap::new(wants, 1 << 20);
    let mut out = Vec::new();
    for piece in stream.chunks(step) {
        tap.push(piece, &mut out);
    }
    tap.finish();
    let mut end = Vec::new();
    tap.write_end(Usage::default(), &mut end);
    (out, tap.facts().clone())
}

/// What goes on is what came, with parts left out.
fn assert_is_some_of(out: &[u8], stream: &[u8]) {
    let mut rest = stream.iter();
    assert!(out.iter().all(|byte| rest.any(|other| other == byte)));
}
